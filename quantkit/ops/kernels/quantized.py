"""Kernels of TensorFlow's quantized ops: each tensor of quantized values has a real range [low, high].

    step = (high - low) / (2 ** bits - 1)
    real(value) = round(low / step) * step + (value - lowest) * step

Rounding ``low`` makes real 0 an exact quantized value. Rounding is half away from zero, except where a function
name states otherwise. Where TensorFlow's kernels differ between processors, these kernels follow the portable
implementation (``TF_ENABLE_ONEDNN_OPTS=0``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.kernels.convolution import convolution_size, convolve
from quantkit.ops.kernels.images import blend, resize_bilinear, resized_size
from quantkit.ops.kernels.output_sizes import broadcast_pair, matrix_product
from quantkit.ops.kernels.pooling import max_pool, window_counts, window_sums
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.kernels.shapes import axis_of, scalar, sizes
from quantkit.ops.kernels.windows import Windows, channels_last, pool_windows
from quantkit.ops.tensorflow.signatures import attribute

F32, F64 = np.float32, np.float64
# Ratio of the range of a sum to the widest input range; it prevents an overflow of the sum.
BIAS_ADD_HEADROOM = 1 << 17
ADD_HEADROOM = 1 << 14
# Fixed-point scale of the interpolation weights of 8-bit images.
RESIZE_SCALE = 1 << 7


def round_half_away(x: Array) -> Array:
    """Round to the nearest integer, half away from zero; the type of ``x`` stays."""
    whole = np.trunc(x)
    return np.asarray(whole + np.copysign(np.abs(x - whole) >= 0.5, x), x.dtype)


@dataclass(frozen=True)
class QuantizedRange:
    """Real range of the values of a quantized type.

    Attributes:
        low, high: real values of the lowest and highest quantized value: float32, () or broadcast against the values.
        dtype: quantized type.
    """

    low: Array
    high: Array
    dtype: DType

    @classmethod
    def of(cls, low: Array, high: Array, dtype: DType) -> "QuantizedRange":
        """Return the range of two tensors of one element.

        Raises:
            ValueError: a tensor does not have exactly one element.
        """
        if low.size != 1 or high.size != 1:
            raise ValueError("a range must have one minimum and one maximum")
        return cls(low.reshape(()), high.reshape(()), dtype)

    @property
    def lowest(self) -> int:
        return int(np.iinfo(self.dtype.numpy).min)

    @property
    def highest(self) -> int:
        return int(np.iinfo(self.dtype.numpy).max)

    @property
    def num_steps(self) -> int:
        return self.highest - self.lowest

    @property
    def level(self) -> Array:
        """Real distance between two quantized values, float32."""
        return np.asarray((self.high - self.low) / F32(self.num_steps), F32)

    def dequantize(self, values: Array) -> Array:
        """Dequantize in float32, as TensorFlow does for tensors."""
        step = np.asarray((self.high - self.low).astype(F64) / self.num_steps, F32)
        low = np.where(step == 0, self.low, round_half_away(self.low / step) * step).astype(F32)
        return np.asarray((low - F32(self.lowest) * step) + values.astype(F32) * step, F32)

    def quantize(self, reals: Array) -> Array:
        """Quantize in float32, as TensorFlow does for tensors."""
        span = (self.high - self.low).astype(F64)
        scale = np.where(span == 0, 0, self.num_steps / span).astype(F32)
        values = round_half_away(reals * scale) - (round_half_away(self.low * scale) - F32(self.lowest))
        # The highest 32-bit value is not a float32: TensorFlow clamps to the next lower float32.
        highest = min(self.highest, 0x7FFFFF80)
        return np.clip(values, F32(self.lowest), F32(highest)).astype(self.dtype.numpy)

    def dequantize_in_float64(self, values: Array) -> Array:
        """Dequantize to float32, computed in float64 as TensorFlow does for scalars."""
        step = self._span / (self.num_steps + 1)
        low = round_half_away(self.low / step.astype(F32)).astype(F64) * step.astype(F32)
        reals = low + (values.astype(F64) - self.lowest) * step
        return np.where(self.high == self.low, self.low, reals).astype(F32)

    def quantize_unclamped(self, reals: Array) -> Array:
        """Quantize to int64 without clamping to the quantized type; computed in float64."""
        scale = (self.num_steps + 1) / self._span
        values = round_half_away(reals.astype(F64) * scale) - round_half_away(self.low.astype(F64) * scale)
        return np.where(self.high == self.low, 0, values).astype(np.int64) + self.lowest

    def quantize_in_float64(self, reals: Array) -> Array:
        """Quantize in float64, as TensorFlow does for scalars."""
        return self.clamp(self.quantize_unclamped(reals))

    @property
    def _span(self) -> Array:
        """Width of the range plus one step, float64, in TensorFlow's order of operations.

        The low end of a symmetric 32-bit range is halfway between two quantized values: the last bit determines the
        rounding.
        """
        return np.asarray((self.high - self.low).astype(F64) * ((self.num_steps + 1) / self.num_steps))

    def clamp(self, values: Array) -> Array:
        """Clamp integers to the quantized type."""
        return np.clip(values.astype(F64), self.lowest, self.highest).astype(self.dtype.numpy)

    @property
    def zero(self) -> int:
        """Quantized value of real 0, not clamped to the type."""
        return int(self.quantize_unclamped(np.zeros((), F32)))

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Range outputs of an op: (low, high)."""
        return self.low, self.high


def _type(node: Node, name: str) -> DType:
    dtype = attribute(node, name)
    if not isinstance(dtype, DType) or dtype.numpy.kind not in "iu":
        raise ValueError(f"{name} must be a quantized type")
    return dtype


def _symmetric(limit: Any, dtype: DType) -> QuantizedRange:
    return QuantizedRange(np.asarray(-limit, F32), np.asarray(limit, F32), dtype)


def _product_range(a: QuantizedRange, b: QuantizedRange, dtype: DType) -> QuantizedRange:
    """Return the range of a product, whose step is the product of the steps."""
    level = a.level * b.level
    limits = np.iinfo(dtype.numpy)
    low, high = (np.asarray(level * F32(limit), F32) for limit in (limits.min, limits.max))
    return QuantizedRange(low, high, dtype)


# ------------------------------------------------------------------------ quantize, dequantize, requantize


def _scaled_limits(dtype: DType, narrow_range: bool) -> tuple[int, int]:
    limits = np.iinfo(dtype.numpy)
    return int(limits.min) + narrow_range, int(limits.max)


def _widen_range(node: Node, low: Array, high: Array) -> tuple[Array, Array]:
    """Extend the range to contain 0 and to be at least ``ensure_minimum_range`` wide."""
    if np.any(high < low):
        raise ValueError("input_max_range must be larger than input_min_range.")
    epsilon = np.maximum(F32(1), np.maximum(np.abs(low), np.abs(high))) * F32(attribute(node, "ensure_minimum_range"))
    bottom = np.minimum(F32(0), low)
    return bottom, np.maximum(F32(0), np.maximum(high, bottom + epsilon))


def _reshape_along(x: Array, values: Array, axis: int) -> Array:
    """Reshape values per slice such that they broadcast against ``x``."""
    if axis == -1:
        return values.reshape(())
    if values.shape != (x.shape[axis],):
        raise ValueError(f"axis {axis} requires {x.shape[axis]} ranges")
    return values.reshape(-1, *[1] * (x.ndim - 1 - axis))


@kernel("QuantizeV2")
def _quantize(node: Node, x: Array, input_low: Array, input_high: Array) -> tuple[Array, Array, Array]:
    axis, mode, dtype = attribute(node, "axis"), attribute(node, "mode"), _type(node, "T")
    low, high = _widen_range(node, _reshape_along(x, input_low, axis), _reshape_along(x, input_high, axis))
    if mode == b"SCALED":
        values, low, high = _quantize_scaled(node, x, low, high, dtype)
    elif mode == b"MIN_FIRST":
        values = QuantizedRange(low, high, dtype).quantize(x)
    else:
        values = _quantize_combined(x, low, high, dtype)
    flat = () if axis == -1 else (-1,)
    return values, low.reshape(flat), high.reshape(flat)


def _quantize_scaled(node: Node, x: Array, low: Array, high: Array, dtype: DType) -> tuple[Array, Array, Array]:
    first, last = _scaled_limits(dtype, attribute(node, "narrow_range"))
    no_limit = np.finfo(F32).max
    scale = np.minimum(
        np.where(first * low > 0, F32(first) / low, no_limit), np.where(last * high > 0, F32(last) / high, no_limit)
    ).astype(F32)
    low, high = (F32(first) / scale).astype(F32), (F32(last) / scale).astype(F32)
    round_values = np.rint if attribute(node, "round_mode") == b"HALF_TO_EVEN" else round_half_away
    return round_values(np.clip(x, low, high) * scale).astype(dtype.numpy), low, high


def _quantize_combined(x: Array, low: Array, high: Array, dtype: DType) -> Array:
    limits = np.iinfo(dtype.numpy)
    scale = F32(float(limits.max) - float(limits.min)) / (high - low)
    offset = (np.clip(x, low, high) - low) * scale
    if limits.min == 0:
        return QuantizedRange(low, high, dtype).clamp(np.floor(offset + F32(0.5)))
    return QuantizedRange(low, high, dtype).clamp(round_half_away(np.asarray(offset + F32(limits.min), F32)))


@kernel("Dequantize")
def _dequantize(node: Node, values: Array, input_low: Array, input_high: Array) -> Array:
    axis, mode, dtype = attribute(node, "axis"), attribute(node, "mode"), _type(node, "T")
    low, high = _reshape_along(values, input_low, axis), _reshape_along(values, input_high, axis)
    limits = np.iinfo(dtype.numpy)
    if mode == b"SCALED":
        first, last = _scaled_limits(dtype, attribute(node, "narrow_range"))
        scale = high / F32(last) if first >= 0 else np.maximum(low / F32(first), high / F32(last))
        return np.asarray(values.astype(F32) * scale)
    if mode == b"MIN_FIRST":
        return QuantizedRange(low, high, dtype).dequantize(values)
    scale = (high - low) / F32(float(limits.max) - float(limits.min))
    return np.asarray((values.astype(F32) - F32(limits.min)) * scale + low)


@kernel("RequantizationRange")
def _requantization_range(node: Node, values: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the range of the values that occur, with a low end of at most 0."""
    source = QuantizedRange.of(low, high, _type(node, "Tinput"))
    if not values.size:
        raise ValueError("an empty tensor has no range")
    return np.minimum(F32(0), source.dequantize_in_float64(values.min())), source.dequantize_in_float64(values.max())


@kernel("Requantize")
def _requantize(
    node: Node, values: Array, low: Array, high: Array, output_low: Array, output_high: Array
) -> tuple[Array, Array, Array]:
    source = QuantizedRange.of(low, high, _type(node, "Tinput"))
    target = QuantizedRange.of(output_low, output_high, _type(node, "out_type"))
    if target.low > 0:
        raise ValueError(f"requested_output_min must be <= 0, but got {target.low}")
    if target.high < target.low:
        raise ValueError(
            f"requested_output_max must be >= requested_output_min, but got {target.high} and {target.low}"
        )
    if (source.dtype, target.dtype) == (DType.QINT32, DType.QUINT8):
        result = _requantize_in_integers(values, source, target)
    else:
        result = target.quantize(source.dequantize(values))
    return result, *target.bounds


def _requantize_in_integers(values: Array, source: QuantizedRange, target: QuantizedRange) -> Array:
    """Requantize qint32 to quint8 in fixed-point arithmetic with 16 fractional bits."""
    low, high = float(source.low), float(source.high)
    span = float(F32(target.high - target.low))
    if span == 0:
        return np.zeros(values.shape, np.uint8)
    fixed_one = 1 << 16
    scale = int(255.0 * fixed_one * float(F32(source.high - source.low)) / span)
    middle = int(F32(F32((low + high) / 2.0) * F32(255.0 / span)) * F32(fixed_one))
    offset = int(round_half_away(np.asarray(255.0 * fixed_one * float(target.low) / span)))
    with np.errstate(over="ignore"):
        product = (values.astype(np.int64) * np.int64(scale)) >> 32
    return np.asarray(np.clip((product + (middle - offset + (fixed_one >> 1))) >> 16, 0, 255), np.uint8)


# --------------------------------------------------------------------------------------------- arithmetic


def _operand_ranges(
    node: Node, bounds: Sequence[Array], types: tuple[str, str]
) -> tuple[QuantizedRange, QuantizedRange]:
    """Return the ranges of both operands, from their four bounds."""
    low_a, high_a, low_b, high_b = bounds
    left, right = (_type(node, name) for name in types)
    return QuantizedRange.of(low_a, high_a, left), QuantizedRange.of(low_b, high_b, right)


def _check_broadcast(x: Array, y: Array) -> None:
    """Raise ValueError if the smaller operand is not a suffix of the larger shape, as TensorFlow requires."""
    small, large = sorted((x, y), key=lambda operand: operand.size)
    sizes = tuple(dropwhile(lambda size: size == 1, small.shape))
    if sizes != large.shape[large.ndim - len(sizes) :]:
        raise ValueError(f"Broadcast between {list(x.shape)} and {list(y.shape)} is not supported yet.")


@kernel("QuantizedConv2D", output_size=convolution_size)
def _conv2d(node: Node, x: Array, weights: Array, *bounds: Array) -> tuple[Array, Array, Array]:
    """Compute exact sums of (x - zero) * (w - zero); signed weights have zero point 0."""
    x = channels_last(node, x)
    data, filters = _operand_ranges(node, bounds, ("Tinput", "Tfilter"))
    if weights.ndim != 4:
        raise ValueError("weights must have four dimensions")
    windows = Windows.of(node, (x.shape[1], x.shape[2]), (weights.shape[0], weights.shape[1]))
    if filters.dtype is DType.QINT8:
        return _symmetric_conv2d(x, weights, windows, data, filters)
    if windows.rows.stride != windows.columns.stride:
        raise ValueError("Current implementation only supports equal length strides in the row and column dimensions.")
    if windows.rows.dilation != 1 or windows.columns.dilation != 1:
        raise ValueError("dilations are not supported")
    sums = convolve(x.astype(F64) - data.zero, weights.astype(F64) - filters.zero, windows)
    result = _product_range(data, filters, DType.QINT32)
    return result.clamp(sums), *result.bounds


def _symmetric_conv2d(
    x: Array, weights: Array, windows: Windows, data: QuantizedRange, filters: QuantizedRange
) -> tuple[Array, Array, Array]:
    """Compute as the fused kernels do: real = value * step for data and weights; the offsets are ignored."""
    sums = convolve(x.astype(F64), weights.astype(F64), windows)
    steps = [
        np.maximum(np.abs(operand.low), np.abs(operand.high)) / F32(operand.highest) for operand in (data, filters)
    ]
    result = _symmetric(steps[0] * steps[1] * F32(2**31), DType.QINT32)
    return result.clamp(sums), *result.bounds


@kernel("QuantizedMatMul", output_size=matrix_product)
def _mat_mul(node: Node, a: Array, b: Array, *bounds: Array) -> tuple[Array, Array, Array]:
    left, right = _operand_ranges(node, bounds, ("T1", "T2"))
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError("matrices are expected")
    for letter, operand in (("a", left), ("b", right)):
        if not operand.high > operand.low:
            raise ValueError(f"max_{letter} must be larger than min_{letter}.")
    a = a.T if attribute(node, "transpose_a") else a
    b = b.T if attribute(node, "transpose_b") else b
    result = _product_range(left, right, _type(node, "Toutput"))
    return result.clamp((a.astype(F64) - left.zero) @ (b.astype(F64) - right.zero)), *result.bounds


@kernel("QuantizedMul", output_size=broadcast_pair)
def _mul(node: Node, x: Array, y: Array, *bounds: Array) -> tuple[Array, Array, Array]:
    left, right = _operand_ranges(node, bounds, ("T1", "T2"))
    _check_broadcast(x, y)
    result = _product_range(left, right, _type(node, "Toutput"))
    return result.clamp((x.astype(F64) - left.zero) * (y.astype(F64) - right.zero)), *result.bounds


def _sum_range(left: QuantizedRange, right: QuantizedRange, headroom: int) -> QuantizedRange:
    widest = max(float(left.high), -float(left.low), float(right.high), -float(right.low))
    return _symmetric(F32(widest) * F32(headroom), DType.QINT32)


@kernel("QuantizedAdd", output_size=broadcast_pair)
def _add(node: Node, x: Array, y: Array, *bounds: Array) -> tuple[Array, Array, Array]:
    left, right = _operand_ranges(node, bounds, ("T1", "T2"))
    _check_broadcast(x, y)
    result = _sum_range(left, right, ADD_HEADROOM)
    return _rescale(x, left, result) + _rescale(y, right, result), *result.bounds


def _rescale(values: Array, source: QuantizedRange, target: QuantizedRange) -> Array:
    """Convert quantized values to a wider type.

    As in TensorFlow, tensors are converted by linear extrapolation from the values 0 and 1; scalars exactly.
    """
    if values.size == 1:
        return target.quantize_in_float64(source.dequantize_in_float64(values))
    at_zero, at_one = target.quantize_unclamped(source.dequantize_in_float64(np.array([0, 1])))
    return target.clamp(at_zero + values.astype(np.int64) * (at_one - at_zero))


@kernel("QuantizedBiasAdd")
def _bias_add(node: Node, x: Array, bias: Array, *bounds: Array) -> tuple[Array, Array, Array]:
    left, right = _operand_ranges(node, bounds, ("T1", "T2"))
    if bias.shape != x.shape[-1:]:
        raise ValueError(f"the bias must have {x.shape[-1] if x.ndim else 0} elements")
    result = _sum_range(left, right, BIAS_ADD_HEADROOM)
    terms = [result.quantize(operand.dequantize(values)) for operand, values in ((left, x), (right, bias))]
    # The zero point can be 1 instead of 0; TensorFlow adds it to the sum.
    return terms[0] + terms[1] + np.int32(result.zero), *result.bounds


# ----------------------------------------------------------------------------------------- pass-through ops


@kernel("QuantizedRelu", "QuantizedRelu6")
def _relu(node: Node, x: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    source = QuantizedRange.of(low, high, _type(node, "Tinput"))
    result = np.maximum(x, source.quantize_in_float64(np.zeros((), F32)))
    if node.op == "QuantizedRelu6":
        result = np.minimum(result, source.quantize_in_float64(np.asarray(6, F32)))
    return result, *source.bounds


@kernel("QuantizedMaxPool")
def _max_pool(node: Node, x: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    x = channels_last(node, x)
    windows = pool_windows(node, x, attribute(node, "ksize"))
    return max_pool(x, windows), low.reshape(()), high.reshape(())


@kernel("QuantizedAvgPool")
def _avg_pool(node: Node, x: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Compute means of quantized values, rounded towards zero."""
    x = channels_last(node, x)
    windows = pool_windows(node, x, attribute(node, "ksize"))
    means = window_sums(x.astype(np.int32), windows) / window_counts(windows)
    return np.trunc(means).astype(x.dtype), low.reshape(()), high.reshape(())


@kernel("QuantizedConcat", "QuantizedConcatV2")
def _concat(node: Node, *inputs: Array) -> tuple[Array, Array, Array]:
    """Concatenate tensors, requantized to the union of their ranges."""
    dtype, count = _type(node, "T"), attribute(node, "N")
    axis_first = node.op == "QuantizedConcat"
    axis = scalar(inputs[0] if axis_first else inputs[count])
    tensors = inputs[1 : count + 1] if axis_first else inputs[:count]
    lows, highs = inputs[count + 1 : 2 * count + 1], inputs[2 * count + 1 :]
    if axis < 0:
        raise ValueError(f"axis {axis} must not be negative")
    ranges = [QuantizedRange.of(low, high, dtype) for low, high in zip(lows, highs, strict=True)]
    low, high = min(float(operand.low) for operand in ranges), max(float(operand.high) for operand in ranges)
    result = QuantizedRange(np.asarray(low, F32), np.asarray(high, F32), dtype)
    if result.lowest < 0:
        result = _symmetric(max(abs(low), abs(high)), dtype)
    parts = [
        values if (operand.low, operand.high) == result.bounds else result.quantize(operand.dequantize(values))
        for values, operand in zip(tensors, ranges, strict=True)
    ]
    return np.concatenate(parts, axis_of(axis, tensors[0].ndim)), *result.bounds


@kernel("QuantizedReshape")
def _reshape(_: Node, x: Array, shape: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    if low.size != 1 or high.size != 1:
        raise ValueError("a range must have one minimum and one maximum")
    return x.reshape(sizes(shape)), low.reshape(()), high.reshape(())


@kernel("QuantizedResizeBilinear", output_size=resized_size)
def _resize_bilinear(node: Node, x: Array, size: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    if x.ndim != 4 or size.size != 2:
        raise ValueError("images (n, h, w, c) and a height and width are expected")
    height, width = sizes(size)
    flags = attribute(node, "align_corners"), attribute(node, "half_pixel_centers")
    resize = _blend_quantized if x.dtype == np.uint8 else resize_bilinear
    result = resize(x, (height, width), *flags)
    return result, low.reshape(()), high.reshape(())


def _blend_quantized(x: Array, target: tuple[int, int], align_corners: bool, half_pixel_centers: bool) -> Array:
    """Resize as `resize_bilinear`, but in TensorFlow's fixed-point arithmetic: divisions truncate."""
    top, bottom, down = blend(x.shape[1], target[0], align_corners, half_pixel_centers)
    left, right, across = blend(x.shape[2], target[1], align_corners, half_pixel_centers)
    down, across = ((part * F32(RESIZE_SCALE)).astype(np.int64) for part in (down, across))
    x = x.astype(np.int64)
    rows = x[:, :, left] * RESIZE_SCALE + (x[:, :, right] - x[:, :, left]) * across[:, None]
    tops, bottoms = rows[:, top], rows[:, bottom]
    result = tops + _quotient(bottoms - tops, RESIZE_SCALE) * down[:, None, None]
    return np.asarray(_quotient(result + RESIZE_SCALE // 2, RESIZE_SCALE))


def _quotient(x: Array, divisor: int) -> Array:
    """Divide integers, rounded towards zero."""
    return np.asarray(np.sign(x) * (np.abs(x) // divisor))
