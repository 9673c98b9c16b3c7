"""Layers whose tensors lose channels stay float, if the outputs are then nearer to the float model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Edge, Graph
from quantkit.quantization import Range, Scheme, annotate
from quantkit.quantization.lost_channels import find_lossy_layers
from quantkit.quantization.precision import policy
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.workflow import calibrated_model
from quantkit.quantization.workflow.lossy_layers import exclude_last_layers

onnx = pytest.importorskip("onnx", reason="pip install onnx")
pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.engine
CHANNELS = 16
SIZES = np.where(np.arange(CHANNELS) % 2, 100, 0.1).astype(np.float32)
LATER_LAYERS = {*(f"conv_{index}" for index in range(6)), "y"}
SAMPLES = list(np.random.default_rng(7).normal(0, 1, (8, 1, 4, 12, 12)).astype(np.float32))


def network(sizes: np.ndarray, *, saturates: bool = False) -> Graph:
    """Return a convolution with channels of these sizes, a SiLU, and eight convolutions, the first of which undoes it.

    Args:
        sizes: (16,).
        saturates: Tanh instead of the SiLU.
    """
    random = np.random.default_rng(1)
    constants, nodes = [], []

    def add(op: str, *inputs: Any, name: str, **attrs: Any) -> str:
        edges = []
        for value in inputs:
            if not isinstance(value, str):
                constants.append(numpy_helper.from_array(value.astype(np.float32), f"{name}_w"))
            edges.append(value if isinstance(value, str) else f"{name}_w")
        nodes.append(helper.make_node(op, edges, [name], name=name, **attrs))
        return name

    first = random.normal(0, 0.3, (CHANNELS, 4, 1, 1)) * sizes[:, None, None, None]
    source = add("Conv", "x", first, name="first")
    gate = add("Tanh" if saturates else "Sigmoid", source, name="gate")
    source = gate if saturates else add("Mul", source, gate, name="silu")
    source = add("Conv", source, 1 / sizes[:, None, None, None], name="second", group=CHANNELS)
    for index in range(7):
        name = "y" if index == 6 else f"conv_{index}"
        source = add("Conv", source, random.normal(0, 0.3, (CHANNELS, CHANNELS, 1, 1)), name=name)
    infos = [
        helper.make_tensor_value_info(*info) for info in (("x", 1, (1, 4, 12, 12)), ("y", 1, (1, CHANNELS, 12, 12)))
    ]
    assert infos[0].type.tensor_type.elem_type == TensorProto.FLOAT
    graph = helper.make_graph(nodes, "network", infos[:1], infos[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx_format.decode(model.SerializeToString())


def int8_layers(result: qk.QuantizationResult) -> set[str]:
    return {pattern.layer for pattern in result.plan.patterns}


def test_channels_below_two_steps_are_lost() -> None:
    plan = annotate(network(SIZES), Scheme())
    maxima = np.where(SIZES > 1, 50, 0.1)
    ranges = Ranges(dict.fromkeys(plan.activations, Range(-25.0, 50.0)), channel_maxima={Edge("silu"): maxima})
    assert find_lossy_layers(plan, ranges) == {
        "second": "50% of the channels of silu would quantize to at most 2 steps"
    }
    dead = Ranges(ranges.ranges, channel_maxima={Edge("silu"): np.where(SIZES > 1, 50, 0)})
    assert find_lossy_layers(plan, dead) == {}


def test_layers_that_lose_channels_stay_float(tmp_path: Path) -> None:
    messages: list[str] = []
    path = tmp_path / "plan.json"
    result = qk.quantize(network(SIZES), SAMPLES, runs=0, on_message=messages.append, save_plan=path)
    assert int8_layers(result) == LATER_LAYERS
    assert result.plan.scheme.keep_float == (), "the scheme is that of the caller"
    assert "of the channels of first would quantize" in result.plan.float_fallbacks["first"]
    assert any("first and 1 more stay float" in message for message in messages)
    assert qk.quantize(network(SIZES), SAMPLES, runs=0, plan=path).plan == result.plan
    all_int8 = qk.quantize(network(SIZES), SAMPLES, runs=0, scheme=Scheme())
    assert int8_layers(all_int8) == {"first", "second", *LATER_LAYERS}
    errors = [each.report.accuracy.metrics.error for each in (result, all_int8)]  # type: ignore[union-attr]
    assert errors[0] < 0.5 * errors[1]


def test_layers_with_channels_of_like_sizes_stay_int8() -> None:
    result = qk.quantize(network(np.ones_like(SIZES)), SAMPLES, runs=0)
    assert int8_layers(result) == {"first", "second", *LATER_LAYERS}


def test_a_layer_with_a_noisy_input_stays_float() -> None:
    graph, messages = network(np.ones_like(SIZES), saturates=True), list[str]()
    samples = [sample**7 for sample in SAMPLES]
    result = qk.quantize(graph, samples, runs=0, on_message=messages.append)
    assert int8_layers(result) == {"second", *LATER_LAYERS}
    assert "of the noise of the outputs" in result.plan.float_fallbacks["first"]
    assert any("first stays float" in message for message in messages)
    all_int8 = qk.quantize(graph, samples, runs=0, scheme=Scheme())
    errors = [each.report.accuracy.metrics.error for each in (result, all_int8)]  # type: ignore[union-attr]
    assert errors[0] < 0.5 * errors[1]


def test_products_of_two_activations_stay_float_if_that_is_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "GOOD_ERROR", 0.0)
    random = np.random.default_rng(3)
    weights = [numpy_helper.from_array(random.normal(0, 1, (8, 8)).astype(np.float32), name) for name in "kv"]
    nodes = [
        helper.make_node("MatMul", ["x", "k"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["s"]),
        helper.make_node("Tanh", ["s"], ["p"]),
        helper.make_node("MatMul", ["x", "v"], ["b"]),
        helper.make_node("MatMul", ["p", "b"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, 1, (1, 6, 8)) for name in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "products", infos[:1], infos[1:], weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    graph = onnx_format.decode(model.SerializeToString())
    samples = list(random.normal(0, 1, (8, 1, 6, 8)).astype(np.float32))
    result = qk.quantize(graph, samples, runs=0)
    assert {"s", "y"}.isdisjoint(int8_layers(result))
    assert "a product of two activations" in result.plan.float_fallbacks["s"]


def test_small_last_layers_stay_float_if_that_is_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "GOOD_ERROR", 0.0)
    monkeypatch.setattr(calibrated_model, "CHOICES", (exclude_last_layers,))
    random = np.random.default_rng(2)
    shapes = {"first": (16, 4, 3, 3), "second": (16, 16, 3, 3), "last": (1, 16, 1, 1)}
    weights = [numpy_helper.from_array(random.normal(0, 0.2, shapes[name]).astype(np.float32), name) for name in shapes]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "last"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(*info) for info in (("x", 1, (1, 4, 12, 12)), ("y", 1, (1, 1, 12, 12)))]
    model = helper.make_model(
        helper.make_graph(nodes, "network", infos[:1], infos[1:], weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    graph = onnx_format.decode(model.SerializeToString())
    # A few samples are much larger than the others, so that the scale of the output is coarse for these.
    samples = [sample * (10 if number == 0 else 1) for number, sample in enumerate(SAMPLES)]
    result = qk.quantize(graph, samples, runs=0)
    assert "rounding of the outputs" in result.plan.float_fallbacks["y"]
    assert int8_layers(result) == {"a", "c"}
