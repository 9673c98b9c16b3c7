"""Rewrites that keep OpenVINO from wrong values: the files load in ONNX Runtime for all types and opsets."""

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.quantization.targets.onnx.extremes import separate_extremes
from quantkit.quantization.targets.onnx.hidden_sizes import hide_sizes
from quantkit.runtimes import find_runtime

onnx = pytest.importorskip("onnx", reason="pip install onnx")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed"),
]
make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
SCALE, ZERO = np.array(0.5, np.float32), np.array(0, np.uint8)


def graph_of(nodes: list[object], inputs: list[object], constants: dict[str, Array]) -> Graph:
    weights = [onnx.numpy_helper.from_array(values, name) for name, values in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", inputs, [info("y", 1, None)], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    return onnx_format.decode(model.SerializeToString())


def run(graph: Graph, x: Array) -> Array:
    with qk.open_session(graph, "onnxruntime") as session:
        (y,) = session.run({"x": x}).values()
    return y


def test_integer_maxima_get_no_float_maximum() -> None:
    nodes = [make("ReduceMax", ["x"], ["r"], axes=[1]), make("Cast", ["r"], ["c"], to=1)]
    nodes += [make("QuantizeLinear", ["c", "s", "z"], ["q"]), make("DequantizeLinear", ["q", "s", "z"], ["y"])]
    graph = graph_of(nodes, [info("x", 7, (1, 4))], {"s": SCALE, "z": ZERO})
    x = np.array([[3, 1, 4, 1]])
    assert np.array_equal(run(separate_extremes(graph), x), run(graph, x))


def test_views_of_hidden_sizes_load_with_opset_13() -> None:
    random = np.random.default_rng(0)
    constants = {
        "w": random.integers(-9, 9, (2, 3, 1)).astype(np.int8),
        "ws": SCALE,
        "wz": np.array(0, np.int8),
        "b": random.normal(size=2).astype(np.float32),
        "k": random.normal(size=(1, 16, 2)).astype(np.float32),
        "l": random.normal(size=(1, 16, 4)).astype(np.float32),
    }
    nodes = [make("DequantizeLinear", ["w", "ws", "wz"], ["f"]), make("Conv", ["x", "f", "b"], ["c"])]
    nodes += [make("Transpose", ["c"], ["t"], perm=[2, 0, 1]), make("LSTM", ["t", "k", "l"], ["y"], hidden_size=4)]
    graph = graph_of(nodes, [info("x", 1, ("n", 3, "width"))], constants)
    hidden = hide_sizes(graph)
    assert len(hidden) > len(graph)
    x = random.normal(size=(1, 3, 5)).astype(np.float32)
    assert np.allclose(run(hidden, x), run(graph, x), atol=1e-6)
