"""Tests of remove_dead_branches: live nodes, their values and their order stay."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from branching import Run
from hypothesis import given
from hypothesis import strategies as st
from work import check_work_is_linear

from quantkit.errors import RecipeError
from quantkit.formats import graphdef
from quantkit.ir.check import verify
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text, to_text
from quantkit.recipes import rewrite
from quantkit.runtimes import open_session
from quantkit.transforms.cleanup.remove_dead_branches import remove_dead_branches

X = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(())})
P = Node("p", "Placeholder", attrs={"dtype": DType.BOOL, "shape": Shape(())})


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Generate graphs of Switch and Merge nodes, most of them with constant predicates."""
    nodes = [X, P, constant("yes", np.True_), constant("no", np.False_)]
    numbers, truths = [Edge("x")], [Edge("p"), Edge("yes"), Edge("no"), Edge("yes"), Edge("no")]
    for number in range(draw(st.integers(3, 25))):
        kind = draw(st.sampled_from(["Neg", "Add", "Effect", "Switch", "Switch", "Merge", "Merge", "Not", "Pivot"]))
        name = f"n{number}"
        sources = truths if kind in ("Not", "Pivot") else numbers
        inputs = [draw(st.sampled_from(sources)) for _ in range(2 if kind in ("Add", "Merge") else 1)]
        if kind in ("Switch", "Pivot"):
            inputs.append(draw(st.sampled_from(truths)))
        controls = (draw(st.sampled_from(nodes)).name,) if draw(st.integers(0, 3)) == 0 else ()
        op = {"Not": "LogicalNot", "Pivot": "Switch"}.get(kind, kind)
        attrs: dict[str, Attr] = {"T": DType.BOOL if kind == "Pivot" else DType.FLOAT}
        nodes.append(Node(name, op, tuple(inputs), controls, {} if kind == "Not" else attrs))
        ports = (0, 1) if op == "Switch" else (0,)
        sources.extend(Edge(name, port) for port in ports)
        if kind == "Pivot":
            nodes.extend(Node(f"{name}/{port}", "Identity", (Edge(name, port),), attrs=attrs) for port in ports)
            truths.extend(Edge(f"{name}/{port}") for port in ports)
    outputs = draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=3, unique=True))
    return Graph.of(nodes, ["x", "p"], outputs)


@given(graphs())
def test_live_outputs_and_their_side_effects_stay(graph: Graph) -> None:
    copy = Graph.of(graph.nodes.values(), graph.inputs, graph.outputs)
    after = remove_dead_branches(graph)
    verify(after)
    assert graph == copy
    assert after.outputs == graph.outputs
    for truth in (True, False):
        feeds = {"x": np.float32(3), "p": np.bool_(truth)}
        before_run, after_run = Run(graph, feeds), Run(after, feeds)
        for edge in graph.outputs:
            assert before_run.output(edge) == after_run.output(edge)
            if before_run.output(edge) is not None:
                assert before_run.effects_before(edge) == after_run.effects_before(edge)


@given(graphs())
def test_transform_is_idempotent_and_deterministic(graph: Graph) -> None:
    once = remove_dead_branches(graph)
    outcome = remove_dead_branches.outcome(once)
    assert (outcome.graph, outcome.changes) == (once, ())
    assert remove_dead_branches(graph) == once


TRAINED = """inputs: x, train
outputs: y
x = Placeholder[2]()
train = Placeholder[bool]()
id = Identity(train)
s = Switch(id, id)
t = Identity(s:1)
half = Const(0.5, ^t)
xs = Switch(x, id)
drop = Mul(xs:1, half)
same = Identity(xs:0)
y = Merge(same, drop, N=2)
"""


def test_pred_replaces_input_by_constant() -> None:
    inference = remove_dead_branches(from_text(TRAINED), pred=("train:false",))
    assert inference.inputs == (Edge("x"),)
    assert inference["train"].value.array == np.False_
    assert (inference["y"].op, inference["y"].inputs) == ("Identity", (Edge("same"),))
    training = remove_dead_branches(from_text(TRAINED), pred=("train:true",))
    assert training["half"].controls == (), "without the control dependency the constant can be folded"


@pytest.mark.parametrize("text", ["train", ":true", "train:maybe", "trian:true"])
def test_invalid_pred_is_rejected(text: str) -> None:
    with pytest.raises(RecipeError, match="remove_dead_branches: "):
        remove_dead_branches(from_text(TRAINED), pred=(text,))


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        ("Placeholder[bool ?x2]()", "whose values are of shape ?x2"),
        ("Placeholder[string 2]()", "whose values are of type string"),
        ("Placeholder[2]()", "whose values are of type float"),
        ("Unique(x)", "which has 2 outputs"),
    ],
)
def test_pred_of_unsuitable_node_is_rejected(predicate: str, reason: str) -> None:
    graph = from_text(TRAINED.replace("train = Placeholder[bool]()", f"train = {predicate}"))
    with pytest.raises(RecipeError, match=f"pred names 'train'.*{re.escape(reason)}"):
        remove_dead_branches(graph, pred=("train:true",))


def test_predicate_keeps_its_shape() -> None:
    graph = from_text(TRAINED.replace("Placeholder[bool]()", "Placeholder[bool 1]()"))
    assert remove_dead_branches(graph, pred=("train:true",))["train"].value.shape == (1,)


def test_default_of_placeholder_that_is_not_an_input_is_constant() -> None:
    text = TRAINED.replace("train = Placeholder[bool]()", "no = Const[bool](false)\ntrain = PlaceholderWithDefault(no)")
    graph = from_text(text)
    assert remove_dead_branches(graph) == graph
    assert "xs" not in remove_dead_branches(graph.with_endpoints(["x"], None))


def test_value_index_of_merge_becomes_constant() -> None:
    graph = from_text(TRAINED).with_endpoints(None, ["y", "y:1"])
    after = remove_dead_branches(graph, pred=("train:true",))
    assert after["y"].op == "IdentityN"
    assert after[after["y"].inputs[1].node].value.array == 1
    verify(after)


def test_dead_graph_output_is_skipped() -> None:
    graph = from_text(TRAINED).with_endpoints(None, ["drop"])
    outcome = remove_dead_branches.outcome(graph, pred=("train:false",))
    assert [str(skip) for skip in outcome.skips] == ["drop: graph output is dead because of a constant predicate"]
    assert "drop" in outcome.graph


def test_live_loop_stays_and_dead_loop_is_removed() -> None:
    loop = """inputs: x
outputs: y
x = Placeholder[]()
no = Const[bool](false)
s = Switch(x, no)
enter = Enter(s:{port}, frame_name=loop)
merge = Merge(enter, next, N=2)
small = Less(merge, merge)
cond = LoopCond(small)
step = Switch(merge, cond)
body = Neg(step:1)
next = NextIteration(body)
exit = Exit(step)
other = Identity(s:{other})
y = Merge(exit, other, N=2)
"""
    dead = remove_dead_branches.outcome(from_text(loop.format(port=1, other=0)))
    assert (set(dead.graph.nodes), dead.skips) == ({"x", "no", "other", "y"}, ())
    live = remove_dead_branches.outcome(from_text(loop.format(port=0, other=1)))
    assert live.graph["enter"].inputs == (Edge("x"),)
    assert [str(skip) for skip in live.skips] == ["cond: the predicate is a loop condition (Switch nodes: 1)"]


def test_transform_runs_in_linear_time() -> None:
    def nest(count: int) -> Callable[[], object]:
        nodes = [X, constant("no", np.False_)]
        last = Edge("x")
        for number in range(count):
            pivot = Node(f"p{number}", "Switch", (Edge(f"i{number - 1}" if number else "no"), Edge("no")))
            inner = Node(f"i{number}", "Identity", (Edge(pivot.name),))
            switch = Node(f"s{number}", "Switch", (last, Edge(inner.name)))
            dead = Node(f"d{number}", "Neg", (Edge(switch.name, 1),))
            merge = Node(f"m{number}", "Merge", (Edge(switch.name), Edge(dead.name)), attrs={"N": 2})
            nodes.extend((pivot, inner, switch, dead, merge))
            last = Edge(merge.name)
        graph = Graph.of(nodes, ["x"], [last])
        return lambda: remove_dead_branches(graph)

    check_work_is_linear(nest, 40)


def run_tensorflow(graph: Graph, **feeds: Any) -> dict[str, Any]:
    with open_session(graph, "tensorflow") as session:
        return session.run(feeds)


@pytest.mark.engine
def test_tensorflow_1_conditionals_compute_same_outputs() -> None:
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    v1 = tf.compat.v1
    was_v2 = tf.compat.v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as tf_graph:
            x = v1.placeholder(tf.float32, [2, 3], "x")
            train = v1.placeholder_with_default(False, [], "train")

            def inner() -> Any:
                return v1.cond(v1.logical_not(train), lambda: x * 3.0, lambda: tf.nn.relu(x) + 1.0)

            y = v1.cond(train, lambda: x - v1.cond(train, lambda: x + 5.0, lambda: x), inner)
            v1.identity(y, "y")
    finally:
        if was_v2:
            v1.enable_control_flow_v2()
    graph = graphdef.decode(tf_graph.as_graph_def().SerializeToString()).with_endpoints(["x"], ["y"])
    after = rewrite(graph, "remove_dead_branches strip_unused_nodes fold_constants")
    assert "Merge" not in after.op_counts
    assert len(after) < 6
    values = np.array([[1, -2, 3], [0, 5, -6]], np.float32)
    np.testing.assert_array_equal(run_tensorflow(after, x=values)["y"], run_tensorflow(graph, x=values)["y"])


FUNCTIONAL = """inputs: x
outputs: y
x = Placeholder[2]()
c = Const[{kind}]({value})
r = {op}(c, x, Tcond={kind}, Tin=[float], Tout=[float], {branches})
y = Neg(r)
function plus(out = s)
a = _Arg(T=float, index=0)
one = Const(1.0)
s = AddV2(a, one, T=float)
end
function times(out = s)
a = _Arg(T=float, index=0)
two = Const(2.0)
s = Mul(a, two, T=float)
end
"""
IF = "then_branch=&plus, else_branch=&times"
CASE = "branches=[&plus, &times]"


@pytest.mark.parametrize(
    ("op", "kind", "value", "branches", "selected"),
    [
        ("If", "bool", "true", IF, "AddV2"),
        ("StatelessIf", "bool", "false", IF, "Mul"),
        ("If", "int32", "3", IF, "AddV2"),
        ("If", "float", "0.0", IF, "Mul"),
        ("If", "float", "[0.0]", IF, "AddV2"),
        ("If", "string", '""', IF, "Mul"),
        ("Case", "int32", "0", CASE, "AddV2"),
        ("StatelessCase", "int32", "1", CASE, "Mul"),
        ("Case", "int32", "-1", CASE, "Mul"),
        ("Case", "int32", "7", CASE, "Mul"),
    ],
)
def test_selected_branch_function_is_inlined(op: str, kind: str, value: str, branches: str, selected: str) -> None:
    graph = from_text(FUNCTIONAL.format(op=op, kind=kind, value=value, branches=branches))
    after = remove_dead_branches(graph)
    assert after[after["y"].inputs[0].node].op == selected
    assert "r" not in after
    assert remove_dead_branches(after) == after


def test_missing_functions_and_loops_are_skipped() -> None:
    text = FUNCTIONAL.format(op="If", kind="bool", value="true", branches=IF.replace("plus", "gone"))
    outcome = remove_dead_branches.outcome(from_text(text))
    assert [str(skip) for skip in outcome.skips] == ["r: function 'gone' is not in the library"]
    loop = FUNCTIONAL.format(op="While", kind="bool", value="true", branches="cond=&plus, body=&times")
    outcome = remove_dead_branches.outcome(from_text(loop))
    assert [str(skip) for skip in outcome.skips] == ["r: While is a loop"]
    assert to_text(outcome.graph) == to_text(from_text(loop))
    unknown = FUNCTIONAL.format(op="If", kind="bool", value="true", branches=IF).replace("If(c", "If(x")
    outcome = remove_dead_branches.outcome(from_text(unknown))
    assert [str(skip) for skip in outcome.skips] == ["r: condition x is not constant"]


@pytest.mark.engine
def test_tensorflow_2_conditionals_compute_same_outputs() -> None:
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")

    def compute(x: Any) -> Any:
        train = tf.raw_ops.PlaceholderWithDefault(input=False, shape=[], name="train")
        inner = tf.cond(train, lambda: x + 1.0, lambda: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: -x))
        return tf.identity(inner, "y")

    network = tf.function(compute, input_signature=[tf.TensorSpec([2, 3], tf.float32, "x")])
    graph_def = network.get_concrete_function().graph.as_graph_def()
    graph = graphdef.decode(graph_def.SerializeToString()).with_endpoints(["x"], ["y"])
    after = rewrite(graph, "remove_dead_branches strip_unused_nodes remove_unused_functions")
    assert sum(count for op, count in after.op_counts.items() if "If" in op) == 1
    assert len(after.library) == 2
    for values in (np.ones((2, 3), np.float32), -np.ones((2, 3), np.float32)):
        np.testing.assert_array_equal(run_tensorflow(after, x=values)["y"], run_tensorflow(graph, x=values)["y"])
