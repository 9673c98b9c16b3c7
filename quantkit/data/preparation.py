"""From samples of data to what a model is fed: pictures made ready, or rows of tensors as they are."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Self

import numpy as np

from quantkit.data import Data, Sample
from quantkit.data.choices import Flags, choose_preprocessing, takes_pictures
from quantkit.data.feeding import Feeding
from quantkit.data.images import read_bytes
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import InputError, UsageError
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo import ModelCard

# One sample as a model takes it: an encoded picture, an array without a batch axis, or such arrays by input.
Prepared = bytes | Array | Mapping[str, Array]
# How far a number may be from a whole one to be a pixel that was normalised in float32.
NEARLY_WHOLE = 0.01


@dataclass(frozen=True)
class Preparation:
    """How samples become what a model takes.

    Attributes:
        infos: of its inputs; a single one where it takes pictures.
        preprocessing: what pictures go through; None: rows of tensors are fed as they are.
        is_assumed: whether pixels are normalised, and nobody said how.
    """

    infos: tuple[TensorInfo, ...]
    preprocessing: Preprocessing | None
    is_assumed: bool = False

    @classmethod
    def of(cls, infos: Sequence[TensorInfo], data: Data, card: ModelCard | None, flags: Flags = Flags()) -> Self:
        """What these inputs do with this data.

        Raises:
            UsageError: the data does not say which input it is for, or the input takes no pictures.
        """
        if len(data.arrays) > 1 or (data.arrays and len(infos) > 1):
            missing = [info.name for info in infos if info.name not in data.arrays]
            if missing:
                kinds = f"{len(data.arrays)} arrays" if len(data.arrays) > 1 else "one array"
                raise UsageError(
                    f"{data.source} holds {kinds} ({', '.join(data.arrays)}), and none for the input {missing[0]!r}",
                    hint="write an .npz with an array named after each input",
                )
            return cls(tuple(infos), None)
        if len(infos) != 1:
            raise UsageError(
                f"the model takes {len(infos)} inputs ({', '.join(info.name for info in infos)}), which pictures "
                "alone do not fill",
                hint="give an .npz with an array for each input, or name one with --input-layer",
            )
        if any(_are_rows(array, infos[0]) for array in data.arrays.values()):
            return cls(tuple(infos), None)
        holds_pixels = all(array.dtype == np.uint8 for array in data.arrays.values())
        is_said = card is not None or flags.mean is not None or flags.std is not None
        is_assumed = holds_pixels and infos[0].dtype.is_float and not is_said
        return cls(tuple(infos), choose_preprocessing(infos[0], card, flags), is_assumed)

    def __str__(self) -> str:
        return "rows as they are" if self.preprocessing is None else str(self.preprocessing)

    @property
    def info(self) -> TensorInfo:
        """Of the first input."""
        return self.infos[0]

    @property
    def feeding(self) -> Feeding:
        return Feeding.of(self.info)

    @property
    def batch(self) -> int | None:
        """How many samples are fed together; None: as many as one likes."""
        if self.preprocessing is None:
            return next((info.shape.dims[0] for info in self.infos if info.shape.dims), None)
        return self.feeding.batch if self.feeding.has_batch_axis else 1

    @property
    def reading(self) -> tuple[str, int]:
        """What decides how a file is read: preparations of the same one share its pixels."""
        return "jpeg" if self.feeding.kind == "jpeg" else "pixels", self._known.channels

    @property
    def _known(self) -> Preprocessing:
        assert self.preprocessing is not None, "rows go through nothing"
        return self.preprocessing

    def decode(self, encoded: bytes, name: str) -> bytes | Array:
        """A picture's bytes, or its pixels (h, w, c) uint8, as `of_picture` takes them.

        Raises:
            InputError: it is no whole picture.
        """
        return self.feeding.decode(encoded, name, self._known.channels)

    def of_picture(self, decoded: bytes | Array) -> Prepared:
        """What the input takes for one picture.

        Args:
            decoded: an encoded picture, or its pixels (h, w, c) uint8.
        """
        return self.feeding.prepare(decoded, self._known)

    def of_rows(self, rows: Mapping[str, Array]) -> Prepared:
        """What the inputs take for one row of each array of the data.

        Raises:
            UsageError: a row does not fit its input.
        """
        if self.preprocessing is not None:
            return self._of_row(next(iter(rows.values())))
        if len(rows) == 1 and len(self.infos) == 1:
            return {self.info.name: _fitted(next(iter(rows.values())), self.info)}
        return {info.name: _fitted(rows[info.name], info) for info in self.infos}

    def _of_row(self, row: Array) -> bytes | Array:
        """What an input of pictures takes for one row of tensors, which is not cropped.

        Args:
            row: (h, w, c) uint8 pixels, or numbers as the input takes them, with channels first or last, or in a row;
                for an input of pixels also what the preprocessing has made of pixels.

        Raises:
            UsageError: the input takes pixels and the row holds other numbers.
        """
        if row.dtype.kind == "f" and self.feeding.dtype is DType.UINT8:
            row = self._pixels_of(row)
        if row.dtype == np.uint8:
            return self.feeding.prepare(row, replace(self._known, crop="none"))
        feeding, dims = self.feeding, self.info.shape.dims
        if not feeding.dtype.is_float:
            raise UsageError(
                f"input {self.info.name!r} takes {feeding.dtype.value} and the data is {row.dtype}",
                hint="give pictures, or an array of uint8 pixels",
            )
        if dims and row.ndim == 1 and None not in dims[1:] and row.size == prod(size or 1 for size in dims[1:]):
            row = row.reshape([size or 1 for size in dims[1:]])
        if dims and row.ndim == 3 and not Shape(dims[-3:]).accepts(row.shape):
            turned = row.transpose((2, 0, 1) if feeding.channels_first else (1, 2, 0))
            row = np.ascontiguousarray(turned) if Shape(dims[-3:]).accepts(turned.shape) else row
        return row.astype(feeding.dtype.numpy, copy=False)

    def _pixels_of(self, row: Array) -> Array:
        """The pixels that normalised numbers were made of; the row as it is where they were not made so."""
        values = row * np.asarray(self._known.std) + np.asarray(self._known.mean)
        pixels = np.rint(values)
        are_pixels = np.abs(values - pixels).max(initial=0) < NEARLY_WHOLE and pixels.min() >= 0 and pixels.max() <= 255
        return pixels.astype(np.uint8) if are_pixels else row

    def feeds(self, prepared: Sequence[Prepared]) -> dict[str, Array]:
        """What to feed for samples that run together; a fixed batch that is not full is filled up with the last one.

        Args:
            prepared: what `of_picture` or `of_rows` gave, at least one and at most `batch`.
        """
        rows = [one for one in prepared if isinstance(one, Mapping)]
        if not rows:
            return {self.info.name: self.feeding.join([one for one in prepared if not isinstance(one, Mapping)])}
        rows += [rows[-1]] * ((self.batch or len(rows)) - len(rows))
        return {info.name: np.stack([row[info.name] for row in rows]) for info in self.infos}


def prepared_samples(
    data: Data, samples: Iterable[Sample], preparations: Sequence[Preparation], refused: dict[str, str]
) -> Iterator[tuple[Sample, list[Prepared]]]:
    """Each sample as every model takes it; pictures are decoded once.

    Args:
        data: that the samples are of.
        samples: to prepare.
        preparations: one for each model.
        refused: where pictures that can not be read are noted, with the reason.

    Raises:
        UsageError: an input does not take what the data holds.
    """
    for sample in samples:
        if data.arrays:
            rows = {name: data.rows(name, [sample])[0] for name in data.arrays}
            yield sample, [preparation.of_rows(rows) for preparation in preparations]
            continue
        name = str(sample.path) if sample.offset is None else f"{sample.path} ({sample.name})"
        decoded: dict[tuple[str, int], bytes | Array] = {}
        try:
            encoded = read_bytes(Path(sample.path or sample.name)) if sample.offset is None else sample.encoded
            for one in preparations:
                if one.reading not in decoded:
                    decoded[one.reading] = one.decode(encoded, name)
        except InputError as error:
            refused[name] = error.message
        else:
            yield sample, [one.of_picture(decoded[one.reading]) for one in preparations]


def _are_rows(array: Array, info: TensorInfo) -> bool:
    """Whether an array holds what an input takes, rather than pictures for it."""
    dims = info.shape.dims
    # Three sizes may be those of a picture, or of a sequence behind a batch axis, which the array then has, too.
    is_sequence = dims is not None and len(dims) == array.ndim == 3
    return is_sequence or not takes_pictures(info)


def _fitted(row: Array, info: TensorInfo) -> Array:
    """A row in the type and shape of an input.

    Raises:
        UsageError: it has neither.
    """
    wanted, dims = info.dtype.numpy, info.shape.dims
    if row.dtype.kind == "f" and wanted.kind != "f":
        raise UsageError(f"input {info.name!r} takes {info.dtype.value}, not {row.dtype}", hint="give whole numbers")
    if dims is not None and not Shape(dims[1:]).accepts(row.shape):
        if None in dims[1:] or row.size != prod(size or 1 for size in dims[1:]):
            raise UsageError(
                f"input {info.name!r} takes {info.dtype.value} of shape {info.shape}, and the data's rows are of shape "
                f"{'x'.join(map(str, row.shape)) or '()'}",
                hint="the first dimension of the array counts examples, the others are the input's",
            )
        row = row.reshape([size or 1 for size in dims[1:]])
    return row.astype(wanted, copy=False)
