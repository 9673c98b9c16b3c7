"""Kernels of reductions and cumulative sums."""

from collections.abc import Callable
from typing import Any

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.kernels.elementwise import is_integer
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.kernels.shapes import axis_of, scalar, sizes
from quantkit.ops.tensorflow.signatures import attribute

Reduce = Callable[[Array, tuple[int, ...], bool], Any]


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _highest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def _sum_type(x: Array) -> Any:
    """Return the accumulator type of a sum: float32 for half-precision types."""
    return np.float32 if x.dtype.itemsize < 4 and x.dtype.kind not in "iub" else x.dtype


def _sum(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return np.asarray(np.sum(x, axes, _sum_type(x), keepdims=keep))


def _mean(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    mean = _sum(x, axes, keep) / np.prod([x.shape[axis] for axis in axes], dtype=_sum_type(x))
    return np.asarray(np.trunc(mean) if is_integer(x) else mean)


REDUCTIONS: dict[str, Reduce] = {
    "Sum": _sum,
    "Mean": _mean,
    "Prod": lambda x, axes, keep: np.prod(x, axes, _sum_type(x), keepdims=keep),
    "Max": lambda x, axes, keep: np.max(x, axes, keepdims=keep, initial=_lowest(x.dtype)),
    "Min": lambda x, axes, keep: np.min(x, axes, keepdims=keep, initial=_highest(x.dtype)),
    "All": lambda x, axes, keep: np.all(x, axes, keepdims=keep),
    "Any": lambda x, axes, keep: np.any(x, axes, keepdims=keep),
    "EuclideanNorm": lambda x, axes, keep: np.sqrt(np.sum(np.square(x), axes, _sum_type(x), keepdims=keep)),
}


@kernel(*REDUCTIONS)
def _reduce(node: Node, x: Array, axes: Array) -> Array:
    reduced = tuple(axis_of(axis, x.ndim) for axis in sizes(axes))
    if len(set(reduced)) != len(reduced):
        raise ValueError(f"duplicate axis in {reduced}")
    return np.asarray(REDUCTIONS[node.op](x, reduced, attribute(node, "keep_dims")))


@kernel("ArgMax", "ArgMin")
def _arg_extreme(node: Node, x: Array, axis: Array) -> Array:
    find = np.argmax if node.op == "ArgMax" else np.argmin
    return np.asarray(find(x, axis_of(scalar(axis), x.ndim)))


@kernel("Cumsum", "Cumprod")
def _cumulative(node: Node, x: Array, dim: Array) -> Array:
    """Compute cumulative sums or products; ``exclusive`` omits the element itself, ``reverse`` starts at the end."""
    flags = {name: attribute(node, name) for name in ("exclusive", "reverse")}
    return cumulate(x, axis_of(scalar(dim), x.ndim), is_product=node.op == "Cumprod", **flags)


def cumulate(x: Array, axis: int, *, is_product: bool, exclusive: bool, reverse: bool) -> Array:
    """Return cumulative sums or products along an axis."""
    run, neutral = (np.cumprod, 1) if is_product else (np.cumsum, 0)
    x = np.flip(x, axis) if reverse else x
    if exclusive:
        x = np.roll(x, 1, axis)
        np.moveaxis(x, axis, 0)[:1] = neutral
    result = run(x, axis, dtype=x.dtype)
    return np.flip(result, axis) if reverse else result


kernel("L2Loss")(lambda _, x: np.asarray(np.sum(np.square(x)) / 2))
