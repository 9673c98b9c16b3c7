"""Conversion of ops of attention, recurrence, upsampling and shape arithmetic.

Conv2DBackpropInput with an input of ``size`` pixels computes ``full`` pixels, cropped or padded to ``out`` pixels:

full = (size - 1) * stride + (kernel - 1) * dilation + 1
cropped = max(full - out, 0),    padded = max(out - full, 0)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quantkit.convert.layouts import transpose_tensor
from quantkit.convert.tensorflow_to_onnx.layers import absorb_bias, add_weights, constant_weights
from quantkit.convert.tensorflow_to_onnx.slices import SLICE_LIMIT
from quantkit.convert.tensorflow_to_onnx.translator import (
    PLAIN,
    Translator,
    conversion_error,
    converts,
    is_channels_first,
)
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.onnx.types import NUMBERS
from quantkit.ops.tensorflow.signatures import output_dtypes


@converts("Conv2DBackpropInput")
def _conv2d_backprop_input(translator: Translator, node: Node) -> None:
    weights = constant_weights(translator, node)
    h, w, c_out, c_in = weights.shape
    is_first = is_channels_first(node)
    before, after = (translator.shape(edge).dims for edge in (node.inputs[2], Edge(node.name)))
    strides = node.attrs["strides"]
    dilations = node.attrs.get("dilations") or (1, 1, 1, 1)
    steps, pads, output_padding = [], [], []
    for axis, kernel_size in zip((2, 3) if is_first else (1, 2), (h, w), strict=True):
        size, out = (dims[axis] if dims else None for dims in (before, after))
        if size is None or out is None:
            raise conversion_error(node, "the padding depends on an unknown image size")
        full = (size - 1) * strides[axis] + (kernel_size - 1) * dilations[axis] + 1
        steps.append((strides[axis], dilations[axis]))
        pads.append(_cropped_pixels(node, axis, full - out))
        output_padding.append(max(out - full, 0))
    kernel = add_weights(translator, node, "iohw", transpose_tensor(weights, (3, 2, 0, 1), (c_in, c_out, h, w)))
    inputs = [translator.image_input(node, node.inputs[2]), kernel]
    last = absorb_bias(translator, node, inputs, c_out)
    attrs: dict[str, Attr] = {
        "kernel_shape": (h, w),
        "strides": tuple(stride for stride, _ in steps),
        "pads": (pads[0][0], pads[1][0], pads[0][1], pads[1][1]),
    }
    if any(dilation != 1 for _, dilation in steps):
        attrs["dilations"] = tuple(dilation for _, dilation in steps)
    if any(output_padding):
        attrs["output_padding"] = tuple(output_padding)
    translator.emit(last, "ConvTranspose", inputs, translator.image_layout(node), **attrs)


def _cropped_pixels(node: Node, axis: int, total: int) -> tuple[int, int]:
    """Return the pixels that a transposed convolution crops before and after an axis."""
    if node.attrs["padding"] == b"EXPLICIT":
        explicit = node.attrs["explicit_paddings"]
        return explicit[2 * axis], explicit[2 * axis + 1]
    total = max(total, 0)
    return total // 2, total - total // 2


@converts("Erfc")
def _erfc(translator: Translator, node: Node) -> None:
    dtype = translator.dtype(node.inputs[0])
    minuend = translator.add_constant(f"{node.name}/one", Tensor.of(np.array(1, dtype.numpy), dtype))
    erf = translator.add_intermediate(node, "erf", "Erf", [translator.plain(node.inputs[0])])
    translator.emit(node, "Sub", [minuend, erf], PLAIN)


@converts("BatchMatMul BatchMatMulV2 BatchMatMulV3")
def _batch_matmul(translator: Translator, node: Node) -> None:
    edges = []
    for slot, key in enumerate(("adj_x", "adj_y")):
        edge = translator.plain(node.inputs[slot])
        if node.attrs.get(key):
            rank = translator.rank(node.inputs[slot])
            if rank is None:
                raise conversion_error(node, "the rank of its input is unknown")
            order = (*range(rank - 2), rank - 1, rank - 2)
            edge = translator.add_intermediate(node, key, "Transpose", [edge], perm=order)
        edges.append(edge)
    translator.emit(node, "MatMul", edges, PLAIN)


@converts("Select SelectV2")
def _select(translator: Translator, node: Node) -> None:
    condition, *values = (translator.plain(edge) for edge in node.inputs)
    if node.op == "Select":  # a vector selects rows
        first, second = (translator.rank(edge) for edge in node.inputs[:2])
        if first is None or second is None:
            raise conversion_error(node, "the rank of its input is unknown")
        if first == 1 and second > 1:
            axes = translator.add_integers(f"{node.name}/axes", range(1, second))
            condition = translator.add_intermediate(node, "condition", "Unsqueeze", [condition, axes])
    translator.emit(node, "Where", [condition, *values], PLAIN)


@converts("TensorScatterUpdate")
def _scatter(translator: Translator, node: Node) -> None:
    rows, indices, updates = (translator.plain(edge) for edge in node.inputs)
    indices = translator.add_intermediate(node, "long", "Cast", [indices], to=NUMBERS[DType.INT64])
    translator.emit(node, "ScatterND", [rows, indices, updates], PLAIN)


@converts("ReverseV2")
def _reverse(translator: Translator, node: Node) -> None:
    axes = translator.constant(node, 1).reshape(-1).tolist()
    lists = (("starts", [-1]), ("ends", [-SLICE_LIMIT]), ("axes", axes), ("steps", [-1]))
    inputs = [translator.plain(node.inputs[0])]
    for name, values in lists:
        inputs.append(translator.add_integers(f"{node.name}/{name}", values if name == "axes" else values * len(axes)))
    translator.emit(node, "Slice", inputs, PLAIN)


@converts("ReverseSequence")
def _reverse_sequence(translator: Translator, node: Node) -> None:
    source, lengths = translator.plain(node.inputs[0]), node.inputs[1]
    axes: list[Any] = [node.attrs["seq_dim"], node.attrs.get("batch_dim", 0)]
    if sorted(axes) != [0, 1]:
        raise conversion_error(node, "ONNX only supports time and batch as the first two axes")
    long = translator.add_intermediate(node, "long", "Cast", [translator.plain(lengths)], to=NUMBERS[DType.INT64])
    translator.emit(node, "ReverseSequence", [source, long], PLAIN, time_axis=axes[0], batch_axis=axes[1])


# Shape arithmetic and slices


@converts("Shape Size")
def _sizes(translator: Translator, node: Node) -> None:
    source = translator.plain(node.inputs[0])
    if node.attrs.get("out_type", DType.INT32) is DType.INT64:
        translator.emit(node, node.op, [source], PLAIN)
        return
    output = translator.add_intermediate(node, "wide", node.op, [source])
    translator.emit(node, "Cast", [output], PLAIN, to=NUMBERS[DType.INT32])


def _int64_sizes(translator: Translator, node: Node, slot: int) -> Edge:
    """Return the sizes of an input as int64."""
    constant = translator.constant_of(node.inputs[slot])
    if constant is not None:
        return translator.add_integers(f"{node.name}/{slot}/long", constant.array.reshape(-1).tolist())
    sizes = translator.plain(node.inputs[slot])
    return translator.add_intermediate(node, "long", "Cast", [sizes], to=NUMBERS[DType.INT64])


@converts("Fill BroadcastTo Tile")
def _fill(translator: Translator, node: Node) -> None:
    value, sizes = (1, 0) if node.op == "Fill" else (0, 1)
    edges = [translator.plain(node.inputs[value]), _int64_sizes(translator, node, sizes)]
    translator.emit(node, "Tile" if node.op == "Tile" else "Expand", edges, PLAIN)


@converts("BroadcastArgs")
def _broadcast_args(translator: Translator, node: Node) -> None:
    values = translator.add_array(node, "zero", 0)
    for slot in (0, 1):
        values = translator.add_intermediate(
            node, f"expanded_{slot}", "Expand", [values, translator.int64_input(node, slot)]
        )
    translator.emit_as(
        node, 0, translator.add_intermediate(node, "sizes", "Shape", [values]), translator.dtype(node.inputs[0])
    )


@converts("ZerosLike OnesLike")
def _constant_like(translator: Translator, node: Node) -> None:
    dtype = translator.dtype(node.inputs[0])
    number = np.array(node.op == "OnesLike", dtype.numpy)
    value = translator.add_constant(f"{node.name}/value", Tensor.of(number, dtype))
    sizes = translator.add_intermediate(node, "sizes", "Shape", [translator.plain(node.inputs[0])])
    translator.emit(node, "Expand", [value, sizes], PLAIN)


@converts("Pack")
def _pack(translator: Translator, node: Node) -> None:
    axis = node.attrs.get("axis", 0)
    axes = translator.add_integers(f"{node.name}/axes", [axis])
    parts = [
        translator.add_intermediate(node, f"part_{slot}", "Unsqueeze", [translator.plain(edge), axes])
        for slot, edge in enumerate(node.inputs)
    ]
    translator.emit(node, "Concat", parts, PLAIN, axis=axis)


@converts("Unpack")
def _unpack(translator: Translator, node: Node) -> None:
    count = len(output_dtypes(node))
    axis = node.attrs.get("axis", 0)
    source = translator.plain(node.inputs[0])
    for port in range(count):
        edge = Edge(node.name, port)
        index = translator.add_constant(f"{node.name}/{port}/place", Tensor.of(np.int64(port)))
        translator.values[edge, PLAIN] = translator.add_node(str(edge), "Gather", [source, index], axis=axis)


@converts("Gather GatherV2")
def _gather(translator: Translator, node: Node) -> None:
    axis = translator.constant(node, 2).item() if node.op == "GatherV2" else 0
    batch_dims = node.attrs.get("batch_dims", 0)
    if batch_dims:
        if not 0 < batch_dims == axis:
            raise conversion_error(node, "the axis must be the first one after batch_dims")
        last = translator.add_array(node, "last", [-1])
        indices = translator.add_intermediate(node, "indices", "Unsqueeze", [translator.int64_input(node, 1), last])
        translator.emit(node, "GatherND", [translator.plain(node.inputs[0]), indices], PLAIN, batch_dims=batch_dims)
        return
    edges: Sequence[Edge] = [translator.plain(edge) for edge in node.inputs[:2]]
    translator.emit(node, "Gather", edges, PLAIN, axis=axis)
