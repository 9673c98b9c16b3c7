"""Loops and NonMaxSuppression of ONNX graphs in TensorFlow: equal outputs."""

from typing import Any

import numpy as np
import pytest

from quantkit.convert.onnx_to_tensorflow import convert
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.runtimes import find_runtime, open_session

onnx = pytest.importorskip("onnx", reason="pip install onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not all(find_runtime(name).available().ok for name in ("onnxruntime", "tensorflow")),
        reason="ONNX Runtime or TensorFlow is not installed",
    ),
]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.random.default_rng(3).uniform(0.1, 1, (2, 4)).astype(np.float32)


def info(name: str, *shape: int | str | None, dtype: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def array(name: str, values: Any, dtype: type = np.int64) -> Any:
    return numpy_helper.from_array(np.array(values, dtype), name)


def read(nodes: list[Any], outputs: list[Any], constants: list[Any]) -> Graph:
    graph = helper.make_graph(nodes, "g", [info("x", "n", 4)], outputs, constants)
    return onnx_format.decode(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


def check(graph: Graph, x: Array = X) -> None:
    with open_session(graph, "onnxruntime") as session:
        expected = list(session.run({"x": x}).values())
    with open_session(convert(graph), "tensorflow") as session:
        outputs = list(session.run({"x": x}).values())
    assert len(expected) == len(outputs)
    for values, others in zip(expected, outputs, strict=True):
        np.testing.assert_allclose(others, values, rtol=1e-5, atol=1e-5)
        assert others.dtype == values.dtype


def body(is_growing: bool, most: float | list[float] = 40.0) -> Any:
    """Return the body of a loop that adds the captured value x, and ends when a sum is large."""
    grow = [helper.make_node("Concat", ["added", "x"], ["state_out"], axis=0)]
    keep = [helper.make_node("Identity", ["added"], ["state_out"])]
    nodes = [
        helper.make_node("Cast", ["step"], ["number"], to=FLOAT),
        helper.make_node("Add", ["state", "number"], ["added"]),
        *(grow if is_growing else keep),
        helper.make_node("ReduceSum", ["state_out"], ["sum"], keepdims=0),
        helper.make_node("Less", ["sum", "most"], ["go_on"]),
        helper.make_node("ReduceMax", ["state_out"], ["row"], axes=[0], keepdims=0),
    ]
    inputs = [info("step", dtype=INT64), info("go", *np.shape(most), dtype=BOOL), info("state", None, 4)]
    outputs = [info("go_on", *np.shape(most), dtype=BOOL), info("state_out", None, 4), info("row", 4), info("sum")]
    return helper.make_graph(nodes, "body", inputs, outputs, [array("most", most, np.float32)])


@pytest.mark.parametrize("is_growing", [False, True])
@pytest.mark.parametrize(("limit", "condition"), [("three", ""), ("three", "yes"), ("many", ""), ("", "yes")])
def test_loop_with_states_and_scan_outputs(limit: str, condition: str, is_growing: bool) -> None:
    """The value of a captured tensor, a state of growing size, an early end, and no limit."""
    nodes = [helper.make_node("Loop", [limit, condition, "x"], ["last", "rows", "sums"], body=body(is_growing))]
    outputs = [info("last", None, 4), info("rows", None, 4), info("sums", None)]
    check(read(nodes, outputs, [array("three", 3), array("many", 100), array("yes", True, bool)]))


def test_conditions_of_one_element_are_scalars() -> None:
    """TensorFlow takes a vector for true: the loop would not end before its limit, and the first branch would run."""
    branches = [
        helper.make_graph([helper.make_node(op, ["last"], [op])], op, [], [info(op, None, 4)]) for op in ("Neg", "Abs")
    ]
    nodes = [
        helper.make_node("Loop", ["many", "yes", "x"], ["last", "rows", "sums"], body=body(True, [40.0])),
        helper.make_node("ReduceMin", ["last"], ["least"], keepdims=0),
        helper.make_node("Less", ["least", "zeros"], ["is_negative"]),
        helper.make_node("If", ["is_negative"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    constants = [array("many", [100]), array("yes", [True], bool), array("zeros", [0], np.float32)]
    check(read(nodes, [info("y", None, 4), info("sums", None)], constants))


def test_inner_loops_of_equal_names_have_their_own_functions() -> None:
    def outer(name: str, op: str) -> Any:
        inner = helper.make_graph(
            [helper.make_node(op, ["inner_state", "x"], ["changed"]), helper.make_node("Identity", ["go"], ["go_on"])],
            "inner",
            [info("i", dtype=INT64), info("go", dtype=BOOL), info("inner_state", None, 4)],
            [info("go_on", dtype=BOOL), info("changed", None, 4)],
        )
        nodes = [
            helper.make_node("Loop", ["two", "", "state"], ["result"], body=inner),
            helper.make_node("Identity", ["outer_go"], ["outer_go_on"]),
        ]
        inputs = [info("j", dtype=INT64), info("outer_go", dtype=BOOL), info("state", None, 4)]
        outputs = [info("outer_go_on", dtype=BOOL), info("result", None, 4)]
        body = helper.make_graph(nodes, name, inputs, outputs)
        return helper.make_node("Loop", ["two", "", "x"], [name], body=body)

    check(read([outer("a", "Add"), outer("b", "Mul")], [info("a", None, 4), info("b", None, 4)], [array("two", 2)]))


@pytest.mark.parametrize("count", [3, 2**63 - 1])
@pytest.mark.parametrize("fill", [(), ("",), ("seven",)])
def test_boxes_are_suppressed_and_padded(count: int, fill: tuple[str, ...]) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["x", "zero"], ["boxes"]),
        helper.make_node("ReduceSum", ["boxes", "two"], ["sums"], keepdims=0),
        helper.make_node("Unsqueeze", ["sums", "zero"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "count", "overlap"], ["selected"]),
        helper.make_node("Shape", ["selected"], ["sizes"]),
        helper.make_node("Concat", ["sizes", "sizes"], ["pads"], axis=0),
        helper.make_node("Pad", ["selected", "pads", *fill], ["y"]),
    ]
    constants = [array("zero", [0]), array("two", [2]), array("count", [count]), array("overlap", [0.5], np.float32)]
    constants.append(array("seven", 7))
    corners = np.array([[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3], [2, 2.1, 3, 3], [5, 5, 6, 6]], np.float32)
    check(read(nodes, [info("y", None, None, dtype=INT64)], constants), corners)
