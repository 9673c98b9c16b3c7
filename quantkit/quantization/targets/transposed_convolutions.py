"""Transposed convolutions as convolutions, which have int8 kernels in all runtimes.

    transposed convolution, stride s, kernel k  ->  Pad t-1 -> Conv t x t -> DepthToSpace s -> Slice

with t = ceil(k / s) inputs for each output: the convolution has s^2 times the channels, the outputs of each position of
the input, and DepthToSpace moves them to their positions. Without overlap (k <= s), there is no Pad, and a Slice only
for another size. The form computes the same products and sums, and products with zeros if s does not divide k.
"""

from collections.abc import Iterable

import numpy as np

from quantkit.ir.tensor import Array


def count_taps(kernel: Iterable[int], stride: int) -> list[int]:
    """Return the number of inputs of an output along each axis of a kernel."""
    return [-(-span // stride) for span in kernel]


def divide_kernel(weights: Array, stride: int) -> Array:
    """Return the weights of the convolution that computes all outputs of a position.

    Output ``stride * m + r`` of an axis is the sum of input ``m - t`` times weight ``stride * t + r`` over t.

    Args:
        weights: (height, width, channels, depth) of the transposed convolution.
        stride: stride of both axes.

    Returns:
        (taps, taps, depth, stride * stride * channels)
    """
    height, width, channels, depth = weights.shape
    rows, columns = count_taps((height, width), stride)
    whole = np.zeros((rows * stride, columns * stride, channels, depth), np.float32)
    whole[:height, :width] = weights
    parts = whole.reshape(rows, stride, columns, stride, channels, depth)[::-1, :, ::-1]
    return np.ascontiguousarray(parts.transpose(0, 2, 5, 1, 3, 4).reshape(rows, columns, depth, -1))


def join_kernel(weights: Array, stride: int) -> Array:
    """Return the weights that `divide_kernel` divides, with zeros up to the next multiple of the stride.

    Args:
        weights: (taps, taps, depth, stride * stride * channels)
        stride: stride of both axes.

    Returns:
        (taps * stride, taps * stride, channels, depth)
    """
    rows, columns, depth, _ = weights.shape
    parts = weights.reshape(rows, columns, depth, stride, stride, -1).transpose(0, 3, 1, 4, 5, 2)[::-1, :, ::-1]
    return np.ascontiguousarray(parts.reshape(rows * stride, columns * stride, -1, depth))
