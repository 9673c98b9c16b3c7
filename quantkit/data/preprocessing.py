"""From a picture's pixels to a network's input: crop, resize, normalise, as functions of arrays.

    pixels (h, w, c) uint8  ->  crop  ->  resize  ->  (x - mean) / std  ->  (height, width, c) float32

The resize is TensorFlow's `ResizeBilinear` as the released networks were trained and measured with it:
corners not aligned, pixel centres not halved, nothing smoothed before shrinking. Other libraries'
"bilinear" gives other numbers, and sometimes another answer.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array

# Fraction of each side that TensorFlow's evaluation of the ImageNet networks keeps.
CENTRAL_FRACTION = 0.875

Resize = Literal["bilinear", "bilinear_half_pixel"]
Crop = Literal["none", "central", "square"]


@dataclass(frozen=True)
class Preprocessing:
    """What a network wants to be fed.

    Attributes:
        height: of its input, in pixels.
        width: of its input, in pixels.
        channels: 3 (red, green, blue) or 1 (grey).
        mean: subtracted from the pixels (0 to 255), one number or one per channel.
        std: the pixels are then divided by it, one number or one per channel.
        resize: ``bilinear`` is TensorFlow's `ResizeBilinear`, ``bilinear_half_pixel`` the one with halved
            pixel centres (TensorFlow 2, Keras).
        crop: before resizing: ``none`` (the whole picture is squeezed), ``central`` (87.5 % of each side),
            ``square`` (the largest central square).

    Raises:
        UsageError: a size is not positive, a deviation is zero, or a word is unknown.
    """

    height: int = 299
    width: int = 299
    channels: int = 3
    mean: float | tuple[float, ...] = 128.0
    std: float | tuple[float, ...] = 128.0
    resize: Resize = "bilinear"
    crop: Crop = "none"

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise UsageError(
                f"pictures can not be resized to {self.height} x {self.width} pixels", hint="give sizes from 1"
            )
        if self.channels not in (1, 3):
            raise UsageError(
                f"a network with {self.channels} input channels takes no pictures",
                hint="pictures have 3 channels (colour) or 1 (grey): choose another input with --input-layer",
            )
        if not np.all(np.asarray(self.std)):
            raise UsageError("pixels can not be divided by a standard deviation of 0", hint="give --input-std")
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if isinstance(numbers, tuple) and len(numbers) != self.channels:
                raise UsageError(
                    f"{name} has {len(numbers)} numbers for {self.channels} channels", hint="give one, or one each"
                )
        if self.resize not in ("bilinear", "bilinear_half_pixel"):
            raise UsageError(f"unknown resize {self.resize!r}", hint="bilinear or bilinear_half_pixel")
        if self.crop not in ("none", "central", "square"):
            raise UsageError(f"unknown crop {self.crop!r}", hint="none, central or square")

    def __str__(self) -> str:
        crop = "" if self.crop == "none" else f"{self.crop} crop, "
        return f"{crop}{self.height} x {self.width} x {self.channels}, (x - {_text(self.mean)}) / {_text(self.std)}"


def prepare(pixels: Array, preprocessing: Preprocessing) -> Array:
    """All steps in order.

    Args:
        pixels: (h, w, c) uint8.
        preprocessing: what the network wants.

    Returns:
        (height, width, c) float32.
    """
    return normalize(resize(pixels, preprocessing), preprocessing.mean, preprocessing.std)


def resize(pixels: Array, preprocessing: Preprocessing) -> Array:
    """Crop and resize, without normalising.

    Args:
        pixels: (h, w, c) uint8.
        preprocessing: crop, size and kind of resize.

    Returns:
        (height, width, c) float32, 0 to 255.
    """
    if preprocessing.crop == "central":
        pixels = crop_central(pixels, CENTRAL_FRACTION)
    elif preprocessing.crop == "square":
        pixels = crop_square(pixels)
    half_pixel = preprocessing.resize == "bilinear_half_pixel"
    return resize_bilinear(pixels, preprocessing.height, preprocessing.width, half_pixel_centers=half_pixel)


def crop_central(pixels: Array, fraction: float) -> Array:
    """The middle of a picture; sizes round as in TensorFlow's `tf.image.central_crop`.

    Args:
        pixels: (h, w, c).
        fraction: of each side to keep, above 0 and at most 1.

    Returns:
        A view of the pixels, about (h * fraction, w * fraction, c).

    >>> crop_central(np.zeros((8, 16, 3)), 0.5).shape
    (4, 8, 3)
    """
    height, width = pixels.shape[:2]
    top, left = int((height - height * fraction) / 2), int((width - width * fraction) / 2)
    return pixels[top : height - top, left : width - left]


def crop_square(pixels: Array) -> Array:
    """The largest central square of a picture.

    Args:
        pixels: (h, w, c).

    Returns:
        A view of the pixels, (s, s, c) with s the shorter side.

    >>> crop_square(np.zeros((8, 15, 3))).shape
    (8, 8, 3)
    """
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return pixels[top : top + side, left : left + side]


def resize_bilinear(pixels: Array, height: int, width: int, *, half_pixel_centers: bool = False) -> Array:
    """TensorFlow's `ResizeBilinear` with ``align_corners=False``, in its order of float32 operations.

        out[i, j] = top + (bottom - top) * fy,   top = left + (right - left) * fx

    with the source position ``i * h / height`` split into a whole part (which rows) and a fraction (fy),
    and the same for columns.

    Args:
        pixels: (h, w, c), any real type.
        height: rows wanted.
        width: columns wanted.
        half_pixel_centers: positions are ``(i + 0.5) * h / height - 0.5``.

    Returns:
        (height, width, c) float32.

    >>> resize_bilinear(np.float32([[[0], [8]]]), 1, 4)[..., 0]
    array([[0., 4., 8., 8.]], dtype=float32)
    """
    above, below, fy = _positions(pixels.shape[0], height, half_pixel_centers)
    left, right, fx = _positions(pixels.shape[1], width, half_pixel_centers)
    # Shrinking reads few of the rows: only those are interpolated across.
    rows, where = np.unique(np.concatenate([above, below]), return_inverse=True)
    needed = pixels[rows]
    across = _blend(needed[:, left], needed[:, right], fx[:, None])
    return _blend(across[where[:height]], across[where[height:]], fy[:, None, None])


def normalize(values: Array, mean: float | tuple[float, ...], std: float | tuple[float, ...]) -> Array:
    """``(values - mean) / std``.

    Args:
        values: (h, w, c).
        mean: one number or c.
        std: one number or c.

    Returns:
        (h, w, c) float32.

    >>> normalize(np.uint8([[[0, 128, 192]]]), 128.0, 128.0)
    array([[[-1. ,  0. ,  0.5]]], dtype=float32)
    """
    centred: Array = values.astype(np.float32)
    centred -= np.asarray(mean, np.float32)
    centred /= np.asarray(std, np.float32)
    return centred


def _positions(size: int, wanted: int, half_pixel_centers: bool) -> tuple[Array, Array, Array]:
    """Index before, index after, and fraction between them, for every wanted row or column."""
    scale = np.float32(size) / np.float32(wanted)
    half = np.float32(0.5 if half_pixel_centers else 0.0)
    position = (np.arange(wanted, dtype=np.float32) + half) * scale - half
    whole = np.floor(position)
    before = np.maximum(whole.astype(np.int64), 0)
    after = np.minimum(np.ceil(position).astype(np.int64), size - 1)
    # In float32 the last position of a large enlargement can round up to `size` itself.
    return np.minimum(before, size - 1), after, position - whole


def _blend(first: Array, second: Array, fraction: Array) -> Array:
    start = first.astype(np.float32)
    blended = second.astype(np.float32)
    blended -= start
    blended *= fraction
    blended += start
    return blended


def _text(numbers: float | tuple[float, ...]) -> str:
    return f"{numbers:g}" if isinstance(numbers, float | int) else "(" + ", ".join(f"{n:g}" for n in numbers) + ")"
