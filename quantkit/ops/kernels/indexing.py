"""Kernels of slices, gathers, scatters, selections and one-hot vectors."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.kernels.output_sizes import stated_shape
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.kernels.shapes import axis_of, scalar, sizes
from quantkit.ops.tensorflow.signatures import attribute


@kernel("Slice")
def _slice(_: Node, x: Array, begins: Array, counts: Array) -> Array:
    window = []
    for begin, count, size in zip(sizes(begins), sizes(counts), x.shape, strict=True):
        end = size if count == -1 else begin + count
        if not 0 <= begin <= end <= size:
            raise ValueError(f"a slice of {count} elements from {begin} exceeds the size {size}")
        window.append(slice(begin, end))
    return x[tuple(window)]


def strided_index(node: Node, begins: Array, ends: Array, strides: Array) -> tuple[Any, ...]:
    """Return the NumPy index of a StridedSlice with its five masks.

    Raises:
        ValueError: a stride is zero, or negative for a removed dimension.
    """
    index: list[Any] = []
    masks = {name: attribute(node, f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    for position, (begin, end, stride) in enumerate(zip(sizes(begins), sizes(ends), sizes(strides), strict=True)):
        has = {name: bool(mask >> position & 1) for name, mask in masks.items()}
        if has["ellipsis"]:
            index.append(Ellipsis)
        elif has["new_axis"]:
            index.append(None)
        elif stride == 0 or (has["shrink_axis"] and stride < 0):
            raise ValueError(f"stride {stride} is invalid")
        elif has["shrink_axis"]:
            index.append(begin)
        else:
            index.append(slice(None if has["begin"] else begin, None if has["end"] else end, stride))
    return tuple(index)


kernel("StridedSlice")(lambda node, x, *limits: np.asarray(x[strided_index(node, *limits)]))


def _gather_size(node: Node, inputs: Sequence[Array]) -> int:
    x, indices = inputs[:2]
    axis = axis_of(scalar(inputs[2]), x.ndim) if node.op == "GatherV2" else 0
    return math.prod((indices.size, x.size // x.shape[axis]))


@kernel("Gather", "GatherV2", "ResourceGather", output_size=_gather_size)
def _gather(node: Node, x: Array, indices: Array, *axes: Array) -> Array:
    """Gather slices along an axis; the first ``batch_dims`` dimensions are batch dimensions of both inputs."""
    batch_dims = attribute(node, "batch_dims") if node.op == "GatherV2" else 0
    axis = axis_of(scalar(axes[0]), x.ndim) if node.op == "GatherV2" else 0
    batch_dims = axis_of(batch_dims, indices.ndim + 1) if batch_dims else 0
    if indices.size and not (indices.min() >= 0 and indices.max() < x.shape[axis]):
        raise ValueError(f"indices must be in [0, {x.shape[axis]})")
    if not batch_dims:
        return np.take(x, indices, axis)
    batch = x.shape[:batch_dims]
    if batch != indices.shape[:batch_dims]:
        raise ValueError("the batch dimensions differ")
    rows = x.reshape(-1, *x.shape[batch_dims:])
    picks = indices.reshape(-1, *indices.shape[batch_dims:])
    slices = [np.take(row, pick, axis - batch_dims) for row, pick in zip(rows, picks, strict=True)]
    return np.stack(slices).reshape(*batch, *slices[0].shape)


def _gather_nd_size(_: Node, inputs: Sequence[Array]) -> int:
    x, indices = inputs
    return math.prod(indices.shape[:-1]) * math.prod(x.shape[indices.shape[-1] :])


@kernel("GatherNd", output_size=_gather_nd_size)
def _gather_nd(_: Node, x: Array, indices: Array) -> Array:
    depth = indices.shape[-1]
    if np.any(indices < 0) or np.any(indices >= np.array(x.shape[:depth])):
        raise ValueError("an index is out of range")
    return x[tuple(np.moveaxis(indices, -1, 0))] if depth else np.broadcast_to(x, (*indices.shape[:-1], *x.shape))


@kernel("ScatterNd", output_size=stated_shape(2))
def _scatter_nd(_: Node, indices: Array, updates: Array, shape: Array) -> Array:
    result = np.zeros(sizes(shape), updates.dtype)
    np.add.at(result, tuple(np.moveaxis(indices, -1, 0)), updates)
    return result


@kernel("TensorScatterUpdate", "TensorScatterAdd")
def _tensor_scatter(node: Node, x: Array, indices: Array, updates: Array) -> Array:
    result, positions = x.copy(), tuple(np.moveaxis(indices, -1, 0))
    if node.op == "TensorScatterAdd":
        np.add.at(result, positions, updates)
    else:
        result[positions] = updates
    return result


def _dynamic_stitch_size(node: Node, inputs: Sequence[Array]) -> int:
    count = attribute(node, "N")
    length = max((int(index.max()) + 1 for index in inputs[:count] if index.size), default=0)
    return math.prod((length, *inputs[count].shape[inputs[0].ndim :]))


@kernel("DynamicStitch", "ParallelDynamicStitch", output_size=_dynamic_stitch_size)
def _dynamic_stitch(node: Node, *inputs: Array) -> Array:
    """Write rows of several tensors to the given row indices; a later write replaces an earlier write."""
    count = attribute(node, "N")
    indices, data = inputs[:count], inputs[count:]
    length = max((int(index.max()) + 1 for index in indices if index.size), default=0)
    rest = data[0].shape[indices[0].ndim :]
    result = np.zeros((length, *rest), data[0].dtype)
    for index, values in zip(indices, data, strict=True):
        result[index.reshape(-1)] = values.reshape(-1, *rest)
    return result


kernel("Where")(lambda _, x: np.argwhere(x).astype(np.int64))


@kernel("OneHot", output_size=lambda _, inputs: inputs[0].size * scalar(inputs[1]))
def _one_hot(node: Node, indices: Array, depth: Array, on: Array, off: Array) -> Array:
    axis = axis_of(attribute(node, "axis"), indices.ndim + 1)
    classes = np.arange(scalar(depth)).reshape(-1, *[1] * (indices.ndim - axis))
    return np.where(np.expand_dims(indices, axis) == classes, on, off)


@kernel("TopK", "TopKV2")
def _top_k(node: Node, x: Array, *counts: Array) -> tuple[Array, ...]:
    """Return the largest k elements of the last axis; equal elements keep their order."""
    k = scalar(counts[0]) if node.op == "TopKV2" else attribute(node, "k")
    if not 0 <= k <= x.shape[-1]:
        raise ValueError(f"k = {k} exceeds the size {x.shape[-1]} of the last axis")
    # A stable sort of the reversed axis, reversed again, is descending and keeps the order of equal elements.
    order = x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1][..., :k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


@kernel("ListDiff")
def _list_diff(node: Node, x: Array, removed: Array) -> tuple[Array, ...]:
    remaining = np.flatnonzero(~np.isin(x, removed))
    return x[remaining], remaining.astype(attribute(node, "out_idx").numpy)


@kernel("Unique")
def _unique(node: Node, x: Array) -> tuple[Array, ...]:
    values, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return values[order], rank[inverse].astype(attribute(node, "out_idx").numpy)
