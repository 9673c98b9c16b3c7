"""The classic eight-bit ops: tensors that travel as codes with the range [low, high] they stand for.

    step = (high - low) / (2 ** bits - 1)
    real(code) = round(low / step) * step + (code - lowest) * step

Rounding the low end puts real 0 exactly on a code. Rounding is half away from zero unless a name says
otherwise. Where TensorFlow's kernels differ between processors, these follow its portable ones
(``TF_ENABLE_ONEDNN_OPTS=0``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.kernels.convolution import convolve
from quantkit.ops.kernels.images import blend, resize_bilinear
from quantkit.ops.kernels.pooling import max_pool, window_counts, window_sums
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.kernels.shapes import axis_of, scalar, sizes
from quantkit.ops.kernels.windows import Windows, channels_last, pool_windows
from quantkit.ops.tensorflow.signatures import attribute

F32, F64 = np.float32, np.float64
# One step of an accumulated sum is this much finer than the widest input, so that sums never overflow.
BIAS_ADD_HEADROOM = 1 << 17
ADD_HEADROOM = 1 << 14
# Parts of a pixel while eight-bit codes are blended.
RESIZE_PARTS = 1 << 7


def rounded(x: Array) -> Array:
    """The nearest whole numbers, half away from zero, in the type of ``x``."""
    whole = np.trunc(x)
    return np.asarray(whole + np.copysign(np.abs(x - whole) >= 0.5, x), x.dtype)


@dataclass(frozen=True)
class Range:
    """What the codes of a type stand for.

    Attributes:
        low, high: real numbers of the lowest and highest code: float32, () or broadcast against the codes.
        dtype: of the codes.
    """

    low: Array
    high: Array
    dtype: DType

    @classmethod
    def of(cls, low: Array, high: Array, dtype: DType) -> "Range":
        """The range that two tensors of one element give.

        Raises:
            ValueError: they have more elements.
        """
        if low.size != 1 or high.size != 1:
            raise ValueError("a range is two numbers")
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
        """Real size of one step, float32."""
        return np.asarray((self.high - self.low) / F32(self.num_steps), F32)

    def real(self, codes: Array) -> Array:
        """Real numbers of codes, computed in float32 as whole tensors are."""
        step = np.asarray((self.high - self.low).astype(F64) / self.num_steps, F32)
        low = np.where(step == 0, self.low, rounded(self.low / step) * step).astype(F32)
        return np.asarray((low - F32(self.lowest) * step) + codes.astype(F32) * step, F32)

    def codes(self, reals: Array) -> Array:
        """Codes of real numbers, clamped, computed in float32 as whole tensors are."""
        span = (self.high - self.low).astype(F64)
        scale = np.where(span == 0, 0, self.num_steps / span).astype(F32)
        codes = rounded(reals * scale) - (rounded(self.low * scale) - F32(self.lowest))
        # The highest 32-bit code is no float32: the kernels clamp at the one below it.
        highest = min(self.highest, 0x7FFFFF80)
        return np.clip(codes, F32(self.lowest), F32(highest)).astype(self.dtype.numpy)

    def real_exactly(self, codes: Array) -> Array:
        """Real numbers of codes, float32, computed in float64 as single elements are."""
        step = self._span / (self.num_steps + 1)
        low = rounded(self.low / step.astype(F32)).astype(F64) * step.astype(F32)
        reals = low + (codes.astype(F64) - self.lowest) * step
        return np.where(self.high == self.low, self.low, reals).astype(F32)

    def unclamped(self, reals: Array) -> Array:
        """Codes of real numbers, int64, which may leave the type; computed in float64."""
        scale = (self.num_steps + 1) / self._span
        codes = rounded(reals.astype(F64) * scale) - rounded(self.low.astype(F64) * scale)
        return np.where(self.high == self.low, 0, codes).astype(np.int64) + self.lowest

    def codes_exactly(self, reals: Array) -> Array:
        """Codes of real numbers, clamped, computed in float64 as single elements are."""
        return self.clamped(self.unclamped(reals))

    @property
    def _span(self) -> Array:
        """The width of the range and one step, float64, multiplied out as TensorFlow does it.

        The low end of a symmetric 32-bit range is half a step beside a code: the last bit decides which.
        """
        return np.asarray((self.high - self.low).astype(F64) * ((self.num_steps + 1) / self.num_steps))

    def clamped(self, codes: Array) -> Array:
        """Whole numbers as codes of the type, the nearest where they leave it."""
        return np.clip(codes.astype(F64), self.lowest, self.highest).astype(self.dtype.numpy)

    @property
    def zero(self) -> int:
        """The code of real 0, which may leave the type."""
        return int(self.unclamped(np.zeros((), F32)))

    @property
    def ends(self) -> tuple[Array, Array]:
        """Low and high as an op hands them on."""
        return self.low, self.high


def _type(node: Node, name: str) -> DType:
    dtype = attribute(node, name)
    if not isinstance(dtype, DType) or dtype.numpy.kind not in "iu":
        raise ValueError(f"{name} must be a quantized type")
    return dtype


def _symmetric(limit: Any, dtype: DType) -> Range:
    return Range(np.asarray(-limit, F32), np.asarray(limit, F32), dtype)


def _times(a: Range, b: Range, dtype: DType) -> Range:
    """The range of a product's codes: one step is the product of the steps."""
    level = a.level * b.level
    made = Range(level, level, dtype)
    return Range(np.asarray(level * F32(made.lowest), F32), np.asarray(level * F32(made.highest), F32), dtype)


# ---------------------------------------------------------------------------------- into and out of codes


def _scaled_limits(dtype: DType, narrow_range: bool) -> tuple[int, int]:
    limits = np.iinfo(dtype.numpy)
    return int(limits.min) + narrow_range, int(limits.max)


def _wide_enough(node: Node, low: Array, high: Array) -> tuple[Array, Array]:
    """The range with 0 in it, and at least ``ensure_minimum_range`` wide."""
    if np.any(high < low):
        raise ValueError("input_max_range must be larger than input_min_range.")
    epsilon = np.maximum(F32(1), np.maximum(np.abs(low), np.abs(high))) * F32(attribute(node, "ensure_minimum_range"))
    bottom = np.minimum(F32(0), low)
    return bottom, np.maximum(F32(0), np.maximum(high, bottom + epsilon))


def _along(x: Array, values: Array, axis: int) -> Array:
    """Per-slice numbers in the form that broadcasts against ``x``."""
    if axis == -1:
        return values.reshape(())
    if values.shape != (x.shape[axis],):
        raise ValueError(f"axis {axis} needs {x.shape[axis]} ranges")
    return values.reshape(-1, *[1] * (x.ndim - 1 - axis))


@kernel("QuantizeV2")
def _quantize(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    x, given_low, given_high = inputs
    axis, mode, dtype = attribute(node, "axis"), attribute(node, "mode"), _type(node, "T")
    low, high = _wide_enough(node, _along(x, given_low, axis), _along(x, given_high, axis))
    if mode == b"SCALED":
        codes, low, high = _quantize_scaled(node, x, low, high, dtype)
    elif mode == b"MIN_FIRST":
        codes = Range(low, high, dtype).codes(x)
    else:
        codes = _quantize_combined(x, low, high, dtype)
    flat = () if axis == -1 else (-1,)
    return codes, low.reshape(flat), high.reshape(flat)


def _quantize_scaled(node: Node, x: Array, low: Array, high: Array, dtype: DType) -> tuple[Array, Array, Array]:
    first, last = _scaled_limits(dtype, attribute(node, "narrow_range"))
    no_limit = np.finfo(F32).max
    scale = np.minimum(
        np.where(first * low > 0, F32(first) / low, no_limit), np.where(last * high > 0, F32(last) / high, no_limit)
    ).astype(F32)
    low, high = (F32(first) / scale).astype(F32), (F32(last) / scale).astype(F32)
    whole = np.rint if attribute(node, "round_mode") == b"HALF_TO_EVEN" else rounded
    return whole(np.clip(x, low, high) * scale).astype(dtype.numpy), low, high


def _quantize_combined(x: Array, low: Array, high: Array, dtype: DType) -> Array:
    limits = np.iinfo(dtype.numpy)
    scale = F32(float(limits.max) - float(limits.min)) / (high - low)
    offset = (np.clip(x, low, high) - low) * scale
    if limits.min == 0:
        return Range(low, high, dtype).clamped(np.floor(offset + F32(0.5)))
    return Range(low, high, dtype).clamped(rounded(np.asarray(offset + F32(limits.min), F32)))


@kernel("Dequantize")
def _dequantize(node: Node, inputs: Sequence[Array]) -> Array:
    codes, given_low, given_high = inputs
    axis, mode, dtype = attribute(node, "axis"), attribute(node, "mode"), _type(node, "T")
    low, high = _along(codes, given_low, axis), _along(codes, given_high, axis)
    limits = np.iinfo(dtype.numpy)
    if mode == b"SCALED":
        first, last = _scaled_limits(dtype, attribute(node, "narrow_range"))
        scale = high / F32(last) if first >= 0 else np.maximum(low / F32(first), high / F32(last))
        return np.asarray(codes.astype(F32) * scale)
    if mode == b"MIN_FIRST":
        return Range(low, high, dtype).real(codes)
    scale = (high - low) / F32(float(limits.max) - float(limits.min))
    return np.asarray((codes.astype(F32) - F32(limits.min)) * scale + low)


@kernel("RequantizationRange")
def _requantization_range(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array]:
    """What the codes really use, with 0 at or above the low end."""
    codes, given = inputs[0], Range.of(inputs[1], inputs[2], _type(node, "Tinput"))
    if not codes.size:
        raise ValueError("no codes, no range")
    return np.minimum(F32(0), given.real_exactly(codes.min())), given.real_exactly(codes.max())


@kernel("Requantize")
def _requantize(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    codes, given = inputs[0], Range.of(inputs[1], inputs[2], _type(node, "Tinput"))
    wanted = Range.of(inputs[3], inputs[4], _type(node, "out_type"))
    if wanted.low > 0:
        raise ValueError(f"requested_output_min must be <= 0, but got {wanted.low}")
    if wanted.high < wanted.low:
        raise ValueError(
            f"requested_output_max must be >= requested_output_min, but got {wanted.high} and {wanted.low}"
        )
    if (given.dtype, wanted.dtype) == (DType.QINT32, DType.QUINT8):
        made = _requantize_in_whole_numbers(codes, given, wanted)
    else:
        made = wanted.codes(given.real(codes))
    return made, *wanted.ends


def _requantize_in_whole_numbers(codes: Array, given: Range, wanted: Range) -> Array:
    """32-bit codes to unsigned eight, with 16 bits behind the point."""
    low, high = float(given.low), float(given.high)
    span = float(F32(wanted.high - wanted.low))
    if span == 0:
        return np.zeros(codes.shape, np.uint8)
    one = 1 << 16
    scale = int(255.0 * one * float(F32(given.high - given.low)) / span)
    middle = int(F32(F32((low + high) / 2.0) * F32(255.0 / span)) * F32(one))
    offset = int(rounded(np.asarray(255.0 * one * float(wanted.low) / span)))
    with np.errstate(over="ignore"):
        product = (codes.astype(np.int64) * np.int64(scale)) >> 32
    return np.asarray(np.clip((product + (middle - offset + (one >> 1))) >> 16, 0, 255), np.uint8)


# --------------------------------------------------------------------------------------------- arithmetic


def _ranges(node: Node, inputs: Sequence[Array], types: tuple[str, str], first: int = 2) -> tuple[Range, Range]:
    """The ranges of both operands, whose ends follow them."""
    low_a, high_a, low_b, high_b = inputs[first : first + 4]
    return Range.of(low_a, high_a, _type(node, types[0])), Range.of(low_b, high_b, _type(node, types[1]))


def _check_broadcast(x: Array, y: Array) -> None:
    """These kernels repeat the smaller operand as a whole, not along an axis of its own."""
    small, large = sorted((x, y), key=lambda one: one.size)
    sizes = tuple(dropwhile(lambda size: size == 1, small.shape))
    if sizes != large.shape[large.ndim - len(sizes) :]:
        raise ValueError(f"Broadcast between {list(x.shape)} and {list(y.shape)} is not supported yet.")


@kernel("QuantizedConv2D")
def _conv2d(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Exact sums of (x - zero) * (w - zero); signed weights have their zero at code 0."""
    x, weights = channels_last(node, inputs[0]), inputs[1]
    data, filters = _ranges(node, inputs, ("Tinput", "Tfilter"))
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
    made = _times(data, filters, DType.QINT32)
    return made.clamped(sums), *made.ends


def _symmetric_conv2d(
    x: Array, weights: Array, windows: Windows, data: Range, filters: Range
) -> tuple[Array, Array, Array]:
    """The fused kernels' contract: real = code * step on both sides, whatever the low ends say."""
    sums = convolve(x.astype(F64), weights.astype(F64), windows)
    steps = [np.maximum(np.abs(one.low), np.abs(one.high)) / F32(one.highest) for one in (data, filters)]
    made = _symmetric(steps[0] * steps[1] * F32(2**31), DType.QINT32)
    return made.clamped(sums), *made.ends


@kernel("QuantizedMatMul")
def _mat_mul(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    left, right = _ranges(node, inputs, ("T1", "T2"))
    a, b = inputs[0], inputs[1]
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError("matrices are expected")
    for letter, one in (("a", left), ("b", right)):
        if not one.high > one.low:
            raise ValueError(f"max_{letter} must be larger than min_{letter}.")
    a = a.T if attribute(node, "transpose_a") else a
    b = b.T if attribute(node, "transpose_b") else b
    made = _times(left, right, _type(node, "Toutput"))
    return made.clamped((a.astype(F64) - left.zero) @ (b.astype(F64) - right.zero)), *made.ends


@kernel("QuantizedMul")
def _mul(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    x, y = inputs[:2]
    left, right = _ranges(node, inputs, ("T1", "T2"))
    _check_broadcast(x, y)
    made = _times(left, right, _type(node, "Toutput"))
    return made.clamped((x.astype(F64) - left.zero) * (y.astype(F64) - right.zero)), *made.ends


def _sum_range(left: Range, right: Range, headroom: int) -> Range:
    widest = max(float(left.high), -float(left.low), float(right.high), -float(right.low))
    return _symmetric(F32(widest) * F32(headroom), DType.QINT32)


@kernel("QuantizedAdd")
def _add(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    x, y = inputs[:2]
    left, right = _ranges(node, inputs, ("T1", "T2"))
    _check_broadcast(x, y)
    made = _sum_range(left, right, ADD_HEADROOM)
    return _in_new_range(x, left, made) + _in_new_range(y, right, made), *made.ends


def _in_new_range(codes: Array, given: Range, wanted: Range) -> Array:
    """Codes of a wider type; those of tensors lie on the line through the first two, a scalar's is exact."""
    if codes.size == 1:
        return wanted.codes_exactly(given.real_exactly(codes))
    zero, one = wanted.unclamped(given.real_exactly(np.array([0, 1])))
    return wanted.clamped(zero + codes.astype(np.int64) * (one - zero))


@kernel("QuantizedBiasAdd")
def _bias_add(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    x, bias = inputs[:2]
    left, right = _ranges(node, inputs, ("T1", "T2"))
    if bias.shape != x.shape[-1:]:
        raise ValueError(f"the bias must have {x.shape[-1] if x.ndim else 0} numbers")
    made = _sum_range(left, right, BIAS_ADD_HEADROOM)
    terms = [made.codes(one.real(codes)) for one, codes in ((left, x), (right, bias))]
    # Real 0 may lie one code beside 0; TensorFlow shifts the sum by as much.
    return terms[0] + terms[1] + np.int32(made.zero), *made.ends


# ------------------------------------------------------------------------------ ops that keep codes as they are


def _passing(codes: Array, inputs: Sequence[Array], first: int) -> tuple[Array, Array, Array]:
    """Codes with the range they came with."""
    return codes, inputs[first].reshape(()), inputs[first + 1].reshape(())


@kernel("QuantizedRelu", "QuantizedRelu6")
def _relu(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    x, given = inputs[0], Range.of(inputs[1], inputs[2], _type(node, "Tinput"))
    made = np.maximum(x, given.codes_exactly(np.zeros((), F32)))
    if node.op == "QuantizedRelu6":
        made = np.minimum(made, given.codes_exactly(np.asarray(6, F32)))
    return made, *given.ends


@kernel("QuantizedMaxPool")
def _max_pool(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    x = channels_last(node, inputs[0])
    return _passing(max_pool(x, pool_windows(node, x, attribute(node, "ksize"))), inputs, 1)


@kernel("QuantizedAvgPool")
def _avg_pool(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Whole means of codes, towards zero."""
    x = channels_last(node, inputs[0])
    windows = pool_windows(node, x, attribute(node, "ksize"))
    means = window_sums(x.astype(np.int32), windows) / window_counts(windows)
    return _passing(np.trunc(means).astype(x.dtype), inputs, 1)


@kernel("QuantizedConcat", "QuantizedConcatV2")
def _concat(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Joined codes of the range that holds all ranges."""
    dtype, count = _type(node, "T"), attribute(node, "N")
    axis_first = node.op == "QuantizedConcat"
    axis = scalar(inputs[0] if axis_first else inputs[count])
    values = inputs[1 : count + 1] if axis_first else inputs[:count]
    lows, highs = inputs[count + 1 : 2 * count + 1], inputs[2 * count + 1 :]
    if axis < 0:
        raise ValueError(f"axis {axis} must be counted from the front")
    ranges = [Range.of(low, high, dtype) for low, high in zip(lows, highs, strict=True)]
    low, high = min(float(one.low) for one in ranges), max(float(one.high) for one in ranges)
    made = Range(np.asarray(low, F32), np.asarray(high, F32), dtype)
    if made.lowest < 0:
        made = _symmetric(max(abs(low), abs(high)), dtype)
    parts = [
        codes if (one.low, one.high) == (made.low, made.high) else made.codes(one.real(codes))
        for codes, one in zip(values, ranges, strict=True)
    ]
    return np.concatenate(parts, axis_of(axis, values[0].ndim)), *made.ends


@kernel("QuantizedReshape")
def _reshape(_: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    if inputs[2].size != 1 or inputs[3].size != 1:
        raise ValueError("a range is two numbers")
    return _passing(inputs[0].reshape(sizes(inputs[1])), inputs, 2)


@kernel("QuantizedResizeBilinear")
def _resize_bilinear(node: Node, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
    x, wanted = inputs[0], sizes(inputs[1])
    if x.ndim != 4 or len(wanted) != 2:
        raise ValueError("pictures (n, h, w, c) and a height and width are expected")
    size = wanted[0], wanted[1]
    flags = attribute(node, "align_corners"), attribute(node, "half_pixel_centers")
    made = _blend_codes(x, size, *flags) if x.dtype == np.uint8 else resize_bilinear(x, size, *flags)
    return _passing(made, inputs, 2)


def _blend_codes(x: Array, target: tuple[int, int], align_corners: bool, half_pixel_centers: bool) -> Array:
    """`resize_bilinear` of codes in whole numbers, as coarse as TensorFlow's: every division drops its rest."""
    one = RESIZE_PARTS
    top, bottom, down = blend(x.shape[1], target[0], align_corners, half_pixel_centers)
    left, right, across = blend(x.shape[2], target[1], align_corners, half_pixel_centers)
    down, across = ((part * F32(one)).astype(np.int64) for part in (down, across))
    x = x.astype(np.int64)
    rows = x[:, :, left] * one + (x[:, :, right] - x[:, :, left]) * across[:, None]
    tops, bottoms = rows[:, top], rows[:, bottom]
    made = tops + _quotient(bottoms - tops, one) * down[:, None, None]
    return np.asarray(_quotient(made + one // 2, one))


def _quotient(x: Array, divisor: int) -> Array:
    """Whole division towards zero."""
    return np.asarray(np.sign(x) * (np.abs(x) // divisor))
