"""Picture files: finding them, and reading any of the usual kinds as plain pixels.

Whatever the file holds (grey, palette, CMYK, 16 bits, transparency, a rotated camera), what comes out is
upright (h, w, c) uint8. Five formats are read, because a reader that guesses among dozens is a risk.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quantkit.data import jpeg
from quantkit.data.discovery import pictures_of
from quantkit.errors import InputError, UsageError, did_you_mean
from quantkit.ir.tensor import Array

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")

# 100 million pixels are 300 MB once decoded: more than any camera, less than this machine's memory.
MAX_PIXELS = 100_000_000

JPEG_START = b"\xff\xd8\xff"


@dataclass(frozen=True)
class Found:
    """Pictures to label, in order, and how many other files the folders held."""

    paths: tuple[Path, ...]
    skipped: int = 0


def find_pictures(sources: Iterable[str | Path]) -> Found:
    """The pictures that files and folders stand for.

    Args:
        sources: files are taken as they are; of folders, every file with a picture's ending, at any
            depth, sorted by path.

    Raises:
        UsageError: a source is a web address.
        InputError: a source does not exist, or a folder can not be read or holds no picture.
    """
    paths: list[Path] = []
    skipped = 0
    for source in sources:
        path = _local(source)
        if path.is_dir():
            pictures, others = pictures_of(path)
            paths += pictures
            skipped += others
        else:
            paths.append(path)
    return Found(tuple(paths), skipped)


def read_bytes(path: Path) -> bytes:
    """The bytes of a picture file.

    Raises:
        InputError: missing, a folder, unreadable or empty.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"picture {str(path)!r} can not be read: {error.strerror or error}", hint="choose a file that you may read"
        ) from None
    if not data:
        raise InputError(f"picture {str(path)!r} is empty", hint="copy or download it again")
    return data


def check_jpeg(data: bytes, name: str) -> None:
    """See that a graph that decodes pictures itself can decode this one.

    Args:
        data: of a picture file.
        name: of the file, for messages.

    Raises:
        InputError: it is no JPEG, or a broken one.
    """
    if not data.startswith(JPEG_START):
        raise InputError(
            f"picture {name!r} is not a JPEG, which is all that the graph's own decoder reads",
            hint="feed decoded pixels instead: leave out --input-layer, or use --input-layer DecodeJpeg:0",
        )
    decode(data, name)


def decode(data: bytes, name: str, channels: int = 3) -> Array:
    """Pixels of an encoded picture.

    The first frame is taken of an animation; the camera's orientation is applied; transparent parts
    become white; of 16-bit samples the high byte is kept. JPEG and PNG have the very pixels that
    TensorFlow's decoders give.

    Args:
        data: a JPEG, PNG, BMP, GIF or WebP file.
        name: of the file, for messages.
        channels: 3 for red, green, blue; 1 for grey (luma of ITU-R 601).

    Returns:
        (h, w, channels) uint8.

    Raises:
        InputError: no picture, a broken one, or one of more than `MAX_PIXELS`.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError
    from PIL.JpegImagePlugin import JpegImageFile

    try:
        with warnings.catch_warnings():
            # Too large is judged below; what a picture's metadata gets wrong does not matter here.
            warnings.simplefilter("ignore")
            with Image.open(BytesIO(data), formats=FORMATS) as image:
                _check_size(image, name)
                loaded = jpeg.load(image) if isinstance(image, JpegImageFile) else image
                pixels = _as_colour(ImageOps.exif_transpose(loaded), channels)
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        if isinstance(error, Image.DecompressionBombError):
            raise _too_large(name) from None
        raise InputError(
            f"{name!r} is no picture: its content is not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
            hint=_looks_like(data) or "save it as PNG or JPEG",
        ) from None
    except (OSError, SyntaxError, ValueError, IndexError, EOFError, OverflowError, MemoryError, KeyError) as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"picture {name!r} is broken or cut short ({reason[0] if reason else type(error).__name__})",
            hint="copy or download it again",
        ) from None
    return pixels


def _local(source: str | Path) -> Path:
    text = str(source)
    scheme, found, _ = text.partition("://")
    if found and scheme.isalpha() and len(scheme) > 1:
        raise UsageError(
            f"{text!r} is a web address, and downloading pictures is off", hint="download it first, then name the file"
        )
    path = Path(source)
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(
            f"picture {text!r} does not exist", hint=did_you_mean(path.name, siblings) or "name a file that is there"
        )
    return path


def _check_size(image: "Image.Image", name: str) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise _too_large(name)


def _too_large(name: str) -> InputError:
    return InputError(
        f"picture {name!r} has more than {MAX_PIXELS // 1_000_000} million pixels",
        hint="make it smaller first: a network looks at a few hundred pixels a side",
    )


def _as_colour(image: "Image.Image", channels: int) -> Array:
    from PIL import Image

    if image.mode.startswith("I"):
        # 16-bit grey; converting it would clip instead of scaling.
        grey = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        image = Image.fromarray(grey)
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    flat = image.convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(flat, dtype=np.uint8)
    return pixels[:, :, None] if channels == 1 else pixels


def _looks_like(data: bytes) -> str:
    """A guess at what the file is instead, for the hint."""
    start = data[:512].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page: the download saved an error page instead of the picture"
    return ""
