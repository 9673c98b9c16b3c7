"""Rewrites of the float graph before it is annotated."""

from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.data import as_dataset
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, Shape
from quantkit.ir.text import from_text
from quantkit.model import Model
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.preparation import prepare_float_graph

# Convolution, depthwise convolution, bias, pool and product in NCHW.
CHANNELS_FIRST = """
    inputs: x
    outputs: y
    x = Placeholder[1x3x8x8](dtype=float)
    w = Const[3x3x3x4]()
    b = Const[4]()
    conv = Conv2D(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1], dilations=[1, 1, 1, 1], data_format=NCHW)
    biased = BiasAdd(conv, b, T=float, data_format=NCHW)
    act = Relu(biased, T=float)
    d = Const[3x3x4x1]()
    deep = DepthwiseConv2dNative(act, d, T=float, padding=SAME, strides=[1, 1, 1, 1], data_format=NCHW)
    act2 = Relu6(deep, T=float)
    pool = MaxPool(act2, T=float, padding=VALID, ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2], data_format=NCHW)
    v = Const[1x1x4x2]()
    y = Conv2D(pool, v, T=float, padding=VALID, strides=[1, 1, 1, 1], dilations=[1, 1, 1, 1], data_format=NCHW)
"""
# A SiLU, x * sigmoid(x), and a HardSwish, x * relu6(x + 3) / 6, between convolutions.
GATED = """
    inputs: x
    outputs: y
    x = Placeholder[?x8x8x3](dtype=float)
    w = Const[3x3x3x8]()
    b = Const[8]()
    conv = Conv2D(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1], dilations=[1, 1, 1, 1], data_format=NHWC)
    biased = BiasAdd(conv, b, T=float, data_format=NHWC)
    gate = Sigmoid(biased, T=float)
    silu = Mul(biased, gate, T=float)
    d = Const[3x3x8x1]()
    deep = DepthwiseConv2dNative(silu, d, T=float, padding=SAME, strides=[1, 1, 1, 1], data_format=NHWC)
    three = Const(3.0)
    sixth = Const(0.16666667)
    shifted = AddV2(deep, three, T=float)
    clipped = Relu6(shifted, T=float)
    scaled = Mul(clipped, sixth, T=float)
    swish = Mul(deep, scaled, T=float)
    v = Const[1x1x8x2]()
    y = Conv2D(swish, v, T=float, padding=VALID, strides=[1, 1, 1, 1], dilations=[1, 1, 1, 1], data_format=NHWC)
"""
IMAGES: Array = np.random.default_rng(2).normal(size=(4, 3, 8, 8)).astype(np.float32)


def channels_first() -> Graph:
    return from_text(CHANNELS_FIRST)


@pytest.mark.engine
@pytest.mark.parametrize("target", ["onnx", "tensorflow", "eightbit", "litert"])
def test_layers_with_channels_first_are_int8(target: str) -> None:
    if target != "onnx":
        pytest.importorskip("tensorflow", reason="pip install tensorflow")
    result = qk.quantize(channels_first(), IMAGES, target=target, runs=0)
    # The classic 8-bit ops have no depthwise convolution.
    assert result.report.census.num_patterns == (2 if target == "eightbit" else 3)
    assert not any("NCHW" in fallback.reason for fallback in result.report.census.float_fallbacks)
    assert result.report.accuracy.sqnr is not None
    assert result.report.accuracy.sqnr.worst > 20


@pytest.mark.engine
@pytest.mark.parametrize("runtime", ["auto", "onnxruntime"])
def test_onnx_runtime_computes_convolutions_before_gated_activations_in_int8(runtime: str) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    graph = from_text(GATED)
    images = np.moveaxis(IMAGES, 1, 3)
    result = qk.quantize(graph, images, runs=0, runtime=runtime)
    assert result.report.census.num_patterns == 3
    assert result.report.census.executed["onnxruntime"] == 1.0
    num_fused = result.conversion.quantized.op_counts.get("com.microsoft.QuickGelu", 0)
    assert num_fused == (runtime == "onnxruntime"), "the form for ONNX Runtime has its op for SiLU"
    assert (result.model.graph.inputs, result.model.graph.outputs) == (graph.inputs, graph.outputs)
    assert result.report.accuracy.sqnr is not None
    assert result.report.accuracy.sqnr.worst > 25


@pytest.mark.engine
def test_stated_decisions_about_tensorflow_nodes_stay_valid() -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    scheme = qk.Scheme(keep_float=("DepthwiseConv2dNative",))
    images = np.moveaxis(IMAGES, 1, 3)
    result = qk.quantize(from_text(GATED), images, scheme=scheme, runs=0, runtime="onnxruntime")
    assert [fallback.name for fallback in result.report.census.float_fallbacks if "Conv" in fallback.op] == ["deep"]


@pytest.mark.engine
def test_a_plan_for_a_runtime_is_followed_for_all_runtimes(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="pip install openvino")
    images = np.moveaxis(IMAGES, 1, 3)
    plan = tmp_path / "plan.json"
    fused = qk.quantize(from_text(GATED), images, runs=0, runtime="openvino", save_plan=plan)
    again = qk.quantize(from_text(GATED), images, runs=0, plan=plan)
    assert again.plan.to_json() == {**fused.plan.to_json(), "graph": again.plan.graph}


def prepare(text: str, samples: list[Array] | list[dict[str, Array]]) -> Graph:
    """Return the float graph that is quantized with samples."""
    scheme = qk.Scheme.for_target("tensorflow")
    return prepare_float_graph(Model("text", from_text(text)), Options(None), scheme, as_dataset(samples)).graph


def test_spectrogram_stays_float() -> None:
    """A logarithm before other layers amplifies the errors of small values."""
    graph = from_text("""
        inputs: x
        outputs: y
        x = Placeholder[?x4](dtype=float)
        w = Const[4x4]()
        spectrum = MatMul(x, w, T=float)
        power = Square(spectrum, T=float)
        logarithm = Log(power, T=float)
        y = MatMul(logarithm, w, T=float)
    """)
    plan = qk.quantization.annotate(graph, qk.Scheme.for_target("tensorflow"))
    assert [pattern.layer for pattern in plan.patterns] == ["y"]


@pytest.mark.parametrize(("lengths", "size"), [((5, 7), None), ((5, 5), 5)])
def test_only_equal_lengths_of_samples_are_fixed(lengths: tuple[int, int], size: int | None) -> None:
    text = """
        inputs: x
        outputs: y
        x = Placeholder[?x?x4](dtype=float)
        w = Const[4x3]()
        y = BatchMatMulV2(x, w, T=float)
    """
    graph = prepare(text, [np.ones((1, length, 4), np.float32) for length in lengths])
    assert graph["x"].attrs["shape"] == Shape((None, size, 4))
    assert "MatMul" in graph.op_counts


def test_samples_without_a_batch_axis_state_all_sizes() -> None:
    text = """
        dialect: onnx
        inputs: x, rate
        outputs: y
        x = Placeholder[?x?](dtype=float)
        rate = Placeholder[<>](dtype=float)
        axes = Constant[int64]([0])
        sizes = Shape(x)
        first = Constant[int64](0)
        n = Gather(sizes, first, axis=0)
        row = Unsqueeze(n, axes)
        tiled = Expand(rate, row)
        y = Mul(x, tiled)
    """
    samples = [{"x": np.ones((1, 6), np.float32), "rate": np.array(8, np.float32)} for _ in range(2)]
    assert prepare(text, samples)["x"].attrs["shape"] == Shape((1, 6))
