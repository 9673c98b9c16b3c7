"""Kernels of ops that create, select and arrange elements."""

import math
from typing import Any

import numpy as np

from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.onnx.kernels.registry import Call, kernel
from quantkit.ops.onnx.types import DTYPES

# Larger results are an error of the graph, or a waste of memory.
MAX_ELEMENTS = 1 << 28


@kernel("Constant")
def _constant(call: Call) -> Array:
    attrs: dict[str, Any] = dict(call.node.attrs)
    if isinstance(attrs.get("value"), Tensor):
        return attrs["value"].array  # type: ignore[no-any-return]
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        for key in (name, f"{name}s"):
            if key in attrs:
                return np.array(attrs[key], dtype)
    raise ValueError("the constant has no numbers")


@kernel("ConstantOfShape")
def _constant_of_shape(call: Call) -> Array:
    value = call.attr("value")
    fill = value.array.reshape(-1)[0] if isinstance(value, Tensor) else np.float32(0)
    return np.full(_sizes(call.array(0)), fill)


def _sizes(array: Array) -> tuple[int, ...]:
    """Return a shape.

    Raises:
        ValueError: a size is negative, or the product exceeds `MAX_ELEMENTS`.
    """
    sizes = tuple(int(size) for size in array.reshape(-1))
    if any(size < 0 for size in sizes) or int(np.prod(sizes, dtype=object)) > MAX_ELEMENTS:
        raise ValueError(f"the shape {sizes} is invalid")
    return sizes


kernel("Shape")(lambda call: np.array(call.array(0).shape[call.attr("start", 0) : call.attr("end")], np.int64))
kernel("Size")(lambda call: np.array(call.array(0).size, np.int64))
kernel("Transpose")(lambda call: call.array(0).transpose(call.attr("perm")))
kernel("Unsqueeze")(lambda call: np.expand_dims(call.array(0), tuple(call.integers("axes", 1) or ())))
kernel("GatherElements")(lambda call: np.asarray(call.array(0)[_elements(call)]))
kernel("NonZero")(lambda call: np.array(np.nonzero(call.array(0)), np.int64))
kernel("Compress")(lambda call: np.compress(call.array(1), call.array(0), call.attr("axis")))


@kernel("Reshape")
def _reshape(call: Call) -> Array:
    x = call.array(0)
    sizes = call.integers("shape", 1) or []
    if not call.attr("allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


@kernel("Flatten")
def _flatten(call: Call) -> Array:
    x, axis = call.array(0), call.attr("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))


@kernel("Squeeze")
def _squeeze(call: Call) -> Array:
    x, axes = call.array(0), call.integers("axes", 1)
    return x.squeeze(None if axes is None else tuple(axes))


@kernel("Concat")
def _concat(call: Call) -> Array:
    arrays = [call.array(slot) for slot in range(len(call.inputs))]
    return np.concatenate(arrays, call.attr("axis", 1))


@kernel("Split")
def _split(call: Call) -> tuple[Array, ...]:
    x, axis = call.array(0), call.attr("axis", 0)
    names: Any = call.attr("_outputs", (b"",))
    parts = call.integers("split", 1)
    if parts is None:
        width = -(-x.shape[axis] // len(names))
        parts = [min(width, x.shape[axis] - width * index) for index in range(len(names))]
    if sum(parts) != x.shape[axis] or len(parts) != len(names):
        raise ValueError(f"the parts {parts} do not cover an axis of size {x.shape[axis]}")
    return tuple(np.split(x, np.cumsum(parts)[:-1], axis))


@kernel("Slice")
def _slice(call: Call) -> Array:
    x = call.array(0)
    starts, ends = call.integers("starts", 1) or [], call.integers("ends", 2) or []
    axes = call.integers("axes", 3)
    steps = call.integers("steps", 4) or [1] * len(starts)
    slices = [slice(None)] * x.ndim
    for axis, start, end, step in zip(range(len(starts)) if axes is None else axes, starts, ends, steps, strict=True):
        slices[axis] = slice_of(start, end, step, x.shape[axis])
    return x[tuple(slices)]


def slice_of(start: int, end: int, step: int, length: int) -> slice:
    """Return Python's slice of a Slice along an axis of known length.

    >>> list(range(5))[slice_of(-1, -(2**63), -1, 5)]
    [4, 3, 2, 1, 0]
    """
    start, end = (bound + length if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return slice(min(max(start, 0), length), min(max(end, 0), length), step)
    start, end = min(max(start, 0), length - 1), max(end, -1)
    return slice(start, None if end < 0 else end, step)


def _gather_size(call: Call) -> int:
    x, indices = call.array(0), call.array(1)
    return math.prod((indices.size, x.size // max(1, x.shape[call.attr("axis", 0)])))


@kernel("Gather", _gather_size)
def _gather(call: Call) -> Array:
    x, indices = call.array(0), call.array(1)
    return np.asarray(np.take(x, indices.astype(np.int64), call.attr("axis", 0)))


def _elements(call: Call) -> tuple[Array, ...]:
    """Return the index arrays of the elements that the second input selects along an axis."""
    indices = call.array(1).astype(np.int64)
    index: list[Array] = list(np.indices(indices.shape, sparse=True))
    index[call.attr("axis", 0)] = indices
    return tuple(index)


def _gather_nd_size(call: Call) -> int:
    x, indices = call.array(0), call.array(1)
    return math.prod((*indices.shape[:-1], *x.shape[call.attr("batch_dims", 0) + indices.shape[-1] :]))


@kernel("GatherND", _gather_nd_size)
def _gather_nd(call: Call) -> Array:
    x, indices = call.array(0), call.array(1).astype(np.int64)
    num_batch = call.attr("batch_dims", 0)
    if num_batch:
        batch = np.indices(x.shape[:num_batch]).reshape(num_batch, *x.shape[:num_batch])
        extra = indices.ndim - 1 - num_batch
        index = [axis.reshape(*axis.shape, *(1,) * extra) for axis in batch]
        return np.asarray(x[(*index, *np.moveaxis(indices, -1, 0))])
    return np.asarray(x[tuple(np.moveaxis(indices, -1, 0))])


@kernel("ScatterND")
def _scatter_nd(call: Call) -> Array:
    x, indices, updates = call.array(0).copy(), call.array(1).astype(np.int64), call.array(2)
    index = tuple(np.moveaxis(indices, -1, 0))
    _scatter(x, index, updates, call.attr("reduction", b"none"))
    return x


@kernel("ScatterElements Scatter")
def _scatter_elements(call: Call) -> Array:
    x = call.array(0).copy()
    _scatter(x, _elements(call), call.array(2), call.attr("reduction", b"none"))
    return x


def _scatter(x: Array, index: tuple[Array, ...], updates: Array, reduction: bytes) -> None:
    if reduction == b"none":
        x[index] = updates
        return
    function: Any = {b"add": np.add, b"mul": np.multiply, b"max": np.maximum, b"min": np.minimum}[reduction]
    function.at(x, index, updates)


@kernel("Expand")
def _expand(call: Call) -> Array:
    x = call.array(0)
    sizes = np.broadcast_shapes(x.shape, tuple(int(size) for size in call.array(1)))
    return np.broadcast_to(x, _sizes(np.array(sizes, np.int64)))


@kernel("Tile")
def _tile(call: Call) -> Array:
    x, repeats = call.array(0), call.array(1)
    _sizes(np.array(x.shape, np.int64) * repeats)
    return np.tile(x, tuple(int(count) for count in repeats))


@kernel("Range")
def _range(call: Call) -> Array:
    start, limit, delta = (call.array(slot).reshape(()) for slot in range(3))
    count = max(int(np.ceil((float(limit) - float(start)) / float(delta))), 0)
    _sizes(np.array([count]))
    return np.asarray(start + np.arange(count).astype(start.dtype) * delta).astype(start.dtype)


def _pad_widths(call: Call) -> list[tuple[int, int]]:
    """Return the widths of each axis of the input; negative widths remove elements."""
    x, pads, axes = call.array(0), call.integers("pads", 1) or [], call.optional(3)
    positions = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    half, widths = len(pads) // 2, [(0, 0)] * x.ndim
    if len(pads) != 2 * len(positions):
        raise ValueError(f"{len(pads)} pads do not fit {len(positions)} axes")
    for index, axis in enumerate(positions):
        widths[axis] = (pads[index], pads[half + index])
    return widths


def _pad_size(call: Call) -> int:
    pairs = zip(call.array(0).shape, _pad_widths(call), strict=True)
    return math.prod(size + max(before, 0) + max(after, 0) for size, (before, after) in pairs)


@kernel("Pad", _pad_size)
def _pad(call: Call) -> Array:
    x, widths = call.array(0), _pad_widths(call)
    mode = call.attr("mode", b"constant").decode()
    part = tuple(slice(max(-a, 0), size - max(-b, 0)) for (a, b), size in zip(widths, x.shape, strict=True))
    widths = [(max(a, 0), max(b, 0)) for a, b in widths]
    if mode != "constant":
        return np.pad(x[part], widths, mode)
    value = call.optional(2)
    fill: Any = call.attr("value", 0) if value is None else value.reshape(())
    return np.pad(x[part], widths, constant_values=np.asarray(fill, x.dtype))


@kernel("DepthToSpace SpaceToDepth")
def _depth_to_space(call: Call) -> Array:
    x, block = call.array(0), call.attr("blocksize")
    n, c, h, w = x.shape
    is_crd = call.attr("mode", b"DCR") == b"CRD"
    if call.node.op == "SpaceToDepth":
        y = x.reshape(n, c, h // block, block, w // block, block)
        y = y.transpose((0, 1, 3, 5, 2, 4) if is_crd else (0, 3, 5, 1, 2, 4))
        return y.reshape(n, c * block**2, h // block, w // block)
    if is_crd:
        y = x.reshape(n, c // block**2, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        y = x.reshape(n, block, block, c // block**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    return y.reshape(n, c // block**2, h * block, w * block)


@kernel("OneHot", lambda call: call.array(0).size * int(call.array(1).reshape(())))
def _one_hot(call: Call) -> Array:
    indices, values, axis = call.array(0), call.array(2), call.attr("axis", -1)
    depth = int(call.array(1).reshape(()))
    is_hot = np.expand_dims(np.mod(indices.astype(np.int64), depth), axis) == np.arange(depth).reshape(
        [-1 if position == axis % (indices.ndim + 1) else 1 for position in range(indices.ndim + 1)]
    )
    inside = np.expand_dims((indices >= -depth) & (indices < depth), axis)
    return np.asarray(np.where(is_hot & inside, values[1], values[0]))


@kernel("EyeLike")
def _eye_like(call: Call) -> Array:
    x, number = call.array(0), call.attr("dtype")
    rows, columns = x.shape
    return np.eye(rows, columns, call.attr("k", 0), DTYPES[number].numpy if number else x.dtype)


@kernel("Trilu")
def _triangle(call: Call) -> Array:
    diagonal = call.optional(1)
    select = np.triu if call.attr("upper", 1) else np.tril
    return select(call.array(0), 0 if diagonal is None else int(diagonal.reshape(())))
