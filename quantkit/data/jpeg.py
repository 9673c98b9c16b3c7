"""JPEG pixels as TensorFlow decodes them, bit for bit.

Decoders differ by a few gray levels, which changes a network's probabilities in the second digit.
TensorFlow uses libjpeg's fast integer DCT and its smooth chroma upsampling. Pillow's libjpeg offers
the first without the second, so this module implements the upsampling and the color conversion in
the integer arithmetic of libjpeg (jdsample.c, jdcolor.c):

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

# Number of chroma rows that are processed together, so that their arrays stay in the CPU cache.
STRIP_ROWS = 32

# Pillow's constants for 4:4:4, 4:2:2 and 4:2:0 chroma subsampling.
FULL, HALF_COLUMNS, HALF_BOTH = 0, 1, 2

_FRACTION_BITS = 16


def load(image: "JpegImageFile") -> "Image.Image":
    """Decode an open JPEG; rare kinds (CMYK, RGB, unusual subsampling) are decoded by Pillow.

    Raises:
        OSError: the file is broken or truncated.
    """
    from PIL import Image
    from PIL.JpegImagePlugin import get_sampling

    sampling = get_sampling(image)
    is_luma_chroma = image.info.get("adobe_transform", 1) == 1 and bytes(layer[0] for layer in image.layer) != b"RGB"
    is_usual = image.mode == "RGB" and is_luma_chroma and sampling in (FULL, HALF_COLUMNS, HALF_BOTH)
    # libjpeg does not smooth chroma with two columns.
    if is_usual and sampling != FULL and image.width > 4:
        loaded = Image.fromarray(_decode_pixels(image, sampling))
        loaded.info = dict(image.info)
        return loaded
    if is_usual or image.mode == "L":
        _use_fast_dct(image)
    image.load()
    return image


def _use_fast_dct(image: "JpegImageFile") -> None:
    """Select libjpeg's fast integer DCT; Pillow then upsamples by repetition."""
    image.decoderconfig = (1, 1)


def _decode_pixels(image: "JpegImageFile", sampling: int) -> Array:
    """Decode an image with subsampled chroma.

    Returns:
        (h, w, 3) uint8: red, green, blue.
    """
    image.draft("YCbCr", image.size)
    _use_fast_dct(image)
    planes = np.asarray(image)
    # The decoder has repeated each chroma sample: every second one is the stored plane.
    step = 2 if sampling == HALF_BOTH else 1
    chroma = planes[::step, ::2, 1:].astype(np.int16)
    pixels = np.empty_like(planes)
    rows = chroma.shape[0]
    for start in range(0, rows, STRIP_ROWS):
        stop = min(start + STRIP_ROWS, rows)
        around = chroma[np.clip(np.arange(start - 1, stop + 1), 0, rows - 1)]
        smooth = (
            _upsample_columns(_upsample_rows(around), (8, 7, 4))
            if sampling == HALF_BOTH
            else _upsample_columns(around[1:-1], (1, 2, 2))
        )
        luma = planes[step * start : step * stop, :, 0]
        pixels[step * start : step * stop] = _to_rgb(luma, smooth[: luma.shape[0], : luma.shape[1]])
    return pixels


def _upsample_rows(around: Array) -> Array:
    """Double the rows and multiply by 4.

    Args:
        around: (n + 2, m, 2) rows, with the row before and the row after.

    Returns:
        (2 n, m, 2).
    """
    this = 3 * around[1:-1]
    return np.stack([this + around[:-2], this + around[2:]], axis=1).reshape(-1, *around.shape[1:])


def _upsample_columns(rows: Array, rounding: tuple[int, int, int]) -> Array:
    """Double the columns.

    Args:
        rows: (n, m, 2) chroma samples, or multiples of them.
        rounding: summands of the left and the right new column, and the number of bits to shift
            out.

    Returns:
        (n, 2 m, 2).
    """
    left_half, right_half, bits = rounding
    # The first and last sample of a row are their own neighbors.
    before = np.concatenate([rows[:, :1], rows[:, :-1]], axis=1)
    after = np.concatenate([rows[:, 1:], rows[:, -1:]], axis=1)
    weighted = 3 * rows
    smooth = np.empty((rows.shape[0], rows.shape[1], 2, 2), np.int16)
    smooth[:, :, 0] = (weighted + before + left_half) >> bits
    smooth[:, :, 1] = (weighted + after + right_half) >> bits
    return smooth.reshape(rows.shape[0], -1, 2)


def _to_rgb(luma: Array, chroma: Array) -> Array:
    """Convert luma (h, w) and chroma (h, w, 2) to red, green and blue, (h, w, 3) uint8."""
    red, green_of_cb, green_of_cr, blue = _tables()
    cb, cr = chroma[..., 0], chroma[..., 1]
    luma = luma.astype(np.int16)
    pixels = np.empty((*luma.shape, 3), np.int16)
    pixels[..., 0] = luma + red[cr]
    pixels[..., 1] = luma + ((green_of_cb[cb] + green_of_cr[cr]) >> _FRACTION_BITS)
    pixels[..., 2] = luma + blue[cb]
    return pixels.clip(0, 255).astype(np.uint8)


@cache
def _tables() -> tuple[Array, Array, Array, Array]:
    """Return the summands of red, green (Cb, Cr; 16-bit fractions) and blue per chroma value."""
    centered = np.arange(256, dtype=np.int32) - 128
    half = 1 << (_FRACTION_BITS - 1)
    red, green_of_cb, green_of_cr, blue = (
        int(factor * (1 << _FRACTION_BITS) + 0.5) * centered for factor in (1.402, 0.34414, 0.71414, 1.772)
    )
    whole = ((red + half) >> _FRACTION_BITS, (blue + half) >> _FRACTION_BITS)
    return whole[0].astype(np.int16), half - green_of_cb, -green_of_cr, whole[1].astype(np.int16)
