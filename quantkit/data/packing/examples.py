"""Records of samples: ``tf.train.Example`` messages with the feature names of ImageNet."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.data.images import FORMATS, decode
from quantkit.data.packing.items import Content, SourceItem
from quantkit.errors import InputError
from quantkit.formats.tfrecord import encode_example
from quantkit.ir.tensor import Array

if TYPE_CHECKING:
    from quantkit.formats.tfrecord import Features

_WORDNET_ID = re.compile(r"n\d{8}")
# Formats that TensorFlow decodes; others are stored as PNG.
_TENSORFLOW_FORMATS = ("JPEG", "PNG", "BMP", "GIF")
# Last bytes of a complete file, by format.
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
_END_BYTES = 1024
_CHANNELS = {"1": 1, "L": 1, "I;16": 1, "I": 1, "LA": 2, "RGBA": 4, "CMYK": 4}


@dataclass(frozen=True)
class ImageOptions:
    """Changes of images before they are stored.

    Attributes:
        encode: ``jpeg`` or ``png`` to encode every image again; empty to keep the files.
        quality: JPEG quality from 1 to 100.
        resize: size of the shorter side in pixels; larger images are reduced to it. None to keep the size.
        check_pixels: decode every image to find damaged ones.
    """

    encode: str = ""
    quality: int = 95
    resize: int | None = None
    check_pixels: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def make_record(item: SourceItem, content: Content, classes: Sequence[str], options: ImageOptions) -> bytes:
    """Return the serialized record of a sample.

    Args:
        item: sample.
        content: content of the sample: an encoded image, pixels, arrays, or a complete record.
        classes: class names in the order of the class numbers; empty if labels are numbers.
        options: changes of the image.

    Raises:
        InputError: the image is damaged or has an unknown format.
    """
    if isinstance(content, dict):
        return encode_example({**_array_features(content), **_label_features(item.label, classes, key="label")})
    data, header = _encode(content, options) if isinstance(content, np.ndarray) else _prepare(content, item, options)
    return encode_example(
        {
            "image/encoded": [data],
            **header.features,
            **_label_features(item.label, classes, key="image/class/label"),
            "image/filename": [item.name.encode(errors="surrogateescape")],
        }
    )


@dataclass(frozen=True)
class _Header:
    """Format of an image, its size in pixels, and Pillow's mode."""

    kind: str
    width: int
    height: int
    mode: str

    @property
    def features(self) -> "Features":
        channels = _CHANNELS.get(self.mode, 3)
        return {
            "image/format": [self.kind.encode()],
            "image/width": np.array([self.width]),
            "image/height": np.array([self.height]),
            "image/channels": np.array([channels]),
            "image/colorspace": [b"Grayscale" if channels < 3 else b"CMYK" if self.mode == "CMYK" else b"RGB"],
        }


def _prepare(data: bytes, item: SourceItem, options: ImageOptions) -> tuple[bytes, _Header]:
    """Return the encoded image to store, and its header.

    Raises:
        InputError: the image is damaged or has an unknown format.
    """
    header = _read_header(data, item.name)
    is_larger = options.resize is not None and min(header.width, header.height) > options.resize
    if options.encode or is_larger or header.kind not in _TENSORFLOW_FORMATS:
        return _encode(decode(data, item.name), options, header.kind)
    end = _ENDS.get(header.kind)
    if options.check_pixels or end is None or end not in data[-_END_BYTES:]:
        decode(data, item.name)
    return data, header


def _read_header(data: bytes, name: str) -> _Header:
    from PIL import Image

    if not data:
        raise InputError(f"image {name!r} is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `decode` limits the size
            with Image.open(BytesIO(data), formats=FORMATS) as image:
                return _Header(str(image.format), image.width, image.height, image.mode)
    except Exception:  # a damaged header raises errors of many types: decoding describes the damage
        decode(data, name)
        raise InputError(f"image {name!r} has a damaged header") from None


def _encode(pixels: Array, options: ImageOptions, kind: str = "PNG") -> tuple[bytes, _Header]:
    """Encode pixels (h, w, c) uint8, reduced to the size of the options.

    Args:
        pixels: pixels.
        options: format, quality and size.
        kind: format that is kept if the options have no format: JPEG, else PNG.
    """
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    shorter = min(image.size)
    if options.resize is not None and shorter > options.resize:
        width, height = (max(1, round(side * options.resize / shorter)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    new_kind = options.encode.upper() or ("JPEG" if kind == "JPEG" else "PNG")
    file = BytesIO()
    image.save(file, new_kind, **({"quality": options.quality} if new_kind == "JPEG" else {}))
    return file.getvalue(), _Header(new_kind, image.width, image.height, image.mode)


def _label_features(label: str, classes: Sequence[str], key: str) -> "Features":
    """Return the class number, and the name and the WordNet id of the class."""
    if not label:
        return {}
    number = classes.index(label) if classes else int(label)
    features: dict[str, list[bytes] | Array] = {key: np.array([number])}
    if classes and key != "label":
        features["image/class/text"] = [label.encode()]
        if _WORDNET_ID.fullmatch(label):
            features["image/class/synset"] = [label.encode()]
    return features


def _array_features(arrays: dict[str, Array]) -> "Features":
    """Return the values of each array, and its shape."""
    features: dict[str, list[bytes] | Array] = {}
    for name, array in arrays.items():
        if array.dtype.kind in "SUO":
            texts = array.reshape(-1).tolist()
            features[name] = [text if isinstance(text, bytes) else str(text).encode() for text in texts]
            continue
        is_real = array.dtype.kind not in "biu"
        features[name] = array.astype(np.float32 if is_real else np.int64).reshape(-1)
        if array.ndim != 1:
            features[f"{name}/shape"] = np.array(array.shape, np.int64)
    return features
