"""States of interrupted work: complete, or ignored."""

from pathlib import Path

import numpy as np
import pytest

from quantkit.formats.state_files import read_state, write_state

ARRAYS = {"key": np.array("text"), "a/0": np.arange(6.0).reshape(2, 3), "count": np.array(3)}


def test_a_state_round_trips(tmp_path: Path) -> None:
    write_state(tmp_path / "s", ARRAYS)
    state = read_state(tmp_path / "s")
    assert state is not None
    assert state.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(state[name], array)


@pytest.mark.parametrize("position", [0, 15, 16, 100, -1])
def test_a_changed_byte_makes_a_state_damaged(position: int, tmp_path: Path) -> None:
    write_state(tmp_path / "s", ARRAYS)
    data = bytearray((tmp_path / "s").read_bytes())
    data[position] ^= 1
    (tmp_path / "s").write_bytes(data)
    assert read_state(tmp_path / "s") is None


def test_other_files_are_ignored(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)  # type: ignore[arg-type]
    (tmp_path / "empty").touch()
    for path in (tmp_path / "a.npz", tmp_path / "empty", tmp_path, tmp_path / "missing", Path("/dev/zero")):
        assert read_state(path) is None
