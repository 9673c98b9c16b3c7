"""Tests of inline_functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from work import check_work_is_linear

from quantkit.errors import GraphError
from quantkit.formats import graphdef
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text
from quantkit.recipes import rewrite
from quantkit.runtimes import open_session
from quantkit.transforms.functions.inline_functions import inline_functions

DOUBLE = """function double(out = s)
a = _Arg(T=float, index=0)
s = AddV2(a, a, T=float)
end
"""


def test_missing_and_recursive_functions_are_skipped() -> None:
    graph = from_text(
        "inputs: x\noutputs: a, b, c\nx = Placeholder[2]()\n"
        "a = PartitionedCall(x, Tin=[float], Tout=[float], f=&missing)\n"
        "b = PartitionedCall(x, Tin=[float], Tout=[float], f=&ping)\n"
        "c = double(x)\n"
        "function ping(out = r)\na = _Arg(T=float, index=0)\nr = pong(a)\nend\n"
        "function pong(out = r)\na = _Arg(T=float, index=0)\nr = ping(a)\nend\n" + DOUBLE
    )
    outcome = inline_functions.outcome(graph)
    verify(outcome.graph)
    assert outcome.graph["c"].op == "Identity"
    assert outcome.graph["c/s"].op == "AddV2"
    reasons = {skip.reason for skip in outcome.skips}
    assert {"function 'missing' is not in the library", "function 'ping' is recursive"} <= reasons


def test_control_output_of_inlined_call_stays() -> None:
    graph = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[2]()\n"
        "y = StatelessWhile(x, T=[float], cond=&small, body=&step)\n"
        "function small(out = s)\na = _Arg(T=float, index=0)\ns = Less(a, a, T=float)\nend\n"
        "function step(out = a, ^done = call)\na = _Arg(T=float, index=0)\n"
        "call = StatefulPartitionedCall(a, Tin=[float], Tout=[float], f=&double)\nend\n" + DOUBLE
    )
    step = inline_functions(graph).library["step"]
    verify(step.graph)
    assert dict(step.controls) == {"done": "call"}
    assert step.graph["call"].inputs[0].node == "call/s"
    assert len(step.graph.outputs) == 1
    again = graphdef.decode(graphdef.encode(inline_functions(graph)))
    assert again.library["step"].graph == step.graph


def test_nested_calls_do_not_exceed_recursion_limit() -> None:
    depth = 2000
    graph = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[2]()\ny = f0(x)\n"
        + "".join(
            f"function f{number}(r = c)\na = _Arg(T=float, index=0)\nc = f{number + 1}(a)\nend\n"
            for number in range(depth)
        )
        + f"function f{depth}(r = n)\na = _Arg(T=float, index=0)\nn = Neg(a, T=float)\nend\n"
    )
    outcome = inline_functions.outcome(graph)
    assert list(outcome.graph.op_counts.items()) == [("Identity", 1), ("Neg", 1), ("Placeholder", 1)]
    assert not outcome.skips
    assert outcome.graph.library == graph.library


def test_caller_of_recursive_function_is_inlined() -> None:
    graph = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[2]()\nc = before(x)\ny = Neg(c)\n"
        "function before(r = p)\na = _Arg(T=float, index=0)\nn = Neg(a, T=float)\np = ping(n)\nend\n"
        "function ping(r = p)\na = _Arg(T=float, index=0)\np = pong(a)\nend\n"
        "function pong(r = p)\na = _Arg(T=float, index=0)\nd = double(a)\np = ping(d)\nend\n" + DOUBLE
    )
    outcome = inline_functions.outcome(graph)
    assert outcome.graph["c/p"].op == "ping"
    assert {str(skip) for skip in outcome.skips} == {"c/p: function 'ping' is recursive"}
    assert outcome.graph.library["pong"].graph["d/s"].op == "AddV2"
    assert inline_functions.outcome(outcome.graph).changes == ()


def test_inline_functions_is_idempotent() -> None:
    graph = from_text(f"inputs: x\noutputs: y\nx = Placeholder[2]()\nc = double(x)\ny = double(c)\n{DOUBLE}")
    once = inline_functions(graph)
    outcome = inline_functions.outcome(once)
    assert (outcome.graph, outcome.changes) == (once, ())


def test_inline_functions_runs_in_linear_time() -> None:
    def chain(count: int) -> Callable[[], object]:
        calls = "".join(f"c{number + 1} = double(c{number})\n" for number in range(count))
        graph = from_text(f"inputs: c0\noutputs: c{count}\nc0 = Placeholder[2]()\n{calls}{DOUBLE}")
        return lambda: inline_functions(graph)

    check_work_is_linear(chain, 40)


def run_tensorflow(graph: Graph, **feeds: Any) -> dict[str, Any]:
    with open_session(graph, "tensorflow") as session:
        return session.run(feeds)


@pytest.mark.engine
def test_tensorflow_outputs_stay() -> None:
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")

    def multiply(x: Any) -> Any:
        tf.debugging.assert_less(tf.reduce_sum(x), 1000.0)
        return x * 2.0, tf.reduce_sum(x)

    scale = tf.function(multiply)
    step = tf.function(lambda x: scale(scale(x)[0])[0] + 1.0)

    def compute(x: Any) -> Any:
        y = tf.while_loop(lambda y: tf.reduce_sum(y) < 50.0, lambda y: [step(y)], [x])[0]
        return tf.identity(step(y) + scale(x)[1], "y")

    network = tf.function(compute, input_signature=[tf.TensorSpec([2, 3], tf.float32, "x")])
    graph_def = network.get_concrete_function().graph.as_graph_def()
    graph = graphdef.decode(graph_def.SerializeToString()).with_endpoints(["x"], ["y"])
    after = rewrite(graph, "inline_functions remove_unused_functions")
    assert not {op for op in after.op_counts if op.endswith("Call")}
    assert after.op_counts["Assert"] >= 3 if "Assert" in after.op_counts else any("If" in op for op in after.op_counts)
    assert len(after.library) < len(graph.library)
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    np.testing.assert_array_equal(run_tensorflow(after, x=x)["y"], run_tensorflow(graph, x=x)["y"])
    loaded = graphdef.decode(graphdef.encode(after)).with_endpoints(["x"], ["y"])
    np.testing.assert_array_equal(run_tensorflow(loaded, x=x)["y"], run_tensorflow(graph, x=x)["y"])
    with pytest.raises(GraphError, match="assert"):
        run_tensorflow(after, x=x * 1000)
