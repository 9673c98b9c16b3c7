"""Layers with what is fused to them: convolutions and matrix products in 8 bits."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.layers import broadcast_channels, find_layer
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets.tensorflow.graph_builder import AGAIN, RELU6_TOP, GraphBuilder
from quantkit.quantization.targets.tensorflow.padding import padded
from quantkit.quantization.targets.tensorflow.parameters import QUANTIZED, WEIGHTS, QuantizedTensor, quantized_name

# What all products of matrices say of themselves.
PRODUCT: Mapping[str, Attr] = {
    "T1": QUANTIZED,
    "T2": WEIGHTS,
    "Tbias": DType.FLOAT,
    "U": DType.FLOAT,
    "Tdevice_inputs": (QUANTIZED, WEIGHTS, DType.FLOAT),
    "input_quant_mode": b"SCALED",
    "output_quant_mode": b"SCALED",
    "is_weight_const": True,
    "is_bias_const": True,
    "transpose_a": False,
    "transpose_b": False,
}


@dataclass(frozen=True)
class _Weights:
    """A layer's constants as the kernels read them.

    Attributes:
        codes: int8, of the layer's weights' shape.
        scale: (c_out,) or () float32.
        bias: (c_out,) float64, as in the float graph.
        sums: (c_out,) float64: what each channel's weights sum to.
    """

    codes: Array
    scale: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float64]
    sums: npt.NDArray[np.float64]


def add_pattern(builder: GraphBuilder, pattern: FusedPattern) -> None:
    """Put a layer and what is fused to it into the graph; in float where no kernel has its form.

    Raises:
        GraphError: the plan does not fit the graph, or its weights are not symmetric qint8.
    """
    layer = builder.source[pattern.layer]
    output = builder.parameters_of(pattern.output)
    weights = _weights(builder, pattern, layer)
    quantized, pads, reason = padded(builder, pattern, layer, weights.codes.shape)
    if quantized is None or pads is None:
        builder.keep_pattern(pattern, reason)
    elif layer.op == "MatMul" and (output is None or pattern.add):
        _product_to_float(builder, pattern, quantized, weights)
    elif layer.op == "MatMul" and output is not None:
        _product(builder, pattern, quantized, weights, output)
    elif output is None or (pattern.add and layer.op != "Conv2D"):
        _convolution_to_float(builder, pattern, quantized, pads, weights)
    else:
        _convolution(builder, pattern, quantized, pads, weights, output)


def _weights(builder: GraphBuilder, pattern: FusedPattern, layer: Node) -> _Weights:
    spec = builder.plan.weights[pattern.weights]
    facts = find_layer(layer)
    found = builder.source.constant_of(Edge(pattern.weights))
    if facts is None or found is None:
        raise GraphError(f"the plan's pattern {pattern.layer!r} is no layer of constant weights", hint=AGAIN)
    if spec.dtype is not WEIGHTS or not spec.symmetric:
        raise GraphError(
            f"oneDNN reads weights as symmetric qint8, and the plan gives {pattern.weights!r} {spec}",
            hint="use the scheme of the target tensorflow",
        )
    values = found.array.astype(np.float32)
    if layer.op == "MatMul" and layer.attrs.get("transpose_b"):
        values = np.ascontiguousarray(values.T)
        spec = Spec(spec.dtype, True, spec.per_channel, spec.reduce_range, (1,) if spec.per_channel else ())
        axes: tuple[int, ...] = (1,)
    else:
        axes = facts.weights_axes
    parameters = QuantizationParameters.of_weights(spec, values)
    codes = parameters.quantize(values)
    rest = tuple(axis for axis in range(values.ndim) if axis not in axes)
    sums = codes.sum(rest, dtype=np.int64).reshape(-1) * parameters.scale.astype(np.float64)
    return _Weights(codes, parameters.scale, _bias(builder, pattern, layer, len(sums)), sums)


def _bias(builder: GraphBuilder, pattern: FusedPattern, layer: Node, num_channels: int) -> npt.NDArray[np.float64]:
    made = np.zeros(num_channels)
    facts = find_layer(layer)
    if pattern.bias and facts is not None:
        node = builder.source[pattern.bias]
        value = next(found for edge in node.inputs if (found := builder.source.constant_of(edge)) is not None)
        made = made + _channels(value, facts.rank, facts.axis, num_channels, pattern.bias)
    return made


def _layer_inputs(
    builder: GraphBuilder,
    pattern: FusedPattern,
    quantized: QuantizedTensor,
    weights: _Weights,
    bias: npt.NDArray[np.float64],
) -> tuple[list[Edge], list[Edge]]:
    """Input, weights and bias; the ranges of input and weights."""
    shifted = bias - quantized.zero * quantized.scale * weights.sums
    reach = (weights.scale * np.float32(127)).astype(np.float32)
    data = [
        quantized.edge,
        builder.constant(f"{pattern.name}/weights", weights.codes, WEIGHTS),
        builder.constant(f"{pattern.name}/bias", shifted.astype(np.float32)),
    ]
    ends = [
        builder.constant(f"{pattern.name}/weights_min", -reach),
        builder.constant(f"{pattern.name}/weights_max", reach),
    ]
    return data, [*builder.span(quantized), *ends]


def _convolution(
    builder: GraphBuilder,
    pattern: FusedPattern,
    quantized: QuantizedTensor,
    pads: dict[str, Attr],
    weights: _Weights,
    output: QuantizedTensor,
) -> None:
    layer = builder.source[pattern.layer]
    bias = weights.bias + output.zero * output.scale
    attrs: dict[str, Attr] = {
        "Tinput": QUANTIZED,
        "Tfilter": WEIGHTS,
        "Tbias": DType.FLOAT,
        "out_type": QUANTIZED,
        "strides": layer.attrs["strides"],
        "dilations": attribute(layer, "dilations"),
        **pads,
    }
    tail: list[Edge] = []
    op = "QuantizedDepthwiseConv2D" if layer.op == "DepthwiseConv2dNative" else "QuantizedConv2D"
    form = "WithBiasAndReluAndRequantize"
    if pattern.summand is not None:
        summand = builder.quantized_of(pattern.summand)
        bias = bias - summand.zero * summand.scale
        form = "WithBiasSumAndReluAndRequantize"
        attrs["Tsummand"] = QUANTIZED
        tail = [summand.edge, *builder.span(summand)]
    data, spans = _layer_inputs(builder, pattern, quantized, weights, bias)
    _add_clipped(builder, pattern, output, f"{op}{form}", [*data, *spans, *builder.span(output), *tail], attrs)


def _add_clipped(
    builder: GraphBuilder,
    pattern: FusedPattern,
    output: QuantizedTensor,
    op: str,
    inputs: list[Edge],
    attrs: Mapping[str, Attr],
) -> None:
    """Put the kernel of a pattern into the graph, and behind it what its activation cuts off inside the range."""
    clips = bool(pattern.activation) and _needs_clip(builder, pattern, output)
    name = quantized_name(pattern.output)
    made = builder.add(f"{name}/unclipped" if clips else name, op, inputs, **attrs)
    if clips:
        made = builder.clipped(name, builder.source[pattern.activation].op, output._replace(edge=made))
    builder.quantized[pattern.output] = output._replace(edge=made)


def _needs_clip(builder: GraphBuilder, pattern: FusedPattern, output: QuantizedTensor) -> bool:
    """Whether the activation clips inside the range of its result: others share that range."""
    above = builder.source[pattern.activation].op == "Relu6" and output.high > RELU6_TOP * (1 + 1e-6)
    return bool(output.zero) or above


def _convolution_to_float(
    builder: GraphBuilder, pattern: FusedPattern, quantized: QuantizedTensor, pads: dict[str, Attr], weights: _Weights
) -> None:
    """A convolution whose sums are wanted in float: 32-bit codes, all channels in one step.

    The kernel writes every channel in steps of the widest channel's, whatever ranges it reports.
    """
    layer = builder.source[pattern.layer]
    kind = "QuantizedDepthwiseConv2D" if layer.op == "DepthwiseConv2dNative" else "QuantizedConv2D"
    data, spans = _layer_inputs(builder, pattern, quantized, weights, weights.bias)
    name = quantized_name(Edge(pattern.layer))
    attrs: dict[str, Attr] = {"Tinput": QUANTIZED, "Tfilter": WEIGHTS, "out_type": DType.QINT32, **pads}
    if kind == "QuantizedConv2D":
        attrs["Tbias"] = DType.FLOAT
    made = builder.add(
        name,
        f"{kind}WithBias",
        [*data, *spans],
        strides=layer.attrs["strides"],
        dilations=attribute(layer, "dilations"),
        **attrs,
    )
    step = quantized.scale * float(weights.scale.max())
    _numbers_of(builder, pattern, name, made, step)


def _numbers_of(builder: GraphBuilder, pattern: FusedPattern, name: str, sums: Edge, step: float) -> None:
    """The rest of a pattern in float, after 32-bit codes that are multiples of a step."""
    whole = builder.add(f"{name}/bits", "Bitcast", (sums,), T=DType.QINT32, type=DType.INT32)
    numbers = builder.add(f"{name}/numbers", "Cast", (whole,), SrcT=DType.INT32, DstT=DType.FLOAT)
    last = pattern.bias or pattern.layer
    builder.nodes[last] = Node(last, "Mul", (numbers, builder.scalar(step)), attrs={"T": DType.FLOAT})
    _keep_tail(builder, pattern)


def _product(
    builder: GraphBuilder, pattern: FusedPattern, quantized: QuantizedTensor, weights: _Weights, output: QuantizedTensor
) -> None:
    """A matrix product whose result is codes."""
    data, spans = _layer_inputs(builder, pattern, quantized, weights, weights.bias + output.zero * output.scale)
    attrs = {
        **PRODUCT,
        "Tout": QUANTIZED,
        "Thost_inputs": (DType.FLOAT,) * 6,
        "Tdevice_outputs": (QUANTIZED,),
        "Thost_outputs": (DType.FLOAT,) * 2,
        "fused_ops": (b"BiasAdd", b"Relu", b"Requantize"),
    }
    _add_clipped(builder, pattern, output, "_QuantizedMatMul", [*data, *spans, *builder.span(output)], attrs)


def _product_to_float(
    builder: GraphBuilder, pattern: FusedPattern, quantized: QuantizedTensor, weights: _Weights
) -> None:
    """A matrix product whose result is float: nothing reads codes of it, or a residual follows."""
    data, spans = _layer_inputs(builder, pattern, quantized, weights, weights.bias)
    attrs = {
        **PRODUCT,
        "Tout": DType.FLOAT,
        "Thost_inputs": (DType.FLOAT,) * 4,
        "Tdevice_outputs": (DType.FLOAT,),
        "Thost_outputs": (),
        "fused_ops": (b"BiasAdd", b"Dequantize"),
    }
    name = pattern.bias or pattern.layer
    builder.nodes[name] = Node(name, "_QuantizedMatMul", (*data, *spans), attrs=attrs)
    _keep_tail(builder, pattern)


def _keep_tail(builder: GraphBuilder, pattern: FusedPattern) -> None:
    """Compute in float what follows the bias of a pattern."""
    for tail in (pattern.add, pattern.activation):
        if tail:
            builder.keep(builder.source[tail])


def _channels(value: Tensor, rank: int, axis: int, num_channels: int, name: str) -> Array:
    found = broadcast_channels(value, rank=rank, axis=axis, num_channels=num_channels)
    if found is None:
        raise GraphError(f"{name!r} adds no bias per channel, as the plan says", hint=AGAIN)
    return found
