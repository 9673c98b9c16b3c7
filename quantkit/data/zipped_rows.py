"""Rows of a large array in an ``.npz`` file, decompressed as a stream: only the selected rows take memory."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from quantkit.errors import InputError, one_line
from quantkit.ir.tensor import Array

# Size from which an array is read row by row.
MIN_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class ZippedRows:
    """Array (n, ...) in an ``.npz`` file.

    Attributes:
        path: file.
        member: name of the array's ``.npy`` in the file.
        shape, dtype: shape and element type.
        offset: position of the first element in the ``.npy``, in bytes.
        rows: indices of the rows that are read, all at the first access.
    """

    path: Path
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    rows: tuple[int, ...] = ()

    @classmethod
    def open(cls, path: Path, archive: ZipFile, member: str) -> "ZippedRows | None":
        """Read the header of an array; None for a small array, or one that is not stored row by row.

        Args:
            path: path of the archive.
            archive: the opened file.
            member: name of the array's ``.npy`` in the file.

        Raises:
            Exception: the file is damaged, of any type that zipfile and NumPy raise.
        """
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                return None
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(file)
            num_bytes = math.prod(shape) * dtype.itemsize
            is_large = len(shape) > 1 and num_bytes >= MIN_BYTES and archive.getinfo(member).file_size > num_bytes
            is_stored_by_row = not is_fortran and not dtype.hasobject
            return cls(path, member, shape, dtype, file.tell()) if is_large and is_stored_by_row else None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def select(self, rows: Iterable[int]) -> "ZippedRows":
        """Return the array with other rows to read."""
        return replace(self, rows=tuple(rows))

    def __getitem__(self, row: int) -> Array:
        """Return a selected row.

        Raises:
            InputError: the file is damaged.
        """
        return self._values[row]

    @cached_property
    def _values(self) -> dict[int, Array]:
        shape, num_bytes = self.shape[1:], math.prod(self.shape[1:]) * self.dtype.itemsize
        values = {}
        try:
            with ZipFile(self.path) as archive, archive.open(self.member) as file:
                for row in sorted(self.rows):
                    file.seek(self.offset + row * num_bytes)
                    data = np.frombuffer(file.read(num_bytes), self.dtype).reshape(shape)
                    values[row] = data.astype(self.dtype.newbyteorder("="))
        except Exception as error:  # zipfile and zlib raise many types on a broken file
            reason = one_line(str(error)) or type(error).__name__
            raise InputError(f"{self.path} is damaged: {reason}", hint="write it with numpy.savez") from None
        return values
