"""K-means of the weights of a kernel, in one dimension."""

import numpy as np
import numpy.typing as npt

from quantkit.ir.tensor import Array

MAX_ITERATIONS = 100


def find_clusters(values: Array, count: int) -> npt.NDArray[np.int32]:
    """Return the cluster of each value after k-means (Lloyd's algorithm).

    The centroids start at equal distances between the smallest and the largest value, the linear
    initialization of Han et al., "Deep Compression", 2016.

    Args:
        values: any shape, finite.
        count: number of clusters.

    Returns:
        Cluster indices from 0 to ``count - 1``, of the shape of ``values``; a cluster may be empty.

    >>> find_clusters(np.float32([0.0, 0.1, 0.9, 1.0]), 2)
    array([0, 0, 1, 1], dtype=int32)
    """
    flat = np.sort(values, axis=None).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(flat)])
    centroids = np.linspace(flat[0], flat[-1], count)
    bounds = np.full(count - 1, -1)
    for _ in range(MAX_ITERATIONS):
        # The values of a cluster are adjacent: they end at the middle between two centroids.
        before, bounds = bounds, np.searchsorted(flat, (centroids[1:] + centroids[:-1]) / 2)
        if np.array_equal(before, bounds):
            break
        ends = np.concatenate([[0], bounds, [flat.size]])
        sizes = np.diff(ends)
        centroids = np.where(sizes > 0, np.diff(sums[ends]) / np.maximum(sizes, 1), centroids)
    clusters = np.searchsorted((centroids[1:] + centroids[:-1]) / 2, values.astype(np.float64))
    return clusters.astype(np.int32)
