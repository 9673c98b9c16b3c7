"""The target tensorflow: every form of pattern, as TensorFlow computes it, against float."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from quantkit.errors import CheckError, GraphError, UnavailableError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.tensorflow.in_place_sums import copy_shared_summands
from quantkit.quantization import Plan, Range, Ranges, Scheme, annotate
from quantkit.quantization.targets.tensorflow import convert, float_reasons
from quantkit.quantization.targets.tensorflow.check import check_on_this_host, require_onednn
from quantkit.quantization.targets.tensorflow.parameters import quantized_name
from quantkit.runtimes.tensorflow import RUNTIME

Floats = npt.NDArray[np.float32]
FLOAT = DType.FLOAT
FUSED = "QuantizedConv2DWithBiasAndReluAndRequantize"
SUM = "QuantizedConv2DWithBiasSumAndReluAndRequantize"
DEPTHWISE = "QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize"
# Two roundings to 8 bits, of up to 1.5 % of the spread each, are all that may differ.
NOISE = 0.03

engine = pytest.mark.engine
needs_tensorflow = pytest.mark.skipif(not RUNTIME.available().ok, reason=RUNTIME.available().detail)


def random(*shape: int) -> Floats:
    return np.random.default_rng(shape).uniform(-1, 1, shape).astype(np.float32)


class Builder:
    """Nodes in order, by short calls."""

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
        made = self.node(f"{name}/layer", op, x, f"{name}/w", **window)
        channels = weights.shape[3] if op == "Conv2D" else weights.shape[2] * weights.shape[3]
        return self.node(name, "BiasAdd", made, self.constant(f"{name}/b", 0.3 * random(channels)))

    def window(self, name: str, op: str, x: str, size: int, stride: int, padding: bytes) -> str:
        return self.node(name, op, x, ksize=(1, size, size, 1), strides=(1, stride, stride, 1), padding=padding)

    def graph(self, *outputs: str) -> Graph:
        return Graph.of(self.nodes, ["x"], outputs)


def one_layer(padding: bytes = b"SAME", activation: str = "Relu", **attrs: Any) -> Graph:
    """A convolution whose codes a second one reads."""
    build = Builder(1, 9, 9, 3)
    made = build.convolution("first", "x", random(3, 3, 3, 8), padding=padding, **attrs)
    if activation:
        made = build.node("act", activation, made)
    made = build.convolution("second", made, random(1, 1, 8, 4))
    return build.graph(build.node("y", "Relu", made))


def explicit() -> Graph:
    pads = (0, 0, 2, 1, 0, 1, 0, 0)
    return one_layer(b"EXPLICIT", explicit_paddings=pads)


def padded(op_of_layer: str = "Conv2D") -> Graph:
    """A positive tensor, padded on one side as Keras does."""
    build = Builder(1, 8, 8, 3)
    made = build.node("act", "Relu", build.convolution("first", "x", random(1, 1, 3, 4)))
    sizes = build.constant("sizes", np.array([[0, 0], [0, 1], [0, 2], [0, 0]], np.int32))
    made = build.node("pad", "Pad", made, sizes, Tpaddings=DType.INT32)
    depth = 1 if op_of_layer == "DepthwiseConv2dNative" else 6
    made = build.convolution("second", made, random(3, 3, 4, depth), 2, b"VALID", op=op_of_layer)
    made = build.node("act2", "Relu", made)
    return build.graph(build.convolution("third", made, random(1, 1, 4 if depth == 1 else 6, 2)))


def depthwise(activation: str = "Relu6", stride: int = 1, multiplier: int = 2) -> Graph:
    build = Builder(1, 8, 8, 4)
    made = build.node("act", "Relu6", build.convolution("expand", "x", 4 * random(1, 1, 4, 6)))
    made = build.convolution(
        "depthwise", made, random(3, 3, 6, multiplier), stride, op="DepthwiseConv2dNative", dilations=(1, 1, 1, 1)
    )
    if activation:
        made = build.node("act2", activation, made)
    made = build.convolution("project", made, random(1, 1, 6 * multiplier, 4))
    return build.graph(build.convolution("last", made, random(1, 1, 4, 3)))


def residual(activation: str = "Relu", signed: bool = False) -> Graph:
    build = Builder(1, 8, 8, 3)
    trunk = build.convolution("trunk", "x", random(3, 3, 3, 4))
    trunk = trunk if signed else build.node("trunk_act", "Relu", trunk)
    branch = build.node("branch_act", "Relu", build.convolution("branch", trunk, random(1, 1, 4, 8)))
    made = build.node("sum", "AddV2", trunk, build.convolution("back", branch, random(3, 3, 8, 4)))
    if activation:
        made = build.node("sum_act", activation, made)
    return build.graph(build.convolution("last", made, random(1, 1, 4, 3)))


def residual_read_later() -> Graph:
    """What a sum adds is read again behind it."""
    build = Builder(1, 8, 8, 3)
    trunk = build.node("trunk_act", "Relu", build.convolution("trunk", "x", random(3, 3, 3, 4)))
    branch = build.convolution("back", trunk, random(3, 3, 4, 4))
    made = build.node("sum", "AddV2", trunk, branch)
    made = build.node("again", "AddV2", trunk, build.convolution("second", made, random(1, 1, 4, 4)))
    return build.graph(build.convolution("last", made, random(1, 1, 4, 3)))


def branches() -> Graph:
    build = Builder(1, 9, 9, 3)
    trunk = build.node("trunk_act", "Relu", build.convolution("trunk", "x", random(3, 3, 3, 8)))
    left = build.node("left_act", "Relu", build.convolution("left", trunk, random(1, 1, 8, 4)))
    pool = build.window("average", "AvgPool", trunk, 3, 1, b"SAME")
    right = build.node("right_act", "Relu", build.convolution("right", pool, random(1, 1, 8, 6)))
    top = build.window("top", "MaxPool", trunk, 3, 1, b"SAME")
    axis = build.constant("axis", np.int32(-1))
    made = build.node("join", "ConcatV2", left, right, top, axis, N=3, Tidx=DType.INT32)
    made = build.window("smaller", "MaxPool", made, 3, 2, b"VALID")
    return build.graph(build.convolution("last", made, random(1, 1, 18, 3)))


def pooled_before_relu() -> Graph:
    """A signed tensor is pooled, then clipped, then joined with a positive one."""
    build = Builder(1, 9, 9, 3)
    trunk = build.node("trunk_act", "Relu", build.convolution("trunk", "x", random(3, 3, 3, 8)))
    left = build.node("left_act", "Relu", build.convolution("left", trunk, random(1, 1, 8, 4)))
    right = build.window("average", "AvgPool", build.convolution("right", trunk, random(1, 1, 8, 6)), 3, 1, b"SAME")
    axis = build.constant("axis", np.int32(3))
    made = build.node("join", "Concat", axis, left, build.node("right_act", "Relu", right), N=2)
    return build.graph(build.convolution("last", made, random(3, 3, 10, 3)))


def classifier(keep_dims: bool = False, transpose_b: bool = False) -> Graph:
    build = Builder(2, 6, 6, 3)
    made = build.node("act", "Relu", build.convolution("trunk", "x", random(3, 3, 3, 8)))
    axes = build.constant("axes", np.array([1, 2], np.int32))
    made = build.node("mean", "Mean", made, axes, keep_dims=keep_dims, Tidx=DType.INT32)
    if keep_dims:
        made = build.node("flat", "Squeeze", made, squeeze_dims=(1, 2))
    weights = build.constant("dense/w", random(5, 8) if transpose_b else random(8, 5))
    made = build.node("dense", "MatMul", made, weights, transpose_a=False, transpose_b=transpose_b)
    made = build.node("logits", "BiasAdd", made, build.constant("dense/b", random(5)))
    return build.graph(build.node("softmax", "Softmax", made), "logits")


def dense_layers() -> Graph:
    build = Builder(2, 12)
    made = "x"
    for number, (inputs, outputs, activation) in enumerate([(12, 16, "Relu"), (16, 10, ""), (10, 4, "Relu6")]):
        weights = build.constant(f"w{number}", random(inputs, outputs))
        made = build.node(f"dense{number}", "MatMul", made, weights, transpose_a=False, transpose_b=False)
        made = build.node(f"bias{number}", "BiasAdd", made, build.constant(f"b{number}", random(outputs)))
        made = build.node(f"act{number}", activation, made) if activation else made
    return build.graph(made)


def pixels() -> Graph:
    build = Builder(1, 8, 8, 3, dtype=DType.UINT8)
    made = build.node("pixels", "Cast", "x", SrcT=DType.UINT8, DstT=FLOAT, T=None)
    build.nodes[-1] = build.nodes[-1].with_attrs(T=None)
    made = build.node("act", "Relu", build.convolution("first", made, np.float32(1 / 128) * random(3, 3, 3, 4)))
    return build.graph(build.convolution("last", made, random(1, 1, 4, 3)))


CASES: Mapping[str, tuple[Callable[[], Graph], Mapping[str, int]]] = {
    "same": (one_layer, {FUSED: 1}),
    "valid": (lambda: one_layer(b"VALID"), {FUSED: 1}),
    "stride": (lambda: one_layer(strides=(1, 2, 2, 1)), {FUSED: 1}),
    "dilated": (lambda: one_layer(dilations=(1, 2, 2, 1)), {FUSED: 1}),
    "explicit padding": (explicit, {FUSED: 1}),
    "relu6": (lambda: one_layer(activation="Relu6"), {FUSED: 1}),
    "linear": (lambda: one_layer(activation=""), {FUSED: 1}),
    "pad": (padded, {FUSED: 2, "PadV2": 0}),
    "pad before depthwise": (lambda: padded("DepthwiseConv2dNative"), {DEPTHWISE: 1, "PadV2": 1}),
    "depthwise": (depthwise, {DEPTHWISE: 1}),
    "depthwise, stride": (lambda: depthwise(stride=2, multiplier=1), {DEPTHWISE: 1}),
    "depthwise, linear": (lambda: depthwise(activation=""), {DEPTHWISE: 1}),
    "residual": (residual, {SUM: 1, "QuantizedMaxPool": 0}),
    "residual, relu6": (lambda: residual("Relu6"), {SUM: 1}),
    "residual, linear and signed": (lambda: residual("", signed=True), {SUM: 1}),
    "residual read later": (residual_read_later, {SUM: 2, "QuantizedMaxPool": 1}),
    "branches": (branches, {"ConcatV2": 1, "QuantizedAvgPool": 1, "QuantizedMaxPool": 2}),
    "pool before relu": (pooled_before_relu, {"QuantizedRelu": 2}),
    "mean": (classifier, {"QuantizedAvgPool": 1, "_QuantizedMatMul": 1, "Dequantize": 0}),
    "mean, flattened after": (lambda: classifier(keep_dims=True), {"QuantizedAvgPool": 1, "_QuantizedMatMul": 1}),
    "transposed weights": (lambda: classifier(transpose_b=True), {"_QuantizedMatMul": 1}),
    "dense layers": (dense_layers, {"_QuantizedMatMul": 3}),
    "pixels": (pixels, {"QuantizeV2": 0, FUSED: 1}),
}


def fed(graph: Graph, seed: int = 0) -> Mapping[str, npt.NDArray[Any]]:
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


def observed(graph: Graph, plan: Plan) -> Ranges:
    """Least and greatest numbers, joined over what shares a range."""
    computed = [edge for edge in plan.activations if edge not in graph.inputs]
    values = {**fed(graph), **run(graph.with_endpoints(None, computed), fed(graph))}
    ends = {edge: Range(float(values[str(edge)].min()), float(values[str(edge)].max())) for edge in plan.activations}
    for edge in plan.activations:
        for other in plan.group_of(edge):
            ends[edge] = ends[edge].union(ends[other])
    for edge in plan.activations:
        for other in plan.group_of(edge):
            ends[other] = ends[edge].union(ends[other])
    return Ranges(ends)


def quantized(graph: Graph, **scheme: Any) -> tuple[Plan, Ranges, Graph]:
    plan = annotate(graph, Scheme.for_target("tensorflow", **{"float_global_pools": False, **scheme}))
    ranges = observed(graph, plan)
    return plan, ranges, convert(graph, plan, ranges)


def distance(made: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    return float(np.abs(made - wanted).max() / np.abs(wanted).max())


@engine
@needs_tensorflow
@pytest.mark.parametrize("name", CASES)
def test_each_form_is_within_8_bit_noise_of_float(name: str) -> None:
    make, counts = CASES[name]
    graph = make()
    plan, ranges, made = quantized(graph)
    wanted, found = run(graph, fed(graph)), run(made, fed(graph))
    for output in graph.outputs:
        assert distance(found[str(output)], wanted[str(output)]) < NOISE
    assert {op: made.op_counts.get(op, 0) for op in counts} == counts
    assert not {"Conv2D", "DepthwiseConv2dNative", "MatMul"} & set(made.op_counts)
    assert not any(op.startswith("_Mkl") for op in made.op_counts)
    assert not float_reasons(graph, plan, ranges)


@engine
@needs_tensorflow
@pytest.mark.parametrize("name", CASES)
def test_the_check_passes_what_this_host_computes_right(name: str) -> None:
    graph = CASES[name][0]()
    plan, ranges, made = quantized(graph)
    errors = check_on_this_host(graph, plan, ranges, made)
    assert all(one.error < NOISE for one in errors)


@engine
@needs_tensorflow
def test_seven_bit_and_per_tensor_weights_are_taken() -> None:
    graph = one_layer()
    for weights in ("qint8 symmetric reduce_range per_channel", "qint8 symmetric"):
        from quantkit.quantization.spec import Spec

        _, _, made = quantized(graph, weights=Spec.parse(weights))
        wanted, found = run(graph, fed(graph)), run(made, fed(graph))
        assert distance(found["y"], wanted["y"]) < 2 * NOISE


@engine
@needs_tensorflow
def test_a_wrong_kernel_is_named() -> None:
    graph = branches()
    plan, ranges, made = quantized(graph)
    bias = made["left_act/bias"]
    broken = [constant(bias.name, bias.value.array + 2) if node is bias else node for node in made.nodes.values()]
    with pytest.raises(CheckError, match="left_act/codes"):
        check_on_this_host(graph, plan, ranges, made.with_nodes(broken))


def test_onednn_switched_off_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    with pytest.raises(UnavailableError, match="TF_ENABLE_ONEDNN_OPTS=0"):
        require_onednn()


@engine
@needs_tensorflow
def test_tensors_kept_in_float_keep_their_names() -> None:
    build = Builder(1, 8, 8, 3)
    made = build.node("act", "Relu", build.convolution("first", "x", random(3, 3, 3, 4)))
    build.node("side", "Sigmoid", made)
    build.convolution("last", made, random(1, 1, 4, 3))
    graph = build.graph("last", "side", "act")
    _, _, converted = quantized(graph)
    assert converted["act"].op == "Dequantize"
    assert converted["side"].inputs == (Edge("act"),)
    wanted, found = run(graph, fed(graph)), run(converted, fed(graph))
    for name in ("last", "side", "act"):
        assert distance(found[name], wanted[name]) < NOISE


@engine
@needs_tensorflow
def test_a_summand_that_is_asked_for_is_copied() -> None:
    graph = residual()
    _, _, made = quantized(graph)
    asked = copy_shared_summands(made.with_endpoints(None, [quantized_name(Edge("trunk_act")), *made.outputs]))
    assert asked.op_counts["QuantizedMaxPool"] == 1
    assert distance(run(asked, fed(graph))["last"], run(graph, fed(graph))["last"]) < NOISE
    assert copy_shared_summands(asked).op_counts == asked.op_counts


def test_weights_of_another_form_are_refused() -> None:
    graph = one_layer()
    plan = annotate(graph, Scheme.for_target("eightbit"))
    ranges = Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0)))
    with pytest.raises(GraphError, match="symmetric qint8"):
        convert(graph, plan, ranges)


def test_shifted_padding_of_unknown_size_stays_float() -> None:
    build = Builder(1, None, None, 3)
    made = build.convolution("first", "x", random(3, 3, 3, 4), stride=2)
    graph = build.graph(made)
    plan = annotate(graph, Scheme.for_target("tensorflow"))
    ranges = Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0)))
    assert "zero point" in float_reasons(graph, plan, ranges)["first/layer"]
    assert convert(graph, plan, ranges).op_counts["Conv2D"] == 1
