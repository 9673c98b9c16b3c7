"""Samples of a source as small values that a worker process receives, and the reading of one of them."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from quantkit.data.dataset import ArrayDataset, name_digest, read_sample_arrays
from quantkit.data.packing.cifar import PIXEL_BYTES, open_part, read_pickled_pixels, to_pixels
from quantkit.data.sources import as_dataset
from quantkit.errors import InputError
from quantkit.formats.tfrecord import read_record
from quantkit.ir.tensor import Array

# image: encoded image in a part of a file; record: record of a TFRecord file; row: row of a NumPy file;
# arrays: NumPy file of one sample; pixels: raw RGB values, part of a file;
# pickled_pixels: row of a pickle, part of a file.
Kind = Literal["image", "record", "row", "arrays", "pixels", "pickled_pixels"]
# An encoded image, a serialized record, pixels (h, w, c) uint8, or arrays by name.
Content = bytes | Array | dict[str, Array]


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One sample of a source.

    Attributes:
        name: path relative to the source, or number of the row.
        label: label in the source; empty if it is not known.
        path: file with the sample.
        offset, size: position and size of the sample in its file, in bytes; the position of the whole batch for
            `pickled_pixels`.
        stamp: modification time of the file in nanoseconds.
        row: number of the row in an array.
    """

    name: str
    label: str
    path: str
    offset: int = 0
    size: int = 0
    stamp: int = 0
    row: int = 0

    def to_list(self) -> list[Any]:
        return [self.name, self.label, self.path, self.offset, self.size, self.stamp, self.row]


@dataclass(frozen=True)
class Source:
    """Samples to pack.

    Attributes:
        name: path or name of the source, for messages.
        kind: content of the items.
        items: samples in the order of the source.
        classes: class names in the order of the class numbers; empty if labels are numbers or not known.
        notes: facts for the user, for example about parts that are not packed.
    """

    name: str
    kind: Kind
    items: tuple[SourceItem, ...]
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def shuffle(self) -> "Source":
        """Return the source in the order of the SHA-256 of the names, which mixes the classes of a folder."""
        items = sorted(self.items, key=lambda item: (name_digest(item.name), item.path, item.offset))
        return replace(self, items=tuple(items))


def read_content(item: SourceItem, kind: Kind) -> Content:
    """Read one sample.

    Raises:
        InputError: the sample cannot be read.
    """
    return _READ_FUNCTIONS[kind](item)


def check_unchanged(item: SourceItem) -> None:
    """Check that the file of a sample has not changed since the source was listed.

    Raises:
        ChangedSourceError: the file has changed.
    """
    try:
        stamp = os.stat(item.path).st_mtime_ns
    except OSError:
        return  # reading reports the missing file
    if stamp != item.stamp:
        raise ChangedSourceError(f"{item.path} changed while it was packed", hint="run the same command again")


class ChangedSourceError(InputError):
    """File of the source that changed during the work."""


def _read_part(item: SourceItem) -> bytes:
    with open_part(item.path, item.offset) as file:
        data = file.read(item.size)
    if len(data) < item.size:
        raise InputError(f"{item.path} is truncated")
    return data


def _read_row(item: SourceItem) -> Content:
    dataset = _open_arrays(item.path)
    return _image_or_arrays({name: np.asarray(array[item.row]) for name, array in dataset.arrays.items()})


def _image_or_arrays(arrays: dict[str, Array]) -> Content:
    first = next(iter(arrays.values()))
    if len(arrays) == 1 and _is_image(first):
        return first if first.ndim == 3 else first[:, :, None]
    return {name or "x": array for name, array in arrays.items()}


def _is_image(array: Array) -> bool:
    return array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3)))


@lru_cache(maxsize=2)
def _open_arrays(path: str) -> ArrayDataset:
    dataset = as_dataset(path)
    assert isinstance(dataset, ArrayDataset)
    return dataset


_READ_FUNCTIONS: dict[Kind, Callable[[SourceItem], Content]] = {
    "image": _read_part,
    "record": lambda item: read_record(Path(item.path), item.offset),
    "row": _read_row,
    "arrays": lambda item: _image_or_arrays(read_sample_arrays(Path(item.path))[0]),
    "pixels": lambda item: to_pixels(_read_part(replace(item, size=PIXEL_BYTES))),
    "pickled_pixels": lambda item: read_pickled_pixels(item.path, item.offset, item.row),
}
