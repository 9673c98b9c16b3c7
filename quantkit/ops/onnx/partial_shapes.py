"""Shapes of ONNX ops whose sizes are inputs or attributes, with unknown elements.

Shape(x: ?x20x16) = [?, 20, 16]  ->  Gather 0 = ?  ->  Concat with [32] = [?, 32]  ->  Reshape
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import prod

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Shape
from quantkit.ops.onnx.kernels.movement import slice_of
from quantkit.ops.shape_rules import PartialShapeRule, Rules, Sizes, as_shape, dims_of, tiled_shape
from quantkit.ops.size_inference import require_known

PARTIAL_SHAPES: Rules[PartialShapeRule] = Rules()
# Attributes of earlier opsets that are inputs in later ones, from input index 1.
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {"Slice": ("starts", "ends", "axes", "steps"), "Pad": ("pads",)}


@PARTIAL_SHAPES.rule("Reshape")
def _reshape_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    values = sizes[1].tolist()
    dims = shapes[0].dims
    copied = [] if node.attrs.get("allowzero") else [axis for axis, size in enumerate(values) if size == 0]
    result: list[int | None] = [
        (dims[axis] if dims is not None and axis < len(dims) else None) if axis in copied else size
        for axis, size in enumerate(values)
    ]
    if -1 in result and dims is not None:
        # Copied axes occur in both shapes: the size of axis -1 follows from the other axes.
        before = [size for axis, size in enumerate(dims) if axis not in copied]
        after = [size for axis, size in enumerate(values) if axis not in copied and size != -1]
        if None not in before and None not in after:
            divisor = prod(after)
            result[result.index(-1)] = prod(size for size in before if size is not None) // divisor if divisor else 0
    return [as_shape(result)]


@PARTIAL_SHAPES.rule("Expand")
def _expand_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    pairs = zip_longest(dims_of(shapes[0])[::-1], sizes[1].tolist()[::-1], fillvalue=1)
    return [Shape(tuple(b if a == 1 else a if b == 1 or a is not None else b for a, b in pairs)[::-1])]


PARTIAL_SHAPES.rule("ConstantOfShape")(lambda node, shapes, sizes: [as_shape(sizes[0].tolist())])
PARTIAL_SHAPES.rule("Tile")(tiled_shape)


@PARTIAL_SHAPES.rule("Resize Upsample")
def _resize_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    dims: list[int | None] = list(dims_of(shapes[0]))
    is_known = node.attrs.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    for axis, size in zip(node.attrs.get("axes") or range(len(dims)), sizes[3].tolist(), strict=True):
        dims[axis] = size if is_known else None
    return [Shape(tuple(dims))]


@PARTIAL_SHAPES.rule("Slice")
def _slice_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    dims = list(dims_of(shapes[0]))
    starts, ends = sizes[1].tolist(), sizes[2].tolist()
    is_present = [slot in sizes or (slot < len(node.inputs) and bool(node.inputs[slot].node)) for slot in range(5)]
    if is_present[3] and 3 not in sizes:
        return [Shape((None,) * len(dims))]
    axes = require_known(sizes[3]) if is_present[3] else list(range(len(starts)))
    steps: list[int | None] = sizes[4].tolist() if 4 in sizes else [None if is_present[4] else 1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = dims[axis]
        is_known = None not in (size, start, end, step)
        dims[axis] = len(range(size or 0)[slice_of(start, end, step or 1, size or 0)]) if is_known else None
    return [Shape(tuple(dims))]


@PARTIAL_SHAPES.rule("Pad")
def _pad_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    dims = list(dims_of(shapes[0]))
    has_axes = len(node.inputs) > 3 and node.inputs[3].node
    axes = [axis % len(dims) for axis in require_known(sizes[3])] if has_axes else range(len(dims))
    pads = sizes[1].tolist()
    for index, axis in enumerate(axes):
        values = (dims[axis], pads[index], pads[len(axes) + index])
        dims[axis] = None if None in values else sum(value for value in values if value is not None)
    return [Shape(tuple(dims))]
