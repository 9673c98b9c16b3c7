"""CIFAR-10 and CIFAR-100: the python and the binary version, as archives and as folders.

A sample is 3072 bytes: 32 x 32 red values, then green, then blue. The binary version has one or two label bytes before
each sample; the python version has pickles of 10,000 or 50,000 rows with their labels.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np

from quantkit.data.packing.pickles import PickledArray, read_pickle
from quantkit.errors import InputError
from quantkit.ir.tensor import Array

PIXEL_BYTES = 3 * 32 * 32
SPLITS = ("train", "test")


@dataclass(frozen=True)
class ArchiveMember:
    """File of an archive or a folder.

    Attributes:
        name: path in the archive or folder.
        path: file on disk.
        offset, size: position and size in this file, in bytes.
    """

    name: str
    path: str
    offset: int
    size: int

    @property
    def base(self) -> str:
        return self.name.rpartition("/")[2]

    def read(self) -> bytes:
        """Read the whole member.

        Raises:
            InputError: the file cannot be read.
        """
        with open_part(self.path, self.offset) as file:
            return file.read(self.size)


@dataclass(frozen=True)
class Version:
    """One of the four published versions.

    Attributes:
        train, test: names of the files of each split.
        classes: file with the class names.
        label_bytes: number of bytes before each sample; 0 for the python version. The last one is the fine label.
        label_key, names_key: keys of the pickles; empty for the binary version.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    classes: str
    label_bytes: int = 0
    label_key: bytes = b""
    names_key: bytes = b""

    def files(self, split: str) -> tuple[str, ...]:
        return self.train if split == "train" else self.test


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
VERSIONS = (
    Version(_BATCHES, ("test_batch",), "batches.meta", label_key=b"labels", names_key=b"label_names"),
    Version(tuple(f"{name}.bin" for name in _BATCHES), ("test_batch.bin",), "batches.meta.txt", label_bytes=1),
    Version(("train",), ("test",), "meta", label_key=b"fine_labels", names_key=b"fine_label_names"),
    Version(("train.bin",), ("test.bin",), "fine_label_names.txt", label_bytes=2),
)


def find_version(names: Sequence[str]) -> Version | None:
    """Return the version whose files are among the names of an archive; None if the archive is not CIFAR."""
    present = {name.rpartition("/")[2] for name in names}
    return next((version for version in VERSIONS if {*version.train, *version.test, version.classes} <= present), None)


def class_names(version: Version, member: ArchiveMember) -> tuple[str, ...]:
    """Read the class names in the order of the class numbers.

    Raises:
        InputError: the file is damaged.
    """
    if version.label_bytes:
        return tuple(member.read().decode(errors="replace").split())
    names = _read_table(member.path, member.offset, member.name).get(version.names_key)
    if not isinstance(names, list):
        raise _damage_error(member.name)
    return tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names)


def pickled_labels(version: Version, member: ArchiveMember) -> list[int]:
    """Read the class number of each sample of a pickled batch.

    Raises:
        InputError: the file is damaged, or the counts of labels and samples differ.
    """
    table = _read_table(member.path, member.offset, member.name)
    labels, data = table.get(version.label_key), table.get(b"data")
    is_valid = isinstance(labels, list) and all(type(label) is int and label >= 0 for label in labels)
    if not is_valid or not isinstance(data, PickledArray) or _rows_of(data, member.name) != len(labels or ()):
        raise _damage_error(member.name)
    return list(labels or ())


def read_pickled_pixels(path: str, offset: int, row: int) -> Array:
    """Read one sample (32, 32, 3) of a pickled batch that starts at an offset of a file."""
    start = row * PIXEL_BYTES
    return to_pixels(_read_batch(path, offset)[start : start + PIXEL_BYTES])


def to_pixels(data: bytes) -> Array:
    """Return planes of red, green and blue as pixels (32, 32, 3) uint8."""
    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(3, 32, 32).transpose(1, 2, 0))


@lru_cache(maxsize=6)
def _read_batch(path: str, offset: int) -> bytes:
    data = _read_table(path, offset, path).get(b"data")
    if not isinstance(data, PickledArray):
        raise _damage_error(path)
    _rows_of(data, path)
    return data.data


def _read_table(path: str, offset: int, name: str) -> dict[Any, Any]:
    """Read the pickle that starts at an offset of a file.

    Args:
        path: file.
        offset: position of the pickle in bytes.
        name: name of the pickle, for messages.

    Raises:
        InputError: the file cannot be read, or the pickle is damaged.
    """
    with open_part(path, offset) as file:
        table = read_pickle(file, name)
    if not isinstance(table, dict):
        raise _damage_error(name)
    return table


@contextmanager
def open_part(path: str, offset: int) -> Iterator[BinaryIO]:
    """Open a file at an offset in bytes.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            yield file
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or 'unknown error').lower()}") from None


def _rows_of(data: PickledArray, name: str) -> int:
    is_valid = len(data.shape) == 2 and data.shape[1] == PIXEL_BYTES and data.type.code in ("u1", "|u1", "uint8")
    if not is_valid or len(data.data) != data.shape[0] * PIXEL_BYTES:
        raise _damage_error(name)
    return int(data.shape[0])


def _damage_error(name: str) -> InputError:
    return InputError(f"{name} is not a batch of CIFAR images", hint="download the archive again")
