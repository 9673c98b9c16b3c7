"""Fused patterns in oneDNN's ops: int8 convolutions and matrix products."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.layers import broadcast_channels, find_layer
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern
from quantkit.quantization.targets.tensorflow.graph_builder import ANNOTATE_AGAIN, RELU6_MAX, GraphBuilder
from quantkit.quantization.targets.tensorflow.padding import pad_input
from quantkit.quantization.targets.tensorflow.parameters import (
    ACTIVATION_TYPE,
    WEIGHTS_TYPE,
    QuantizedTensor,
    quantized_name,
)

# Attributes of every _QuantizedMatMul.
MATMUL_ATTRS: Mapping[str, Attr] = {
    "T1": ACTIVATION_TYPE,
    "T2": WEIGHTS_TYPE,
    "Tbias": DType.FLOAT,
    "U": DType.FLOAT,
    "Tdevice_inputs": (ACTIVATION_TYPE, WEIGHTS_TYPE, DType.FLOAT),
    "input_quant_mode": b"SCALED",
    "output_quant_mode": b"SCALED",
    "is_weight_const": True,
    "is_bias_const": True,
    "transpose_a": False,
    "transpose_b": False,
}
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Weights:
    """Constants of a layer in the form that the kernels require.

    Attributes:
        quantized: int8, shape of the layer's weights.
        scale: (c_out,) or () float32.
        bias: (c_out,) float64, as in the float graph.
        sums: (c_out,) float64, sums of the dequantized weights of each channel.
    """

    quantized: Array
    scale: npt.NDArray[np.float32]
    bias: Floats
    sums: Floats


def add_pattern(builder: GraphBuilder, pattern: FusedPattern) -> None:
    """Add the kernel of a fused pattern, or its float nodes if there is no kernel.

    Raises:
        GraphError: the plan does not fit the graph, or its weights are not symmetric qint8.
    """
    layer = builder.source[pattern.layer]
    output = builder.planned_tensor(pattern.output)
    weights = _quantize_weights(builder, pattern, layer)
    source, pads, reason = pad_input(builder, pattern, layer, weights.quantized.shape)
    if source is None or pads is None:
        builder.keep_pattern(pattern, reason)
    elif layer.op == "MatMul" and (output is None or pattern.add):
        _add_matmul_to_float(builder, pattern, source, weights)
    elif layer.op == "MatMul" and output is not None:
        _add_matmul(builder, pattern, source, weights, output)
    elif output is None or (pattern.add and layer.op != "Conv2D"):
        _add_convolution_to_float(builder, pattern, source, pads, weights)
    else:
        _add_convolution(builder, pattern, source, pads, weights, output)


def _quantize_weights(builder: GraphBuilder, pattern: FusedPattern, layer: Node) -> _Weights:
    spec = builder.plan.weights[pattern.weights]
    facts = find_layer(layer)
    constant = builder.source.constant_of(Edge(pattern.weights))
    if facts is None or constant is None:
        raise GraphError(
            f"{pattern.layer!r} is planned as a layer, but its weights are not constant", hint=ANNOTATE_AGAIN
        )
    if spec.dtype is not WEIGHTS_TYPE or not spec.symmetric:
        raise GraphError(
            f"oneDNN requires symmetric qint8 weights, and the plan gives {pattern.weights!r} {spec}",
            hint="use the scheme of the target tensorflow",
        )
    values = constant.array.astype(np.float32)
    if layer.op == "MatMul" and layer.attrs.get("transpose_b"):
        values = np.ascontiguousarray(values.T)
        spec = replace(spec, axes=(1,) if spec.per_channel else (), pair_axes=(0,) if spec.pair_axes else ())
        axes: tuple[int, ...] = (1,)
    else:
        axes = facts.weights_axes
    parameters = QuantizationParameters.of_weights(spec, values)
    quantized = parameters.quantize(values)
    rest = tuple(axis for axis in range(values.ndim) if axis not in axes)
    sums = quantized.sum(rest, dtype=np.int64).reshape(-1) * parameters.scale.astype(np.float64)
    return _Weights(quantized, parameters.scale, _bias(builder, pattern, layer, len(sums)), sums)


def _bias(builder: GraphBuilder, pattern: FusedPattern, layer: Node, num_channels: int) -> Floats:
    bias = np.zeros(num_channels)
    facts = find_layer(layer)
    if pattern.bias and facts is not None:
        node = builder.source[pattern.bias]
        value = next(value for edge in node.inputs if (value := builder.source.constant_of(edge)) is not None)
        bias = bias + _channels(value, facts.rank, facts.axis, num_channels, pattern.bias)
    return bias


def _layer_inputs(
    builder: GraphBuilder, pattern: FusedPattern, source: QuantizedTensor, weights: _Weights, bias: Floats
) -> tuple[list[Edge], list[Edge]]:
    """Return input, weights and bias; then the limits of input and weights.

    The bias compensates the zero point of the input: sum((q - zero) * scale * w) needs
    - zero * scale * sum(w).
    """
    shifted = bias - source.zero * source.scale * weights.sums
    limit = (weights.scale * np.float32(127)).astype(np.float32)
    # Layers with the same weights share their constants.
    key = (pattern.weights, bool(builder.source[pattern.layer].attrs.get("transpose_b")))
    shared = builder.weights.get(key)
    quantized = shared[0] if shared else builder.constant(f"{pattern.name}/weights", weights.quantized, WEIGHTS_TYPE)
    data = [source.edge, quantized, builder.constant(f"{pattern.name}/bias", shifted.astype(np.float32))]
    low, high = (
        shared[1:]
        if shared
        else (
            builder.constant(f"{pattern.name}/weights_min", -limit),
            builder.constant(f"{pattern.name}/weights_max", limit),
        )
    )
    builder.weights[key] = (quantized, low, high)
    return data, [*builder.unshifted_limits(source), low, high]


def _add_convolution(
    builder: GraphBuilder,
    pattern: FusedPattern,
    source: QuantizedTensor,
    pads: dict[str, Attr],
    weights: _Weights,
    output: QuantizedTensor,
) -> None:
    layer = builder.source[pattern.layer]
    bias = weights.bias + output.zero * output.scale
    attrs: dict[str, Attr] = {
        "Tinput": ACTIVATION_TYPE,
        "Tfilter": WEIGHTS_TYPE,
        "Tbias": DType.FLOAT,
        "out_type": ACTIVATION_TYPE,
        "strides": layer.attrs["strides"],
        "dilations": attribute(layer, "dilations"),
        **pads,
    }
    summand_inputs: list[Edge] = []
    kernel = f"{_kernel_of(layer)}WithBiasAndReluAndRequantize"
    if pattern.summand is not None:
        summand = builder.quantized_tensor(pattern.summand)
        bias = bias - summand.zero * summand.scale
        kernel = f"{_kernel_of(layer)}WithBiasSumAndReluAndRequantize"
        attrs["Tsummand"] = ACTIVATION_TYPE
        summand_inputs = [summand.edge, *builder.unshifted_limits(summand)]
    data, limits = _layer_inputs(builder, pattern, source, weights, bias)
    inputs = [*data, *limits, *builder.unshifted_limits(output), *summand_inputs]
    _add_kernel(builder, pattern, output, kernel, inputs, attrs)


def _kernel_of(layer: Node) -> str:
    return "QuantizedDepthwiseConv2D" if layer.op == "DepthwiseConv2dNative" else "QuantizedConv2D"


def _add_kernel(
    builder: GraphBuilder,
    pattern: FusedPattern,
    output: QuantizedTensor,
    op: str,
    inputs: list[Edge],
    attrs: Mapping[str, Attr],
) -> None:
    """Add the kernel of a pattern, and a clamp if the activation clamps inside the output range."""
    needs_clamp = bool(pattern.activation) and _needs_clamp(builder, pattern, output)
    name = quantized_name(pattern.output)
    edge = builder.add(f"{name}/unclipped" if needs_clamp else name, op, inputs, **attrs)
    if needs_clamp:
        edge = builder.clamp(name, builder.source[pattern.activation].op, output._replace(edge=edge))
    builder.quantized[pattern.output] = output._replace(edge=edge)


def _needs_clamp(builder: GraphBuilder, pattern: FusedPattern, output: QuantizedTensor) -> bool:
    """Return True if the output range, which other edges may share, exceeds that of the activation."""
    exceeds = builder.source[pattern.activation].op == "Relu6" and output.max_unshifted > RELU6_MAX * (1 + 1e-6)
    return bool(output.zero) or exceeds


def _add_convolution_to_float(
    builder: GraphBuilder,
    pattern: FusedPattern,
    source: QuantizedTensor,
    pads: dict[str, Attr],
    weights: _Weights,
) -> None:
    """Add a convolution with 32-bit sums, and the rest of the pattern in float.

    The kernel scales all channels by the largest scale, regardless of the limits that it reports.
    """
    layer = builder.source[pattern.layer]
    kernel = _kernel_of(layer)
    data, limits = _layer_inputs(builder, pattern, source, weights, weights.bias)
    name = quantized_name(Edge(pattern.layer))
    attrs: dict[str, Attr] = {
        "Tinput": ACTIVATION_TYPE,
        "Tfilter": WEIGHTS_TYPE,
        "out_type": DType.QINT32,
        **pads,
    }
    if kernel == "QuantizedConv2D":
        attrs["Tbias"] = DType.FLOAT
    sums = builder.add(
        name,
        f"{kernel}WithBias",
        [*data, *limits],
        strides=layer.attrs["strides"],
        dilations=attribute(layer, "dilations"),
        **attrs,
    )
    _dequantize_sums(builder, pattern, name, sums, source.scale * float(weights.scale.max()))


def _dequantize_sums(builder: GraphBuilder, pattern: FusedPattern, name: str, sums: Edge, scale: float) -> None:
    """Multiply 32-bit sums by their scale, and keep the rest of the pattern in float."""
    integers = builder.add(f"{name}/bits", "Bitcast", (sums,), T=DType.QINT32, type=DType.INT32)
    floats = builder.add(f"{name}/numbers", "Cast", (integers,), SrcT=DType.INT32, DstT=DType.FLOAT)
    last = pattern.bias or pattern.layer
    builder.nodes[last] = Node(last, "Mul", (floats, builder.scalar(scale)), attrs={"T": DType.FLOAT})
    _keep_residual_and_activation(builder, pattern)


def _add_matmul(
    builder: GraphBuilder, pattern: FusedPattern, source: QuantizedTensor, weights: _Weights, output: QuantizedTensor
) -> None:
    """Add a matrix product with a quantized output."""
    data, limits = _layer_inputs(builder, pattern, source, weights, weights.bias + output.zero * output.scale)
    attrs = {
        **MATMUL_ATTRS,
        "Tout": ACTIVATION_TYPE,
        "Thost_inputs": (DType.FLOAT,) * 6,
        "Tdevice_outputs": (ACTIVATION_TYPE,),
        "Thost_outputs": (DType.FLOAT,) * 2,
        "fused_ops": (b"BiasAdd", b"Relu", b"Requantize"),
    }
    inputs = [*data, *limits, *builder.unshifted_limits(output)]
    _add_kernel(builder, pattern, output, "_QuantizedMatMul", inputs, attrs)


def _add_matmul_to_float(
    builder: GraphBuilder, pattern: FusedPattern, source: QuantizedTensor, weights: _Weights
) -> None:
    """Add a matrix product with a float output: it has no quantized consumer, or a residual follows."""
    data, limits = _layer_inputs(builder, pattern, source, weights, weights.bias)
    attrs = {
        **MATMUL_ATTRS,
        "Tout": DType.FLOAT,
        "Thost_inputs": (DType.FLOAT,) * 4,
        "Tdevice_outputs": (DType.FLOAT,),
        "Thost_outputs": (),
        "fused_ops": (b"BiasAdd", b"Dequantize"),
    }
    name = pattern.bias or pattern.layer
    builder.nodes[name] = Node(name, "_QuantizedMatMul", (*data, *limits), attrs=attrs)
    _keep_residual_and_activation(builder, pattern)


def _keep_residual_and_activation(builder: GraphBuilder, pattern: FusedPattern) -> None:
    for name in (pattern.add, pattern.activation):
        if name:
            builder.keep(builder.source[name])


def _channels(value: Tensor, rank: int, axis: int, num_channels: int, name: str) -> Array:
    channels = broadcast_channels(value, rank=rank, axis=axis, num_channels=num_channels)
    if channels is None:
        raise GraphError(
            f"{name!r} is planned as a bias, but does not add one constant per channel", hint=ANNOTATE_AGAIN
        )
    return channels
