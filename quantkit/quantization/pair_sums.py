"""Weights whose products are exact in kernels that add pairs of products in 16 bits.

Processors without dot products of 8-bit integers multiply u8 activations by s8 weights and add two adjacent products in
int16 with saturation (`vpmaddubsw`). With activations up to 255, no sum can saturate if, in each pair, the positive
weights add up to at most 128, and the negative ones to at least -128:

    255 * 128 = 32640 <= 32767

Adjacent are the input channels 2i and 2i + 1 of one position of the kernel (oneDNN, OpenVINO, and ONNX Runtime for an
even number of channels), or neighbours in the order of positions and channels (ONNX Runtime for an odd number, which
gathers the windows of a convolution as rows of a matrix). Both kinds of pairs are limited. Depthwise convolutions have
no pairs.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from quantkit.ir.tensor import Array

# Largest sum of the weights of one sign in a pair.
MAX_SUM = 128


def find_pair_sums(levels: Array, axes: Sequence[int]) -> Array:
    """Return the largest sum of the weights of one sign in a pair, for each output channel.

    Args:
        levels: weights in steps, integers or not.
        axes: dimensions of the positions of the kernel and, last, of the input channels, see `Spec.pair_axes`.

    Returns:
        Absolute sums in the shape of ``levels`` with size 1 along ``axes``.
    """
    rows = _as_rows(levels, axes)
    sums = [np.clip(sign * pairs, 0, None).sum(-1).max(-1, initial=0) for pairs in _pairs(rows) for sign in (1, -1)]
    largest = np.max(sums, axis=0) if sums else np.zeros(rows.shape[0])
    return np.asarray(largest).reshape([1 if axis in axes else size for axis, size in enumerate(levels.shape)])


def limit_pair_sums(levels: Array, axes: Sequence[int]) -> Array:
    """Return the weights with smaller ones in the pairs that exceed `MAX_SUM`; the others stay.

    Both weights of a pair lose half of the excess, which is the nearest pair within the limit.

    Args:
        levels: quantized weights from -127 to 127.
        axes: as for `find_pair_sums`.
    """
    rows = _as_rows(levels, axes).astype(np.int32)
    for pairs in _pairs(rows):
        for sign in (1, -1):
            size = np.clip(sign * pairs, 0, None)
            excess = np.maximum(size.sum(-1) - MAX_SUM, 0)
            # The sizes are at most 127, so that each one is larger than the excess.
            pairs[..., 0] -= sign * ((excess + 1) // 2)
            pairs[..., 1] -= sign * (excess // 2)
    order = (*(axis for axis in range(levels.ndim) if axis not in axes), *axes)
    moved = rows.reshape([levels.shape[axis] for axis in order])
    return moved.transpose(np.argsort(order)).astype(levels.dtype)


def _as_rows(levels: Array, axes: Sequence[int]) -> Array:
    """Return a copy of shape (outputs, positions, channels), with an even number of channels or several positions."""
    order = (*(axis for axis in range(levels.ndim) if axis not in axes), *axes)
    return levels.transpose(order).reshape(-1, *_sizes(levels, axes)).copy()


def _sizes(levels: Array, axes: Sequence[int]) -> tuple[int, int]:
    """Return the number of positions and of input channels."""
    return int(np.prod([levels.shape[axis] for axis in axes[:-1]], dtype=np.int64)), levels.shape[axes[-1]]


def _pairs(rows: Array) -> Iterator[Array]:
    """Yield views (outputs, pairs, 2) of rows (outputs, positions, channels)."""
    count, positions, channels = rows.shape
    even = channels // 2 * 2
    for position in range(positions) if channels % 2 else ():
        yield rows[:, position, :even].reshape(count, -1, 2)
    flat = rows.reshape(count, -1)
    yield flat[:, : flat.shape[1] // 2 * 2].reshape(count, -1, 2)
