"""Scales of weights that already have few values, so that quantizing keeps these values.

    weights of quantization-aware training    w[c] = k * s[c]           k integer, -127 .. 127
    clustered weights                         w[c] = a[c] * u[j]        u: the centroids, a: a folded batch norm

With the largest weight of a channel as limit, the steps of training would be rounded again where no weight of the
channel has the largest level, and each channel would round the same centroids to other levels.
"""

from collections.abc import Sequence

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
# Average number of weights of a centroid.
MIN_CLUSTER_SIZE = 4
# Weights that two channels have in common, except for a factor, if they have the same centroids; weights of a channel
# that are tried as multiples of each centroid.
MIN_MATCHES, TRIED_WEIGHTS = 3, 4
# Relative rounding of float32 centroids after a folded factor.
PRECISION = 1e-5


def find_limits(values: Array) -> Floats | None:
    """Return the limit of each channel, or None for weights of a continuous distribution.

    Args:
        values: (n, c) weights; a column is a channel.

    Returns:
        (c,) values of the level 127.
    """
    limits = find_centroid_limits(values)
    return find_step_limits(values) if limits is None else limits


def find_step_limits(values: Array) -> Floats | None:
    """Return the limits of channels whose weights are multiples of one step of each channel, see `find_limits`."""
    if values.size < MIN_ELEMENTS:
        return None
    limits = np.zeros(values.shape[1])
    for index, weights in enumerate(values.T):
        magnitudes = np.abs(weights.astype(np.float64))
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


def find_centroid_limits(values: Array) -> Floats | None:
    """Return the limits of channels whose weights are multiples of common centroids, see `find_limits`."""
    # The first channel excludes most weights without a sort of all channels.
    if values.size < MIN_ELEMENTS or len(np.unique(values[:, 0])) > MAX_CENTROIDS:
        return None
    channels = np.sort(values.T.astype(np.float64))
    is_first = np.diff(channels, prepend=np.nan) != 0
    largest = is_first.sum(1).max()
    if largest > MAX_CENTROIDS:
        return None
    common = np.unique(channels[is_first])
    if largest < min(len(common), channels.shape[1]):
        clusters = _merge_centroids([weights[each] for weights, each in zip(channels, is_first, strict=True)])
        if clusters is not None and MIN_CLUSTER_SIZE * len(clusters[0]) <= channels.size:
            centroids, factors = clusters
            return np.asarray(np.abs(factors) * np.abs(centroids).max(), np.float64)
    has_clusters = len(common) <= MAX_CENTROIDS and MIN_CLUSTER_SIZE * len(common) <= channels.size
    return np.full(len(channels), np.abs(common).max()) if has_clusters else None


def _merge_centroids(distinct: Sequence[Floats]) -> tuple[Floats, Floats] | None:
    """Return the centroids of all channels, and the factor of each channel; None without common centroids.

    A channel rarely has weights of each cluster: those that the channels before it do not have join the centroids.

    Args:
        distinct: distinct weights of each channel.
    """
    order = sorted(range(len(distinct)), key=lambda index: len(distinct[index]), reverse=True)
    centroids = distinct[order[0]]
    factors = np.zeros(len(distinct))
    for index in order:
        weights = distinct[index]
        if not weights.any():
            continue
        factor = _find_factor(weights, centroids)
        if factor is None:
            return None
        factors[index] = factor
        centroids = np.union1d(centroids, (weights / factor)[~_are_multiples(weights, factor, centroids)])
        if len(centroids) > MAX_CENTROIDS:
            return None
    return centroids, factors


def _find_factor(weights: Floats, centroids: Floats) -> float | None:
    """Return the factor with which centroids contain most weights, and at least three; None without such a factor."""
    by_size = centroids[np.abs(centroids).argsort()[::-1]]
    needed = min(len(weights), max(MIN_MATCHES, (len(weights) + 1) // 2))
    for weight in weights[np.abs(weights).argsort()[::-1]][:TRIED_WEIGHTS]:
        for centroid in by_size[by_size != 0]:
            if weight != 0 and np.count_nonzero(_are_multiples(weights, weight / centroid, centroids)) >= needed:
                return float(weight / centroid)
    return None


def _are_multiples(weights: Floats, factor: float, centroids: Floats) -> npt.NDArray[np.bool_]:
    """Return True for each weight that is a centroid times a factor."""
    distances = np.abs(weights[:, None] - factor * centroids).min(1)
    return np.asarray(distances <= PRECISION * np.abs(weights).max(), np.bool_)
