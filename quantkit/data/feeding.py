"""How a picture is put into a graph's input, judged by what that input takes.

string                      the bytes of the JPEG file: the graph decodes, resizes and normalises
uint8 without fixed sizes   the decoded pixels (h, w, c): the graph resizes and normalises
uint8 of fixed sizes        the resized pixels, rounded: the graph normalises
float                       the resized and normalised picture
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quantkit.data.images import check_jpeg, decode
from quantkit.data.preprocessing import Preprocessing, normalize, resize
from quantkit.errors import UsageError
from quantkit.ir.tensor import Array, DType
from quantkit.runtimes.session import TensorInfo


@dataclass(frozen=True)
class Feeding:
    """What one input takes.

    Attributes:
        kind: ``jpeg``, ``pixels`` or ``resized``.
        dtype: element type of the input.
        batch: how many pictures run together; None: as many as one likes.
        has_batch_axis: whether the first dimension counts pictures.
        channels_first: (n, c, h, w) instead of (n, h, w, c).
    """

    kind: Literal["jpeg", "pixels", "resized"]
    dtype: DType
    batch: int | None = None
    has_batch_axis: bool = True
    channels_first: bool = False

    @classmethod
    def of(cls, info: TensorInfo) -> "Feeding":
        """The way to feed an input.

        Raises:
            UsageError: the input takes no pictures.
        """
        dims = info.shape.dims
        if info.dtype is DType.STRING:
            return cls("jpeg", info.dtype, 1, has_batch_axis=dims is not None and len(dims) == 1)
        takes_numbers = info.dtype.is_float or info.dtype is DType.UINT8
        if not takes_numbers or (dims is not None and len(dims) not in (3, 4)):
            raise UsageError(
                f"input {info.name!r} takes {info.dtype.value} of shape {info.shape}, which is no picture",
                hint="name the input that takes pictures with --input-layer",
            )
        if info.dtype is DType.UINT8 and (dims is None or (len(dims) == 3 and None in dims[:2])):
            return cls("pixels", info.dtype, 1, has_batch_axis=False)
        if dims is None:
            return cls("resized", info.dtype)
        has_batch_axis = len(dims) == 4
        sizes = dims[1:] if has_batch_axis else dims
        batch = dims[0] if has_batch_axis else 1
        return cls("resized", info.dtype, batch, has_batch_axis, sizes[0] in (1, 3) and sizes[2] not in (1, 3))

    def decode(self, data: bytes, name: str, channels: int) -> bytes | Array:
        """An encoded picture as it is, or its pixels (h, w, channels) uint8.

        Args:
            data: of a picture file.
            name: of the file, for messages.
            channels: of the pixels.

        Raises:
            InputError: it is no whole picture.
        """
        if self.kind != "jpeg":
            return decode(data, name, channels)
        check_jpeg(data, name)
        return data

    def prepare(self, decoded: bytes | Array, preprocessing: Preprocessing) -> bytes | Array:
        """One picture as the input takes it, without a batch axis.

        Args:
            decoded: what `decode` gave.
            preprocessing: size, mean and deviation; not used where the graph does that itself.
        """
        if isinstance(decoded, bytes) or self.kind == "pixels":
            return decoded
        values = resize(decoded, preprocessing)
        if self.dtype is DType.UINT8:
            return self._layout(np.rint(values).astype(np.uint8))
        return self._layout(normalize(values, preprocessing.mean, preprocessing.std).astype(self.dtype.numpy))

    def join(self, pictures: Sequence[bytes | Array]) -> Array:
        """The array to feed; a fixed batch that is not full is filled up with its last picture.

        Args:
            pictures: what `prepare` gave, at least one and at most `batch`.
        """
        if isinstance(pictures[0], bytes):
            return np.array([pictures[0]] if self.has_batch_axis else pictures[0], dtype=object)
        if not self.has_batch_axis:
            return np.asarray(pictures[0])
        missing = (self.batch or len(pictures)) - len(pictures)
        return np.stack([*map(np.asarray, pictures), *[np.asarray(pictures[-1])] * missing])

    def _layout(self, values: Array) -> Array:
        return np.ascontiguousarray(values.transpose(2, 0, 1)) if self.channels_first else values


def picture_size(info: TensorInfo) -> tuple[int | None, int | None, int | None]:
    """Height, width and channels that an input asks for, as far as its shape says."""
    dims = info.shape.dims
    if dims is None or len(dims) not in (3, 4) or info.dtype is DType.STRING:
        return None, None, None
    sizes = dims[-3:]
    if Feeding.of(info).channels_first:
        sizes = (sizes[1], sizes[2], sizes[0])
    return sizes[0], sizes[1], sizes[2]
