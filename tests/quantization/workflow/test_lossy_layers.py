"""Layers whose tensors lose channels stay float, if the outputs are then nearer to the float model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Edge, Graph
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization import Range, Scheme, annotate
from quantkit.quantization.lost_channels import find_lossy_layers
from quantkit.quantization.precision import policy
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.workflow import calibrated_model, lossy_layers
from quantkit.quantization.workflow.float_reference import loss_of
from quantkit.quantization.workflow.lossy_layers import exclude_last_layers, exclude_recurrent_layers

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


def shared_layer(*, is_recurrent: bool, size: int = 16, rows: int = 1) -> Graph:
    """Return products of twelve steps with the same weights, each of the step before or of its own input, and a layer.

    Args:
        is_recurrent: each step is a product of the step before.
        size: number of input and output channels of a step.
        rows: number of rows of its input.
    """
    random = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array((random.normal(0, 2, shape) / np.sqrt(size)).astype(np.float32), name)
        for name, shape in (("recurrent", (size, size)), ("kernel", (size, 4)))
    ]
    nodes, state = [helper.make_node("Split", ["x"], [f"x{step}" for step in range(12)], axis=2, num_outputs=12)], "x0"
    for step in range(12):
        nodes += [
            helper.make_node("MatMul", [state if is_recurrent else f"x{step}", "recurrent"], [f"m{step}"]),
            helper.make_node("Add", [f"m{step}", f"x{step}"], [f"a{step}"]),
            helper.make_node("Tanh", [f"a{step}"], [f"h{step}"]),
        ]
        state = f"h{step}"
    nodes.append(helper.make_node("Sum", [f"h{step}" for step in range(12)], ["total"]))
    nodes.append(helper.make_node("MatMul", [state if is_recurrent else "total", "kernel"], ["y"]))
    shapes = {"x": (1, rows, 12 * size), "y": (1, rows, 4)}
    infos = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "network", infos[:1], infos[1:], weights),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    return onnx_format.decode(model.SerializeToString())


def quantize_steps(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> qk.QuantizationResult:
    """Quantize a graph of `shared_layer` with float recurrent layers as the only alternative, also for a small loss."""
    monkeypatch.setattr(policy, "GOOD_ERROR", 0.0)
    monkeypatch.setattr(policy, "GOOD_KL", -1.0)
    monkeypatch.setattr(calibrated_model, "CHOICES", (exclude_recurrent_layers,))
    shape = infer_shapes(graph)[graph.inputs[0]].dims
    assert shape is not None
    samples = np.random.default_rng(5).normal(0, 1, (16, *map(int, shape))).astype(np.float32)  # type: ignore[arg-type]
    return qk.quantize(graph, list(samples), runs=0)


STEPS = {f"m{step}" for step in range(12)}


def test_the_steps_of_a_recurrent_layer_stay_float_together(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = shared_layer(is_recurrent=True)
    result = quantize_steps(monkeypatch, graph)
    assert int8_layers(result) == {"y"}
    assert all("accumulate over the steps" in result.plan.float_fallbacks[name] for name in STEPS)
    monkeypatch.setattr(lossy_layers, "_find_recurrent_steps", lambda conversion: [])
    without = quantize_steps(monkeypatch, graph)
    assert int8_layers(without) == {"y", *STEPS}
    reports = [each.report.accuracy for each in (result, without)]
    losses = [loss_of(each.metrics).distance for each in reports if each is not None and each.metrics is not None]
    assert len(losses) == 2
    assert losses[0] < policy.MAX_FLOAT_LOSS * losses[1]


def test_a_layer_with_the_weights_of_others_but_no_state_stays_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    result = quantize_steps(monkeypatch, shared_layer(is_recurrent=False))
    assert int8_layers(result) == {"y", *STEPS}


def test_steps_that_take_more_time_in_float_stay_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = shared_layer(is_recurrent=True, size=128, rows=64)
    assert int8_layers(quantize_steps(monkeypatch, graph)) == {"y", *STEPS}
    monkeypatch.setattr(lossy_layers, "_takes_time", lambda *arguments: False)
    assert int8_layers(quantize_steps(monkeypatch, graph)) == {"y"}
