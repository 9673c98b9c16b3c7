"""Kernels of elementwise arithmetic, comparisons and functions; outputs have the type of the inputs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.kernels.output_sizes import broadcast
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.tensorflow.signatures import attribute

Function = Callable[..., Any]


def is_integer(array: Array) -> bool:
    """Return True if the element type is an integer type."""
    return array.dtype.kind in "iu"


def _truncated_quotient(x: Array, y: Array) -> Array:
    """Divide and round towards zero."""
    if not is_integer(x):
        return np.trunc(x / y)
    _check_divisor(y)
    floor = x // y
    return floor + ((floor * y != x) & ((x < 0) != (y < 0)))  # type: ignore[no-any-return]


def _div(x: Array, y: Array) -> Array:
    """Divide as C does: real numbers exactly, integers rounded towards zero."""
    return _truncated_quotient(x, y) if is_integer(x) else x / y


def _check_divisor(y: Array) -> None:
    if np.any(y == 0):
        raise ValueError("integer division by zero")


def _check_integer_divisor(function: Function) -> Function:
    """Wrap a division such that an integer division by zero raises ValueError."""

    def divide(x: Array, y: Array) -> Array:
        if is_integer(x):
            _check_divisor(y)
        return np.asarray(function(x, y))

    return divide


def _pow(x: Array, y: Array) -> Array:
    if is_integer(x) and np.any(y < 0):
        raise ValueError("integers cannot be raised to negative powers")
    return np.power(x, y)


def _zero_where_zero(factor: Array, value: Array) -> Array:
    """Return the value, with 0 where the factor is 0 (even if the value is NaN or infinite)."""
    return np.where(factor == 0, np.zeros((), value.dtype), value)


def _shift(function: Function) -> Function:
    """Wrap a shift such that the shift count is clamped to the bit width of the type, as in TensorFlow."""
    return lambda x, y: function(x, np.clip(y, 0, x.dtype.itemsize * 8 - 1).astype(x.dtype))


BINARY: dict[str, Function] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _div,
    "RealDiv": np.true_divide,
    "TruncateDiv": _truncated_quotient,
    "FloorDiv": _check_integer_divisor(np.floor_divide),
    "Mod": _check_integer_divisor(np.fmod),
    "TruncateMod": _check_integer_divisor(np.fmod),
    "FloorMod": _check_integer_divisor(np.mod),
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Pow": _pow,
    "SquaredDifference": lambda x, y: np.square(x - y),
    "DivNoNan": lambda x, y: _zero_where_zero(y, x / y),
    "MulNoNan": lambda x, y: _zero_where_zero(y, x * y),
    "Xdivy": lambda x, y: _zero_where_zero(x, x / y),
    "Xlogy": lambda x, y: _zero_where_zero(x, x * np.log(y)),
    "Xlog1py": lambda x, y: _zero_where_zero(x, x * np.log1p(y)),
    "Atan2": np.arctan2,
    "NextAfter": np.nextafter,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "LeftShift": _shift(np.left_shift),
    "RightShift": _shift(np.right_shift),
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Complex": lambda real, imag: real + 1j * imag,
}

# NumPy does not have these functions. The functions of math are slow but exact.
# Abramowitz and Stegun 7.1.26 has an error of 1.5e-7 only; math.erf is exact to the last bit of a double.
ERF: Function = np.vectorize(math.erf, otypes=[np.float64])
_ERFC: Function = np.vectorize(math.erfc, otypes=[np.float64])
_LGAMMA: Function = np.vectorize(
    lambda x: math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x), otypes=[np.float64]
)

SELU_SCALE = 1.0507009873554804934193349852946
SELU_ALPHA = 1.6732632423543772848170429916717


def sigmoid(x: Array) -> Array:
    """Compute 1 / (1 + exp(-x)); any shape."""
    return 1 / (1 + np.exp(-x))


UNARY: dict[str, Function] = {
    "Neg": np.negative,
    "Abs": np.abs,
    "ComplexAbs": np.abs,
    "Sign": np.sign,
    "Square": np.square,
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Reciprocal": lambda x: 1 / x,
    "Inv": lambda x: 1 / x,
    "Exp": np.exp,
    "Expm1": np.expm1,
    "Log": np.log,
    "Log1p": np.log1p,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Tanh": np.tanh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Rint": np.rint,
    "IsNan": np.isnan,
    "IsInf": np.isinf,
    "IsFinite": np.isfinite,
    "Invert": np.invert,
    "LogicalNot": np.logical_not,
    "Erf": lambda x: ERF(x).astype(x.dtype),
    "Erfc": lambda x: _ERFC(x).astype(x.dtype),
    "Lgamma": lambda x: _LGAMMA(x).astype(x.dtype),
    "Real": np.real,
    "Imag": np.imag,
    "Conj": np.conj,
    "Angle": np.angle,
    "Sigmoid": sigmoid,
    "Relu": lambda x: np.maximum(x, np.zeros((), x.dtype)),
    "Relu6": lambda x: np.clip(x, np.zeros((), x.dtype), np.asarray(6, x.dtype)),
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "Selu": lambda x: SELU_SCALE * np.where(x < 0, SELU_ALPHA * np.expm1(x), x),
    "Softplus": lambda x: np.logaddexp(np.zeros((), x.dtype), x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}


kernel(*BINARY, output_size=broadcast)(lambda node, x, y: np.asarray(BINARY[node.op](x, y)))


kernel(*UNARY)(lambda node, x: np.asarray(UNARY[node.op](x)))


@kernel("Equal", "NotEqual", output_size=broadcast)
def _equal(node: Node, x: Array, y: Array) -> Array:
    compare = np.equal if node.op == "Equal" else np.not_equal
    try:
        return np.asarray(compare(x, y))
    except ValueError:
        if attribute(node, "incompatible_shape_error"):
            raise
        return np.asarray(node.op == "NotEqual")


kernel("ApproximateEqual", output_size=broadcast)(
    lambda node, x, y: np.asarray(np.abs(x - y) < attribute(node, "tolerance"))
)


@kernel("AddN", "AccumulateNV2")
def _add_n(_: Node, total: Array, *inputs: Array) -> Array:
    for other in inputs:
        if other.shape != total.shape:
            raise ValueError("all tensors of a sum must have the same shape")
        total = total + other
    return total


@kernel("LeakyRelu")
def _leaky_relu(node: Node, x: Array) -> Array:
    return np.where(x > 0, x, x * np.asarray(attribute(node, "alpha"), x.dtype))


kernel("ClipByValue", output_size=broadcast)(lambda _, x, low, high: np.clip(x, low, high))


@kernel("Select")
def _select(_: Node, condition: Array, x: Array, y: Array) -> Array:
    """Select elements; a condition vector selects whole rows."""
    if x.shape != y.shape:
        raise ValueError("both branches must have the same shape")
    if condition.ndim == 1 and x.ndim > 1:
        condition = condition.reshape(-1, *[1] * (x.ndim - 1))
    return np.where(condition, x, y)


kernel("SelectV2", output_size=broadcast)(lambda _, condition, x, y: np.where(condition, x, y))


@kernel("Cast")
def _cast(node: Node, x: Array) -> Array:
    """Convert as C does: towards zero; the result for values outside the target range depends on the processor."""
    to = attribute(node, "DstT")
    if to is DType.STRING:
        raise ValueError("numbers cannot be cast to strings")
    if to is DType.BFLOAT16 and attribute(node, "Truncate"):
        x = (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    drops_imaginary = x.dtype.kind == "c" and to.numpy.kind != "c"
    return np.asarray(x.real if drops_imaginary else x).astype(to.numpy)


@kernel("Bitcast")
def _bitcast(node: Node, x: Array) -> Array:
    """Reinterpret the bytes; a wider type removes the last dimension, a narrower type adds a dimension."""
    shape, x, to = x.shape, np.ascontiguousarray(x), attribute(node, "type").numpy
    if x.dtype.itemsize == to.itemsize:
        return x.reshape(shape).view(to)
    if x.dtype.itemsize > to.itemsize:
        return x.reshape(*shape, 1).view(to)
    if shape[-1:] != (to.itemsize // x.dtype.itemsize,):
        raise ValueError(f"the last dimension must have the size of one {to.name}")
    return np.asarray(x.view(to)[..., 0])
