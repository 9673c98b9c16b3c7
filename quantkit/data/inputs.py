"""Image inputs: the form of the images, inferred from the input's element type and shape.

string                      bytes of a JPEG file: the graph decodes, resizes and normalizes
uint8 without fixed sizes   decoded pixels (h, w, c): the graph resizes and normalizes
uint8 of fixed sizes        resized pixels, rounded: the graph normalizes
float                       resized and normalized pixels
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from quantkit.data.images import check_jpeg, decode
from quantkit.data.preprocessing import Preprocessing, normalize, order_channels, resize
from quantkit.errors import UsageError
from quantkit.ir.tensor import Array, DType
from quantkit.runtimes.session import TensorInfo


@dataclass(frozen=True)
class ImageInput:
    """Form in which one input takes images.

    Attributes:
        form: ``jpeg`` (encoded), ``pixels`` (decoded) or ``resized``.
        dtype: element type of the input.
        batch_size: fixed number of images per batch; None for any number.
        has_batch_axis: True if the first dimension counts images.
        channels_first: True for (n, c, h, w), False for (n, h, w, c).
    """

    form: Literal["jpeg", "pixels", "resized"]
    dtype: DType
    batch_size: int | None = None
    has_batch_axis: bool = True
    channels_first: bool = False

    @classmethod
    def of(cls, info: TensorInfo) -> Self:
        """Infer the form from the input's element type and shape.

        Raises:
            UsageError: the input does not take images.
        """
        dims = info.shape.dims
        if info.dtype is DType.STRING:
            return cls("jpeg", info.dtype, 1, has_batch_axis=dims is not None and len(dims) == 1)
        takes_numbers = info.dtype.is_float or info.dtype is DType.UINT8
        if not takes_numbers or (dims is not None and len(dims) not in (3, 4)):
            raise UsageError(
                f"input {info.name!r} takes {info.dtype.value} of shape {info.shape}, which is not an image",
                hint="name the image input with --input-layer",
            )
        if info.dtype is DType.UINT8 and (dims is None or (len(dims) == 3 and None in dims[:2])):
            return cls("pixels", info.dtype, 1, has_batch_axis=False)
        if dims is None:
            return cls("resized", info.dtype)
        has_batch_axis = len(dims) == 4
        sizes = dims[1:] if has_batch_axis else dims
        batch_size = dims[0] if has_batch_axis else 1
        return cls("resized", info.dtype, batch_size, has_batch_axis, sizes[0] in (1, 3) and sizes[2] not in (1, 3))

    @property
    def is_normalized(self) -> bool:
        """True if images are normalized before they are fed, not inside the graph."""
        return self.form == "resized" and self.dtype is not DType.UINT8

    def decode(self, data: bytes, name: str, channels: int) -> bytes | Array:
        """Return the encoded image itself, or its pixels (h, w, channels) uint8.

        Args:
            data: content of an image file.
            name: name of the file, for messages.
            channels: 3 or 1.

        Raises:
            InputError: the data is not a complete image.
        """
        if self.form != "jpeg":
            return decode(data, name, channels)
        check_jpeg(data, name)
        return data

    def prepare(self, image: bytes | Array, preprocessing: Preprocessing) -> bytes | Array:
        """Return one image as the input takes it, without a batch axis.

        Args:
            image: result of `decode`.
            preprocessing: size, mean and standard deviation; ignored if the graph preprocesses.
        """
        if isinstance(image, bytes):
            return image
        if self.form == "pixels":
            return order_channels(image, preprocessing)
        values = resize(image, preprocessing)
        if self.dtype is DType.UINT8:
            return self._layout(np.rint(values).astype(np.uint8))
        return self._layout(normalize(values, preprocessing.mean, preprocessing.std).astype(self.dtype.numpy))

    def stack(self, images: Sequence[bytes | Array]) -> Array:
        """Stack images into the array to feed; a fixed batch is padded with its last image.

        Args:
            images: results of `prepare`, at least one and at most `batch_size`.
        """
        if isinstance(images[0], bytes):
            return np.array([images[0]] if self.has_batch_axis else images[0], dtype=object)
        if not self.has_batch_axis:
            return np.asarray(images[0])
        padding = (self.batch_size or len(images)) - len(images)
        return np.stack([*map(np.asarray, images), *[np.asarray(images[-1])] * padding])

    def _layout(self, values: Array) -> Array:
        return np.ascontiguousarray(values.transpose(2, 0, 1)) if self.channels_first else values


def image_size(info: TensorInfo) -> tuple[int | None, int | None, int | None]:
    """Return height, width and channels of an image input; None for dynamic sizes."""
    dims = info.shape.dims
    if dims is None or len(dims) not in (3, 4) or info.dtype is DType.STRING:
        return None, None, None
    sizes = dims[-3:]
    if ImageInput.of(info).channels_first:
        sizes = (sizes[1], sizes[2], sizes[0])
    return sizes[0], sizes[1], sizes[2]


def takes_images(info: TensorInfo) -> bool:
    """Return True if the type and shape of an input are those of images."""
    try:
        ImageInput.of(info)
    except UsageError:
        return False
    return image_size(info)[2] in (None, 1, 3)
