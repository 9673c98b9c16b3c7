"""NumPy files: rows of arrays, arrays of numbered samples, or one sample.

    x (n, ...)                    rows: samples of one shape
    x_0, x_1, ... in one .npz     samples of any shapes, one array each
    a file                        one sample of a folder or list of files

An array of Python objects is never read, because reading it can run code.
"""

import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from quantkit.data.zipped_rows import ZippedRows
from quantkit.errors import InputError, one_line
from quantkit.ir.tensor import Array

ARRAY_SUFFIXES = frozenset({".npz", ".npy"})
# Names of arrays that hold class labels.
LABEL_NAMES = frozenset({"labels", "label", "y", "classes", "targets"})
SAMPLES_HINT = (
    "write samples of different shapes as arrays x_0, x_1, ... for the input x in one .npz file, or as a folder of "
    ".npy or .npz files, one sample each"
)
_NUMBERED = re.compile(r"(.+)_(\d{1,9})")


def read_arrays(path: Path, *, by_row: bool = True) -> Any:
    """Read the array of an ``.npy`` file, or the arrays of an ``.npz`` file by name.

    Args:
        path: file.
        by_row: read large arrays row by row: they are memory-mapped, or `ZippedRows`.

    Raises:
        InputError: the file is broken, or holds Python objects.
    """
    try:
        with path.open("rb") as file:
            is_archive = file.read(2) == b"PK"
        return _read_archive(path, by_row=by_row) if is_archive else np.load(path, mmap_mode="r" if by_row else None)
    except Exception as error:  # numpy and zipfile raise many types on a broken file
        reason = one_line(str(error)) or type(error).__name__
        if "Object arrays" in reason or "Python objects" in reason:
            raise InputError(
                f"{path} holds an array of Python objects, which quantkit never unpickles", hint=SAMPLES_HINT
            ) from None
        raise InputError(f"{path} is not a NumPy file: {reason}", hint="write it with numpy.savez") from None


def _read_archive(path: Path, *, by_row: bool) -> dict[str, Any]:
    """Read the arrays of an ``.npz`` file: `numpy.load` writes to stderr if the archive is broken."""
    arrays: dict[str, Any] = {}
    with ZipFile(path) as archive:
        for name in archive.namelist():
            plain = name.removesuffix(".npy")
            if by_row and (rows := ZippedRows.open(path, archive, name)) is not None:
                arrays[plain] = rows
                continue
            with archive.open(name) as member:
                arrays[plain] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays


def group_samples(arrays: Mapping[str, Any], inputs: Container[str] = ()) -> Mapping[str, Any]:
    """Return the samples x_0, x_1, ... as an array of objects x.

    Args:
        arrays: arrays by name. They are returned unchanged unless all but the labels are numbered from 0, and there
            are as many samples of each name.
        inputs: names of inputs, whose arrays hold rows.
    """
    samples: dict[str, dict[int, Array]] = {}
    for name, array in arrays.items():
        if name.lower() in LABEL_NAMES:
            continue
        match = _NUMBERED.fullmatch(name)
        if match is None or name in inputs:
            return arrays
        samples.setdefault(match[1], {})[int(match[2])] = array
    numbers = range(len(next(iter(samples.values()), ())))
    if len(numbers) < 2 or any(sorted(group) != list(numbers) for group in samples.values()):
        return arrays
    labels = {name: array for name, array in arrays.items() if name.lower() in LABEL_NAMES}
    return {
        name: stack_samples([_read(group[number]) for number in numbers]) for name, group in samples.items()
    } | labels


def _read(array: Any) -> Array:
    """Return an array in memory."""
    if not isinstance(array, ZippedRows):
        return np.asarray(array)
    rows = array.select(range(len(array)))
    return np.stack([rows[index] for index in range(len(rows))])


def stack_samples(samples: Sequence[Array]) -> Array:
    """Return samples as one array (n, ...), or as an array (n,) of arrays if their shapes or types differ."""
    if len({(array.shape, array.dtype) for array in samples}) == 1:
        return np.stack(samples)
    stacked = np.empty(len(samples), object)
    for index, array in enumerate(samples):
        stacked[index] = array
    return stacked


def holds_samples(array: Any) -> bool:
    """Return True for an array (n,) of arrays, which `stack_samples` returns."""
    is_object = array.dtype.kind == "O" and array.ndim == 1 and len(array)
    return bool(is_object and all(isinstance(value, np.ndarray) for value in array))


def split_labels(arrays: Mapping[str, Array]) -> tuple[dict[str, Array], Array | None]:
    """Split arrays by name into inputs and labels, where one of them has the name of labels."""
    name = next((name for name in arrays if name.lower() in LABEL_NAMES and arrays[name].ndim <= 1), None)
    if name is None or len(arrays) == 1:
        return dict(arrays), None
    return {other: array for other, array in arrays.items() if other != name}, arrays[name]
