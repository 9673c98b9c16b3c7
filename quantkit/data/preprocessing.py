"""Preprocessing of images: crop, resize, normalize, as functions of arrays.

    pixels (h, w, c) uint8 -> order of the channels -> crop -> resize -> (x - mean) / std -> (height, width, c) float32

The resize is TensorFlow's `ResizeBilinear`, with which the released networks were trained and
evaluated: unaligned corners, no half-pixel centers, no antialiasing. "Bilinear" of other libraries
differs, and can change the predicted class.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self, get_args

import numpy as np

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array
from quantkit.zoo.cards import Crop, Resize


class Origin(StrEnum):
    """Source of a preprocessing."""

    STATED = "stated"
    FILE = "file"
    CARD = "card"
    GRAPH = "graph"
    RANGES = "ranges"
    ASSUMED = "assumed"


ORIGIN_TEXTS = {
    Origin.STATED: "as stated",
    Origin.FILE: "from the metadata of the file",
    Origin.CARD: "from the model card",
    Origin.GRAPH: "from the scaling in the graph",
    Origin.RANGES: "from the ranges file",
    Origin.ASSUMED: "assumed: neither the file, a model card nor a scaling in the graph states it",
}
ColorOrder = Literal["rgb", "bgr"]
COLOR_ORDERS: tuple[ColorOrder, ...] = get_args(ColorOrder)
# Fraction of each side that the evaluation of the ImageNet networks crops to.
CENTRAL_FRACTION = 0.875


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of the images of a model.

    Attributes:
        height: height of the input in pixels.
        width: width of the input in pixels.
        channels: 3 (color) or 1 (grayscale).
        mean: mean that is subtracted from the pixels (0 to 255), a scalar or a value per channel of the input.
        std: standard deviation that the pixels are divided by, a scalar or a value per channel.
        resize: ``bilinear``: TensorFlow's `ResizeBilinear`; ``bilinear_half_pixel``: the same with
            half-pixel centers (TensorFlow 2, Keras).
        crop: crop before resizing: ``none``, ``central`` (87.5 % of each side) or ``square`` (the
            largest central square).
        color_order: order of the channels of the input: ``rgb`` or ``bgr``; images are decoded to ``rgb``.
        origin: source of mean and standard deviation.

    Raises:
        UsageError: a size is not positive, a standard deviation is zero, or a method is unknown.
    """

    height: int = 299
    width: int = 299
    channels: int = 3
    mean: float | tuple[float, ...] = 128.0
    std: float | tuple[float, ...] = 128.0
    resize: Resize = "bilinear"
    crop: Crop = "none"
    color_order: ColorOrder = "rgb"
    origin: Origin = field(default=Origin.STATED, compare=False)

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise UsageError(
                f"images cannot be resized to {self.height} x {self.width} pixels", hint="give sizes from 1"
            )
        if self.channels not in (1, 3):
            raise UsageError(
                f"an input with {self.channels} channels does not take images",
                hint="images have 3 channels (color) or 1 (grayscale): choose another input with --input-layer",
            )
        if not np.all(np.asarray(self.std)):
            raise UsageError("pixels cannot be divided by a standard deviation of 0", hint="give --input-std")
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if isinstance(numbers, tuple) and len(numbers) != self.channels:
                raise UsageError(
                    f"{name} has {len(numbers)} values for {self.channels} channels",
                    hint="give one value, or one per channel",
                )
        if self.resize not in ("bilinear", "bilinear_half_pixel"):
            raise UsageError(f"unknown resize {self.resize!r}", hint="bilinear or bilinear_half_pixel")
        if self.crop not in ("none", "central", "square"):
            raise UsageError(f"unknown crop {self.crop!r}", hint="none, central or square")
        if self.color_order not in COLOR_ORDERS:
            raise UsageError(f"unknown color order {self.color_order!r}", hint="rgb or bgr")

    def __str__(self) -> str:
        crop = "" if self.crop == "none" else f"{self.crop} crop, "
        order = "" if self.color_order == "rgb" else f" {self.color_order.upper()}"
        size = f"{self.height} x {self.width} x {self.channels}{order}"
        return f"{crop}{size}, (x - {_text(self.mean)}) / {_text(self.std)}"

    @property
    def description(self) -> str:
        """All steps, and the source of mean and standard deviation."""
        return f"{self}, {ORIGIN_TEXTS[self.origin]}"

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON values, for `from_json`."""
        return {
            "height": self.height,
            "width": self.width,
            "channels": self.channels,
            "mean": _floats(self.mean),
            "std": _floats(self.std),
            "resize": self.resize,
            "crop": self.crop,
            "color_order": self.color_order,
            "origin": self.origin.value,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the preprocessing of JSON values.

        Raises:
            UsageError, KeyError, TypeError, ValueError: the values are not a preprocessing.
        """
        mean, std = (
            tuple(map(float, values)) if isinstance(values, list) else float(values)
            for values in (document["mean"], document["std"])
        )
        return cls(**{**document, "mean": mean, "std": std, "origin": Origin(document["origin"])})


def prepare(pixels: Array, preprocessing: Preprocessing) -> Array:
    """Apply all steps of a preprocessing.

    Args:
        pixels: (h, w, c) uint8.
        preprocessing: preprocessing of the model.

    Returns:
        (height, width, c) float32.
    """
    return normalize(resize(pixels, preprocessing), preprocessing.mean, preprocessing.std)


def resize(pixels: Array, preprocessing: Preprocessing) -> Array:
    """Crop, resize and order the channels, without normalizing.

    Args:
        pixels: (h, w, c) uint8, red first.
        preprocessing: crop, size, resize method and order of the channels.

    Returns:
        (height, width, c) float32, 0 to 255.
    """
    pixels = order_channels(pixels, preprocessing)
    if preprocessing.crop == "central":
        pixels = crop_central(pixels, CENTRAL_FRACTION)
    elif preprocessing.crop == "square":
        pixels = crop_square(pixels)
    half_pixel = preprocessing.resize == "bilinear_half_pixel"
    return resize_bilinear(pixels, preprocessing.height, preprocessing.width, half_pixel_centers=half_pixel)


def order_channels(pixels: Array, preprocessing: Preprocessing) -> Array:
    """Return a view of pixels (h, w, c), red first, with the channels in the order of the input."""
    return pixels[..., ::-1] if preprocessing.color_order == "bgr" else pixels


def crop_central(pixels: Array, fraction: float) -> Array:
    """Crop the center of an image; sizes are rounded as in TensorFlow's `tf.image.central_crop`.

    Args:
        pixels: (h, w, c).
        fraction: fraction of each side to keep, in (0, 1].

    Returns:
        A view of the pixels, about (h * fraction, w * fraction, c).

    >>> crop_central(np.zeros((8, 16, 3)), 0.5).shape
    (4, 8, 3)
    """
    height, width = pixels.shape[:2]
    top, left = int((height - height * fraction) / 2), int((width - width * fraction) / 2)
    return pixels[top : height - top, left : width - left]


def crop_square(pixels: Array) -> Array:
    """Crop the largest central square of an image.

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
    """Resize like TensorFlow's `ResizeBilinear` with ``align_corners=False``, bit for bit.

        out[i, j] = top + (bottom - top) * fy,   top = left + (right - left) * fx

    with the source position ``i * h / height`` split into a whole part (which rows) and a fraction
    (fy), and the same for columns.

    Args:
        pixels: (h, w, c), any real type.
        height: number of rows of the result.
        width: number of columns of the result.
        half_pixel_centers: True for positions ``(i + 0.5) * h / height - 0.5``.

    Returns:
        (height, width, c) float32.

    >>> resize_bilinear(np.float32([[[0], [8]]]), 1, 4)[..., 0]
    array([[0., 4., 8., 8.]], dtype=float32)
    """
    above, below, fy = _positions(pixels.shape[0], height, half_pixel_centers)
    left, right, fx = _positions(pixels.shape[1], width, half_pixel_centers)
    # A smaller result uses few of the rows: only these are interpolated.
    rows, where = np.unique(np.concatenate([above, below]), return_inverse=True)
    needed = pixels[rows]
    across = _blend(needed[:, left], needed[:, right], fx[:, None])
    return _blend(across[where[:height]], across[where[height:]], fy[:, None, None])


def normalize(values: Array, mean: float | tuple[float, ...], std: float | tuple[float, ...]) -> Array:
    """Compute ``(values - mean) / std``.

    Args:
        values: (h, w, c).
        mean: scalar or (c,).
        std: scalar or (c,).

    Returns:
        (h, w, c) float32.

    >>> normalize(np.uint8([[[0, 128, 192]]]), 128.0, 128.0)
    array([[[-1. ,  0. ,  0.5]]], dtype=float32)
    """
    centered: Array = values.astype(np.float32)
    centered -= np.asarray(mean, np.float32)
    centered /= np.asarray(std, np.float32)
    return centered


def _positions(size: int, count: int, half_pixel_centers: bool) -> tuple[Array, Array, Array]:
    """Return index before, index after and fraction for each row or column of the result."""
    scale = np.float32(size) / np.float32(count)
    half = np.float32(0.5 if half_pixel_centers else 0.0)
    position = (np.arange(count, dtype=np.float32) + half) * scale - half
    whole = np.floor(position)
    before = np.maximum(whole.astype(np.int64), 0)
    after = np.minimum(np.ceil(position).astype(np.int64), size - 1)
    # In float32 the last position can be rounded up to `size` itself.
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


def _floats(value: float | tuple[float, ...]) -> float | list[float]:
    """Return numbers as JSON values that are equal for 127 and 127.0."""
    return list(map(float, value)) if isinstance(value, tuple) else float(value)
