"""Scales of weights that already have few values, so that quantizing keeps these values.

    weights of quantization-aware training    w[c] = k * s[c]           k integer, -127 .. 127
    clustered weights                         w[c] = a[c] * u[j]        u: the centroids, a: a folded batch norm

With the largest weight of a channel as limit, the steps of training would be rounded again where no weight of the
channel has the largest level, and each channel would round the same centroids to other levels.
"""

import numpy as np
import numpy.typing as npt

from quantkit.ir.tensor import Array

Floats = npt.NDArray[np.float64]
LEVELS = 127
# Rounding of float32 weights after a folded factor, in levels.
TOLERANCE = 2e-3
# Every weight of a smaller tensor may be multiples of one step by chance.
MIN_ELEMENTS = 64
# Weights of a channel that exclude most steps, before all of them are tested.
SAMPLE = 32
MAX_CENTROIDS = 64
# Several weights of a channel have each centroid.
MIN_CLUSTER_SIZE = 4
# Relative rounding of float32 centroids after a folded factor.
PRECISION = 1e-5


def find_limits(values: Array) -> Floats | None:
    """Return the limit of each channel, or None for weights of a continuous distribution.

    Args:
        values: (n, c) weights; a column is a channel.

    Returns:
        (c,) values of the level 127.
    """
    if values.size < MIN_ELEMENTS:
        return None
    channels = values.T.astype(np.float64)
    limits = _find_centroid_limits(channels)
    return _find_step_limits(np.abs(channels)) if limits is None else limits


def _find_step_limits(channels: Floats) -> Floats | None:
    """Return the limits of channels whose weights are multiples of one step of each channel."""
    limits = np.zeros(len(channels))
    for index, magnitudes in enumerate(channels):
        largest = magnitudes.max(initial=0)
        if largest > 0:
            level = _find_largest_level(magnitudes / largest)
            if not level:
                return None
            limits[index] = largest * LEVELS / level
    return limits


def _find_largest_level(ratios: Floats) -> int:
    """Return the level of the largest weight with which all levels are integers, or 0.

    Args:
        ratios: (n,) magnitudes of weights over the largest one.
    """
    candidates = np.arange(LEVELS, 0, -1)
    sample = ratios[:SAMPLE, None] * candidates
    fitting = candidates[(np.abs(sample - np.rint(sample)) < TOLERANCE).all(0)]
    for level in fitting:
        if (np.abs(ratios * level - np.rint(ratios * level)) < TOLERANCE).all():
            return int(level)
    return 0


def _find_centroid_limits(channels: Floats) -> Floats | None:
    """Return the limits of channels whose weights are multiples of common centroids."""
    centroids: list[Floats] = []
    for weights in channels:
        distinct = np.unique(weights)
        if len(distinct) > MAX_CENTROIDS:
            return None
        centroids.append(distinct)
    reference = max(centroids, key=len)
    common = np.unique(np.concatenate(centroids))
    if len(common) > len(reference) and len(reference) < channels.shape[1]:
        factors = [_find_factor(distinct, reference) for distinct in centroids]
        if None not in factors:
            limits: Floats = np.abs(np.array(factors, np.float64)) * np.abs(reference).max()
            return limits
    has_clusters = len(common) <= MAX_CENTROIDS and MIN_CLUSTER_SIZE * len(common) <= channels.size
    return np.full(len(channels), np.abs(common).max()) if has_clusters else None


def _find_factor(values: Floats, centroids: Floats) -> float | None:
    """Return the factor with which centroids contain all values; None without such a factor."""
    largest = values[np.abs(values).argmax()]
    if largest == 0:
        return 0.0
    for centroid in centroids[np.abs(centroids).argsort()[::-1]]:
        if centroid == 0:
            continue
        factor = largest / centroid
        distances = np.abs(values[:, None] - factor * centroids).min(1)
        if (distances <= PRECISION * abs(largest)).all():
            return float(factor)
    return None
