"""JPEG pixels as TensorFlow decodes them, bit for bit.

Decoders differ by a few grey levels, which moves a network's probabilities in the second digit. TensorFlow
takes libjpeg's fast integer transform and its smooth chroma upsampling. Pillow's libjpeg offers the first
without the second, so that the upsampling and the conversion of colours are done here, in the integer
arithmetic of libjpeg (jdsample.c, jdcolor.c):

    chroma rows      s = 3 * this + nearest other row
    chroma columns   (3 * s + left + 8) / 16,  (3 * s + right + 7) / 16
    colour           R = Y + 1.402 Cr,  G = Y - 0.34414 Cb - 0.71414 Cr,  B = Y + 1.772 Cb   (16-bit fractions)
"""

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from quantkit.ir.tensor import Array

if TYPE_CHECKING:
    from PIL import Image
    from PIL.JpegImagePlugin import JpegImageFile

# Chroma rows that are worked on together: their arrays stay in the processor's cache.
STRIP_ROWS = 32

# Pillow's numbers for chroma of full size, of half the columns, and of half the columns and rows.
FULL, HALF_COLUMNS, HALF_BOTH = 0, 1, 2

_FRACTION_BITS = 16


def load(image: "JpegImageFile") -> "Image.Image":
    """Decode a JPEG that is open and not loaded; rare kinds (CMYK, RGB, odd sampling) as Pillow does it.

    Raises:
        OSError: it is broken or cut short.
    """
    from PIL import Image
    from PIL.JpegImagePlugin import get_sampling

    sampling = get_sampling(image)
    is_luma_chroma = image.info.get("adobe_transform", 1) == 1 and bytes(layer[0] for layer in image.layer) != b"RGB"
    has_usual_colour = image.mode == "RGB" and is_luma_chroma and sampling in (FULL, HALF_COLUMNS, HALF_BOTH)
    # libjpeg does not smooth chroma of two columns.
    if has_usual_colour and sampling != FULL and image.width > 4:
        loaded = Image.fromarray(_colour_pixels(image, sampling))
        loaded.info = dict(image.info)
        return loaded
    if has_usual_colour or image.mode == "L":
        _take_fast_transform(image)
    image.load()
    return image


def _take_fast_transform(image: "JpegImageFile") -> None:
    """Choose libjpeg's fast integer transform; upsampling, where there is any to do, then only repeats."""
    image.decoderconfig = (1, 1)


def _colour_pixels(image: "JpegImageFile", sampling: int) -> Array:
    """(h, w, 3) uint8: red, green, blue."""
    image.draft("YCbCr", image.size)
    _take_fast_transform(image)
    planes = np.asarray(image)
    # The decoder has repeated each sample of chroma: the stored plane is every second one.
    step = 2 if sampling == HALF_BOTH else 1
    chroma = planes[::step, ::2, 1:].astype(np.int16)
    colours = np.empty_like(planes)
    rows = chroma.shape[0]
    for start in range(0, rows, STRIP_ROWS):
        stop = min(start + STRIP_ROWS, rows)
        around = chroma[np.clip(np.arange(start - 1, stop + 1), 0, rows - 1)]
        smooth = _wider(_taller(around), (8, 7, 4)) if sampling == HALF_BOTH else _wider(around[1:-1], (1, 2, 2))
        luma = planes[step * start : step * stop, :, 0]
        colours[step * start : step * stop] = _colours(luma, smooth[: luma.shape[0], : luma.shape[1]])
    return colours


def _taller(around: Array) -> Array:
    """Twice the rows, times 4: (n + 2, m, 2) with the row before and the row after -> (2 n, m, 2)."""
    this = 3 * around[1:-1]
    return np.stack([this + around[:-2], this + around[2:]], axis=1).reshape(-1, *around.shape[1:])


def _wider(rows: Array, rounding: tuple[int, int, int]) -> Array:
    """Twice the columns: (n, m, 2) -> (n, 2 m, 2).

    Args:
        rows: samples of chroma, or multiples of them.
        rounding: what is added to the left and to the right of two new columns, and the bits to drop.
    """
    left_half, right_half, bits = rounding
    # At the ends of a row the missing neighbour is the sample itself.
    before = np.concatenate([rows[:, :1], rows[:, :-1]], axis=1)
    after = np.concatenate([rows[:, 1:], rows[:, -1:]], axis=1)
    weighted = 3 * rows
    smooth = np.empty((rows.shape[0], rows.shape[1], 2, 2), np.int16)
    smooth[:, :, 0] = (weighted + before + left_half) >> bits
    smooth[:, :, 1] = (weighted + after + right_half) >> bits
    return smooth.reshape(rows.shape[0], -1, 2)


def _colours(luma: Array, chroma: Array) -> Array:
    """(h, w, 3) uint8 of (h, w) and (h, w, 2)."""
    red, green_of_cb, green_of_cr, blue = _tables()
    cb, cr = chroma[..., 0], chroma[..., 1]
    luma = luma.astype(np.int16)
    colours = np.empty((*luma.shape, 3), np.int16)
    colours[..., 0] = luma + red[cr]
    colours[..., 1] = luma + ((green_of_cb[cb] + green_of_cr[cr]) >> _FRACTION_BITS)
    colours[..., 2] = luma + blue[cb]
    return colours.clip(0, 255).astype(np.uint8)


@cache
def _tables() -> tuple[Array, Array, Array, Array]:
    """What each value of chroma adds to red, green (twice, with 16-bit fractions) and blue."""
    centred = np.arange(256, dtype=np.int32) - 128
    half = 1 << (_FRACTION_BITS - 1)
    red, green_of_cb, green_of_cr, blue = (
        int(factor * (1 << _FRACTION_BITS) + 0.5) * centred for factor in (1.402, 0.34414, 0.71414, 1.772)
    )
    whole = ((red + half) >> _FRACTION_BITS, (blue + half) >> _FRACTION_BITS)
    return whole[0].astype(np.int16), half - green_of_cb, -green_of_cr, whole[1].astype(np.int16)
