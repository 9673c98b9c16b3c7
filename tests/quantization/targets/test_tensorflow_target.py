from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import quantkit as qk
from quantkit.errors import CheckError, GraphError, UnavailableError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.ops.tensorflow.in_place_sums import copy_shared_summands
from quantkit.quantization import Plan, Range, Ranges, Scheme, annotate, calibrate
from quantkit.quantization.targets.tensorflow import TARGET, convert
from quantkit.quantization.targets.tensorflow.check import check_on_this_host, require_onednn
from quantkit.quantization.targets.tensorflow.parameters import quantized_name
from quantkit.runtimes.tensorflow import RUNTIME

Floats = npt.NDArray[np.float32]
FLOAT = DType.FLOAT
FUSED = "QuantizedConv2DWithBiasAndReluAndRequantize"
SUM = "QuantizedConv2DWithBiasSumAndReluAndRequantize"
DEPTHWISE = "QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize"
# Two roundings to int8, each up to 1.5 % of the range.
NOISE = 0.03

uses_runtime = pytest.mark.engine
needs_tensorflow = pytest.mark.skipif(not RUNTIME.available().ok, reason=RUNTIME.available().detail)


def random(*shape: int) -> Floats:
    return np.random.default_rng(shape).uniform(-1, 1, shape).astype(np.float32)


class Builder:
    """Nodes of a graph in topological order."""

    def __init__(self, *shape: int | None, dtype: DType = FLOAT) -> None:
        self.nodes = [Node("x", "Placeholder", attrs={"dtype": dtype, "shape": Shape(shape)})]

    def node(self, name: str, op: str, *inputs: str, **attrs: Any) -> str:
        self.nodes.append(Node(name, op, tuple(map(Edge.parse, inputs)), attrs={"T": FLOAT, **attrs}))
        return name

    def constant(self, name: str, values: npt.ArrayLike) -> str:
        self.nodes.append(constant(name, np.asarray(values)))
        return name

    def convolution(
        self, name: str, x: str, weights: Floats, stride: int = 1, padding: bytes = b"SAME", **attrs: Any
    ) -> str:
        self.constant(f"{name}/w", weights)
        op = attrs.pop("op", "Conv2D")
        window = {"strides": (1, stride, stride, 1), "padding": padding, "dilations": (1, 1, 1, 1), **attrs}
        output = self.node(f"{name}/layer", op, x, f"{name}/w", **window)
        channels = weights.shape[3] if op == "Conv2D" else weights.shape[2] * weights.shape[3]
        return self.node(name, "BiasAdd", output, self.constant(f"{name}/b", 0.3 * random(channels)))

    def window(self, name: str, op: str, x: str, size: int, stride: int, padding: bytes) -> str:
        return self.node(name, op, x, ksize=(1, size, size, 1), strides=(1, stride, stride, 1), padding=padding)

    def graph(self, *outputs: str) -> Graph:
        return Graph.of(self.nodes, ["x"], outputs)


def one_layer(padding: bytes = b"SAME", activation: str = "Relu", **attrs: Any) -> Graph:
    """Return two consecutive convolutions."""
    build = Builder(1, 9, 9, 3)
    output = build.convolution("first", "x", random(3, 3, 3, 8), padding=padding, **attrs)
    if activation:
        output = build.node("act", activation, output)
    output = build.convolution("second", output, random(1, 1, 8, 4))
    return build.graph(build.node("y", "Relu", output))


def explicit() -> Graph:
    pads = (0, 0, 2, 1, 0, 1, 0, 0)
    return one_layer(b"EXPLICIT", explicit_paddings=pads)


def pad_before_layer(op_of_layer: str = "Conv2D") -> Graph:
    """Return a layer after a Pad on one side, as Keras writes it."""
    build = Builder(1, 8, 8, 3)
    output = build.node("act", "Relu", build.convolution("first", "x", random(1, 1, 3, 4)))
    sizes = build.constant("sizes", np.array([[0, 0], [0, 1], [0, 2], [0, 0]], np.int32))
    output = build.node("pad", "Pad", output, sizes, Tpaddings=DType.INT32)
    depth = 1 if op_of_layer == "DepthwiseConv2dNative" else 6
    output = build.convolution("second", output, random(3, 3, 4, depth), 2, b"VALID", op=op_of_layer)
    output = build.node("act2", "Relu", output)
    return build.graph(build.convolution("third", output, random(1, 1, 4 if depth == 1 else 6, 2)))


def depthwise(activation: str = "Relu6", stride: int = 1, multiplier: int = 2) -> Graph:
    build = Builder(1, 8, 8, 4)
    output = build.node("act", "Relu6", build.convolution("expand", "x", 4 * random(1, 1, 4, 6)))
    output = build.convolution(
        "depthwise", output, random(3, 3, 6, multiplier), stride, op="DepthwiseConv2dNative", dilations=(1, 1, 1, 1)
    )
    if activation:
        output = build.node("act2", activation, output)
    output = build.convolution("project", output, random(1, 1, 6 * multiplier, 4))
    return build.graph(build.convolution("last", output, random(1, 1, 4, 3)))


def residual(activation: str = "Relu", signed: bool = False) -> Graph:
    build = Builder(1, 8, 8, 3)
    trunk = build.convolution("trunk", "x", random(3, 3, 3, 4))
    trunk = trunk if signed else build.node("trunk_act", "Relu", trunk)
    branch = build.node("branch_act", "Relu", build.convolution("branch", trunk, random(1, 1, 4, 8)))
    output = build.node("sum", "AddV2", trunk, build.convolution("back", branch, random(3, 3, 8, 4)))
    if activation:
        output = build.node("sum_act", activation, output)
    return build.graph(build.convolution("last", output, random(1, 1, 4, 3)))


def residual_read_later() -> Graph:
    """Return a residual whose summand has another consumer."""
    build = Builder(1, 8, 8, 3)
    trunk = build.node("trunk_act", "Relu", build.convolution("trunk", "x", random(3, 3, 3, 4)))
    branch = build.convolution("back", trunk, random(3, 3, 4, 4))
    output = build.node("sum", "AddV2", trunk, branch)
    output = build.node("again", "AddV2", trunk, build.convolution("second", output, random(1, 1, 4, 4)))
    return build.graph(build.convolution("last", output, random(1, 1, 4, 3)))


def branches() -> Graph:
    """Return a concatenation along the last axis of tensors with a dynamic batch."""
    build = Builder(None, 9, 9, 3)
    trunk = build.node("trunk_act", "Relu", build.convolution("trunk", "x", random(3, 3, 3, 8)))
    left = build.node("left_act", "Relu", build.convolution("left", trunk, random(1, 1, 8, 4)))
    pool = build.window("average", "AvgPool", trunk, 3, 1, b"SAME")
    right = build.node("right_act", "Relu", build.convolution("right", pool, random(1, 1, 8, 6)))
    top = build.window("top", "MaxPool", trunk, 3, 1, b"SAME")
    axis = build.constant("axis", np.int32(-1))
    output = build.node("join", "ConcatV2", left, right, top, axis, N=3, Tidx=DType.INT32)
    output = build.window("smaller", "MaxPool", output, 3, 2, b"VALID")
    return build.graph(build.convolution("last", output, random(1, 1, 18, 3)))


def pooled_before_relu() -> Graph:
    """A signed tensor is pooled, then clipped, then joined with a positive one."""
    build = Builder(1, 9, 9, 3)
    trunk = build.node("trunk_act", "Relu", build.convolution("trunk", "x", random(3, 3, 3, 8)))
    left = build.node("left_act", "Relu", build.convolution("left", trunk, random(1, 1, 8, 4)))
    right = build.window("average", "AvgPool", build.convolution("right", trunk, random(1, 1, 8, 6)), 3, 1, b"SAME")
    axis = build.constant("axis", np.int32(3))
    output = build.node("join", "Concat", axis, left, build.node("right_act", "Relu", right), N=2)
    return build.graph(build.convolution("last", output, random(3, 3, 10, 3)))


def sum_before_relu() -> Graph:
    """Return a signed sum, whose positive values have a range of their own in a depthwise layer."""
    build = Builder(1, 6, 6, 3)
    parts = [build.convolution(name, "x", random(3, 3, 3, 4)) for name in ("left", "right")]
    output = build.node("sum", "AddV2", *parts)
    positive = build.node("act", "Relu", output)
    positive = build.convolution("depthwise", positive, random(3, 3, 4, 1), op="DepthwiseConv2dNative")
    parts = [build.convolution("pointwise", positive, random(1, 1, 4, 4))]
    parts.append(build.convolution("shortcut", output, random(1, 1, 4, 4)))
    return build.graph(build.node("y", "AddV2", *parts))


def classifier(keep_dims: bool = False, transpose_b: bool = False) -> Graph:
    build = Builder(2, 6, 6, 3)
    output = build.node("act", "Relu", build.convolution("trunk", "x", random(3, 3, 3, 8)))
    axes = build.constant("axes", np.array([1, 2], np.int32))
    output = build.node("mean", "Mean", output, axes, keep_dims=keep_dims, Tidx=DType.INT32)
    if keep_dims:
        output = build.node("flat", "Squeeze", output, squeeze_dims=(1, 2))
    weights = build.constant("dense/w", random(5, 8) if transpose_b else random(8, 5))
    output = build.node("dense", "MatMul", output, weights, transpose_a=False, transpose_b=transpose_b)
    output = build.node("logits", "BiasAdd", output, build.constant("dense/b", random(5)))
    return build.graph(build.node("softmax", "Softmax", output), "logits")


def dense_layers() -> Graph:
    build = Builder(2, 12)
    output = "x"
    for number, (inputs, outputs, activation) in enumerate([(12, 16, "Relu"), (16, 10, ""), (10, 4, "Relu6")]):
        weights = build.constant(f"w{number}", random(inputs, outputs))
        output = build.node(f"dense{number}", "MatMul", output, weights, transpose_a=False, transpose_b=False)
        output = build.node(f"bias{number}", "BiasAdd", output, build.constant(f"b{number}", random(outputs)))
        output = build.node(f"act{number}", activation, output) if activation else output
    return build.graph(output)


def pixels() -> Graph:
    build = Builder(1, 8, 8, 3, dtype=DType.UINT8)
    output = build.node("pixels", "Cast", "x", SrcT=DType.UINT8, DstT=FLOAT, T=None)
    build.nodes[-1] = build.nodes[-1].with_attrs(T=None)
    output = build.node("act", "Relu", build.convolution("first", output, np.float32(1 / 128) * random(3, 3, 3, 4)))
    return build.graph(build.convolution("last", output, random(1, 1, 4, 3)))


CASES: Mapping[str, tuple[Callable[[], Graph], Mapping[str, int]]] = {
    "same": (one_layer, {FUSED: 1}),
    "valid": (lambda: one_layer(b"VALID"), {FUSED: 1}),
    "stride": (lambda: one_layer(strides=(1, 2, 2, 1)), {FUSED: 1}),
    "dilated": (lambda: one_layer(dilations=(1, 2, 2, 1)), {FUSED: 1}),
    "explicit padding": (explicit, {FUSED: 1}),
    "relu6": (lambda: one_layer(activation="Relu6"), {FUSED: 1}),
    "linear": (lambda: one_layer(activation=""), {FUSED: 1}),
    "pad": (pad_before_layer, {FUSED: 2, "PadV2": 0}),
    "pad before depthwise": (lambda: pad_before_layer("DepthwiseConv2dNative"), {DEPTHWISE: 1, "PadV2": 1}),
    "depthwise": (depthwise, {DEPTHWISE: 1}),
    "depthwise, stride": (lambda: depthwise(stride=2, multiplier=1), {DEPTHWISE: 1}),
    "depthwise, linear": (lambda: depthwise(activation=""), {DEPTHWISE: 1}),
    "residual": (residual, {SUM: 1, "QuantizedMaxPool": 0}),
    "residual, relu6": (lambda: residual("Relu6"), {SUM: 1}),
    "residual, linear and signed": (lambda: residual("", signed=True), {SUM: 1}),
    "residual read later": (residual_read_later, {SUM: 2, "QuantizedMaxPool": 1}),
    "sum before relu": (sum_before_relu, {SUM: 1, "QuantizedRelu": 1, DEPTHWISE: 1}),
    "branches": (branches, {"ConcatV2": 1, "QuantizedAvgPool": 1, "QuantizedMaxPool": 2}),
    "pool before relu": (pooled_before_relu, {"QuantizedRelu": 2}),
    "mean": (classifier, {"QuantizedAvgPool": 1, "_QuantizedMatMul": 1, "Dequantize": 0}),
    "mean, flattened after": (lambda: classifier(keep_dims=True), {"QuantizedAvgPool": 1, "_QuantizedMatMul": 1}),
    "transposed weights": (lambda: classifier(transpose_b=True), {"_QuantizedMatMul": 1}),
    "dense layers": (dense_layers, {"_QuantizedMatMul": 3}),
    "pixels": (pixels, {"QuantizeV2": 0, FUSED: 1}),
}


def random_feeds(graph: Graph, seed: int = 0) -> Mapping[str, npt.NDArray[Any]]:
    node = graph["x"]
    shape = node.attrs["shape"]
    assert isinstance(shape, Shape)
    assert shape.dims is not None
    generator = np.random.default_rng(seed)
    dims = [size or 1 for size in shape.dims]
    if node.attrs["dtype"] is DType.UINT8:
        return {"x": generator.integers(0, 256, dims).astype(np.uint8)}
    return {"x": generator.uniform(-1, 1, dims).astype(np.float32)}


def run(graph: Graph, feeds: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]]:
    with RUNTIME.open(graph) as session:
        return session.run(feeds)


def observe(graph: Graph, plan: Plan) -> Ranges:
    """Return the extremes, merged over edges that share a range."""
    computed = [edge for edge in plan.activations if edge not in graph.inputs]
    values = {**random_feeds(graph), **run(graph.with_endpoints(None, computed), random_feeds(graph))}
    limits = {edge: Range(float(values[str(edge)].min()), float(values[str(edge)].max())) for edge in plan.activations}
    for edge in plan.activations:
        for other in plan.group_of(edge):
            limits[edge] = limits[edge].union(limits[other])
    for edge in plan.activations:
        for other in plan.group_of(edge):
            limits[other] = limits[edge].union(limits[other])
    return Ranges(limits)


def quantize(graph: Graph, **scheme: Any) -> tuple[Plan, Ranges, Graph]:
    plan = annotate(graph, Scheme.for_target("tensorflow", **{"float_global_pools": False, **scheme}))
    ranges = observe(graph, plan)
    return plan, ranges, convert(graph, plan, ranges)


def distance(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@uses_runtime
@needs_tensorflow
@pytest.mark.parametrize("name", CASES)
def test_each_pattern_agrees_with_float(name: str) -> None:
    make, counts = CASES[name]
    graph = make()
    plan, ranges, quantized = quantize(graph)
    expected, actual = run(graph, random_feeds(graph)), run(quantized, random_feeds(graph))
    for output in graph.outputs:
        assert distance(actual[str(output)], expected[str(output)]) < NOISE
    assert {op: quantized.op_counts.get(op, 0) for op in counts} == counts
    assert not {"Conv2D", "DepthwiseConv2dNative", "MatMul"} & set(quantized.op_counts)
    assert not any(op.startswith("_Mkl") for op in quantized.op_counts)
    assert not TARGET.missing_kernels(graph, plan, ranges)


@uses_runtime
@needs_tensorflow
@pytest.mark.parametrize("name", CASES)
def test_the_check_accepts_correct_kernels(name: str) -> None:
    graph = CASES[name][0]()
    plan, ranges, quantized = quantize(graph)
    errors = check_on_this_host(graph, plan, ranges, quantized)
    assert all(error.error < NOISE for error in errors)


@uses_runtime
@needs_tensorflow
def test_seven_bit_and_per_tensor_weights_are_supported() -> None:
    graph = one_layer()
    for weights in ("qint8 symmetric reduce_range per_channel", "qint8 symmetric"):
        from quantkit.quantization.spec import Spec

        _, _, quantized = quantize(graph, weights=Spec.parse(weights))
        expected, actual = run(graph, random_feeds(graph)), run(quantized, random_feeds(graph))
        assert distance(actual["y"], expected["y"]) < 2 * NOISE


@uses_runtime
@needs_tensorflow
def test_a_wrong_kernel_is_named() -> None:
    graph = branches()
    plan, ranges, quantized = quantize(graph)
    bias = quantized["left_act/bias"]
    broken = [constant(bias.name, bias.value.array + 2) if node is bias else node for node in quantized.nodes.values()]
    with pytest.raises(CheckError, match="left_act/codes"):
        check_on_this_host(graph, plan, ranges, quantized.with_nodes(broken))


@uses_runtime
@needs_tensorflow
def test_the_check_feeds_an_embedding_with_its_own_indices() -> None:
    graph = from_text(
        """
        inputs: tokens
        outputs: y
        tokens = Placeholder[int32 2x5]()
        table = Const[7x16]()
        axis = Const[int32](0)
        rows = GatherV2(table, tokens, axis, Tparams=float, Tindices=int32, Taxis=int32)
        size = Const[int32]([2, 80])
        flat = Reshape(rows, size, T=float, Tshape=int32)
        w = Const[80x4]()
        y = MatMul(flat, w, T=float)
        """
    )
    plan = annotate(graph, Scheme.for_target("tensorflow"))
    tokens = np.random.default_rng(0).integers(0, 7, (2, 5)).astype(np.int32)
    ranges = calibrate(graph, plan, [{"tokens": tokens}], runtime="tensorflow")
    quantized = convert(graph, plan, ranges)
    assert check_on_this_host(graph, plan, ranges, quantized) == check_on_this_host(graph, plan, ranges, quantized, {})
    errors = check_on_this_host(graph, plan, ranges, quantized, {"tokens": tokens})
    assert all(error.error < NOISE for error in errors)
    outside = np.full_like(tokens, 200)
    with pytest.raises(GraphError):
        check_on_this_host(graph, plan, ranges, quantized, {"tokens": outside})


@uses_runtime
@needs_tensorflow
def test_quantize_checks_the_host_on_calibration_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, samples = one_layer(), []
    target = import_module("quantkit.quantization.targets.tensorflow")

    def check(*arguments: Any) -> None:
        samples.append(arguments[-1])

    monkeypatch.setattr(target, "check_on_this_host", check)
    (name, array), *_ = random_feeds(graph).items()
    qk.quantize(graph, {name: array}, target="tensorflow", runs=0)
    assert np.array_equal(samples[0][name], array[:1])


def test_disabled_onednn_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    with pytest.raises(UnavailableError, match="TF_ENABLE_ONEDNN_OPTS=0"):
        require_onednn()


@uses_runtime
@needs_tensorflow
def test_float_tensors_keep_their_names() -> None:
    build = Builder(1, 8, 8, 3)
    output = build.node("act", "Relu", build.convolution("first", "x", random(3, 3, 3, 4)))
    build.node("side", "Sigmoid", output)
    build.convolution("last", output, random(1, 1, 4, 3))
    graph = build.graph("last", "side", "act")
    _, _, quantized = quantize(graph)
    assert quantized["act"].op == "Dequantize"
    assert quantized["side"].inputs == (Edge("act"),)
    expected, actual = run(graph, random_feeds(graph)), run(quantized, random_feeds(graph))
    for name in ("last", "side", "act"):
        assert distance(actual[name], expected[name]) < NOISE


@uses_runtime
@needs_tensorflow
def test_an_input_without_a_consumer_stays() -> None:
    graph = one_layer()
    length = Node("length", "Placeholder", attrs={"dtype": DType.INT64, "shape": Shape((1,))})
    plan, ranges, _ = quantize(graph)
    graph = graph.with_nodes([*graph.nodes.values(), length]).with_endpoints(["x", "length"], None)
    quantized = convert(graph, plan, ranges)
    assert quantized.inputs == graph.inputs
    check_on_this_host(graph, plan, ranges, quantized, {**random_feeds(graph), "length": np.array([9])})


@uses_runtime
@needs_tensorflow
def test_tensors_of_six_dimensions_are_not_quantized() -> None:
    """A nearest upsampling by Pack has six dimensions, for which QuantizeV2 has no kernel; int8 views need none."""
    build = Builder(1, 4, 4, 3)
    first = build.convolution("first", "x", random(3, 3, 3, 4))
    small = build.node("rows", "Reshape", first, build.constant("rows/shape", np.int32([1, 4, 1, 4, 1, 4])))
    columns = build.node("columns", "Pack", "x", "x", N=2, axis=3)
    wide = build.node("wide", "Pack", columns, columns, N=2, axis=2)
    large = build.node("large", "Reshape", wide, build.constant("large/shape", np.int32([1, 8, 8, 3])))
    build.convolution("last", large, random(3, 3, 3, 4))
    back = build.node("back", "Reshape", small, build.constant("back/shape", np.int32([1, 4, 4, 4])))
    build.convolution("other", back, random(1, 1, 4, 3))
    graph = build.graph("last", "other")
    plan, ranges, quantized = quantize(graph)
    reasons = {decision.unit: decision.reason for decision in plan.decisions}
    assert reasons["large"] == "QuantizeV2 has no kernel for 6 dimensions"
    assert {"rows", "back"} <= set(plan.pass_through)
    check_on_this_host(graph, plan, ranges, quantized, random_feeds(graph))


@uses_runtime
@needs_tensorflow
def test_a_summand_that_is_an_output_is_copied() -> None:
    graph = residual()
    _, _, quantized = quantize(graph)
    copied = copy_shared_summands(
        quantized.with_endpoints(None, [quantized_name(Edge("trunk_act")), *quantized.outputs])
    )
    assert copied.op_counts["QuantizedMaxPool"] == 1
    assert distance(run(copied, random_feeds(graph))["last"], run(graph, random_feeds(graph))["last"]) < NOISE
    assert copy_shared_summands(copied).op_counts == copied.op_counts


def test_weights_of_another_spec_are_rejected() -> None:
    graph = one_layer()
    plan = annotate(graph, Scheme.for_target("eightbit"))
    ranges = Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0)))
    with pytest.raises(GraphError, match="symmetric qint8"):
        convert(graph, plan, ranges)


def test_shifted_padding_of_unknown_size_stays_float() -> None:
    build = Builder(1, None, None, 3)
    output = build.convolution("first", "x", random(3, 3, 3, 4), stride=2)
    graph = build.graph(output)
    plan = annotate(graph, Scheme.for_target("tensorflow"))
    ranges = Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0)))
    assert "zero point" in TARGET.missing_kernels(graph, plan, ranges)["first/layer"]
    assert convert(graph, plan, ranges).op_counts["Conv2D"] == 1


@pytest.mark.engine
@pytest.mark.parametrize("target", ["tensorflow", "eightbit"])
def test_saved_model_folders_are_written(target: str, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    data = Path(__file__).parents[3] / "assets" / "digits_heldout.npz"
    folder, file = tmp_path / "digits", tmp_path / "digits.pb"
    result = qk.quantize("digits", data, target=target, limit=20, runs=0, output=f"{folder}/")
    result.save(file)
    assert sorted(path.name for path in folder.iterdir()) == ["assets.extra", "saved_model.pb"]
    assert result.report.num_bytes == (folder / "saved_model.pb").stat().st_size
    assert result.report.accuracy.metrics is not None
    graph = qk.load(file).graph
    rows = np.random.default_rng(0).uniform(-1, 1, (1, 16, 16, 1)).astype(np.float32)
    (name,) = map(str, graph.outputs)
    with RUNTIME.open(graph) as session:
        expected = session.run({str(graph.inputs[0]): rows})[name]
    signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
    np.testing.assert_array_equal(signature(**{str(graph.inputs[0]): tf.constant(rows)})[name], expected)
    loaded = qk.load(folder).graph
    with RUNTIME.open(loaded) as session:
        (actual,) = session.run({str(loaded.inputs[0]): rows}).values()
    np.testing.assert_array_equal(actual, expected)


def test_only_empty_folders_are_written(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes").touch()
    with pytest.raises(qk.UsageError, match="is not empty: it contains notes"):
        qk.quantize("digits", weights_only=True, target="tensorflow", output=tmp_path / "model")
    with pytest.raises(qk.UsageError, match="cannot write target 'onnx' to new"):
        qk.quantize("digits", weights_only=True, target="onnx", output=tmp_path / "new")
