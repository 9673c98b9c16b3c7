"""Conversion of ops for images, volumes and detections.

SpaceToBatchND:   (n, h b, w b, c) -> (n, h, b, w, b, c) -> (b, b, n, h, w, c) -> (b b n, h, w, c)
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from quantkit.convert.layouts import transpose_tensor
from quantkit.convert.tensorflow_to_onnx.layers import constant_weights
from quantkit.convert.tensorflow_to_onnx.slices import SLICE_LIMIT
from quantkit.convert.tensorflow_to_onnx.translator import (
    HANDLERS,
    NCHW,
    PLAIN,
    Translator,
    conversion_error,
    converts,
)
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.layers import same_padding
from quantkit.ops.tensorflow.signatures import attribute


@converts("LRN")
def _lrn(translator: Translator, node: Node) -> None:
    size = 2 * attribute(node, "depth_radius") + 1
    attrs: dict[str, Attr] = {"size": size, "alpha": float(attribute(node, "alpha")) * size}
    attrs |= {name: float(attribute(node, name)) for name in ("beta", "bias")}
    translator.emit(node, "LRN", [translator.nchw(node.inputs[0])], NCHW, **attrs)


@converts("DepthToSpace SpaceToDepth")
def _depth(translator: Translator, node: Node) -> None:
    size = attribute(node, "block_size")
    source = translator.image_input(node, node.inputs[0])
    translator.emit(node, node.op, [source], translator.image_layout(node), blocksize=size)


def _blocks(translator: Translator, node: Node) -> tuple[list[int], Array, int]:
    """Return the block sizes, the padding or cropping of each blocked axis, and the rank of the input."""
    rank = translator.rank(node.inputs[0])
    if rank is None:
        raise conversion_error(node, "the rank of its input is unknown")
    return translator.constant(node, 1).astype(int).tolist(), translator.constant(node, 2).astype(int), rank


@converts("SpaceToBatchND")
def _space_to_batch(translator: Translator, node: Node) -> None:
    blocks, widths, rank = _blocks(translator, node)
    count, num_rest = len(blocks), rank - len(blocks) - 1
    value = translator.plain(node.inputs[0])
    if widths.any():
        pads = np.zeros((rank, 2), np.int64)
        pads[1 : count + 1] = widths
        value = translator.add_intermediate(
            node, "padded", "Pad", [value, translator.add_array(node, "pads", pads.T.ravel())]
        )
    axes = [0, *(axis for number in range(count) for axis in (number + 1, None)), *range(count + 1, rank)]
    factors = [1, *(factor for block in blocks for factor in (-block, block)), *[1] * num_rest]
    value = _reshape(translator, node, "blocks", value, axes, factors)
    order = (*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2), *range(2 * count + 1, rank + count))
    value = translator.add_intermediate(node, "turned", "Transpose", [value], perm=order)
    result = _reshape(
        translator, node, "whole", value, range(count, rank + count), [math.prod(blocks), *[1] * (rank - 1)]
    )
    translator.emit(node, "Identity", [result], PLAIN)


@converts("BatchToSpaceND")
def _batch_to_space(translator: Translator, node: Node) -> None:
    blocks, widths, rank = _blocks(translator, node)
    count, num_rest = len(blocks), rank - len(blocks) - 1
    factors = [*blocks, -math.prod(blocks), *[1] * (rank - 1)]
    value = _reshape(
        translator, node, "blocks", translator.plain(node.inputs[0]), [*[None] * count, *range(rank)], factors
    )
    spatial = [axis for number in range(count) for axis in (count + 1 + number, number)]
    order = (count, *spatial, *range(2 * count + 1, rank + count))
    value = translator.add_intermediate(node, "turned", "Transpose", [value], perm=order)
    axes = [0, *range(1, 2 * count, 2), *range(2 * count + 1, rank + count)]
    value = _reshape(translator, node, "whole", value, axes, [1, *blocks, *[1] * num_rest])
    ends = [-int(after) if after else SLICE_LIMIT for after in widths[:, 1]]
    limits = (("starts", widths[:, 0]), ("ends", ends), ("axes", np.arange(1, count + 1)))
    edges = [translator.add_array(node, name, numbers) for name, numbers in limits]
    translator.emit(node, "Slice", [value, *edges], PLAIN)


def _reshape(
    translator: Translator, node: Node, suffix: str, value: Edge, axes: Sequence[int | None], factors: Sequence[int]
) -> Edge:
    """Reshape to the sizes of `_sizes`."""
    shape = translator.add_intermediate(node, f"{suffix}/shape", "Shape", [value])
    return translator.add_intermediate(
        node, suffix, "Reshape", [value, _sizes(translator, node, suffix, shape, axes, factors)]
    )


def _sizes(
    translator: Translator, node: Node, suffix: str, shape: Edge, axes: Sequence[int | None], factors: Sequence[int]
) -> Edge:
    """Return a shape with the sizes of axes of another shape, each times a factor.

    A negative factor divides. Without an axis, the size is the factor.
    """
    numbers = translator.add_array(node, f"{suffix}/axes", [0 if axis is None else axis for axis in axes])
    divisors = [-factor if factor < 0 else 1 for factor in factors]
    multiples = [1 if factor < 0 or axis is None else factor for axis, factor in zip(axes, factors, strict=True)]
    is_fixed = translator.add_array(node, f"{suffix}/is_fixed", [axis is None for axis in axes], DType.BOOL)
    sizes = translator.add_intermediate(node, f"{suffix}/parts", "Gather", [shape, numbers])
    for op, values in (("Div", divisors), ("Mul", multiples)):
        operand = translator.add_array(node, f"{suffix}/{op}/by", values)
        sizes = translator.add_intermediate(node, f"{suffix}/{op}", op, [sizes, operand])
    fixed = translator.add_array(node, f"{suffix}/fixed", factors)
    return translator.add_intermediate(node, f"{suffix}/sizes", "Where", [is_fixed, fixed, sizes])


@converts("ResizeBicubic")
def _resize_bicubic(translator: Translator, node: Node) -> None:
    """Convert with the coefficient -0.75; -0.5 for half pixel centers, where TensorFlow ignores pixels outside.

    ONNX Runtime moves transposes across a Resize, but not across a Reshape, and only resizes the last two axes.
    """
    _, *sizes = translator.shape(node.inputs[0]).dims or (None, None)
    before = [size for size in sizes if size is not None]
    if translator.dtype(node.inputs[0]) is not DType.FLOAT or len(before) != 3:
        raise conversion_error(node, "the input must be float32 and have a known size")
    height, width = (int(size) for size in translator.constant(node, 1))
    is_half, has_corners = bool(node.attrs.get("half_pixel_centers")), bool(node.attrs.get("align_corners"))
    mode = b"half_pixel" if is_half else b"align_corners" if has_corners else b"asymmetric"
    attrs: dict[str, Attr] = {
        "coordinate_transformation_mode": mode,
        "mode": b"cubic",
        "cubic_coeff_a": -0.5 if is_half else -0.75,
        "exclude_outside": int(is_half),
    }
    planes_shape = translator.add_array(node, "planes/shape", [-1, 1, *before[:2]])
    planes = translator.add_intermediate(node, "planes", "Reshape", [translator.nchw(node.inputs[0]), planes_shape])
    scales = translator.add_array(node, "scales", [1, 1, height / before[0], width / before[1]], DType.FLOAT)
    resized = translator.add_intermediate(node, "resized", "Resize", [planes, Edge(""), scales], **attrs)
    image_shape = translator.add_array(node, "image/shape", [-1, before[2], height, width])
    translator.emit(node, "Reshape", [resized, image_shape], NCHW)


@converts("MaxPoolV2")
def _max_pool(translator: Translator, node: Node) -> None:
    """Convert as MaxPool: its windows are constant inputs."""
    ksize, strides = (tuple(translator.constant(node, slot).tolist()) for slot in (1, 2))
    pool = node.with_(op="MaxPool", inputs=node.inputs[:1]).with_attrs(ksize=ksize, strides=strides)
    HANDLERS["MaxPool"](translator, pool)


@converts("ExtractImagePatches")
def _patches(translator: Translator, node: Node) -> None:
    """Convert to a convolution whose filters each copy one element of the window."""
    dims = translator.shape(node.inputs[0]).dims or (None,) * 4
    channels = dims[3]
    if channels is None or translator.dtype(node.inputs[0]) is not DType.FLOAT:
        raise conversion_error(node, "the input must be float32 with a known number of channels")
    (_, height, width, _), (_, *strides, _), (_, *rates, _) = (
        attribute(node, name) for name in ("ksizes", "strides", "rates")
    )
    count = height * width * channels
    filters = np.eye(count, dtype=np.float32).reshape(count, height, width, channels).transpose(0, 3, 1, 2)
    pads = _pads(node, dims[1:3], (height, width), strides, rates)
    inputs = [translator.nchw(node.inputs[0]), translator.add_array(node, "filters", filters, DType.FLOAT)]
    attrs: dict[str, Attr] = {"strides": tuple(strides), "dilations": tuple(rates), "pads": pads}
    translator.emit(node, "Conv", inputs, NCHW, kernel_shape=(height, width), **attrs)


def _pads(
    node: Node, sizes: Sequence[int | None], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """Return the padding before each axis, then after each axis."""
    if attribute(node, "padding") == b"VALID":
        return (0,) * (2 * len(kernel))
    pairs = []
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        pair = same_padding(size, (window - 1) * dilation + 1, stride)
        if pair is None:
            raise conversion_error(node, "the padding depends on an unknown image size")
        pairs.append(pair)
    return (*(before for before, _ in pairs), *(after for _, after in pairs))


# Volumes of layout (n, d, h, w, c)

TO_NCDHW, TO_NDHWC = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)


@converts("Conv3D Conv3DBackpropInputV2 MaxPool3D AvgPool3D")
def _volume(translator: Translator, node: Node) -> None:
    if attribute(node, "data_format") != b"NDHWC":
        raise conversion_error(node, "the layout NCDHW is not supported")
    is_layer, is_transposed = node.op.startswith("Conv"), node.op == "Conv3DBackpropInputV2"
    source = node.inputs[2 if is_transposed else 0]
    strides = attribute(node, "strides")[1:4]
    attrs: dict[str, Attr] = {"strides": tuple(strides)}
    dilations: Sequence[int] = (1, 1, 1)
    inputs = [translator.add_intermediate(node, "ncdhw", "Transpose", [translator.plain(source)], perm=TO_NCDHW)]
    if is_layer:
        weights = constant_weights(translator, node)
        kernel = weights.shape[:3]
        dilations = attribute(node, "dilations")[1:4]
        inputs.append(
            translator.add_constant(f"{node.inputs[1].node}/oidhw", transpose_tensor(weights, (4, 3, 0, 1, 2)))
        )
        attrs["dilations"] = tuple(dilations)
        channels = translator.shape(source).dims
        if not is_transposed and channels and channels[4] and channels[4] != weights.shape[3]:
            attrs["group"] = channels[4] // weights.shape[3]
    else:
        kernel = attribute(node, "ksize")[1:4]
    attrs["kernel_shape"] = tuple(kernel)
    sizes = (translator.shape(Edge(node.name) if is_transposed else source).dims or (None,) * 5)[1:4]
    attrs["pads"] = _pads(node, sizes, kernel, strides, dilations)
    if is_transposed:
        before = (translator.shape(source).dims or (None,) * 5)[1:4]
        attrs["output_padding"] = _output_padding(node, before, sizes, kernel, attrs)
    op = {"Conv3D": "Conv", "MaxPool3D": "MaxPool", "AvgPool3D": "AveragePool"}.get(node.op, "ConvTranspose")
    result = translator.add_intermediate(node, "volume", op, inputs, **attrs)
    translator.emit(node, "Transpose", [result], PLAIN, perm=TO_NDHWC)


def _output_padding(
    node: Node, before: Sequence[int | None], after: Sequence[int | None], kernel: Sequence[int], attrs: dict[str, Any]
) -> tuple[int, ...]:
    """Return the sizes that a transposed convolution adds at the end of each axis."""
    missing = []
    for axis, (size, out) in enumerate(zip(before, after, strict=True)):
        if size is None or out is None:
            raise conversion_error(node, "the padding depends on an unknown size")
        full = (size - 1) * attrs["strides"][axis] + (kernel[axis] - 1) * attrs["dilations"][axis] + 1
        missing.append(out - full + attrs["pads"][axis] + attrs["pads"][axis + len(kernel)])
    return tuple(missing)


# Detections


@converts("NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5")
def _non_max_suppression(translator: Translator, node: Node) -> None:
    version = int(node.op[-1])
    if version == 5 and translator.constant(node, 5).item():
        raise conversion_error(node, "a soft suppression is not supported")
    boxes, scores = (translator.plain(edge) for edge in node.inputs[:2])
    batch = translator.add_array(node, "batch", [0])
    both = translator.add_array(node, "batch_and_class", [0, 1])
    count = translator.int64_input(node, 2)
    inputs = [
        translator.add_intermediate(node, "boxes", "Unsqueeze", [boxes, batch]),
        translator.add_intermediate(node, "scores", "Unsqueeze", [scores, both]),
        count,
        *(translator.plain(edge) for edge in node.inputs[3 : 3 if version == 2 else 5]),
    ]
    if version == 2:
        inputs.append(translator.plain(node.inputs[3]))
    selection = translator.add_intermediate(node, "selection", "NonMaxSuppression", inputs)
    two = translator.add_array(node, "box", 2)
    selected = translator.add_intermediate(node, "selected", "Gather", [selection, two], axis=1)
    if version < 4:
        translator.emit_as(node, 0, selected, DType.INT32)
        return
    size = translator.add_intermediate(node, "size", "Shape", [selected])
    if version == 5:
        selected_scores = translator.add_intermediate(node, "selected_scores", "Gather", [scores, selected])
    is_padded = bool(node.attrs.get("pad_to_max_output_size"))
    pads = _pads_to(translator, node, size, count) if is_padded else None
    if pads is not None:
        selected = translator.add_intermediate(node, "padded", "Pad", [selected, pads])
    translator.emit_as(node, 0, selected, DType.INT32)
    if version == 5:
        edge = Edge(node.name, 1)
        op, extra = ("Identity", []) if pads is None else ("Pad", [pads])
        translator.values[edge, PLAIN] = translator.add_node(str(edge), op, [selected_scores, *extra])
    number = translator.add_intermediate(node, "number", "Squeeze", [size, batch])
    translator.emit_as(node, version - 3, number, DType.INT32)


def _pads_to(translator: Translator, node: Node, size: Edge, count: Edge) -> Edge:
    """Return the padding of a vector of ``size`` elements to ``count`` elements."""
    length = translator.add_array(node, "one", [1])
    total = translator.add_intermediate(node, "total", "Reshape", [count, length])
    missing = translator.add_intermediate(node, "missing", "Sub", [total, size])
    return translator.add_intermediate(
        node, "pads", "Concat", [translator.add_array(node, "none", [0]), missing], axis=0
    )
