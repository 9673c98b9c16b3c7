"""Whole numbers that a graph computes of shapes, as far as they are known before it runs.

    Shape(x: ?x20x16) = [?, 20, 16]  ->  StridedSlice [0:1] = ?  ->  Pack with 32 = [?, 32]  ->  the shape of a Reshape

So most of what frameworks write where a batch size is open is known but for that size. Where all is known, or a rule
would only move numbers, `shape_values` computes them.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from quantkit.ir.graph import Node
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.shape_rules import Rules, dims_of
from quantkit.ops.shape_values import INTEGERS, MOST

# Whole numbers, None where one is not known.
Sizes = npt.NDArray[np.object_]
# (node, shapes of its inputs, sizes of its inputs by slot) -> sizes of its first output; None: nothing is known
SizesRule = Callable[[Node, Sequence[Shape], Mapping[int, Sizes]], Sizes | None]

RULES: Rules[SizesRule] = Rules()


def of_tensor(tensor: Tensor) -> Sizes | None:
    """The sizes of a constant; None: it holds no whole numbers, or many."""
    if tensor.dtype not in INTEGERS or tensor.num_elements > MOST:
        return None
    return tensor.array.astype(object)


def as_tensor(sizes: Sizes, dtype: DType | None) -> Tensor | None:
    """The constant of sizes that are known; None: one of them is not, or they are no whole numbers there."""
    if dtype not in INTEGERS or any(one is None for one in sizes.reshape(-1)):
        return None
    return Tensor.of(sizes.astype(dtype.numpy))


def as_shape(sizes: Sizes) -> Shape:
    """The shape of these sizes; -1, which stands for whatever is left, is not known.

    Raises:
        TypeError: they are no list.
    """
    return Shape(tuple(None if one is None or one < 0 else int(one) for one in sizes.tolist()))


def _numbers(values: Sequence[int | None]) -> Sizes:
    made = np.empty(len(values), object)
    made[:] = values
    return made


def _scalar(value: int | None) -> Sizes:
    made = np.empty((), object)
    made[()] = value
    return made


def _all_known(sizes: Sizes) -> list[int]:
    """The numbers.

    Raises:
        ValueError: one is not known.
    """
    numbers = sizes.reshape(-1).tolist()
    if None in numbers:
        raise ValueError("a number is not known")
    return [int(one) for one in numbers]


@RULES.rule("Shape")
def _shape(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    return _numbers(dims_of(given[0]))


@RULES.rule("Size")
def _size(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    return _scalar(prod(given[0].sizes) if given[0].is_known else None)


@RULES.rule("Rank")
def _rank(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    return _scalar(len(dims_of(given[0])))


@RULES.rule("Identity StopGradient EnsureShape")
def _same(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    return reads[0]


@RULES.rule("Cast")
def _cast(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    return reads[0] if node.attrs.get("DstT") in INTEGERS else None


@RULES.rule("StridedSlice")
def _strided_slice(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    (begin,), (end,), (stride,) = (_all_known(reads[slot]) for slot in (1, 2, 3))
    masks = {
        name: node.attrs.get(f"{name}_mask", 0) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if reads[0].ndim != 1 or masks["ellipsis"] or masks["new_axis"]:
        return None
    if masks["shrink_axis"]:
        return _scalar(reads[0][begin])
    return reads[0][slice(None if masks["begin"] else begin, None if masks["end"] else end, stride)]


@RULES.rule("Slice")
def _slice(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    (begin,), (size,) = (_all_known(reads[slot]) for slot in (1, 2))
    return reads[0][begin:] if size < 0 else reads[0][begin : begin + size]


@RULES.rule("GatherV2 Gather")
def _gather(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    if reads[0].ndim != 1:
        return None
    return np.asarray(reads[0][np.array(_all_known(reads[1]), np.int64).reshape(reads[1].shape)], object)


@RULES.rule("Pack")
def _pack(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    parts = [reads.get(slot) for slot in range(len(node.inputs))]
    # What one part is decides that all are single numbers; those that nothing is known of are unknown numbers.
    if any(part is not None and part.ndim for part in parts) or not any(part is not None for part in parts):
        return None
    return _numbers([None if part is None else part.item() for part in parts])


@RULES.rule("ConcatV2 Concat")
def _concat(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    slots = range(1, len(node.inputs)) if node.op == "Concat" else range(len(node.inputs) - 1)
    parts = [reads[slot] for slot in slots]
    return np.concatenate(parts) if all(part.ndim == 1 for part in parts) else None


@RULES.rule("ExpandDims Squeeze Reshape")
def _moved(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    if node.op == "Squeeze":
        return reads[0].reshape(()) if reads[0].size == 1 else None
    if node.op == "ExpandDims":
        return reads[0].reshape(1) if not reads[0].ndim else None
    wanted = _all_known(reads[1])
    return reads[0].reshape(wanted) if len(wanted) < 2 else None


@RULES.rule("Prod Sum Max Min")
def _reduced(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    if reads[0].ndim > 1 or node.attrs.get("keep_dims") or (reads[0].ndim and not _all_known(reads[1])):
        return None
    numbers = reads[0].reshape(-1).tolist()
    if None in numbers:
        return _scalar(None)
    work: Mapping[str, Callable[[list[int]], int]] = {"Prod": prod, "Sum": sum, "Max": max, "Min": min}
    return _scalar(work[node.op](numbers))


@RULES.rule("Add AddV2 Sub Mul FloorDiv FloorMod Maximum Minimum")
def _computed(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    work: Mapping[str, Callable[[Any, Any], Any]] = {
        "Sub": lambda a, b: a - b,
        "Mul": lambda a, b: a * b,
        "FloorDiv": lambda a, b: a // b,
        "FloorMod": lambda a, b: a % b,
        "Maximum": max,
        "Minimum": min,
    }
    compute = work.get(node.op, lambda a, b: a + b)
    one, other = np.broadcast_arrays(reads[0], reads[1])
    pairs = zip(one.reshape(-1).tolist(), other.reshape(-1).tolist(), strict=True)
    return _numbers([None if a is None or b is None else compute(a, b) for a, b in pairs]).reshape(one.shape)


@RULES.rule("Range")
def _range(node: Node, given: Sequence[Shape], reads: Mapping[int, Sizes]) -> Sizes | None:
    (start,), (limit,), (step,) = (_all_known(reads[slot]) for slot in (0, 1, 2))
    return _numbers(list(range(start, limit, step))) if len(range(start, limit, step)) <= MOST else None
