from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InputError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.quantization import annotate, prepare
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets.onnx import TARGET
from quantkit.quantization.targets.onnx.native import convert
from quantkit.runtimes import find_runtime
from quantkit.runtimes.runtime import Runtime

FLOAT = DType.FLOAT
SIZE = 12
IMAGE = (1, SIZE, SIZE, 8)
HELD_OUT = Path(__file__).parents[3] / "assets" / "digits_heldout.npz"


def node(name: str, op: str, *inputs: str, **attrs: Any) -> Node:
    return Node(name, op, tuple(map(Edge.parse, inputs)), attrs={"T": FLOAT, **attrs})


def placeholder(*dims: int, dtype: DType = FLOAT) -> Node:
    return Node("x", "Placeholder", attrs={"dtype": dtype, "shape": Shape(dims)})


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(0, 0.2, shape).astype(np.float32)


def layer(
    name: str, source: str, kernel: tuple[int, ...], *, op: str = "Conv2D", activation: str = "Relu"
) -> list[Node]:
    channels = kernel[2] * kernel[3] if op != "Conv2D" else kernel[3]
    nodes = [
        constant(f"{name}/w", random(*kernel)),
        constant(f"{name}/b", random(channels)),
        node(f"{name}/conv", op, source, f"{name}/w", strides=(1, 1, 1, 1), padding=b"SAME"),
        node(f"{name}/biased" if activation else name, "BiasAdd", f"{name}/conv", f"{name}/b"),
    ]
    return nodes + ([node(name, activation, f"{name}/biased")] if activation else [])


def network() -> Graph:
    """Return a convolutional network: joined branches, pools, a depthwise layer, a sum, a classifier."""
    return Graph.of(
        [
            placeholder(1, SIZE, SIZE, 3),
            *layer("first", "x", (3, 3, 3, 8)),
            node("pool", "MaxPool", "first", ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding=b"SAME"),
            *layer("left", "pool", (1, 1, 8, 8)),
            *layer("right", "pool", (1, 1, 8, 12), activation="Relu6"),
            node("average", "AvgPool", "pool", ksize=(1, 3, 3, 1), strides=(1, 1, 1, 1), padding=b"SAME"),
            constant("axis", np.int32(3)),
            Node(
                "joined", "ConcatV2", tuple(map(Edge, ("left", "right", "average", "axis"))), attrs={"T": FLOAT, "N": 3}
            ),
            *layer("depthwise", "joined", (3, 3, 28, 1), op="DepthwiseConv2dNative", activation="Relu6"),
            *layer("projected", "depthwise", (1, 1, 28, 28), activation=""),
            node("sum", "AddV2", "projected", "joined"),
            *layer("last", "sum", (1, 1, 28, 16)),
            constant("axes", np.array([1, 2], np.int32)),
            node("mean", "Mean", "last", "axes", keep_dims=False),
            constant("dense/w", random(16, 10)),
            constant("dense/b", random(10)),
            node("dense", "MatMul", "mean", "dense/w", transpose_a=False, transpose_b=False),
            node("logits", "BiasAdd", "dense", "dense/b"),
            node("y", "Softmax", "logits"),
        ],
        ["x"],
        ["y"],
    )


def images(count: int) -> np.ndarray:
    """Return random uint8 images, scaled to -1 .. 127/128."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, SIZE, SIZE, 3))
    return ((pixels - 128) / 128).astype(np.float32)


SIGNED: dict[str, dict[str, str]] = {
    "symmetric": {"activations": "qint8 symmetric"},
    "affine": {"activations": "qint8 affine"},
    "mixed": {"activations": "quint8 affine", "signed_activations": "qint8 symmetric"},
}


def calibrate(graph: Graph, scheme: Mapping[str, str] = {}) -> tuple[Graph, Plan, Ranges]:
    """Return the graph as an ONNX graph, its plan, and the extremes on a few images as ranges."""
    stated = Scheme.for_target("onnx", **scheme)
    graph = prepare(graph, stated)
    plan = annotate(graph, stated)
    computed = [edge for edge in plan.activations if edge not in graph.inputs]
    ranges = dict.fromkeys(graph.inputs, Range(-1.0, 127 / 128))
    with find_runtime("reference").open(graph.with_endpoints(None, computed)) as session:
        for image in images(4):
            for name, values in session.run({"x": image[None]}).items():
                limits = Range(float(values.min()), float(values.max()))
                ranges[Edge(name)] = ranges.get(Edge(name), limits).union(limits)
    return graph, plan, Ranges(ranges).merge_groups(plan.groups)


@pytest.fixture(params=["onnxruntime", "openvino"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    runtime = find_runtime(request.param)
    if not runtime.available().ok:
        pytest.skip(runtime.available().detail)
    return runtime


@pytest.mark.engine
def test_outputs_agree_with_the_float_graph(runtime: Runtime) -> None:
    graph, plan, ranges = calibrate(network())
    quantized = TARGET.convert(graph, plan, ranges)
    x = images(6)[5:]
    with find_runtime("reference").open(graph) as session:
        expected = session.run({"x": x})["y"]
    with runtime.open(quantized) as session:
        (result,) = session.run({"x": x}).values()
    np.testing.assert_allclose(result, expected, atol=0.02)
    assert abs(result - expected).max() > 0


@pytest.fixture(scope="module")
def quantize_digits(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], qk.QuantizationResult]:
    """Return a function that quantizes the model of a dialect with a scheme of `SIGNED`, once for all runtimes."""
    file = tmp_path_factory.mktemp("digits") / "digits.onnx"

    @cache
    def quantize(name: str, dialect: str) -> qk.QuantizationResult:
        model = qk.load("digits")
        if dialect == "onnx":
            qk.transform(model, "inference", output=file)
            model = qk.load(file)
        return qk.quantize(model, HELD_OUT, scheme=Scheme.for_target("onnx", **SIGNED[name]), limit=50, runs=0)

    return quantize


@pytest.mark.engine
@pytest.mark.parametrize("name", SIGNED)
@pytest.mark.parametrize("dialect", ["tensorflow", "onnx"])
def test_int8_activations_are_accurate(
    runtime: Runtime, name: str, dialect: str, quantize_digits: Callable[[str, str], qk.QuantizationResult]
) -> None:
    """Regression: OpenVINO rounded the real values of int8 tensors to whole numbers, with a KL divergence of 0.07."""
    model = quantize_digits(name, dialect).model
    evaluation = qk.evaluate(model, HELD_OUT, reference="digits", runtime=runtime.name, limit=100)
    assert evaluation.metrics.kl_divergence is not None
    assert evaluation.metrics.kl_divergence < 0.001


@pytest.mark.parametrize("scheme", ["unsigned", *SIGNED])
def test_images_are_quantized_before_their_transposition(scheme: str) -> None:
    quantized = convert(*calibrate(network(), SIGNED.get(scheme, {})))
    (transpose,) = [node for node in quantized.nodes.values() if node.op == "Transpose"]
    assert quantized[transpose.inputs[0].node].op == "DequantizeLinear"
    # OpenVINO needs quantized values after the transposition, too.
    assert [node.op for node in quantized.consumers(transpose.name)] == ["QuantizeLinear"]


@pytest.mark.parametrize("scheme", ["unsigned", "symmetric", "affine"])
def test_int8_values_are_concatenated(scheme: str) -> None:
    quantized = TARGET.convert(*calibrate(network(), SIGNED.get(scheme, {})))
    (concat,) = [node for node in quantized.nodes.values() if node.op == "Concat" and len(node.inputs) == 3]
    assert [quantized[edge.node].op for edge in concat.inputs] == ["QuantizeLinear"] * 3
    assert {node.op for node in quantized.consumers(concat.name)} == {"DequantizeLinear"}


@pytest.mark.engine
def test_onnx_accepts_the_model() -> None:
    checker = pytest.importorskip("onnx", reason="pip install onnx")
    for scheme in ({}, *SIGNED.values()):
        data = onnx.encode(TARGET.convert(*calibrate(network(), scheme)))
        checker.checker.check_model(checker.load_from_string(data), full_check=True)


def test_layers_have_quantized_inputs() -> None:
    graph, plan, ranges = calibrate(network())
    quantized = convert(graph, plan, ranges)
    layers = [node for node in quantized.nodes.values() if node.op in ("Conv", "Gemm")]
    assert len(layers) == 7
    for layer in layers:
        assert {quantized[edge.node].op for edge in layer.inputs} == {"DequantizeLinear"}, layer.name
        weights = quantized[quantized[layer.inputs[1].node].inputs[0].node].value
        assert weights.dtype is DType.INT8
        assert quantized[quantized[layer.inputs[2].node].inputs[0].node].value.dtype is DType.INT32
    assert quantized.op_counts["Transpose"] == 1
    assert quantized["joined/scale"].value == quantized["left/scale"].value == quantized["average/scale"].value
    assert quantized["pool/scale"].value == quantized["first/scale"].value


def test_averages_stay_float_for_onnx_runtime() -> None:
    quantized = convert(*calibrate(network()))
    assert quantized["average"].op == "Concat"
    assert quantized["average"].inputs == (Edge("average/average"),)


def test_range_of_an_average_before_relu_starts_at_zero() -> None:
    pool = node("average", "AvgPool", "wide", ksize=(1, 3, 3, 1), strides=(1, 1, 1, 1), padding=b"SAME")
    graph = Graph.of(
        [
            placeholder(1, SIZE, SIZE, 3),
            *layer("wide", "x", (1, 1, 3, 6), activation=""),
            pool,
            node("clamped", "Relu", "average"),
            *layer("y", "clamped", (1, 1, 6, 4)),
        ],
        ["x"],
        ["y"],
    )
    graph, plan, ranges = calibrate(graph)
    quantized = convert(graph, plan, ranges)
    assert quantized["clamped/zero"].value == Tensor.of(np.uint8(0))
    assert "average/codes" not in quantized
    assert quantized["wide/zero"].value.array > 0


def test_cast_of_uint8_input_is_removed() -> None:
    cast = Node("cast", "Cast", (Edge("x"),), attrs={"SrcT": DType.UINT8, "DstT": FLOAT})
    graph = Graph.of(
        [placeholder(1, 4, 4, 3, dtype=DType.UINT8), cast, *layer("y", "cast", (3, 3, 3, 4))], ["x"], ["y"]
    )
    graph = prepare(graph, Scheme.for_target("onnx"))
    plan = annotate(graph, Scheme.for_target("onnx"))
    quantized = convert(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(0.0, 250.0))))
    assert "Cast" not in quantized.op_counts
    assert [node.op for node in quantized.consumers("x")] == ["DequantizeLinear"]
    assert quantized["cast/scale"].value == quantized["cast/nchw/scale"].value == Tensor.of(np.float32(1))


def test_weights_are_rounded_to_nearest() -> None:
    graph, plan, ranges = calibrate(network(), {"saturation": "ignore"})
    quantized = convert(graph, plan, ranges)
    weights = quantized["right/biased/weights/codes"].value.array.astype(np.float32)
    scales = quantized["right/biased/weights/scale"].value.array
    real = graph["right/w/oihw"].value.array
    np.testing.assert_allclose(weights * scales[:, None, None, None], real, atol=float(scales.max()) / 2 * 1.0001)
    assert (abs(weights).max(axis=(1, 2, 3)) == 127).all()
    bias = quantized["right/biased/bias/codes"].value.array * quantized["right/biased/bias/scale"].value.array
    np.testing.assert_allclose(bias, graph["right/b"].value.array, atol=1e-4)


def test_a_large_bias_makes_the_weights_coarser_instead_of_overflowing() -> None:
    nodes = layer("a", "x", (1, 1, 3, 4)) + layer("y", "a", (1, 1, 4, 4))
    nodes = [constant("a/b", np.array([1e9, 0, 0, 0], np.float32)) if node.name == "a/b" else node for node in nodes]
    quantized = convert(*calibrate(Graph.of([placeholder(1, SIZE, SIZE, 3), *nodes], ["x"], ["y"])))
    bias = quantized["a/biased/bias/codes"].value.array
    assert bias[0] > 1 << 28
    np.testing.assert_allclose(bias[0] * quantized["a/biased/bias/scale"].value.array[0], 1e9, rtol=1e-6)


def test_outputs_stay_float_and_keep_their_names() -> None:
    graph = network().with_endpoints(None, ["y", "joined", "left"])
    graph, plan, ranges = calibrate(graph)
    quantized = convert(graph, plan, ranges)
    assert quantized.outputs == (Edge("y"), Edge("joined"), Edge("left"))


def test_a_missing_range_is_an_error() -> None:
    graph, plan, ranges = calibrate(network())
    with pytest.raises(InputError, match="there is no range of edge"):
        convert(graph, plan, Ranges({edge: span for edge, span in ranges.items() if edge != Edge("pool")}))
