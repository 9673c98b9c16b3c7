"""Inference of integers that a graph computes from shapes, with unknown sizes.

    Shape(x: ?x20x16) = [?, 20, 16]  ->  StridedSlice [0:1] = ?  ->  Pack with 32 = [?, 32]  ->  shape of a Reshape

The shape arithmetic that frameworks write for a dynamic batch is therefore known except for the batch size.
`size_evaluation` computes integers whose inputs are all known.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from quantkit.ir.graph import Node
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.shape_rules import Rules, dims_of
from quantkit.ops.size_evaluation import INTEGERS, MAX_ELEMENTS

# Integers; None for an unknown one.
Sizes = npt.NDArray[np.object_]
# (node, shapes of its inputs, sizes of its inputs by index) -> sizes of its first output, or None if unknown
SizesRule = Callable[[Node, Sequence[Shape], Mapping[int, Sizes]], Sizes | None]

RULES: Rules[SizesRule] = Rules()


def of_tensor(tensor: Tensor) -> Sizes | None:
    """Return the values of a small integer constant; None for other constants."""
    if tensor.dtype not in INTEGERS or tensor.num_elements > MAX_ELEMENTS:
        return None
    return tensor.array.astype(object)


def as_tensor(sizes: Sizes, dtype: DType | None) -> Tensor | None:
    """Return sizes as a constant; None if a size is unknown or ``dtype`` is not an integer type."""
    if dtype not in INTEGERS or any(size is None for size in sizes.reshape(-1)):
        return None
    return Tensor.of(sizes.astype(dtype.numpy))


def as_shape(sizes: Sizes) -> Shape:
    """Return the shape with these sizes; -1, the size that Reshape computes, is unknown.

    Raises:
        TypeError: ``sizes`` is a scalar.
    """
    return Shape(tuple(None if size is None or size < 0 else int(size) for size in sizes.tolist()))


def vector(values: Sequence[int | None]) -> Sizes:
    """Return integers as sizes of rank 1, with None for unknown ones."""
    sizes = np.empty(len(values), object)
    sizes[:] = values
    return sizes


def scalar(value: int | None) -> Sizes:
    """Return an integer as sizes of rank 0, with None for unknown ones."""
    sizes = np.empty((), object)
    sizes[()] = value
    return sizes


def require_known(sizes: Sizes) -> list[int]:
    """Return all values as a flat list.

    Raises:
        ValueError: a value is unknown.
    """
    values = sizes.reshape(-1).tolist()
    if None in values:
        raise ValueError("a size is unknown")
    return [int(value) for value in values]


@RULES.rule("Shape")
def _shape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    return vector(dims_of(shapes[0]))


@RULES.rule("Size")
def _size(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    return scalar(prod(shapes[0].sizes) if shapes[0].is_known else None)


@RULES.rule("Rank")
def _rank(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    return scalar(len(dims_of(shapes[0])))


@RULES.rule("Identity StopGradient EnsureShape")
def _same(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    return sizes[0]


@RULES.rule("Cast")
def _cast(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    return sizes[0] if node.attrs.get("DstT") in INTEGERS else None


@RULES.rule("StridedSlice")
def _strided_slice(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    (begin,), (end,), (stride,) = (require_known(sizes[slot]) for slot in (1, 2, 3))
    masks = {
        name: node.attrs.get(f"{name}_mask", 0) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if sizes[0].ndim != 1 or masks["ellipsis"] or masks["new_axis"]:
        return None
    if masks["shrink_axis"]:
        return scalar(sizes[0][begin])
    return sizes[0][slice(None if masks["begin"] else begin, None if masks["end"] else end, stride)]


@RULES.rule("Slice")
def _slice(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    (begin,), (size,) = (require_known(sizes[slot]) for slot in (1, 2))
    return sizes[0][begin:] if size < 0 else sizes[0][begin : begin + size]


@RULES.rule("GatherV2 Gather")
def _gather(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    if sizes[0].ndim != 1:
        return None
    return np.asarray(sizes[0][np.array(require_known(sizes[1]), np.int64).reshape(sizes[1].shape)], object)


@RULES.rule("Pack")
def _pack(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    parts = [sizes.get(slot) for slot in range(len(node.inputs))]
    # Pack requires equal shapes: if one part is a scalar, all are, including unknown ones.
    if any(part is not None and part.ndim for part in parts) or not any(part is not None for part in parts):
        return None
    return vector([None if part is None else part.item() for part in parts])


@RULES.rule("ConcatV2 Concat")
def _concat(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    slots = range(1, len(node.inputs)) if node.op == "Concat" else range(len(node.inputs) - 1)
    parts = [sizes[slot] for slot in slots]
    return np.concatenate(parts) if all(part.ndim == 1 for part in parts) else None


@RULES.rule("ExpandDims Squeeze Reshape")
def _reshape(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    if node.op == "Squeeze":
        return sizes[0].reshape(()) if sizes[0].size == 1 else None
    if node.op == "ExpandDims":
        return sizes[0].reshape(1) if not sizes[0].ndim else None
    shape = require_known(sizes[1])
    return sizes[0].reshape(shape) if len(shape) < 2 else None


@RULES.rule("Prod Sum Max Min")
def _reduce(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    if sizes[0].ndim > 1 or node.attrs.get("keep_dims") or (sizes[0].ndim and not require_known(sizes[1])):
        return None
    values = sizes[0].reshape(-1).tolist()
    if None in values:
        return scalar(None)
    functions: Mapping[str, Callable[[list[int]], int]] = {"Prod": prod, "Sum": sum, "Max": max, "Min": min}
    return scalar(functions[node.op](values))


@RULES.rule("Add AddV2 Sub Mul FloorDiv FloorMod Maximum Minimum")
def _binary(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    functions: Mapping[str, Callable[[Any, Any], Any]] = {
        "Sub": lambda a, b: a - b,
        "Mul": lambda a, b: a * b,
        "FloorDiv": lambda a, b: a // b,
        "FloorMod": lambda a, b: a % b,
        "Maximum": max,
        "Minimum": min,
    }
    compute = functions.get(node.op, lambda a, b: a + b)
    first, second = np.broadcast_arrays(sizes[0], sizes[1])
    pairs = zip(first.reshape(-1).tolist(), second.reshape(-1).tolist(), strict=True)
    return vector([None if a is None or b is None else compute(a, b) for a, b in pairs]).reshape(first.shape)


@RULES.rule("Range")
def _range(node: Node, shapes: Sequence[Shape], sizes: Mapping[int, Sizes]) -> Sizes | None:
    (start,), (limit,), (step,) = (require_known(sizes[slot]) for slot in (0, 1, 2))
    return vector(list(range(start, limit, step))) if len(range(start, limit, step)) <= MAX_ELEMENTS else None
