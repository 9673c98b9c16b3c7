"""Kernels, shapes and element types of ONNX ops, compared with the node test cases of the onnx package."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quantkit.errors import GraphError, InputError, UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.onnx.kernels import KERNELS, evaluate
from quantkit.ops.onnx.types import infer_types
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes

pytestmark = pytest.mark.engine

# Parts of the names of cases that no kernel computes: types without NumPy numbers, blocks, empty reductions, training,
# and options of Resize, LSTM, GRU and pooling that networks rarely have.
REFUSED = (
    *("e4m3fn", "e5m2", "FLOAT8", "FLOAT4", "INT4", "INT2", "int2", "int4", "float4", "blocked", "empty_set"),
    *("training", "bfloat16", "batchwise", "peepholes", "argmax_2d", "cubic", "antialias", "tf_crop", "axes"),
    *("not_larger", "not_smaller", "half_pixel_symmetric", "downsample_scales_linear_align_corners"),
    *("convtranspose_output_shape", "averagepool_2d_ceil_last_window_starts_on_pad", "ceil_mode_is_True"),
)


@pytest.fixture(scope="module")
def cases() -> list[tuple[str, Graph, Node, int, list[Any], list[Any]]]:
    """Return name, graph, node, opset, inputs and outputs of each case with one node."""
    pytest.importorskip("onnx", reason="pip install onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return list(_read(collect_testcases(None)))


def _read(testcases: list[Any]) -> Iterator[tuple[str, Graph, Node, int, list[Any], list[Any]]]:
    for case in testcases:
        try:
            graph = onnx.decode(case.model.SerializeToString())
        except InputError:
            continue  # nodes without outputs, sequences
        nodes = [node for node in graph.nodes.values() if node.op not in ("Placeholder", "Constant", "Absent")]
        for inputs, outputs in case.data_sets if len(nodes) == 1 else ():
            feeds = dict(zip([info.name for info in case.model.graph.input], inputs, strict=False))
            is_plain = all(isinstance(array, np.ndarray | np.generic) for array in (*inputs, *outputs))
            if is_plain and all(not edge.node or edge.node in feeds for edge in nodes[0].inputs):
                arrays = [np.asarray(feeds[edge.node]) if edge.node else None for edge in nodes[0].inputs]
                yield case.name, graph, nodes[0], onnx.opsets(graph).get("", 1), arrays, [*map(np.asarray, outputs)]


def test_kernels_compute_expected_outputs(cases: Any) -> None:
    compared = set()
    for name, graph, node, opset, arrays, expected in cases:
        if node.op not in KERNELS:
            continue
        try:
            results = evaluate(node, arrays, opset)
        except GraphError:
            assert any(part in name for part in REFUSED), name
            continue
        for edge, array in zip(graph.outputs, expected, strict=True):
            assert results[edge.port].dtype == array.dtype, name
            if array.dtype.kind in "fc":
                np.testing.assert_allclose(results[edge.port], array, rtol=1e-5, atol=1e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(results[edge.port], array, err_msg=name)
            compared.add(node.op)
    assert len(compared) > 125


def test_inferred_shapes_and_types_agree_with_outputs(cases: Any) -> None:
    num_shapes = num_types = 0
    for name, graph, _, _, _, expected in cases:
        shapes, types = infer_shapes(graph), infer_types(graph)
        for edge, array in zip(graph.outputs, expected, strict=True):
            shape, dtype = shapes.get(edge, UNKNOWN), types.get(edge)
            assert shape.accepts(array.shape), name
            num_shapes += shape.dims is not None
            if dtype is not None and dtype is not DType.STRING:
                assert dtype.numpy == array.dtype, name
                num_types += 1
    assert num_shapes > 1000
    assert num_types > 1000


def test_constant_sizes_determine_shapes(cases: Any) -> None:
    num_shapes = 0
    for name, graph, node, _, arrays, expected in cases:
        constants = {
            edge.node: Node(edge.node, "Constant", attrs={"value": Tensor.of(array)})
            for edge, array in zip(node.inputs[1:], arrays[1:], strict=True)
            if array is not None and edge.node != node.inputs[0].node and array.dtype.kind in "if" and array.ndim < 2
        }
        nodes = [constants.get(each.name, each) for each in graph.nodes.values()]
        inputs = [edge for edge in graph.inputs if edge.node not in constants]
        shapes = infer_shapes(graph.with_nodes(nodes).with_endpoints(inputs, None))
        for edge, array in zip(graph.outputs, expected, strict=True):
            shape = shapes.get(edge, UNKNOWN)
            assert shape.accepts(array.shape), name
            num_shapes += shape.is_known
    assert num_shapes > 1060


def test_missing_kernel_names_the_op() -> None:
    with pytest.raises(UnavailableError, match="node 'n': the NumPy runtime has no kernel for the ONNX op Scan"):
        evaluate(Node("n", "Scan"), [])


@pytest.mark.parametrize(
    ("node", "inputs", "message"),
    [
        (Node("n", "Div"), [np.array([4], np.int64), np.array([0], np.int64)], "an integer is divided by zero"),
        (Node("n", "Cast", attrs={"to": 7}), [np.array([np.inf], np.float32)], "the integer of an infinite number"),
        (Node("n", "ConstantOfShape"), [np.array([1 << 20, 1 << 20], np.int64)], "is invalid"),
        (Node("n", "Add"), [None, np.float32(1)], "input 0 is missing"),
        (Node("n", "Add"), [np.float32(1)], "input 1 is missing"),
        *((Node("n", op), [], "input 0 is missing") for op in ("Mul", "Max", "Mean", "Gather", "Tile")),
        (Node("n", "Pad"), [np.zeros((2, 3))], "0 pads do not fit 2 axes"),
        (
            Node("n", "Split", attrs={"_outputs": (b"a", b"b")}),
            [np.zeros(3), np.array([1, 1], np.int64)],
            "do not cover",
        ),
    ],
)
def test_invalid_inputs_are_rejected(node: Node, inputs: list[Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        evaluate(node, inputs)
