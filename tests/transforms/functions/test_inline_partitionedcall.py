"""Tests of inline_partitionedcall."""

import numpy as np
import pytest
from function_graphs import FLOAT, argument, call, find_effects, graphs
from hypothesis import given
from rewritten_graphs import check_exact_transform, check_linear_work, compute_outputs, placeholder

from quantkit.errors import GraphError
from quantkit.formats import graphdef
from quantkit.ir.functions import Function, Library
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType
from quantkit.ir.text import from_text
from quantkit.limits import limits
from quantkit.transforms.functions.inline_partitionedcall import inline_partitionedcall


@given(graphs())
def test_outputs_stay_and_calls_are_replaced(graph: Graph) -> None:
    check_exact_transform(inline_partitionedcall, graph)
    assert "PartitionedCall" not in inline_partitionedcall(graph).op_counts


def test_side_effects_run_for_every_use_of_call() -> None:
    graph = from_text("""
        inputs: x
        outputs: data, wait, out, pair
        x = Placeholder[2]()
        first = CheckNumerics(x, message=first)
        call = StatefulPartitionedCall(x, ^first, Tin=[float], Tout=[float, float], f=&checked)
        data = Neg(call:1)
        wait = Neg(x, ^call)
        out = StatefulPartitionedCall(x, ^first, Tin=[float], Tout=[], f=&nothing)
        pair = StatefulPartitionedCall(x, ^first, Tin=[float], Tout=[float, float], f=&checked)
        function checked(one = one, same = a, ^done = check)
        a = _Arg(T=float, index=0)
        one = Const(1.0)
        check = CheckNumerics(a, message=inside)
        end
        function nothing(^done = check)
        a = _Arg(T=float, index=0)
        check = CheckNumerics(a, message=inside)
        end
    """)
    after = inline_partitionedcall(graph)
    assert find_effects(after, "data") == find_effects(after, "wait") == {"first", "call/check"}
    assert find_effects(after, "out") == {"first", "out/check"}
    assert find_effects(after, "pair") == {"first", "pair/check"}
    assert (after["out"].op, after["pair"].op) == ("NoOp", "IdentityN")


def test_constant_downstream_of_switch_depends_on_inputs_of_call() -> None:
    graph = from_text("""
        inputs: x, p
        outputs: y
        x = Placeholder[2]()
        p = Placeholder[bool <>]()
        switch = Switch(x, p)
        call = PartitionedCall(switch, Tin=[float], Tout=[float], f=&one)
        y = Merge(call, switch:1, N=2)
        function one(one = one)
        a = _Arg(T=float, index=0)
        one = Const(1.0)
        end
    """)
    after = inline_partitionedcall(graph)
    assert after["y"].inputs[0] == Edge("call/one")
    assert after["call/one"].controls == ("switch",), "without it the constant would be live in both branches"


def test_frame_names_are_unique_and_colocations_are_renamed() -> None:
    graph = from_text("""
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = PartitionedCall(x, Tin=[float], Tout=[float], f=&loop) @"/gpu:0"
        function loop(out = exit)
        a = _Arg(T=float, index=0)
        enter = Enter(a, frame_name=while)
        exit = Exit(enter, _class=["loc:@enter"]) @"/cpu:0"
        end
    """)
    after = inline_partitionedcall(graph)
    assert after["y/enter"].attrs["frame_name"] == b"y/while"
    assert after["y/exit"].attrs["_class"] == (b"loc:@y/enter",)
    assert (after["y/enter"].device, after["y/exit"].device) == ("/gpu:0", "/cpu:0")


def test_recursive_and_generic_functions_are_skipped() -> None:
    message = graphdef.message_class("FunctionDefLibrary")()
    function = message.function.add()
    function.signature.name = "generic"
    function.signature.attr.add(name="T", type="type")
    generic = graphdef.decode(b"\x12" + bytes([message.ByteSize()]) + message.SerializeToString()).library
    even = Function("even", Graph.of([argument("a", 0), call("n", "odd", "a")], ["a"], ["n"]), {"r": DType.FLOAT})
    odd = Function("odd", Graph.of([argument("a", 0), call("n", "even", "a")], ["a"], ["n"]), {"r": DType.FLOAT})
    nodes = [placeholder((2,)), call("y", "even", "x"), call("z", "generic", "x")]
    outcome = inline_partitionedcall.outcome(Graph.of(nodes, ["x"], ["y", "z"], library=generic.with_(even, odd)))
    assert not outcome.changes
    assert [(skip.node, skip.reason.partition(",")[0]) for skip in outcome.skips] == [
        ("y", "function 'even' is recursive"),
        ("z", "function 'generic' is generic and the call has no attribute T"),
    ]


def test_too_many_nodes_are_rejected() -> None:
    library = [Function("f0", Graph.of([argument("a", 0), Node("n", "Neg", (Edge("a"),))], ["a"], ["n"]), {"r": None})]
    for number in range(1, 20):
        nodes = [argument("a", 0), call("p", f"f{number - 1}", "a"), call("q", f"f{number - 1}", "p")]
        library.append(Function(f"f{number}", Graph.of(nodes, ["a"], ["q"]), {"r": None}))
    functions = Library({function.name: function for function in library})
    graph = Graph.of([placeholder((2,)), call("y", "f19", "x")], ["x"], ["y"], library=functions)
    with limits(max_nodes=1000), pytest.raises(GraphError, match="more than 1,000 nodes after its function calls"):
        inline_partitionedcall(graph)


def test_tensorflow_outputs_stay() -> None:
    tf = pytest.importorskip("tensorflow")

    @tf.function
    def inner(values, scale):  # type: ignore[no-untyped-def]
        top, indexes = tf.math.top_k(values, 3)
        return top * scale, tf.cast(indexes, tf.float32)

    @tf.function(input_signature=[tf.TensorSpec([2, 6], tf.float32)])
    def outer(x):  # type: ignore[no-untyped-def]
        first, second = inner(x, 2.0)
        with tf.control_dependencies([tf.debugging.assert_all_finite(x, "bad")]):
            third, _ = inner(tf.nn.relu(x), second[0, 0])
        return first + third

    concrete = outer.get_concrete_function()
    graph = graphdef.decode(concrete.graph.as_graph_def().SerializeToString())
    graph = graph.with_endpoints([concrete.inputs[0].name], [concrete.outputs[0].name])
    after = inline_partitionedcall(graph)
    assert not any(op.endswith("PartitionedCall") for op in after.op_counts)
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)

    def run(version: Graph) -> Array:
        graph_def = tf.compat.v1.GraphDef.FromString(graphdef.encode(version))
        with tf.Graph().as_default() as target:
            tf.import_graph_def(graph_def, name="")
            with tf.compat.v1.Session(graph=target) as session:
                return np.asarray(session.run(f"{version.outputs[0].node}:0", {f"{version.inputs[0].node}:0": x}))

    np.testing.assert_array_equal(run(after), run(graph))
    np.testing.assert_array_equal(run(after), outer(x))


def test_output_of_single_call_stays() -> None:
    body = Graph.of([argument("a", 0), Node("n", "Neg", (Edge("a"),), attrs=FLOAT)], ["a"], ["n"])
    library = Library({"neg": Function("neg", body, {"r": DType.FLOAT})})
    graph = Graph.of([placeholder((2,)), call("y", "neg", "x")], ["x"], ["y"], library=library)
    np.testing.assert_array_equal(compute_outputs(inline_partitionedcall(graph))["y"], compute_outputs(graph)["y"])


def test_transform_runs_in_linear_time() -> None:
    def chain(length: int) -> Graph:
        body = Graph.of([argument("a", 0), Node("n", "Neg", (Edge("a"),), attrs=FLOAT)], ["a"], ["n"])
        nodes = [placeholder((2,))]
        for number in range(length):
            nodes.append(call(f"c{number}", "neg", nodes[-1].name))
        library = Library({"neg": Function("neg", body, {"r": DType.FLOAT}, {"done": "n"})})
        return Graph.of(nodes, ["x"], [nodes[-1].name], library=library)

    assert len(inline_partitionedcall(chain(3))) == 5
    check_linear_work(inline_partitionedcall, chain)
