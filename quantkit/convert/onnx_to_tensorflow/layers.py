"""Conversion of convolutions, pools, norms and matrix products."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from quantkit.convert.layouts import transpose_tensor
from quantkit.convert.onnx_to_tensorflow.arrays import shape_of
from quantkit.convert.onnx_to_tensorflow.translator import NHWC, PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.convert.onnx_to_tensorflow.windows import find_windows, pad_image
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.table import Fact, find_ops

NEVER_NEGATIVE = find_ops(Fact.NONNEGATIVE, "onnx")


@converts("Conv")
def _conv(translator: OnnxTranslator, node: Node) -> None:
    weights = translator.weights(node)
    if weights is None or len(weights.shape) not in (3, 4):
        raise conversion_error(node, "the weights must be constant and have rank 3 or 4")
    is_row = len(weights.shape) == 3
    if is_row:
        node, weights = _as_image(translator, node, weights)
    _emit_convolution(translator, node, weights)
    if is_row:
        _emit_row(translator, node)


def _emit_convolution(translator: OnnxTranslator, node: Node, weights: Tensor) -> None:
    """Add a convolution of images with weights (c_out, c_in, h, w)."""
    group = node.attrs.get("group", 1)
    count, depth, height, width = weights.shape
    windows = find_windows(translator, node, (height, width))
    name = translator.name(node.name)
    if depth == 1 and group > 1:
        shape = (height, width, group, count // group)
        kernel, op = Tensor(weights.dtype, shape, partial(_depthwise_weights, weights, shape)), "DepthwiseConv2dNative"
    else:
        kernel, op = transpose_tensor(weights, (2, 3, 1, 0)), "Conv2D"
    inputs = [pad_image(translator, node, windows, 0), translator.add_constant(f"{name}/weights", kernel)]
    attrs: dict[str, Attr] = {**windows.attrs, "data_format": b"NHWC", "dilations": (1, *windows.dilations, 1)}
    _emit_with_bias(translator, node, op, inputs, attrs)


def _emit_with_bias(
    translator: OnnxTranslator, node: Node, op: str, inputs: list[Edge], attrs: Mapping[str, Attr]
) -> None:
    """Add a layer and the bias of input 2, if the node has one."""
    if not translator.has_input(node, 2):
        translator.emit_typed(node, op, inputs, NHWC, **attrs)
        return
    name = f"{translator.name(node.name)}/product"
    product = translator.add_node(name, op, inputs, T=translator.types[inputs[-1]], **attrs)
    translator.types[product] = translator.types[inputs[-1]]
    translator.emit_typed(node, "BiasAdd", [product, translator.plain(node.inputs[2])], NHWC, data_format=b"NHWC")


def _as_image(translator: OnnxTranslator, node: Node, weights: Tensor) -> tuple[Node, Tensor]:
    """Return a 1-D convolution as one of images of height 1, and its weights (c_out, c_in, 1, k)."""
    source = Edge(f"{node.name}/image")
    axis = translator.add_array(node, "row_axis", 1, DType.INT32)
    row = translator.transpose(f"{translator.name(node.name)}/nwc", translator.plain(node.inputs[0]), (0, 2, 1))
    translator.values[source, NHWC] = translator.add_intermediate(
        node, "image", "ExpandDims", [row, axis], Tdim=DType.INT32
    )
    dims = translator.shape(node.inputs[0]).dims or (None,) * 3
    translator.shapes = {**translator.shapes, source: Shape((*dims[:2], 1, dims[2]))}
    attrs: dict[str, Any] = dict(node.attrs)
    for name, value in (("strides", 1), ("dilations", 1), ("kernel_shape", 1), ("output_padding", 0)):
        if attrs.get(name):
            attrs[name] = (value, *attrs[name])
    if attrs.get("pads"):
        attrs["pads"] = (0, attrs["pads"][0], 0, attrs["pads"][1])
    shape = (*weights.shape[:2], 1, weights.shape[2])
    image_weights = Tensor(weights.dtype, shape, lambda: weights.array.reshape(shape))
    return node.with_(inputs=(source, *node.inputs[1:]), attrs=attrs), image_weights


def _emit_row(translator: OnnxTranslator, node: Node) -> None:
    """Replace the image of a node by its row (n, c, w)."""
    image = translator.values.pop((Edge(node.name), NHWC))
    row = translator.add_intermediate(node, "row", "Squeeze", [image], squeeze_dims=(1,))
    translator.values[Edge(node.name), PLAIN] = translator.transpose(
        f"{translator.name(node.name)}/ncw", row, (0, 2, 1)
    )


@converts("ConvTranspose")
def _conv_transpose(translator: OnnxTranslator, node: Node) -> None:
    """Convert to a transposed convolution without padding, and a crop; with the stride 1, to a convolution."""
    weights = translator.weights(node)
    if weights is None or len(weights.shape) not in (3, 4):
        raise conversion_error(node, "the weights must be constant and have rank 3 or 4")
    if len(weights.shape) == 3:
        image, weights = _as_image(translator, node, weights)
        _emit_conv_transpose(translator, image, weights)
        _emit_row(translator, node)
    else:
        _emit_conv_transpose(translator, node, weights)


def _emit_conv_transpose(translator: OnnxTranslator, node: Node, weights: Tensor) -> None:
    attrs: Mapping[str, Any] = node.attrs
    if attrs.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or attrs.get("output_shape"):
        raise conversion_error(node, "auto_pad and output_shape are not supported")
    strides, dilations = (tuple(attrs.get(name) or (1, 1)) for name in ("strides", "dilations"))
    pads, extra = attrs.get("pads") or (0,) * 4, attrs.get("output_padding") or (0, 0)
    groups = attrs.get("group", 1)
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(weights.shape[2:], dilations, strict=True)]
    if convolution := _as_convolution(node, weights, spans):
        _emit_convolution(translator, *convolution)
        return
    # Pixels that the crop removes at the end; a negative number adds pixels.
    removed = [pads[2 + axis] - extra[axis] for axis in (0, 1)]
    # The product has size * stride + offset pixels.
    offsets = [spans[axis] - strides[axis] - min(removed[axis], 0) for axis in (0, 1)]
    layer: dict[str, Attr] = {
        "strides": (1, *strides, 1),
        "dilations": (1, *dilations, 1),
        "padding": b"VALID",
        "data_format": b"NHWC",
    }
    sizes = _transposed_shape(translator, node, weights.shape[1], strides, offsets)
    product = _transposed_product(translator, node, weights, groups, sizes, layer)
    if any(pads[:2]) or max(removed) > 0:
        limits = ([0, *pads[:2], 0], [0, *(-max(size, 0) for size in removed), 0], [1] * 4)
        edges = [translator.add_array(node, f"crop/{number}", values) for number, values in enumerate(limits)]
        whole = sum(2 << axis for axis, size in enumerate(removed) if size <= 0)
        product = translator.add_intermediate(
            node, "crop", "StridedSlice", [product, *edges], Index=DType.INT64, begin_mask=9, end_mask=9 | whole
        )
    if translator.has_input(node, 2):
        bias = translator.plain(node.inputs[2])
        translator.emit_typed(node, "BiasAdd", [product, bias], NHWC, data_format=b"NHWC")
    else:
        translator.emit_typed(node, "Identity", [product], NHWC)


def _as_convolution(node: Node, weights: Tensor, spans: Sequence[int]) -> tuple[Node, Tensor] | None:
    """Return a transposed convolution with the stride 1 as a convolution of the padded image, and its weights.

        ConvTranspose(x, w, pads)  ==  Conv(x, mirrored w, span - 1 - pads)

    LiteRT has no transposed convolution with dilations. None for other strides, for more padding than the image gets,
    and for groups of several channels.
    """
    attrs: Mapping[str, Any] = node.attrs
    groups = attrs.get("group", 1)
    pads = [span - 1 - pad for span, pad in zip((*spans, *spans), attrs.get("pads") or (0,) * 4, strict=True)]
    has_stride = any(stride != 1 for stride in attrs.get("strides") or ())
    has_wide_groups = groups > 1 and weights.shape[0] > groups
    if has_stride or has_wide_groups or min(pads) < 0 or any(attrs.get("output_padding") or ()):
        return None
    shape = (weights.shape[1] * groups, weights.shape[0] // groups, *weights.shape[2:])
    mirrored = Tensor(weights.dtype, shape, partial(_mirror_weights, weights, groups, shape))
    rest = {name: value for name, value in attrs.items() if name != "auto_pad"}
    return node.with_(op="Conv", attrs={**rest, "pads": tuple(pads)}), mirrored


def _mirror_weights(weights: Tensor, groups: int, shape: tuple[int, ...]) -> Array:
    """Convert weights (groups * c_in, c_out, h, w) of a transposed convolution to (groups * c_out, c_in, h, w)."""
    array = weights.array.reshape(groups, -1, *weights.shape[1:])[..., ::-1, ::-1]
    return np.ascontiguousarray(array.swapaxes(1, 2).reshape(shape))


def _transposed_shape(
    translator: OnnxTranslator, node: Node, depth: int, strides: Sequence[int], offsets: Sequence[int]
) -> Edge:
    """Return the shape of a transposed convolution of ``depth`` channels: size * stride + offset pixels."""
    batch, _, *sizes = translator.shape(node.inputs[0]).dims or (None,) * 4
    pixels = [None if size is None else size * strides[axis] + offsets[axis] for axis, size in enumerate(sizes)]
    if batch is not None and None not in pixels:
        return translator.add_array(node, "sizes", [batch, *pixels, depth], DType.INT32)  # type: ignore[arg-type]
    shape = shape_of(translator, node, translator.nhwc(node.inputs[0]))
    if None in pixels:
        factors = translator.add_array(node, "sizes/factors", [1, *strides, 0])
        terms = translator.add_array(node, "sizes/terms", [0, *offsets, depth])
        scaled = translator.add_intermediate(node, "sizes/scaled", "Mul", [shape, factors])
        output = translator.add_intermediate(node, "sizes", "AddV2", [scaled, terms])
        return translator.add_cast(node, "sizes/int", output, DType.INT32)
    begin, size = (translator.add_array(node, f"batch/{limit}", [limit]) for limit in (0, 1))
    first = translator.add_intermediate(node, "batch", "Slice", [shape, begin, size], Index=DType.INT64)
    rest = translator.add_array(node, "sizes/rest", [*pixels, depth])  # type: ignore[arg-type]
    axis = translator.add_array(node, "sizes/axis", 0, DType.INT32)
    output = translator.add_intermediate(node, "sizes", "ConcatV2", [first, rest, axis], N=2, Tidx=DType.INT32)
    return translator.add_cast(node, "sizes/int", output, DType.INT32)


def _transposed_product(
    translator: OnnxTranslator, node: Node, weights: Tensor, groups: int, output: Edge, attrs: Mapping[str, Attr]
) -> Edge:
    """Return a transposed convolution of each group of channels, of the shape ``output``."""
    source = translator.nhwc(node.inputs[0])
    channels = weights.shape[0] // groups
    parts = []
    for group in range(groups):
        part = source
        if groups > 1:
            limits = [
                translator.add_array(node, f"part/{number}", values)
                for number, values in enumerate(([0, 0, 0, group * channels], [-1, -1, -1, channels]))
            ]
            part = translator.add_intermediate(node, "part", "Slice", [source, *limits], Index=DType.INT64)
        kernel = np.ascontiguousarray(weights.array[group * channels : (group + 1) * channels].transpose(2, 3, 1, 0))
        kernel_edge = translator.add_array(node, "weights", kernel, weights.dtype)
        name = f"{translator.name(node.name)}/product"
        edge = translator.add_node(name, "Conv2DBackpropInput", [output, kernel_edge, part], T=weights.dtype, **attrs)
        translator.types[edge] = weights.dtype
        parts.append(edge)
    if groups == 1:
        return parts[0]
    last = translator.add_array(node, "groups/axis", 3, DType.INT32)
    return translator.add_intermediate(node, "groups", "ConcatV2", [*parts, last], N=groups, Tidx=DType.INT32)


@converts("InstanceNormalization")
def _instance_norm(translator: OnnxTranslator, node: Node) -> None:
    """Convert to (x - mean) rsqrt(variance + epsilon) scale + bias, over height and width."""
    if translator.rank(node.inputs[0]) != 4:
        raise conversion_error(node, "the input must have rank 4")
    x, scale, bias = translator.nhwc(node.inputs[0]), *(translator.plain(edge) for edge in node.inputs[1:3])
    _emit_norm(translator, node, NHWC, x, scale, bias, (1, 2))


@converts("LayerNormalization")
def _layer_norm(translator: OnnxTranslator, node: Node) -> None:
    rank = translator.rank(node.inputs[0])
    axis = node.attrs.get("axis", -1)
    if rank is None or any(translator.graph.uses.get(Edge(node.name, port)) for port in (1, 2)):
        raise conversion_error(node, "the rank of the input must be known, and only output 0 is supported")
    x, scale = translator.plain(node.inputs[0]), translator.plain(node.inputs[1])
    bias = translator.plain(node.inputs[2]) if translator.has_input(node, 2) else None
    _emit_norm(translator, node, PLAIN, x, scale, bias, range(axis % rank, rank))


def _emit_norm(
    translator: OnnxTranslator, node: Node, layout: str, x: Edge, scale: Edge, bias: Edge | None, axes: Iterable[int]
) -> None:
    axes_edge = translator.add_integers(f"{translator.name(node.name)}/axes", axes)
    options: dict[str, Attr] = {"Tidx": DType.INT32, "keep_dims": True}
    mean = translator.add_intermediate(node, "mean", "Mean", [x, axes_edge], **options)
    squares = translator.add_intermediate(node, "squares", "SquaredDifference", [x, mean])
    variance = translator.add_intermediate(node, "variance", "Mean", [squares, axes_edge], **options)
    epsilon = translator.add_array(node, "epsilon", node.attrs.get("epsilon", 1e-5), DType.FLOAT)
    total = translator.add_intermediate(node, "total", "AddV2", [variance, epsilon])
    factor = translator.add_intermediate(node, "factor", "Rsqrt", [total])
    centered = translator.add_intermediate(node, "centered", "Sub", [x, mean])
    value = translator.add_intermediate(node, "normalized", "Mul", [centered, factor])
    if bias is None:
        translator.emit_typed(node, "Mul", [value, scale], layout)
    else:
        scaled = translator.add_intermediate(node, "scaled", "Mul", [value, scale])
        translator.emit_typed(node, "AddV2", [scaled, bias], layout)


def _depthwise_weights(weights: Tensor, shape: tuple[int, ...]) -> Array:
    """Transpose weights (c * m, 1, h, w) to (h, w, c, m)."""
    height, width, channels, multiplier = shape
    array = weights.array.reshape(channels, multiplier, height, width)
    return np.ascontiguousarray(array.transpose(2, 3, 0, 1))


@converts("MaxPool AveragePool")
def _pool(translator: OnnxTranslator, node: Node) -> None:
    kernel = node.attrs["kernel_shape"]
    windows = find_windows(translator, node, kernel)
    is_max = node.op == "MaxPool"
    if windows.dilations != (1, 1):
        raise conversion_error(node, "a pool with dilations is not supported")
    counts_padding = bool(node.attrs.get("count_include_pad")) and windows.is_padded
    if counts_padding:
        windows = replace(windows, is_same=False)
    elif not is_max and windows.is_padded and not windows.is_same:
        raise conversion_error(node, "an average pool that excludes its padding requires padding as in mode SAME")
    if counts_padding and node.attrs.get("ceil_mode"):
        raise conversion_error(node, "count_include_pad with ceil_mode is not supported")
    # Zeros change no maximum of values that are never negative. LiteRT's int8 kernel of PadV2 is slow.
    producer = translator.graph.nodes.get(node.inputs[0].node)
    is_filled = is_max and (producer is None or producer.op not in NEVER_NEGATIVE)
    source = pad_image(translator, node, windows, -math.inf if is_filled else 0)
    attrs: dict[str, Attr] = {**windows.attrs, "ksize": (1, *windows.kernel, 1), "data_format": b"NHWC"}
    translator.emit_typed(node, "MaxPool" if is_max else "AvgPool", [source], NHWC, **attrs)


@converts("BatchNormalization")
def _batch_norm(translator: OnnxTranslator, node: Node) -> None:
    if node.attrs.get("training_mode"):
        raise conversion_error(node, "training mode is not supported")
    if translator.rank(node.inputs[0]) != 4:
        _emit_scale_and_offset(translator, node)
        return
    inputs = [translator.nhwc(node.inputs[0]), *(translator.plain(edge) for edge in node.inputs[1:5])]
    attrs: dict[str, Attr] = {"U": DType.FLOAT, "data_format": b"NHWC", "is_training": False}
    attrs["epsilon"] = float(np.asarray(node.attrs.get("epsilon", 1e-5), np.float32))
    translator.emit_typed(node, "FusedBatchNormV3", inputs, NHWC, **attrs)


def _emit_scale_and_offset(translator: OnnxTranslator, node: Node) -> None:
    """Convert a batch norm of rank 2, 3 or 5 to x factor + offset, with the factors of each channel."""
    rank = translator.rank(node.inputs[0])
    if rank is None:
        raise conversion_error(node, "the rank of the input is unknown")
    scale, bias, mean, variance = (translator.constant(node, slot) for slot in range(1, 5))
    epsilon = node.attrs.get("epsilon", 1e-5)
    factor = scale / np.sqrt(variance + np.float32(epsilon))
    shape = (-1, *(1,) * (rank - 2))
    edges = [
        translator.add_array(node, name, values.reshape(shape), DType.FLOAT)
        for name, values in (("factor", factor), ("offset", bias - mean * factor))
    ]
    scaled = translator.add_intermediate(node, "scaled", "Mul", [translator.plain(node.inputs[0]), edges[0]])
    translator.emit_typed(node, "AddV2", [scaled, edges[1]], PLAIN)


@converts("LRN")
def _lrn(translator: OnnxTranslator, node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    size = attrs["size"]
    lrn_attrs: dict[str, Attr] = {
        "depth_radius": (size - 1) // 2,
        "alpha": attrs.get("alpha", 1e-4) / size,
        "beta": attrs.get("beta", 0.75),
        "bias": attrs.get("bias", 1.0),
    }
    if size % 2 == 0:
        raise conversion_error(node, "the window size must be odd")
    translator.emit_typed(node, "LRN", [translator.nhwc(node.inputs[0])], NHWC, **lrn_attrs)


@converts("Gemm")
def _gemm(translator: OnnxTranslator, node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 1.0)
    inputs = [translator.plain(node.inputs[0]), translator.plain(node.inputs[1])]
    flags: dict[str, Attr] = {
        "transpose_a": bool(attrs.get("transA", 0)),
        "transpose_b": bool(attrs.get("transB", 0)),
    }
    weights = translator.weights(node)
    if flags["transpose_b"] and weights is not None:  # TensorFlow's weights are not transposed
        flags["transpose_b"] = False
        inputs[1] = translator.add_constant(f"{translator.name(node.name)}/weights", transpose_tensor(weights, (1, 0)))
    has_bias = translator.has_input(node, 2) and beta != 0
    if not has_bias and alpha == 1:
        translator.emit_typed(node, "MatMul", inputs, PLAIN, **flags)
        return
    product = translator.add_intermediate(node, "product", "MatMul", inputs, **flags)
    if not has_bias:
        translator.emit_typed(node, "Mul", [product, translator.add_array(node, "alpha", alpha, DType.FLOAT)], PLAIN)
        return
    bias = translator.plain(node.inputs[2])
    if alpha != 1:
        factor = translator.add_array(node, "alpha", alpha, DType.FLOAT)
        product = translator.add_intermediate(node, "scaled", "Mul", [product, factor])
    if beta != 1:
        bias = translator.add_intermediate(
            node, "bias", "Mul", [bias, translator.add_array(node, "beta", beta, DType.FLOAT)]
        )
    op = "BiasAdd" if translator.rank(node.inputs[2]) == 1 else "AddV2"
    translator.emit_typed(node, op, [product, bias], PLAIN, **({"data_format": b"NHWC"} if op == "BiasAdd" else {}))


@converts("MatMul")
def _matmul(translator: OnnxTranslator, node: Node) -> None:
    inputs = [translator.plain(edge) for edge in node.inputs]
    ranks = [translator.rank(edge) for edge in node.inputs]
    if ranks == [2, 2]:
        translator.emit_typed(node, "MatMul", inputs, PLAIN, transpose_a=False, transpose_b=False)
    elif None not in ranks and min(rank for rank in ranks if rank is not None) >= 2:
        translator.emit_typed(node, "BatchMatMulV2", inputs, PLAIN, adj_x=False, adj_y=False)
    else:
        raise conversion_error(node, "both inputs must have a known rank of at least 2")
