"""What networks besides plain convolutional ones are made of, in ONNX: attention, recurrence, upsampling, sizes.

Conv2DBackpropInput gives ``out`` pixels for ``size``, of which the convolution that it turns around reads

full = (size - 1) * stride + (kernel - 1) * dilation + 1,        cut off: max(full - out, 0), added: out - full
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quantkit.convert.tensorflow_to_onnx.layers import kept_weights, take_bias, weights_of
from quantkit.convert.tensorflow_to_onnx.translator import (
    PLAIN,
    Translator,
    converts,
    is_channels_first,
    refusal,
    transposed,
)
from quantkit.formats.onnx.schema import NUMBERS
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType, Tensor

# As far as a slice can reach.
FAR = int(np.iinfo(np.int64).max)


@converts("Conv2DBackpropInput")
def _transposed_convolution(translator: Translator, node: Node) -> None:
    weights = weights_of(translator, node)
    h, w, c_out, c_in = weights.shape
    is_first = is_channels_first(node)
    before, after = (translator.shape(edge).dims for edge in (node.inputs[2], Edge(node.name)))
    strides: Any = node.attrs["strides"]
    dilations: Any = node.attrs.get("dilations") or (1, 1, 1, 1)
    steps, pads, added = [], [], []
    for axis, kernel in zip((2, 3) if is_first else (1, 2), (h, w), strict=True):
        size, out = (dims[axis] if dims else None for dims in (before, after))
        if size is None or out is None:
            raise refusal(node, "the size of its image is not known, and its padding follows from it")
        full = (size - 1) * strides[axis] + (kernel - 1) * dilations[axis] + 1
        steps.append((strides[axis], dilations[axis]))
        pads.append(_cut_off(node, axis, full - out))
        added.append(max(out - full, 0))
    made = kept_weights(translator, node, "iohw", transposed(weights, (3, 2, 0, 1), (c_in, c_out, h, w)))
    inputs = [translator.image(node, node.inputs[2]), made]
    last = take_bias(translator, node, inputs, c_out)
    attrs: dict[str, Attr] = {
        "kernel_shape": (h, w),
        "strides": tuple(stride for stride, _ in steps),
        "pads": (pads[0][0], pads[1][0], pads[0][1], pads[1][1]),
    }
    if any(dilation != 1 for _, dilation in steps):
        attrs["dilations"] = tuple(dilation for _, dilation in steps)
    if any(added):
        attrs["output_padding"] = tuple(added)
    translator.emit(last, "ConvTranspose", inputs, translator.layout(node), **attrs)


def _cut_off(node: Node, axis: int, total: int) -> tuple[int, int]:
    """Pixels of what a transposed convolution makes that fall off on either side."""
    if node.attrs["padding"] == b"EXPLICIT":
        explicit: Any = node.attrs["explicit_paddings"]
        return explicit[2 * axis], explicit[2 * axis + 1]
    total = max(total, 0)
    return total // 2, total - total // 2


@converts("Erfc")
def _complement(translator: Translator, node: Node) -> None:
    dtype = translator.dtype(node.inputs[0])
    one = translator.keep(f"{node.name}/one", Tensor.of(np.array(1, dtype.numpy), dtype))
    erf = translator.between(node, "erf", "Erf", [translator.plain(node.inputs[0])])
    translator.emit(node, "Sub", [one, erf], PLAIN)


@converts("Einsum")
def _sum_of_products(translator: Translator, node: Node) -> None:
    equation: Any = node.attrs["equation"]
    translator.emit(node, "Einsum", [translator.plain(edge) for edge in node.inputs], PLAIN, equation=equation)


@converts("BatchMatMul BatchMatMulV2 BatchMatMulV3")
def _products(translator: Translator, node: Node) -> None:
    edges = []
    for slot, key in enumerate(("adj_x", "adj_y")):
        edge = translator.plain(node.inputs[slot])
        if node.attrs.get(key):
            rank = translator.rank(node.inputs[slot])
            if rank is None:
                raise refusal(node, "the number of dimensions of what it transposes is not known")
            order = (*range(rank - 2), rank - 1, rank - 2)
            edge = translator.between(node, key, "Transpose", [edge], perm=order)
        edges.append(edge)
    translator.emit(node, "MatMul", edges, PLAIN)


@converts("SelectV2")
def _where(translator: Translator, node: Node) -> None:
    translator.emit(node, "Where", [translator.plain(edge) for edge in node.inputs], PLAIN)


# Sizes, and parts of tensors


@converts("Shape Size")
def _sizes(translator: Translator, node: Node) -> None:
    source = translator.plain(node.inputs[0])
    if node.attrs.get("out_type", DType.INT32) is DType.INT64:
        translator.emit(node, node.op, [source], PLAIN)
        return
    wide = translator.between(node, "wide", node.op, [source])
    translator.emit(node, "Cast", [wide], PLAIN, to=NUMBERS[DType.INT32])


def _long(translator: Translator, node: Node, slot: int) -> Edge:
    """A list of sizes as ONNX wants it."""
    constant = translator.graph.constant_of(node.inputs[slot])
    if constant is not None:
        return translator.numbers(f"{node.name}/{slot}/long", constant.array.reshape(-1).tolist())
    return translator.between(node, "long", "Cast", [translator.plain(node.inputs[slot])], to=NUMBERS[DType.INT64])


@converts("Fill BroadcastTo Tile")
def _repeated(translator: Translator, node: Node) -> None:
    value, sizes = (1, 0) if node.op == "Fill" else (0, 1)
    edges = [translator.plain(node.inputs[value]), _long(translator, node, sizes)]
    translator.emit(node, "Tile" if node.op == "Tile" else "Expand", edges, PLAIN)


@converts("StridedSlice")
def _strided_slice(translator: Translator, node: Node) -> None:
    begins, ends, steps = (translator.constant(node, slot).reshape(-1).tolist() for slot in (1, 2, 3))
    masks: dict[str, Any] = {name: node.attrs.get(f"{name}_mask", 0) for name in ("begin", "end", "shrink_axis")}
    if node.attrs.get("ellipsis_mask") or node.attrs.get("new_axis_mask"):
        raise refusal(node, "it adds axes, or leaves out which it means")
    gone = [axis for axis in range(len(begins)) if masks["shrink_axis"] >> axis & 1]
    for axis, step in enumerate(steps):
        if axis in gone:
            ends[axis] = begins[axis] + 1 or FAR
            continue
        if masks["begin"] >> axis & 1:
            begins[axis] = 0 if step > 0 else FAR
        if masks["end"] >> axis & 1:
            ends[axis] = FAR if step > 0 else -FAR
    lists = (("starts", begins), ("ends", ends), ("axes", range(len(begins))), ("steps", steps))
    inputs = [translator.plain(node.inputs[0])]
    inputs += [translator.numbers(f"{node.name}/{word}", values) for word, values in lists]
    if not gone:
        translator.emit(node, "Slice", inputs, PLAIN)
        return
    part = translator.between(node, "part", "Slice", inputs)
    translator.emit(node, "Squeeze", [part, translator.numbers(f"{node.name}/gone", gone)], PLAIN)


@converts("Pack")
def _pack(translator: Translator, node: Node) -> None:
    axis: Any = node.attrs.get("axis", 0)
    axes = translator.numbers(f"{node.name}/axes", [axis])
    parts = [
        translator.between(node, f"part_{slot}", "Unsqueeze", [translator.plain(edge), axes])
        for slot, edge in enumerate(node.inputs)
    ]
    translator.emit(node, "Concat", parts, PLAIN, axis=axis)


@converts("Unpack")
def _unpack(translator: Translator, node: Node) -> None:
    count: Any = node.attrs["num"]
    axis: Any = node.attrs.get("axis", 0)
    source = translator.plain(node.inputs[0])
    for port in range(count):
        edge = Edge(node.name, port)
        place = translator.keep(f"{node.name}/{port}/place", Tensor.of(np.int64(port)))
        translator.values[edge, PLAIN] = translator.add(str(edge), "Gather", [source, place], axis=axis)


@converts("Gather GatherV2")
def _gather(translator: Translator, node: Node) -> None:
    if node.attrs.get("batch_dims"):
        raise refusal(node, "it looks up batch by batch")
    axis = translator.constant(node, 2).item() if node.op == "GatherV2" else 0
    edges: Sequence[Edge] = [translator.plain(edge) for edge in node.inputs[:2]]
    translator.emit(node, "Gather", edges, PLAIN, axis=axis)
