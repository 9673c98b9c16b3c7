"""Sparsity, clusters and compressed size of the weights of a model.

A sample of each layer decides if the exact counts are computed: counting and compressing all weights of a large model
takes seconds, and dense weights are hardly compressed.
"""

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.ops.weights import Weights, find_weights

# Smaller tensors have few distinct values and little effect on the size.
MIN_ELEMENTS = 1024
MAX_CLUSTERS = 256
# Small pruned tensors have few distinct values without clusters: each cluster has several weights on average.
MIN_CLUSTER_SIZE = 4
# Rounding to int8 makes a tenth of the weights zero; a pruned model has more zeros.
MIN_SPARSITY = 0.2
# First elements of each tensor that are sampled for zeros, and for distinct values.
ZEROS_SAMPLE = 1 << 16
DISTINCT_SAMPLE = 1 << 12
CHUNK = 1 << 16
GROUP = 4


@dataclass(frozen=True)
class Compressibility:
    """Zeros, distinct values and compressed size of the weights of all layers.

    Attributes:
        layers: number of weight tensors with at least 1024 elements.
        weights: number of their elements.
        zeros: number of elements that are zero.
        layers_2_4: number of tensors with two zeros in each group of four adjacent input channels.
        clustered_layers: number of tensors of a float type with at most 256 distinct values, and four or more nonzero
            weights for each value.
        distinct_values: largest number of distinct values of a clustered tensor; None without clustered tensors.
        num_bytes: size of the weights in bytes.
        compressed_bytes: size of the weights after zlib in bytes.
    """

    layers: int
    weights: int
    zeros: int
    layers_2_4: int
    clustered_layers: int
    distinct_values: int | None
    num_bytes: int
    compressed_bytes: int

    @property
    def sparsity(self) -> float:
        """Fraction of zeros."""
        return self.zeros / self.weights

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sparsity": self.sparsity}

    def __str__(self) -> str:
        parts = [f"{self.sparsity:.1%} zeros in {self.layers} layers"]
        parts += [f"2:4 pattern in {self.layers_2_4}"] if self.layers_2_4 else []
        if self.clustered_layers:
            parts.append(f"at most {self.distinct_values} distinct values in each of {self.clustered_layers}")
        parts.append(f"{self.num_bytes / 1e6:,.2f} MB, {self.compressed_bytes / 1e6:,.2f} MB with zlib")
        return "; ".join(parts)


def measure_compressibility(graph: Graph) -> Compressibility | None:
    """Return zeros, distinct values and compressed size of the weights of a sparse or clustered model.

    Returns:
        None if at most 20 % of the weights are zero, and tensors with at most 256 distinct values are at most half of
        the weights.
    """
    layers = [
        weights
        for weights in find_weights(graph)
        if weights.value.num_elements >= MIN_ELEMENTS and weights.zero_point is not None
    ]
    return _measure(layers) if _is_sample_of_interest(layers) else None


def _is_of_interest(zeros: int, clustered: int, total: int) -> bool:
    """Return True for a sparse or clustered model.

    Args:
        zeros, clustered, total: number of zeros, of elements of clustered tensors, and of all elements.
    """
    return zeros > MIN_SPARSITY * total or 2 * clustered > total


def _is_sample_of_interest(layers: Sequence[Weights]) -> bool:
    """Return True if the first elements of the tensors are sparse or clustered."""
    zeros = sampled = clustered = 0
    for weights in layers:
        sample = weights.value.array.reshape(-1)[:ZEROS_SAMPLE]
        zeros += int(np.count_nonzero(sample == weights.zero_point))
        sampled += sample.size
        if weights.value.dtype.is_float and len(np.unique(sample[:DISTINCT_SAMPLE])) <= MAX_CLUSTERS:
            clustered += weights.value.num_elements
    total = sum(weights.value.num_elements for weights in layers)
    return _is_of_interest(zeros, 0, sampled) or _is_of_interest(0, clustered, total)


def _measure(layers: Sequence[Weights]) -> Compressibility | None:
    """Return the exact counts; None if the samples were not representative."""
    zeros = num_2_4 = clustered = 0
    clusters: list[int] = []
    for weights in layers:
        values = weights.value.array
        is_zero = values == weights.zero_point
        num_zeros = int(np.count_nonzero(is_zero))
        zeros += num_zeros
        num_2_4 += _is_2_4(is_zero, weights.axis)
        distinct = _count_distinct(values) if weights.value.dtype.is_float else None
        if distinct is not None and MIN_CLUSTER_SIZE * distinct <= values.size - num_zeros:
            clusters.append(distinct)
            clustered += values.size
    total = sum(weights.value.num_elements for weights in layers)
    if not _is_of_interest(zeros, clustered, total):
        return None
    return Compressibility(
        layers=len(layers),
        weights=total,
        zeros=zeros,
        layers_2_4=num_2_4,
        clustered_layers=len(clusters),
        distinct_values=max(clusters, default=None),
        num_bytes=sum(weights.value.num_bytes for weights in layers),
        compressed_bytes=sum(_compressed_size(weights.value.array) for weights in layers),
    )


def _compressed_size(values: Array) -> int:
    """Return the size of an array after zlib, in bytes."""
    return len(zlib.compress(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data))


def _is_2_4(is_zero: Array, axis: int | None) -> bool:
    """Return True if each group of four adjacent input channels has at least two zeros."""
    if axis is None or is_zero.shape[axis] % GROUP:
        return False
    groups = np.moveaxis(is_zero, axis, -1).reshape(-1, GROUP)
    return bool((np.count_nonzero(groups, axis=-1) >= GROUP // 2).all())


def _count_distinct(values: Array) -> int | None:
    """Return the number of distinct values; None if there are more than 256."""
    flat = values.reshape(-1)
    distinct = np.unique(flat[:DISTINCT_SAMPLE])
    for start in range(0, flat.size, CHUNK):
        if len(distinct) > MAX_CLUSTERS:
            return None
        distinct = np.union1d(distinct, flat[start : start + CHUNK])
    return len(distinct) if len(distinct) <= MAX_CLUSTERS else None
