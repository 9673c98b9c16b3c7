"""Kernels of resize ops. Source positions are computed in float32 as in TensorFlow, to select the same pixels.

scale = in / out,   or (in - 1) / (out - 1) with align_corners
source = i * scale, or (i + 0.5) * scale - 0.5 with half_pixel_centers
"""

import math
from collections.abc import Sequence

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.kernels.shapes import sizes
from quantkit.ops.tensorflow.signatures import attribute

HALF = np.float32(0.5)


def _target_size(x: Array, size: Array) -> tuple[int, int]:
    """Return the output height and width.

    Raises:
        ValueError: the input is not an image tensor, or the size is not positive.
    """
    target = sizes(size)
    if x.ndim != 4 or len(target) != 2 or min(target) < 1 or 0 in x.shape[1:3]:
        raise ValueError("images (n, h, w, c) and a positive height and width are expected")
    return target[0], target[1]


def _scale(size: int, target: int, align_corners: bool) -> np.float32:
    if align_corners and target > 1:
        return np.float32(size - 1) / np.float32(target - 1)
    return np.float32(size) / np.float32(target)


def blend(size: int, target: int, align_corners: bool, half_pixel_centers: bool) -> tuple[Array, Array, Array]:
    """Compute the interpolation along one axis.

    Returns:
        (index of the lower pixel, index of the upper pixel, distance from the lower pixel), each (target,).
    """
    indices = np.arange(target, dtype=np.float32)
    scale = _scale(size, target, align_corners)
    source = (indices + HALF) * scale - HALF if half_pixel_centers else indices * scale
    floor = np.floor(source)
    lower = np.maximum(floor, 0).astype(np.int64)
    upper = np.minimum(np.ceil(source), size - 1).astype(np.int64)
    return np.minimum(lower, size - 1), upper, source - floor


def resize_bilinear(x: Array, target: tuple[int, int], align_corners: bool, half_pixel_centers: bool) -> Array:
    """Interpolate between the four nearest pixels: (n, h, w, c) -> (n, *target, c) float32."""
    x = x.astype(np.float32, copy=False)
    top, bottom, down = blend(x.shape[1], target[0], align_corners, half_pixel_centers)
    left, right, across = blend(x.shape[2], target[1], align_corners, half_pixel_centers)
    across = across[:, None]
    lefts, rights = x[:, :, left], x[:, :, right]
    rows = lefts + (rights - lefts) * across
    tops, bottoms = rows[:, top], rows[:, bottom]
    return np.asarray(tops + (bottoms - tops) * down[:, None, None])


def resized_size(_: Node, inputs: Sequence[Array]) -> int:
    """Return the number of elements of resized images; inputs: images (n, h, w, c), (height, width)."""
    height, width = _target_size(inputs[0], inputs[1])
    return math.prod((inputs[0].shape[0], height, width, inputs[0].shape[3]))


@kernel("ResizeBilinear", output_size=resized_size)
def _resize_bilinear(node: Node, x: Array, size: Array) -> Array:
    target = _target_size(x, size)
    return resize_bilinear(x, target, attribute(node, "align_corners"), attribute(node, "half_pixel_centers"))


def _nearest(size: int, target: int, align_corners: bool, half_pixel_centers: bool) -> Array:
    indices = np.arange(target, dtype=np.float32)
    source = (indices + HALF if half_pixel_centers else indices) * _scale(size, target, align_corners)
    # Round half away from zero like C's roundf; source positions are not negative.
    nearest = np.floor(source + HALF) if align_corners else np.floor(source)
    return np.asarray(np.clip(nearest, 0, size - 1), np.int64)


@kernel("ResizeNearestNeighbor", output_size=resized_size)
def _resize_nearest(node: Node, x: Array, size: Array) -> Array:
    height, width = _target_size(x, size)
    flags = attribute(node, "align_corners"), attribute(node, "half_pixel_centers")
    rows = x[:, _nearest(x.shape[1], height, *flags)]
    return np.asarray(rows[:, :, _nearest(x.shape[2], width, *flags)])
