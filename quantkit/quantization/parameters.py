"""Quantization parameters: scale and zero point of a tensor's quantized values.

    quantized = clip(round(x / scale) + zero_point)        x ~= (quantized - zero_point) * scale

Rounding is half to even; real 0 is always represented exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import prod
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from quantkit.ir.tensor import Array
from quantkit.quantization.pair_sums import MAX_SUM, find_pair_sums, limit_pair_sums
from quantkit.quantization.ranges import Range
from quantkit.quantization.spec import Spec
from quantkit.quantization.weight_levels import find_centroid_limits, find_step_limits

Floats = npt.NDArray[np.float32]
# Scales that a channel with unsafe pairs tries: 0 is that of its largest weight, 1 that which limits no pair. Errors of
# many weights depend less on the scale, and take longer to compute.
PAIR_SCALES, FEW_PAIR_SCALES, MANY_WEIGHTS = (*np.linspace(0, 1.5, 31),), (*np.linspace(0, 1.5, 11),), 2**17
# Parameters by constant: a model is quantized a few times before its file is written, with the same weights. The number
# is that of the constants of large models.
_OF_WEIGHTS: dict[tuple[object, ...], Any] = {}
MOST_CONSTANTS = 4096


@dataclass(frozen=True)
class QuantizationParameters:
    """Scale and zero point of one tensor, or of each channel of a constant.

    Attributes:
        spec: number format of the quantized values.
        scale: distance between neighbouring values, float32: () or (c,).
        zero_point: quantized value of real 0, int32, of the same shape.
    """

    spec: Spec
    scale: Floats
    zero_point: npt.NDArray[np.int32]

    @classmethod
    def of_range(cls, spec: Spec, limits: Range) -> Self:
        """Return the parameters with the smallest scale that cover a range.

        A range that holds only 0 gets scale 1.

        >>> parameters = QuantizationParameters.of_range(Spec.parse("quint8 affine"), Range(-1.0, 0.9921875))
        >>> float(parameters.scale), int(parameters.zero_point)
        (0.0078125, 128)
        """
        return cls.of_limits(spec, limits.low, limits.high)

    @classmethod
    def of_weights(cls, spec: Spec, values: Array, parts: Sequence[float] = ()) -> Self:
        """Return the parameters of a constant: one scale per channel where the spec demands it.

        Symmetric scales keep the values of weights that already have few of them, see `find_limits`.

        Args:
            spec: with `Spec.axes` if it is per channel.
            values: the constant, finite.
            parts: scales that a channel with unsafe pairs tries, see `PAIR_SCALES`; empty for the default.
        """
        key = (cls, spec, tuple(parts), values.shape, values.dtype, blake2b(values.tobytes()).digest())
        parameters: Self | None = _OF_WEIGHTS.get(key)  # another thread may clear the table at any time
        if parameters is None:
            parameters = cls._of_weights(spec, values, parts)
            if len(_OF_WEIGHTS) >= MOST_CONSTANTS:
                _OF_WEIGHTS.clear()
            _OF_WEIGHTS[key] = parameters
        return parameters

    @classmethod
    def _of_weights(cls, spec: Spec, values: Array, parts: Sequence[float]) -> Self:
        if not (spec.per_channel and spec.axes):
            return cls.of_limits(spec, values.min(initial=0), values.max(initial=0))._for_pairs(values, parts)
        rest = tuple(axis for axis in range(values.ndim) if axis not in spec.axes)
        if spec.symmetric and not spec.reduce_range and values.size:
            rows = values.transpose((*rest, *spec.axes)).reshape(-1, _num_channels(spec, values))
            centroids = find_centroid_limits(rows)
            if centroids is not None:
                return cls.of_limits(spec, -centroids, centroids)._for_pairs_of_centroids(values)
            limits = find_step_limits(rows)
            if limits is not None:
                return cls.of_limits(spec, -limits, limits)._for_pairs(values, parts)
        low, high = values.min(rest, initial=0), values.max(rest, initial=0)
        return cls.of_limits(spec, low.reshape(-1), high.reshape(-1))._for_pairs(values, parts)

    def _for_pairs_of_centroids(self, values: Array) -> Self:
        """Return scales with which no sum of a pair exceeds its limit: a limited weight would leave its cluster."""
        if not self.spec.pair_axes or self._find_pair_sums(values).max(initial=0) <= MAX_SUM:
            return self
        # All channels get the same factor, so that they round the same centroids to the same levels.
        return replace(self, scale=self.scale * np.float32(2 * self.spec.limits[1] / MAX_SUM))

    def _find_pair_sums(self, values: Array) -> Array:
        flat, scale, _ = self._align(values)
        return find_pair_sums((flat / scale).reshape(values.shape), self.spec.pair_axes)

    def _for_pairs(self, values: Array, parts: Sequence[float]) -> Self:
        """Return larger scales where limited sums of pairs then cost less precision, see `pair_sums`.

        Neighbouring positions and channels of an input vary together, so that the sums of their errors count, too: in
        each kernel, and in each output channel (SQuant, Guo et al., 2022).
        """
        spec = self.spec
        if not spec.pair_axes or not values.size:
            return self
        rest = tuple(axis for axis in range(values.ndim) if axis not in spec.axes)
        ratio = np.maximum(self._find_pair_sums(values).max(rest).reshape(self.scale.shape) / MAX_SUM, 1.0)
        best, least = self.scale, np.full(self.scale.shape, np.inf)
        for part in parts or (FEW_PAIR_SCALES if values.size > MANY_WEIGHTS else PAIR_SCALES):
            if ratio.max() == 1:
                break
            larger = replace(self, scale=(self.scale * (1 + part * (ratio - 1))).astype(np.float32))
            errors = larger.fake_quantize(values) - values
            sums = [errors.sum(axes, np.float64, keepdims=True) for axes in {(), spec.pair_axes[:-1], spec.pair_axes}]
            # In float32, the order of additions, which differs between processors, does not decide.
            error = sum(np.square(each).sum(rest) for each in sums).reshape(self.scale.shape).astype(np.float32)
            is_better = error < least
            least = np.where(is_better, error, least)
            best = np.where(is_better, larger.scale, best)
        return replace(self, scale=best)

    @classmethod
    def of_limits(cls, spec: Spec, low: npt.ArrayLike, high: npt.ArrayLike) -> Self:
        """Return the parameters that cover ``low`` to ``high``, both () or (c,)."""
        first, last = spec.limits
        low, high = np.minimum(low, 0).astype(np.float64), np.maximum(high, 0).astype(np.float64)
        if spec.symmetric:
            width, steps = np.maximum(-low, high) if first else high, last
        else:
            width, steps = high - low, last - first
        scale = (width / steps).astype(np.float32)
        scale = np.where(scale < np.finfo(np.float32).tiny, np.float32(1), scale)
        zero = np.zeros_like(low) if spec.symmetric else np.clip(np.rint(first - low / scale), first, last)
        return cls(spec, scale, zero.astype(np.int32))

    @property
    def step_limits(self) -> tuple[int, int]:
        """Lowest and highest quantized value of a tensor with one scale, less the zero point."""
        low, high = self.spec.limits
        return low - int(self.zero_point), high - int(self.zero_point)

    def broadcastable(self, rank: int) -> tuple[Floats, npt.NDArray[np.int32]]:
        """Return scale and zero point in a shape that broadcasts against a tensor of ``rank`` dimensions.

        Channels must be indexed by one dimension, or by the last ones together.
        """
        if not self.scale.ndim:
            return self.scale, self.zero_point
        axis = self.spec.axes[0]
        shape = [1] * rank
        shape[axis] = -1
        return self.scale.reshape(shape), self.zero_point.reshape(shape)

    def quantize(self, values: Array) -> Array:
        """Quantize real values.

        Args:
            values: float32, any shape; the weights' shape if the scale is per channel.

        Returns:
            Quantized values, uint8 or int8, same shape.
        """
        flat, scale, zero = self._align(values)
        levels = np.rint(flat / scale)
        levels += zero
        np.clip(levels, *self.spec.limits, out=levels)
        quantized = levels.astype(self.spec.dtype.numpy).reshape(values.shape)
        return limit_pair_sums(quantized, self.spec.pair_axes) if self.spec.pair_axes else quantized

    def dequantize(self, quantized: Array) -> Floats:
        """Return the real values of quantized values, float32, same shape."""
        flat, scale, zero = self._align(quantized)
        return ((flat.astype(np.float32) - zero.astype(np.float32)) * scale).reshape(quantized.shape)

    def fake_quantize(self, values: Array) -> Floats:
        """Quantize and dequantize real values."""
        return self.dequantize(self.quantize(values))

    def _align(self, values: Array) -> tuple[Array, Floats, npt.NDArray[np.int32]]:
        """Return the values, scale and zero point in shapes that broadcast.

        The last dimensions of the values are joined where several of them index the channels.
        """
        if len(self.spec.axes) < 2:
            return values, *self.broadcastable(values.ndim)
        if self.scale.ndim:
            values = values.reshape(*values.shape[: self.spec.axes[0]], -1)
        return values, self.scale, self.zero_point


def _num_channels(spec: Spec, values: Array) -> int:
    return prod(values.shape[axis] for axis in spec.axes)
