"""First layers with few channels, which ONNX Runtime computes faster in float."""

from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Graph
from quantkit.quantization import Plan, Scheme
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.onnx.first_layers import REASON, find_first_layers, find_slow_layers

onnx = pytest.importorskip("onnx", reason="pip install onnx")
from onnx import helper, numpy_helper  # noqa: E402

RANDOM = np.random.default_rng(0)


def network(size: int, channels: int = 16) -> Graph:
    """Return a MobileNet's first layers: Conv, a depthwise Conv, MaxPool, and a Conv with many channels."""
    shapes = {"w1": (channels, 3, 3, 3), "w2": (channels, 1, 3, 3), "w3": (64, channels, 3, 3)}
    weights = [numpy_helper.from_array(RANDOM.normal(0, 0.2, shapes[name]).astype(np.float32), name) for name in shapes]
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node("Conv", ["scaled", "w1"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("Conv", ["relu", "w2"], ["depthwise"], pads=[1, 1, 1, 1], group=channels),
        helper.make_node("MaxPool", ["depthwise"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["pool", "w3"], ["wide"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["wide"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info("x", 1, (1, 3, size, size)), helper.make_tensor_value_info("y", 1, None)]
    constants = [*weights, numpy_helper.from_array(np.float32(0.5), "factor")]
    model = helper.make_model(
        helper.make_graph(nodes, "network", infos[:1], infos[1:], constants),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return onnx_format.decode(model.SerializeToString())


def test_first_layers_with_few_channels_and_the_ops_after_them_are_found() -> None:
    assert find_first_layers(network(64)) == ("conv", "relu", "depthwise", "pool")
    assert find_slow_layers(network(64)) == dict.fromkeys(("conv", "relu", "depthwise", "pool"), REASON)


@pytest.mark.parametrize(("size", "channels"), [(32, 16), (64, 64)])
def test_small_and_wide_first_layers_are_not(size: int, channels: int) -> None:
    assert find_first_layers(network(size, channels)) == ()


def test_first_layers_stay_int8_if_the_boundary_after_them_costs_more() -> None:
    graph = network(64, 48)
    assert find_first_layers(graph) == ("conv", "relu")
    assert find_slow_layers(graph) == {}


def test_only_the_form_for_openvino_quantizes_them() -> None:
    target = find_target("onnx")
    assert target.slow_nodes(network(64), "auto") == target.slow_nodes(network(64), "onnxruntime") != {}
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    samples = list(RANDOM.normal(0, 1, (4, 1, 3, 64, 64)).astype(np.float32))
    result = qk.quantize(network(64), samples, runs=0)
    assert result.plan.float_fallbacks["conv"] == result.plan.float_fallbacks["depthwise"] == REASON
    assert [pattern.layer for pattern in result.plan.patterns] == ["wide"]
    # ONNX Runtime would move a QuantizeLinear directly after the MaxPool before it.
    graph = result.conversion.quantized
    quantize = next(node for node in graph.nodes.values() if node.op == "QuantizeLinear")
    assert graph[quantize.inputs[0].node].op == "Concat"
    assert len(qk.quantize(network(64), samples, runs=0, runtime="openvino").plan.patterns) == 3


def test_the_scheme_of_the_caller_and_its_reasons_stay(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    scheme, path = Scheme(keep_float=("conv",)), tmp_path / "plan.json"
    samples = list(RANDOM.normal(0, 1, (2, 1, 3, 64, 64)).astype(np.float32))
    result = qk.quantize(network(64), samples, scheme=scheme, runs=0, runtime="onnxruntime", save_plan=path)
    assert result.plan.scheme == scheme.with_(runtime="onnxruntime")
    assert result.plan.float_fallbacks["conv"] == "the scheme keeps it in float"
    assert result.plan.float_fallbacks["depthwise"] == REASON
    assert Plan.load(path) == result.plan
