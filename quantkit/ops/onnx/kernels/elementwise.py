"""Kernels of elementwise ops."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from quantkit.ir.tensor import Array, DType
from quantkit.ops.kernels.elementwise import BINARY, ERF, UNARY
from quantkit.ops.onnx.kernels.registry import Call, broadcast_size, has_kernel, kernel
from quantkit.ops.onnx.types import DTYPES
from quantkit.ops.table import Fact, find_names, find_ops


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, 1, small) / (1 + small)
    return result


def _divide(a: Array, b: Array) -> Array:
    """Divide; integers are truncated towards zero.

    Raises:
        ValueError: an integer is divided by zero.
    """
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if not np.all(b):
        raise ValueError("an integer is divided by zero")
    quotient = a // b  # rounded down; the absolute of the lowest integer would overflow
    return np.asarray(quotient + ((a % b != 0) & ((a < 0) != (b < 0))).astype(quotient.dtype))


def _power(a: Array, b: Array) -> Array:
    return np.asarray(np.power(a, b) if a.dtype.kind == "f" else np.power(a.astype(np.float64), b))


_BROADCAST = {op: BINARY[name] for op, name in find_names(Fact.BINARY, "onnx").items() if name in BINARY}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    **{op: function for op, function in _BROADCAST.items() if op in find_ops(Fact.BOOLEAN, "onnx")},
    "Equal": np.equal,
    "Xor": np.logical_xor,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{op: function for op, function in _BROADCAST.items() if op not in _COMPARISONS},
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "Div": _divide,
    "Pow": _power,
    "PRelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "Sum": np.add,
}


@kernel(" ".join(_BINARY), broadcast_size)
def _binary(call: Call) -> Array:
    num_required = 1 if call.node.op in ("Max", "Min", "Sum") else 2
    arrays = [call.array(slot) for slot in range(max(len(call.inputs), num_required))]
    if call.node.attrs.get("broadcast") or call.node.attrs.get("axis") is not None:
        raise ValueError("broadcasting of opset 6 is not supported")
    return np.asarray(reduce(_BINARY[call.node.op], arrays)).astype(arrays[0].dtype, copy=False)


kernel(" ".join(_COMPARISONS), broadcast_size)(
    lambda call: np.asarray(_COMPARISONS[call.node.op](call.array(0), call.array(1)))
)
kernel("Where", broadcast_size)(lambda call: np.where(call.array(0), call.array(1), call.array(2)))
kernel("CastLike")(lambda call: call.array(0).astype(call.array(1).dtype))


@kernel("Mean", broadcast_size)
def _mean(call: Call) -> Array:
    arrays = [call.array(slot) for slot in range(max(len(call.inputs), 1))]
    return np.asarray(reduce(np.add, arrays) / arrays[0].dtype.type(len(arrays))).astype(arrays[0].dtype, copy=False)


@kernel("Mod", broadcast_size)
def _modulo(call: Call) -> Array:
    a, b = call.array(0), call.array(1)
    if a.dtype.kind != "f" and not np.all(b):
        raise ValueError("an integer is divided by zero")
    return np.asarray(np.fmod(a, b) if call.attr("fmod", 0) else np.mod(a, b)).astype(a.dtype, copy=False)


@kernel("BitShift")
def _bit_shift(call: Call) -> Array:
    shift = np.left_shift if call.attr("direction") == b"LEFT" else np.right_shift
    return np.asarray(shift(call.array(0), call.array(1)))


@kernel("IsInf")
def _is_inf(call: Call) -> Array:
    x = call.array(0)
    positive, negative = call.attr("detect_positive", 1), call.attr("detect_negative", 1)
    return np.asarray((np.isposinf(x) & bool(positive)) | (np.isneginf(x) & bool(negative)))


@kernel("Cast")
def _cast(call: Call) -> Array:
    x, dtype = call.array(0), DTYPES[call.attr("to")]
    if dtype is DType.STRING or x.dtype.kind == "O":
        raise ValueError("strings are not converted")
    if x.dtype.kind == "f" and dtype.numpy.kind in "iu" and not np.isfinite(x).all():
        raise ValueError("the integer of an infinite number depends on the runtime")
    return x.astype(dtype.numpy)


@kernel("Clip")
def _clip(call: Call) -> Array:
    x = call.array(0)
    low, high = (
        value if (value := call.optional(slot)) is not None else call.attr(name)
        for slot, name in ((1, "min"), (2, "max"))
    )
    for bound, limit in ((low, np.maximum), (high, np.minimum)):
        x = x if bound is None else limit(x, np.asarray(bound, x.dtype))
    return x


@kernel("Elu Selu Celu")
def _elu(call: Call) -> Array:
    x, op = call.array(0), call.node.op
    alpha = x.dtype.type(call.attr("alpha", 1.67326319217681884765625 if op == "Selu" else 1.0))
    gamma = x.dtype.type(call.attr("gamma", 1.05070102214813232421875) if op == "Selu" else 1.0)
    negative = alpha * np.expm1(np.minimum(x, 0) / (alpha if op == "Celu" else x.dtype.type(1)))
    return np.asarray(gamma * np.where(x < 0, negative, x)).astype(x.dtype, copy=False)


@kernel("Gelu")
def _gelu(call: Call) -> Array:
    x = call.array(0)
    y = x.astype(np.float64)
    if call.attr("approximate", b"none") == b"tanh":
        factor = np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))
    else:
        factor = ERF(y / math.sqrt(2)) if y.size else y
    return np.asarray(0.5 * y * (1 + factor)).astype(x.dtype)


@kernel("QuantizeLinear")
def _quantize_linear(call: Call) -> Array:
    x, zero_point = call.array(0), call.optional(2)
    number = call.attr("output_dtype", 0)
    dtype = zero_point.dtype if zero_point is not None else DTYPES[number].numpy if number else np.dtype(np.uint8)
    if dtype.kind not in "iu" or call.attr("block_size", 0):
        raise ValueError("only integers of one byte or more, without blocks, are quantized")
    scale, zero = _along_axis(call, x.ndim)
    limits = np.iinfo(dtype)
    return np.clip(np.round(x / scale) + zero, limits.min, limits.max).astype(dtype)


@kernel("DequantizeLinear")
def _dequantize_linear(call: Call) -> Array:
    x = call.array(0)
    if call.attr("block_size", 0) or x.dtype.kind not in "iu":
        raise ValueError("only integers of one byte or more, without blocks, are dequantized")
    scale, zero = _along_axis(call, x.ndim)
    return np.asarray((x.astype(np.int64) - zero) * scale).astype(call.array(1).dtype)


def _along_axis(call: Call, rank: int) -> tuple[Array, Array]:
    """Return scale and zero point such that they broadcast along the quantization axis."""
    scale, zero_point = call.array(1), call.optional(2)
    zero = np.zeros(scale.shape, np.int64) if zero_point is None else zero_point.astype(np.int64)
    if scale.ndim == 1 and rank:
        shape = [1] * rank
        shape[call.attr("axis", 1)] = -1
        return scale.reshape(shape if scale.size > 1 else 1), zero.reshape(shape if zero.size > 1 else 1)
    return scale, zero


# Kernels of ops that mean the same in TensorFlow, and of other ops without attributes.
_UNARY: dict[str, Callable[[Any], Any]] = {
    **{op: UNARY[name] for op, name in find_names(Fact.UNARY, "onnx").items() if name in UNARY and not has_kernel(op)},
    "BitwiseNot": np.invert,
    "Erf": lambda x: ERF(x) if x.size else x,
    "Identity": lambda x: x,
    "Reciprocal": lambda x: 1 / x,
    "Sigmoid": _sigmoid,
    "HardSwish": lambda x: x * np.clip(x / x.dtype.type(6) + x.dtype.type(0.5), 0, 1),
    "Mish": lambda x: x * np.tanh(np.logaddexp(x, x.dtype.type(0))),
}
_BOOLEAN = frozenset({"IsNaN", "Not"})
# Kernels of ops of one input with parameters: (input, function that returns a number of the node) -> output
_PARAMETRIC: dict[str, Callable[[Any, Callable[[str, float], Any]], Any]] = {
    "LeakyRelu": lambda x, number: np.where(x < 0, x * number("alpha", 0.01), x),
    "ThresholdedRelu": lambda x, number: np.where(x > number("alpha", 1.0), x, x.dtype.type(0)),
    "HardSigmoid": lambda x, number: np.clip(x * number("alpha", 0.2) + number("beta", 0.5), 0, 1),
    "com.microsoft.QuickGelu": lambda x, number: x * _sigmoid(x * number("alpha", 1.702)),
    "Swish": lambda x, number: x * _sigmoid(x * number("alpha", 1.0)),
}


@kernel(" ".join((*_UNARY, *_PARAMETRIC)))
def _unary(call: Call) -> Array:
    x, op = call.array(0), call.node.op
    result = _UNARY[op](x) if op in _UNARY else _PARAMETRIC[op](x, lambda *args: x.dtype.type(call.attr(*args)))
    return np.asarray(result) if op in _BOOLEAN else np.asarray(result).astype(x.dtype, copy=False)
