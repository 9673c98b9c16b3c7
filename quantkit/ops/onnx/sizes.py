"""Integers that an ONNX graph computes from shapes, with unknown sizes.

    Shape(x: ?x20x16) = [?, 20, 16]  ->  Gather 0 = ?  ->  Concat with [32] = [?, 32]  ->  shape of a Reshape

`quantkit.ops.onnx.inference` computes values whose inputs are all known with the kernels.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Shape
from quantkit.ops.onnx.kernels import evaluate
from quantkit.ops.onnx.kernels.movement import slice_of
from quantkit.ops.shape_rules import Dims, Rules, dims_of
from quantkit.ops.size_inference import Sizes, require_known, scalar, vector

# (node, shapes of its inputs, sizes of its inputs by index) -> sizes of its outputs
SizesRule = Callable[[Node, Sequence[Shape], Mapping[int, Sizes]], Sequence[Sizes]]
# (node, shapes of its inputs, sizes of its inputs by index) -> shapes of its first outputs
PartialShapeRule = Callable[[Node, Sequence[Shape], Mapping[int, Sizes]], Sequence[Shape]]

RULES: Rules[SizesRule] = Rules()
# Shapes of ops whose sizes are inputs; these inputs may have unknown elements.
PARTIAL_SHAPES: Rules[PartialShapeRule] = Rules()


def _integers(node: Node, name: str, sizes: Mapping[int, Sizes], slot: int) -> list[int] | None:
    if slot in sizes:
        return require_known(sizes[slot])
    attr: Any = node.attrs.get(name)
    return None if attr is None else [int(value) for value in attr]


@RULES.rule("Shape")
def _shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    attrs: Mapping[str, Any] = node.attrs
    return [vector(dims_of(shapes[0])[attrs.get("start", 0) : attrs.get("end")])]


@RULES.rule("Size")
def _size(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    return [scalar(prod(shapes[0].sizes))]


@RULES.rule("Identity Cast")
def _same(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    return [sizes[0]] if node.op == "Identity" or node.attrs.get("to") in (6, 7) else []


@RULES.rule("Gather")
def _gather(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    if sizes[0].ndim != 1:
        return []
    indices = np.array(require_known(sizes[1]), np.int64).reshape(sizes[1].shape)
    return [np.asarray(sizes[0][indices], object)]


@RULES.rule("Slice")
def _slice(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    (start,), (end,) = _integers(node, "starts", sizes, 1) or [], _integers(node, "ends", sizes, 2) or []
    (step,) = _integers(node, "steps", sizes, 4) or [1]
    return [sizes[0][slice_of(start, end, step, len(sizes[0]))]] if sizes[0].ndim == 1 else []


@RULES.rule("Concat")
def _concat(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    parts = [sizes[slot] for slot in range(len(node.inputs))]
    return [np.concatenate(parts)] if all(part.ndim == 1 for part in parts) else []


@RULES.rule("Split")
def _split(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    # Elements are moved only: their positions are enough for the kernel.
    positions = np.arange(sizes[0].size).reshape(sizes[0].shape)
    inputs = [positions, *(np.array(require_known(sizes[slot])) for slot in range(1, len(node.inputs)))]
    return [np.asarray(sizes[0].reshape(-1)[part], object) for part in evaluate(node, inputs)]


@RULES.rule("Squeeze Unsqueeze Reshape Flatten Transpose")
def _arrange(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    return _split(node, shapes, sizes)


@RULES.rule("ReduceProd ReduceSum ReduceMax ReduceMin")
def _reduce(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    functions: Mapping[str, Callable[[list[int]], int]] = {"Prod": prod, "Sum": sum, "Max": max, "Min": min}
    if sizes[0].ndim > 1:
        return []
    values = sizes[0].reshape(-1).tolist()
    result = scalar(None if None in values else functions[node.op.removeprefix("Reduce")](values))
    return [result.reshape(1) if node.attrs.get("keepdims", 1) and sizes[0].ndim else result]


_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "Mod": lambda a, b: a % b,
    "Max": max,
    "Min": min,
}


@RULES.rule(" ".join(_ARITHMETIC))
def _arithmetic(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    compute = _ARITHMETIC[node.op]
    first, second = np.broadcast_arrays(sizes[0], sizes[1])
    pairs = zip(first.reshape(-1).tolist(), second.reshape(-1).tolist(), strict=True)
    return [vector([None if a is None or b is None else compute(a, b) for a, b in pairs]).reshape(first.shape)]


@RULES.rule("Where")
def _where(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Sizes]:
    if any(value is None for value in sizes[0].reshape(-1).tolist()):
        return []
    arrays = np.broadcast_arrays(*(sizes[slot] for slot in range(3)))
    flat = (array.reshape(-1).tolist() for array in arrays)
    return [vector([a if mask else b for mask, a, b in zip(*flat, strict=True)]).reshape(arrays[0].shape)]


def _dims(values: Sequence[int | None]) -> Dims:
    return tuple(None if value is None or value < 0 else value for value in values)


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
    return [Shape(_dims(result))]


@PARTIAL_SHAPES.rule("Expand")
def _expand_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    pairs = zip_longest(dims_of(shapes[0])[::-1], sizes[1].tolist()[::-1], fillvalue=1)
    return [Shape(tuple(b if a == 1 else a if b == 1 or a is not None else b for a, b in pairs)[::-1])]


@PARTIAL_SHAPES.rule("ConstantOfShape")
def _constant_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    return [Shape(_dims(sizes[0].tolist()))]


@PARTIAL_SHAPES.rule("Tile")
def _tile_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    pairs = zip(dims_of(shapes[0]), sizes[1].tolist(), strict=True)
    return [Shape(tuple(None if size is None or count is None else size * count for size, count in pairs))]


@PARTIAL_SHAPES.rule("Range")
def _range_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    (start,), (limit,), (step,) = (require_known(sizes[slot]) for slot in range(3))
    return [Shape((len(range(start, limit, step)),))]


@PARTIAL_SHAPES.rule("Resize Upsample")
def _resize_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    dims: list[int | None] = list(dims_of(shapes[0]))
    axes: Any = node.attrs.get("axes") or range(len(dims))
    is_known = node.attrs.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    for axis, size in zip(axes, sizes[3].tolist(), strict=True):
        dims[axis] = size if is_known else None
    return [Shape(tuple(dims))]


@PARTIAL_SHAPES.rule("Slice")
def _slice_shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sequence[Shape]:
    dims = list(dims_of(shapes[0]))
    starts, ends = sizes[1].tolist(), sizes[2].tolist()
    is_present = [slot < len(node.inputs) and bool(node.inputs[slot].node) for slot in range(5)]
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
