"""Augmented samples of images; the float model computes their outputs, so that they need no labels.

    flip       left and right exchanged
    crop       a part of the image, resized to its size (bilinear)
    mixture    a x + (1 - a) y of two images        a from 1/2 to 1 (Zhang et al., 2018)

Few samples cover few of the values that a layer gets. A network that learns from another one can learn from inputs that
resemble its samples (Beyer et al., 2022).
"""

import numpy as np

from quantkit.ir.tensor import Array

# Smallest side of a crop, as a fraction of the image's, and smallest side of an image in pixels.
LEAST_CROP, LEAST_SIDE = 0.6, 16
# Possible counts of channels of an image.
CHANNELS = (1, 3, 4)


def find_sides(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the axes of height and width of a batch of images; None for other data.

    >>> find_sides((1, 3, 224, 224)), find_sides((1, 16000))
    ((2, 3), None)
    """
    for channels, sides in ((1, (2, 3)), (3, (1, 2))):
        if len(shape) == 4 and shape[channels] in CHANNELS and min(shape[axis] for axis in sides) >= LEAST_SIDE:
            return sides
    return None


def augment(images: Array, others: Array, sides: tuple[int, int], random: np.random.Generator) -> Array:
    """Return images of the same shape, each flip and mixture with a probability of one half.

    Args:
        images: (n, ...) float32.
        others: images to mix; no image is mixed if their shape differs.
        sides: axes of height and width.
        random: source of the random numbers.
    """
    if random.random() < 0.5 and others.shape == images.shape:
        fraction = np.float32(random.uniform(0.5, 1))
        images = fraction * images + (1 - fraction) * others
    if random.random() < 0.5:
        images = np.flip(images, sides[1])
    for axis in sides:
        size = images.shape[axis]
        length = size * random.uniform(LEAST_CROP, 1)
        weights = _interpolate(size, random.uniform(0, size - length), length)
        images = np.moveaxis(np.tensordot(weights, images, (1, axis)), 0, axis)
    return np.ascontiguousarray(images, np.float32)


def _interpolate(size: int, first: float, length: float) -> Array:
    """Return the weights, (size, size), that resize a part of a line to the whole line."""
    positions = np.clip(first + (np.arange(size) + 0.5) * length / size - 0.5, 0, size - 1)
    lower = np.floor(positions).astype(np.int64)
    weights = np.zeros((size, size), np.float32)
    weights[np.arange(size), lower] = lower + 1 - positions
    weights[np.arange(size), np.minimum(lower + 1, size - 1)] += positions - lower
    return weights
