"""Kernels of reductions, cumulative sums and sorting."""

from collections.abc import Callable
from typing import Any

import numpy as np

from quantkit.ir.tensor import Array
from quantkit.ops.kernels.reductions import cumulate
from quantkit.ops.onnx.kernels.registry import Call, kernel

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceL1": lambda x, axis, keepdims: np.sum(np.abs(x), axis=axis, keepdims=keepdims),
    "ReduceL2": lambda x, axis, keepdims: np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims)),
    "ReduceSumSquare": lambda x, axis, keepdims: np.sum(np.square(x), axis=axis, keepdims=keepdims),
    "ReduceLogSum": lambda x, axis, keepdims: np.log(np.sum(x, axis=axis, keepdims=keepdims)),
    "ReduceLogSumExp": lambda x, axis, keepdims: _log_sum_exp(x, axis, keepdims),
}


def _log_sum_exp(x: Array, axis: Any, keepdims: bool) -> Array:
    largest = np.nan_to_num(np.max(x, axis=axis, keepdims=True), nan=np.nan, posinf=0, neginf=0)
    total = np.log(np.sum(np.exp(x - largest), axis=axis, keepdims=True)) + largest
    return np.asarray(total if keepdims else np.squeeze(total, axis))


@kernel(" ".join(_REDUCTIONS))
def _reduce(call: Call) -> Array:
    x, axes = call.array(0), call.integers("axes", 1)
    if not axes and call.attr("noop_with_empty_axes", 0):
        return x
    axis = tuple(axes) if axes else tuple(range(x.ndim))
    result = _REDUCTIONS[call.node.op](x, axis=axis, keepdims=bool(call.attr("keepdims", 1)))
    return np.asarray(result).astype(x.dtype, copy=False)


@kernel("ArgMax ArgMin")
def _arg_extreme(call: Call) -> Array:
    x, axis = call.array(0), call.attr("axis", 0)
    find = np.argmax if call.node.op == "ArgMax" else np.argmin
    is_last = call.attr("select_last_index", 0)
    result = x.shape[axis] - 1 - find(np.flip(x, axis), axis) if is_last else find(x, axis)
    return np.asarray(np.expand_dims(result, axis) if call.attr("keepdims", 1) else result, np.int64)


@kernel("CumSum")
def _cumulative_sum(call: Call) -> Array:
    flags = {name: call.attr(name, 0) for name in ("exclusive", "reverse")}
    return cumulate(call.array(0), int(call.array(1).reshape(())), is_product=False, **flags)


@kernel("TopK")
def _top_k(call: Call) -> tuple[Array, Array]:
    x, axis = call.array(0), call.attr("axis", -1)
    (count,) = call.integers("k", 1) or [0]
    keys = np.moveaxis(x, axis, -1)
    if call.attr("largest", 1):
        # The complement reverses the order of integers without overflow; equal elements keep their order.
        keys = -keys if keys.dtype.kind == "f" else ~keys
    order = np.argsort(keys, -1, kind="stable")[..., :count]
    indices = np.moveaxis(order, -1, axis)
    return np.take_along_axis(x, indices, axis), indices.astype(np.int64)
