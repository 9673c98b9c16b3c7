"""Observers that search the range with the smallest quantization error of a histogram."""

from math import inf

import numpy as np

from quantkit.quantization.observers.histogram import SAMPLES, Floats, HistogramObserver
from quantkit.quantization.observers.observer import float32_range
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.ranges import Range
from quantkit.quantization.spec import AFFINE, Spec

# Limits are tried at these fractions of the extremes.
FRACTIONS = np.concatenate([np.linspace(1.0, 0.3, 71), np.geomspace(0.28, 0.003, 29)])


class _ErrorSearch(HistogramObserver):
    """Range with the least error; symmetric formats shrink both limits together, others alternately.

    Args:
        spec: number format of the quantized values.
        samples: least number of values of each larger array that are counted.
    """

    def __init__(self, spec: Spec = AFFINE, samples: int = SAMPLES) -> None:
        super().__init__(samples)
        self.spec = spec

    def _compute_range(self, extremes: Range) -> Range:
        high_only, low_only = (False, True), (True, False)
        best = extremes
        for shrink_low, shrink_high in [(True, True)] if self.spec.symmetric else [high_only, low_only, high_only]:
            if (shrink_high and best.high > 0) or (shrink_low and best.low < 0):
                lows = np.multiply(best.low, FRACTIONS if shrink_low and best.low < 0 else 1.0 + 0 * FRACTIONS)
                highs = np.multiply(best.high, FRACTIONS if shrink_high and best.high > 0 else 1.0 + 0 * FRACTIONS)
                index = int(np.argmin(self._errors(lows, highs)))
                best = float32_range(float(lows[index]), float(highs[index]))
        return best

    def _errors(self, lows: Floats, highs: Floats) -> Floats:
        """Return the errors of ranges from their lower and upper limits, both (n,)."""
        raise NotImplementedError


class MeanSquaredError(_ErrorSearch):
    """Range with the least mean squared error of the dequantized values."""

    def _errors(self, lows: Floats, highs: Floats) -> Floats:
        return _squared_errors(self.spec, lows, highs, *self.histogram.used_bins)


def histogram_sqnr(observer: HistogramObserver, spec: Spec, limits: Range) -> float:
    """Return the signal-to-quantization-noise ratio of the counted values in decibels; infinity without values.

    Args:
        observer: with all values.
        spec: number format of the quantized values.
        limits: range of the quantized values.
    """
    centers, counts = observer.histogram.used_bins
    (noise,) = _squared_errors(spec, np.array([limits.low]), np.array([limits.high]), centers, counts)
    return float(10 * np.log10(centers**2 @ counts / noise)) if noise else inf


class Entropy(_ErrorSearch):
    """Range with the least Kullback-Leibler divergence between clipped and dequantized values.

    Dequantizing spreads the values of one quantized value evenly over its bins that contain any.
    """

    def _errors(self, lows: Floats, highs: Floats) -> Floats:
        centers, counts = self.histogram.centers, self.histogram.counts.astype(np.float64)
        ranges = map(Range, lows.tolist(), highs.tolist())
        return np.array([_kl_divergence(self.spec, candidate, centers, counts) for candidate in ranges])


def _squared_errors(spec: Spec, lows: Floats, highs: Floats, values: Floats, counts: Floats) -> Floats:
    """Return the sum of squared rounding and clipping errors of each range."""
    parameters = QuantizationParameters.of_limits(spec, lows, highs)
    scale, zero = parameters.scale.astype(np.float64)[:, None], parameters.zero_point[:, None]
    low, high = spec.limits
    levels = values / scale
    np.rint(levels, out=levels)
    np.clip(levels, low - zero, high - zero, out=levels)
    levels *= scale
    levels -= values
    levels *= levels
    errors: Floats = levels @ counts
    return errors


def _kl_divergence(spec: Spec, candidate: Range, values: Floats, counts: Floats) -> float:
    """Return the Kullback-Leibler divergence of the dequantized values from the clipped ones.

    Args:
        spec: number format of the quantized values.
        candidate: range to quantize with.
        values: center of each bin, (n,).
        counts: number of values in each bin, (n,).
    """
    parameters = QuantizationParameters.of_range(spec, candidate)
    low, high = spec.limits
    inside = np.flatnonzero((values >= min(candidate.low, 0.0)) & (values <= max(candidate.high, 0.0)))
    # With fewer bins than quantized values, each bin is represented exactly: rounding errors would not count.
    if inside.size < min((high - low) // 2, int(np.count_nonzero(counts))):
        return inf
    first, last = int(inside[0]), int(inside[-1])
    clipped = counts[first : last + 1].copy()
    levels = np.rint(values[first : last + 1] / float(parameters.scale)) + int(parameters.zero_point)
    quantized = (np.clip(levels, low, high) - low).astype(np.int64)
    used = clipped > 0
    if not used.any():
        return inf
    # The mean excludes the clipped values: the quantized values cannot represent them, which is the cost of clipping.
    means = np.bincount(quantized, clipped)[quantized] / np.maximum(np.bincount(quantized, used)[quantized], 1)
    clipped[0] += counts[:first].sum()
    clipped[-1] += counts[last + 1 :].sum()
    used = clipped > 0
    dequantized = np.maximum(means[used], 1e-9)
    probabilities = clipped[used] / clipped.sum()
    return float(np.sum(probabilities * np.log(probabilities / (dequantized / dequantized.sum()))))
