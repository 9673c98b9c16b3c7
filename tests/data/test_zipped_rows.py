"""Large arrays in ``.npz`` files: only the selected rows take memory."""

import tracemalloc
from pathlib import Path
from typing import Literal
from zipfile import ZipFile

import numpy as np
import pytest

from quantkit.data import as_dataset
from quantkit.data.zipped_rows import MIN_BYTES, ZippedRows
from quantkit.errors import InputError


def write(path: Path, order: Literal["C", "F"] = "C", dtype: str = "<f4") -> Path:
    """Write an array of `MIN_BYTES` whose rows hold their index, and labels."""
    rows = np.arange(64, dtype=dtype).reshape(-1, 1, 1) + np.zeros((1, 512, MIN_BYTES // 64 // 512 // 4), dtype)
    np.savez_compressed(path, x=np.asarray(rows, order=order), labels=np.arange(64))
    return path


@pytest.mark.parametrize(("order", "dtype"), [("C", "<f4"), ("C", ">f4"), ("F", "<f4")])
def test_selected_rows_are_those_of_the_array(order: str, dtype: str, tmp_path: Path) -> None:
    dataset = as_dataset(write(tmp_path / "x.npz", order, dtype), limit=5)
    samples = list(dataset.read())
    assert len(samples) == 5
    for sample in samples:
        assert sample.arrays is not None
        assert sample.label == sample.name
        assert sample.arrays["x"].dtype == np.float32
        np.testing.assert_array_equal(sample.arrays["x"], np.full((512, MIN_BYTES // 64 // 512 // 4), int(sample.name)))


def test_two_rows_take_the_memory_of_two_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "x.npz")
    assert path.stat().st_size < MIN_BYTES // 100
    tracemalloc.start()
    assert len(list(as_dataset(path, limit=2).read())) == 2
    assert tracemalloc.get_traced_memory()[1] < 40 << 20  # zipfile skips data in blocks of 16 MiB
    tracemalloc.stop()


def test_a_damaged_member_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x.npz")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 255
    path.write_bytes(data)
    with pytest.raises(InputError, match="x.npz is (damaged|not a NumPy file)"):
        list(as_dataset(path, limit=60).read())


def test_small_arrays_are_read_at_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 4), np.float32))
    with ZipFile(tmp_path / "x.npz") as archive:
        assert ZippedRows.open(tmp_path / "x.npz", archive, "x.npy") is None
