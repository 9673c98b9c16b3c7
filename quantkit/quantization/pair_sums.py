"""Weights whose products are exact in kernels that add pairs of products in 16 bits.

Processors without dot products of 8-bit integers multiply u8 activations by s8 weights and add two adjacent products in
int16 with saturation (`vpmaddubsw`). With activations up to 255, no sum can saturate if, in each pair, the positive
weights add up to at most 128, and the negative ones to at least -128:

    255 * 128 = 32640 <= 32767

Adjacent are the input channels 2i and 2i + 1 of one position of the kernel if their number is even. All neighbours are
limited in two cases:

    odd number of channels    kernels gather windows, their rows (h, w, c) or their columns (w, h, c), whole or in
                              parts, and each part can start a pair
    product of long rows      oneDNN halves sums of more than 256 products, and the second half can have an odd index

Depthwise convolutions have no pairs.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from quantkit.ir.tensor import Array

# Largest sum of the weights of one sign in a pair.
MAX_SUM = 128
# Largest number of products that all matrix products add in one block.
MAX_BLOCK = 256


def find_pair_sums(levels: Array, axes: Sequence[int]) -> Array:
    """Return the largest sum of the weights of one sign in a pair, for each output channel.

    Args:
        levels: weights in steps, integers or not.
        axes: dimensions of the positions of the kernel and, last, of the input channels, see `Spec.pair_axes`.

    Returns:
        Absolute sums in the shape of ``levels`` with size 1 along ``axes``.
    """
    rows = _as_rows(levels, axes)
    pairs = find_pairs([levels.shape[axis] for axis in axes])
    sums = [np.clip(sign * rows[:, each], 0, None).sum(-1).max(-1, initial=0) for each in pairs for sign in (1, -1)]
    largest: Array = np.max(sums, axis=0)
    return largest.reshape([1 if axis in axes else size for axis, size in enumerate(levels.shape)])


def limit_pair_sums(levels: Array, axes: Sequence[int]) -> Array:
    """Return the weights with smaller ones in the pairs that exceed `MAX_SUM`; the others stay.

    Both weights of a pair lose half of the excess, which is the nearest pair within the limit.

    Args:
        levels: quantized weights from -127 to 127.
        axes: as for `find_pair_sums`.
    """
    others = tuple(axis for axis in range(levels.ndim) if axis not in axes)
    weights = (
        levels.transpose((*axes, *others)).astype(np.int16, "C").reshape(prod(levels.shape[axis] for axis in axes), -1)
    )
    for first, second in (pairs.T for pairs in find_pairs([levels.shape[axis] for axis in axes])):
        # The sizes are at most 127, so that only weights of one sign exceed the limit, and each loses less than it has.
        totals = weights[first] + weights[second]
        pair, output = np.nonzero(np.abs(totals) > MAX_SUM)
        total = totals[pair, output]
        excess, sign = np.abs(total) - MAX_SUM, np.sign(total)
        weights[first[pair], output] -= sign * ((excess + 1) // 2)
        weights[second[pair], output] -= sign * (excess // 2)
    order = (*others, *axes)
    rows = weights.T.astype(levels.dtype, "C").reshape([levels.shape[axis] for axis in order])
    return rows.transpose(np.argsort(order))


def find_pairs(sizes: Sequence[int]) -> list[Array]:
    """Return the pairs of weights of an output channel that kernels may add; no weight is twice in an array.

    Args:
        sizes: sizes of the dimensions of the positions and, last, of the channels; one size for a matrix product.

    Returns:
        Arrays (n, 2) of indices in the order of ``sizes``.

    >>> [pairs.tolist() for pairs in find_pairs((2, 3))]
    [[[0, 1], [2, 3], [4, 5]], [[1, 2], [3, 4]]]
    """
    indices = np.arange(prod(sizes)).reshape(sizes)
    is_odd = sizes[-1] % 2 == 1 and prod(sizes[:-1]) > 1
    orders = [indices.reshape(-1)]
    if is_odd and len(sizes) > 2:
        orders.append(indices.swapaxes(-3, -2).reshape(-1))
    offsets = (0, 1) if is_odd or (len(sizes) == 1 and sizes[0] > MAX_BLOCK) else (0,)
    starts = [order[offset:] for order in orders for offset in offsets]
    return [order[: len(order) // 2 * 2].reshape(-1, 2) for order in starts]


def _as_rows(levels: Array, axes: Sequence[int]) -> Array:
    """Return a copy of shape (outputs, positions and channels)."""
    order = (*(axis for axis in range(levels.ndim) if axis not in axes), *axes)
    return levels.transpose(order).reshape(-1, prod(levels.shape[axis] for axis in axes)).copy()
