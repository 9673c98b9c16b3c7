"""Quantization-aware training: the FakeQuant nodes of a graph become the ranges of the plan."""

from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import UsageError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.quantization import Range
from quantkit.quantization.calibration.trained_ranges import NO_RANGE, extract_ranges

FLOAT = {"T": DType.FLOAT}
STEPS = np.array([0.5, 2.0, 1.0, 0.25], np.float32)
ATTRS = {**FLOAT, "strides": (1, 1, 1, 1), "padding": b"SAME"}


def fake_quant(name: str, source: str, low: float, high: float, **attrs: int) -> tuple[Node, ...]:
    """Return a FakeQuant and its limits."""
    limits = (constant(f"{name}/low", np.float32(low)), constant(f"{name}/high", np.float32(high)))
    node = Node(
        name, "FakeQuantWithMinMaxVars", (source, f"{name}/low", f"{name}/high"), attrs={"num_bits": 8, **attrs}
    )
    return (*limits, node)


def trained_network(*, is_second_trained: bool = True) -> Graph:
    """Return two convolutions with trained ranges, the first with a batch norm; weights are levels times a step."""
    random = np.random.default_rng(0)
    levels = random.integers(-100, 101, (3, 3, 2, 4)).astype(np.float32)
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 6, 6, 2))}),
        *fake_quant("xq", "x", -2.0, 2.0),
        constant("w", levels / 127),
        *(constant(f"wq/{name}", sign * np.ones(4, np.float32)) for name, sign in (("low", -1), ("high", 1))),
        Node(
            "wq",
            "FakeQuantWithMinMaxVarsPerChannel",
            ("w", "wq/low", "wq/high"),
            attrs={"num_bits": 8, "narrow_range": True},
        ),
        Node("c", "Conv2D", ("xq", "wq"), attrs=ATTRS),
        constant("s", STEPS),
        Node("m", "Mul", ("c", "s"), attrs=FLOAT),
        constant("b", np.array([0.5, -0.5, 1.0, 0.0], np.float32)),
        Node("a", "AddV2", ("m", "b"), attrs=FLOAT),
        Node("r", "Relu", ("a",), attrs=FLOAT),
        *fake_quant("rq", "r", 0.0, 3.0),
        constant("v", random.normal(0, 1, (3, 3, 4, 3)).astype(np.float32)),
        Node("d", "Conv2D", ("rq", "v"), attrs=ATTRS),
    ]
    if is_second_trained:
        nodes += fake_quant("y", "d", -4.0, 4.0)
    return Graph.of(nodes, ["x"], ["y" if is_second_trained else "d"])


def test_fake_quants_become_ranges() -> None:
    graph, ranges = extract_ranges(trained_network())
    assert "FakeQuantWithMinMaxVars" not in graph.op_counts
    assert graph["c"].inputs[0] == Edge("x")
    assert graph["d"].inputs[0] == Edge("r")
    assert [str(edge) for edge in graph.outputs] == ["y"]
    assert graph["y"].op == "Identity"
    assert {str(edge) for edge in ranges} == {"x", "r", "d"}
    assert ranges[Edge("r")] == pytest.approx((0, 3))
    # The range moves, so that 0 is a quantized value.
    assert ranges[Edge("x")] == pytest.approx((-2.0, 2.0), abs=4 / 255)
    assert (ranges[Edge("x")].low * 255 / 4) == pytest.approx(round(ranges[Edge("x")].low * 255 / 4))


def test_a_graph_without_fake_quants_is_unchanged() -> None:
    source = Graph.of([Node("x", "Placeholder", attrs={"dtype": DType.FLOAT})], ["x"], ["x"])
    graph, ranges = extract_ranges(source)
    assert graph is source
    assert not ranges


@pytest.mark.engine
@pytest.mark.parametrize("target", ["onnx", "tensorflow", "eightbit", "litert"])
def test_every_target_uses_the_trained_ranges(target: str) -> None:
    messages: list[str] = []
    result = qk.quantize(trained_network(), target=target, runs=0, on_message=messages.append)
    assert len(result.plan.patterns) == 2
    assert any("no calibration data is needed" in message for message in messages)
    assert result.ranges.provenance.trained == len(result.plan.activations)
    assert "no calibration data was needed" in str(result.report)
    relu = next(pattern for pattern in result.plan.patterns if pattern.activation)
    assert result.ranges[relu.output] == Range(*np.array([0, 3], np.float32).tolist())


def test_weights_keep_the_levels_of_training() -> None:
    """The batch norm is folded into the rounded weights; no weight of a channel needs the largest level."""
    scheme = qk.Scheme.for_target("onnx").with_(saturation="ignore")
    result = qk.quantize(trained_network(), scheme=scheme, runs=0)
    stored = [node.value.array for node in result.model.graph.nodes.values() if node.is_constant]
    weights = next(array for array in stored if array.dtype == np.int8 and array.ndim == 4 and array.size == 72)
    levels = np.random.default_rng(0).integers(-100, 101, (3, 3, 2, 4))
    scales = next(array for array in stored if array.dtype == np.float32 and array.shape == (4,) and (array > 0).all())
    expected = (levels * STEPS / 127).transpose(3, 2, 0, 1)
    np.testing.assert_allclose(weights * scales.reshape(4, 1, 1, 1), expected, rtol=1e-5)


@pytest.mark.engine
def test_litert_keeps_the_levels_of_training() -> None:
    result = qk.quantize(trained_network(), target="litert", runs=0)
    graph = result.model.graph
    (rounded,) = [node for node in graph.nodes.values() if node.op == "FakeQuantWithMinMaxVarsPerChannel"]
    high = graph[rounded.inputs[2].node].value.array
    steps = graph[rounded.inputs[0].node].value.array / (high / 127)
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)


@pytest.mark.engine
def test_layers_without_ranges_stay_float() -> None:
    result = qk.quantize(trained_network(is_second_trained=False), target="litert", runs=0)
    (pattern,) = result.plan.patterns
    assert pattern.output == Edge("r")
    assert result.plan.float_fallbacks["d"] == NO_RANGE


@pytest.mark.engine
def test_calibration_adds_the_missing_ranges() -> None:
    samples: Array = np.random.default_rng(1).normal(0, 1, (8, 6, 6, 2)).astype(np.float32)
    result = qk.quantize(trained_network(is_second_trained=False), samples, target="litert", runs=0)
    assert len(result.plan.patterns) == 2
    assert result.ranges.provenance.trained == 2
    assert result.ranges[Edge("r")] == Range(*np.array([0, 3], np.float32).tolist())


def test_equalize_is_rejected() -> None:
    with pytest.raises(UsageError, match="equalize = true changes the trained ranges"):
        qk.quantize(trained_network(), scheme={"equalize": True}, runs=0)


def test_ranges_are_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    first = qk.quantize(trained_network(), save_ranges=path, runs=0)
    second = qk.quantize(trained_network(), ranges=path, runs=0)
    assert second.ranges.provenance.trained == first.ranges.provenance.trained
    assert second.ranges.keys() == first.ranges.keys()
    for edge, limits in first.ranges.items():
        assert second.ranges[edge] == pytest.approx(limits)
