"""Conversion of the while loops of TensorFlow 1 to the ONNX op Loop."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from while_loops import images, loop_graph

from quantkit.convert.tensorflow_to_onnx import convert
from quantkit.errors import UnavailableError
from quantkit.formats import graphdef, onnx
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph
from quantkit.recipes import run
from quantkit.recipes.named import find_recipe
from quantkit.runtimes import find_runtime, open_session

pytestmark = pytest.mark.engine

Loop = Callable[[Any, Any], Any]


def count(tf: Any, x: Any) -> Any:
    """Return a loop that x alone decides, and that may end before its first iteration."""
    return tf.compat.v1.while_loop(lambda y: tf.reduce_sum(y) < 50.0, lambda y: [y * 2.0 + 1.0], [x])


def swap(tf: Any, x: Any) -> Any:
    """Return variables that exchange their values, one that stays, and a body that captures x."""
    step: Any = lambda i, a, b, c: (i + 1, b, a + x, c)  # noqa: E731
    return tf.compat.v1.while_loop(lambda i, *_: i < 3, step, [tf.constant(0), x, x * 3.0, x - 1.0])[1:]


def grow(tf: Any, x: Any) -> Any:
    """Return a variable whose shape changes."""
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 3])]
    step: Any = lambda i, y: (i + 1, tf.concat([y, x], 0))  # noqa: E731
    return tf.compat.v1.while_loop(lambda i, _: i < 4, step, [tf.constant(0), x], shape_invariants=shapes)[1]


def chain(tf: Any, x: Any) -> Any:
    """Return a loop after a loop, with a limit that is computed outside."""
    last = tf.cast(tf.reduce_max(x), tf.int32)
    first = tf.compat.v1.while_loop(lambda i, _: i < last, lambda i, y: (i + 1, tf.tanh(y) * 2.0), [tf.constant(0), x])[
        1
    ]
    return count(tf, first)


def loop_of(build: Loop) -> Graph:
    """Return the frozen graph of a loop with the input x, (2, 3), and the output y."""
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    v1 = tf.compat.v1
    was_v2 = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            outputs = tf.nest.flatten(build(tf, v1.placeholder(tf.float32, [2, 3], "x")))
            names = [tf.identity(value, name=f"y{port}").op.name for port, value in enumerate(outputs)]
    finally:
        if was_v2:
            v1.enable_control_flow_v2()
    return graphdef.decode(graph.as_graph_def().SerializeToString()).with_endpoints(["x"], names)


@pytest.mark.parametrize("build", [count, swap, grow, chain])
def test_loop_computes_same_outputs(build: Loop) -> None:
    graph = loop_of(build)
    converted = onnx.decode(onnx.encode(convert(graph)))
    verify(converted)
    assert converted.op_counts["Loop"] == (2 if build is chain else 1)
    for scale in (0.5, 3.0, 100.0):
        feeds = {"x": np.float32([[1, 2, 3], [0, 1, 2]]) * np.float32(scale)}
        with open_session(graph, "tensorflow") as session:
            expected = session.run(feeds)
        _compare(converted, feeds, expected)


def test_recurrent_cell_computes_same_outputs() -> None:
    graph, _ = run(find_recipe("inference"), loop_graph("cell"))
    with open_session(graph, "tensorflow") as session:
        expected = session.run({"x": images(3)})
    _compare(convert(graph), {"x": images(3)}, expected)


def test_nested_loop_is_rejected() -> None:
    with pytest.raises(UnavailableError, match="a loop is inside another loop"):
        convert(loop_graph("nested"))


def test_loop_that_no_output_needs_is_ignored() -> None:
    graph, _ = run(find_recipe("inference"), loop_graph("nested"))
    [layer] = [node.name for node in graph.nodes.values() if node.op == "Relu"]
    assert "Conv" in convert(graph.with_endpoints(["x"], [layer])).op_counts
    end = next(node.inputs[0] for node in graph.nodes.values() if node.name == "logits")
    assert "MatMul" in convert(graph.with_endpoints([end], ["y"])).op_counts


def _compare(graph: Graph, feeds: Any, expected: Any) -> None:
    runtime = find_runtime("onnxruntime")
    if not runtime.available().ok:
        pytest.skip(runtime.available().detail)
    with runtime.open(graph) as session:
        for name, values in session.run(feeds).items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-6)
