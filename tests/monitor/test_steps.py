"""Marks of steps, and the gap before each step."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import quantkit as qk
from quantkit.monitor import batches, markers, step
from quantkit.monitor.markers import FOLDER_VARIABLE, MODE_VARIABLE
from quantkit.monitor.steps import read_marks, read_steps, summarize_marks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the marks; the clock advances by one second in each call."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(markers, "_MARKS", markers._Marks())
    monkeypatch.setattr(markers, "monotonic", itertools.count().__next__)
    return tmp_path


def kinds(folder: Path) -> bytes:
    return b"".join(kind for kind, _ in read_marks(folder / f"marks-{os.getpid()}"))


def test_marks_have_no_effect_without_the_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(markers, "_MARKS", markers._Marks())
    monkeypatch.setattr(markers, "monotonic", None)
    with step():
        assert list(batches([1, 2])) == [1, 2]


def test_the_package_and_the_function_have_the_marks() -> None:
    assert qk.monitor.step is step
    assert qk.monitor.batches is batches


def test_a_step_is_a_mark_or_a_context(folder: Path) -> None:
    for batch in batches(range(2)):
        with step():
            assert batch < 2
    step()
    assert kinds(folder) == b"iIsS" * 2 + b"is"


def test_a_forked_process_has_its_own_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step()
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    step()
    assert len(list(folder.glob("marks-*"))) == 2


def test_marks_end_when_the_folder_is_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers._MARKS, "_folder", str(folder / "missing"))
    step()
    step()
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("mode", "num_read", "trained", "marks"),
    [
        ("repeat:3", 1, [0, 0, 0], b"iI" + b"iI" * 3 + b"i"),
        ("drain:4", 4, [], b"iI" * 4),
        ("drain:99", 5, [], b"iI" * 5 + b"i"),
    ],
)
def test_interventions(
    mode: str, num_read: int, trained: list[int], marks: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MODE_VARIABLE, mode)
    read: list[int] = []
    used: list[int] = []

    def dataset() -> Iterator[int]:
        for number in range(5):
            read.append(number)
            yield number

    with pytest.raises(SystemExit) as caught:
        used.extend(batches(dataset()))
    assert caught.value.code == 0
    assert len(read) == num_read
    assert used == trained
    assert kinds(folder) == marks


def test_gap_is_the_time_between_steps() -> None:
    marks = [(kind, float(seconds)) for n in range(10) for kind, seconds in ((b"s", 4 * n), (b"S", 4 * n + 3))]
    steps = summarize_marks(marks)
    assert steps is not None
    assert (steps.count, steps.seconds, steps.gap, steps.longest_gap, steps.gap_fraction) == (10, 4.0, 1.0, 1.0, 0.25)
    assert not steps.has_input


def test_gap_is_the_time_in_batches() -> None:
    marks = [(kind, float(seconds)) for n in range(10) for kind, seconds in ((b"i", 4 * n), (b"I", 4 * n + 3))]
    steps = summarize_marks(marks)
    assert steps is not None
    assert (steps.seconds, steps.gap, steps.gap_fraction, steps.has_input) == (4.0, 3.0, 0.75, True)


def test_gap_is_unknown_without_ends() -> None:
    steps = summarize_marks([(b"s", float(second)) for second in range(6)])
    assert steps is not None
    assert (steps.seconds, steps.gap, steps.gap_fraction) == (1.0, None, None)


def test_warmup_steps_do_not_count() -> None:
    slow = [(b"s", 0.0), (b"S", 50.0), (b"s", 100.0), (b"S", 150.0)]
    fast = [(kind, 200.0 + seconds) for n in range(8) for kind, seconds in ((b"s", 4 * n), (b"S", 4 * n + 4))]
    steps = summarize_marks(slow + fast)
    assert steps is not None
    assert steps.longest_gap == 0.0
    assert steps.start == 200.0


def test_process_with_the_largest_gap_is_reported(tmp_path: Path) -> None:
    for name, gap in (("marks-1", 0.1), ("marks-2", 0.5)):
        marks = [(kind, n + offset) for n in range(8) for kind, offset in ((b"s", 0.0), (b"S", 1 - gap))]
        data = b"".join(markers.RECORD.pack(*mark) for mark in marks)
        (tmp_path / name).write_bytes(data + b"incomplete"[:5])
    steps = read_steps(tmp_path)
    assert steps is not None
    assert steps.gap == pytest.approx(0.5)
    assert read_steps(tmp_path / "missing") is None
