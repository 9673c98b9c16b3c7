"""Image files: decoding of common formats to pixels.

Every image (grayscale, palette, CMYK, 16 bits, transparent, rotated by the camera) is decoded to
upright (h, w, c) uint8 pixels. Only five formats are accepted, because each decoder is an attack
surface.
"""

import warnings
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from quantkit.data import jpeg
from quantkit.errors import InputError
from quantkit.formats.kinds import check_regular
from quantkit.ir.tensor import Array

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")

# 100 million pixels are 300 MB when decoded.
MAX_PIXELS = 100_000_000

JPEG_START = b"\xff\xd8\xff"


class _IgnoredWarnings:
    """Block without warnings, which several threads may be in: `warnings.catch_warnings` is not safe there.

    The first thread sets the filter, and the last one restores the filters that were set before.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_blocks = 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._num_blocks:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.simplefilter("ignore")
            self._num_blocks += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_blocks -= 1
            if not self._num_blocks:
                self._filters.__exit__(None, None, None)


_WARNINGS_IGNORED = _IgnoredWarnings()


def read_bytes(path: Path) -> bytes:
    """Read an image file without decoding it.

    Raises:
        InputError: the file does not exist, is a folder, is not readable or is empty.
    """
    check_regular(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"image {str(path)!r} cannot be read: {error.strerror or error}", hint="choose a readable file"
        ) from None
    if not data:
        raise InputError(f"image {str(path)!r} is empty", hint="copy or download it again")
    return data


def check_jpeg(data: bytes, name: str) -> None:
    """Check that a graph with its own JPEG decoder can decode an image.

    Args:
        data: content of an image file.
        name: name of the file, for messages.

    Raises:
        InputError: the data is not a JPEG, or is broken.
    """
    if not data.startswith(JPEG_START):
        raise InputError(
            f"image {name!r} is not a JPEG, the only format of the graph's own decoder",
            hint="feed decoded pixels instead: remove --input-layer, or use --input-layer DecodeJpeg:0",
        )
    decode(data, name)


def decode(data: bytes, name: str, channels: int = 3) -> Array:
    """Decode an image to pixels.

    Animations are reduced to their first frame and 16-bit samples to their high byte; the camera's
    orientation is applied, and transparent parts become white. JPEG and PNG pixels equal those of
    TensorFlow's decoders.

    Args:
        data: a JPEG, PNG, BMP, GIF or WebP file.
        name: name of the file, for messages.
        channels: 3 for red, green, blue; 1 for grayscale (luma of ITU-R 601).

    Returns:
        (h, w, channels) uint8.

    Raises:
        InputError: the data is not an image, is broken, or has more than `MAX_PIXELS` pixels.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError
    from PIL.JpegImagePlugin import JpegImageFile

    try:
        # `_check_size` limits the size; warnings about metadata are irrelevant.
        with _WARNINGS_IGNORED, Image.open(BytesIO(data), formats=FORMATS) as image:
            _check_size(image, name)
            loaded = jpeg.load(image) if isinstance(image, JpegImageFile) else image
            pixels = _to_channels(ImageOps.exif_transpose(loaded), channels)
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        if isinstance(error, Image.DecompressionBombError):
            raise _too_large(name) from None
        raise InputError(
            f"{name!r} is not an image: its content is not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
            hint=_suggest(data) or "save it as PNG or JPEG",
        ) from None
    except (OSError, SyntaxError, ValueError, IndexError, EOFError, OverflowError, MemoryError, KeyError) as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"image {name!r} is broken or truncated ({reason[0] if reason else type(error).__name__})",
            hint="copy or download it again",
        ) from None
    return pixels


def is_pillow_image(value: object) -> bool:
    """Return True for an image of Pillow, without an import of Pillow."""
    return any(base.__module__.partition(".")[0] == "PIL" for base in type(value).__mro__)


def pixels_of(image: "Image.Image", name: str, channels: int = 3) -> Array:
    """Return the pixels of an image of Pillow, as `decode` returns those of its file.

    Args:
        image: an image of Pillow.
        name: name of the image, for messages.
        channels: 3 for red, green, blue; 1 for grayscale (luma of ITU-R 601).

    Returns:
        (h, w, channels) uint8.

    Raises:
        InputError: the file of the image is broken, or has more than `MAX_PIXELS` pixels.
    """
    from PIL import ImageOps

    _check_size(image, name)
    try:
        return _to_channels(ImageOps.exif_transpose(image), channels)
    except (OSError, ValueError) as error:
        raise InputError(
            f"image {name!r} cannot be read: {error}", hint="keep the file open, and open it again"
        ) from None


def _check_size(image: "Image.Image", name: str) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise _too_large(name)


def _too_large(name: str) -> InputError:
    return InputError(
        f"image {name!r} has more than {MAX_PIXELS // 1_000_000} million pixels",
        hint="resize it first: inputs of networks have a few hundred pixels per side",
    )


def _to_channels(image: "Image.Image", channels: int) -> Array:
    from PIL import Image

    if image.mode.startswith("I"):
        # 16-bit grayscale, which Pillow would clip instead of scale.
        grey = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        image = Image.fromarray(grey)
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    flattened = image.convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(flattened, dtype=np.uint8)
    return pixels[:, :, None] if channels == 1 else pixels


def _suggest(data: bytes) -> str:
    """Return a hint for a file of another kind; empty if the kind is not recognized."""
    start = data[:512].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "the file is a web page: the download saved an error page instead of the image"
    return ""
