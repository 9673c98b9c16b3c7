"""Marks of a job's steps, for the monitor: no effect in a job that is not monitored.

    for batch in quantkit.monitor.batches(dataset):
        with quantkit.monitor.step():
            train(batch)

Each mark is one write of 9 bytes to a file that the monitor reads: a letter, and the monotonic clock.
"""

import itertools
import os
import struct
from collections.abc import Iterable, Iterator
from time import monotonic
from types import TracebackType
from typing import TypeVar

# Folder of the marks, and the intervention of --prove with the number of its batches: ``repeat:100`` or ``drain:100``.
FOLDER_VARIABLE = "QUANTKIT_MONITOR_FOLDER"
MODE_VARIABLE = "QUANTKIT_MONITOR_MODE"
RECORD = struct.Struct("<cd")
STEP, STEP_END, INPUT, INPUT_END, HOOK = b"s", b"S", b"i", b"I", b"h"

Batch = TypeVar("Batch")


class _Marks:
    """File of the marks of this process."""

    def __init__(self) -> None:
        self._folder = os.environ.get(FOLDER_VARIABLE, "")
        self._pid = 0
        self._file = -1

    def add(self, kind: bytes) -> None:
        """Write a mark with the present time."""
        if not self._folder:
            return
        if self._pid != os.getpid():  # first mark, or first mark after a fork
            self._open()
        os.write(self._file, RECORD.pack(kind, monotonic()))

    def _open(self) -> None:
        self._pid = os.getpid()
        path = os.path.join(self._folder, f"marks-{self._pid}")
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:  # the monitor ended before the job
            self._folder = ""
            self._file = os.open(os.devnull, os.O_WRONLY)


_MARKS = _Marks()


class _StepMark:
    """Context manager that marks the end of a step."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _MARKS.add(STEP_END)


_STEP = _StepMark()


def step() -> _StepMark:
    """Mark the start of a step of the job: one batch of training or inference.

    As a context manager, it also marks the end of the step, so that the gap before each step is known. The process
    needs no other change; without ``quantkit monitor`` a call takes less than a microsecond.
    """
    _MARKS.add(STEP)
    return _STEP


def mark_hook() -> None:
    """Mark that the monitor found the input pipeline of the job, in which it can intervene."""
    _MARKS.add(HOOK)


def batches(pipeline: Iterable[Batch]) -> Iterator[Batch]:
    """Iterate over an input pipeline and mark the time in which the job waits for input.

    With ``quantkit monitor --prove`` it also runs the two interventions: the first batch again and again, and the
    input pipeline without the job.

    Args:
        pipeline: iterable of batches.

    Raises:
        SystemExit: an intervention has run; the job ends without saving its outputs.
    """
    mode, _, count = os.environ.get(MODE_VARIABLE, "").partition(":")
    batches = _mark_batches(pipeline)
    if mode == "repeat":
        first = next(batches)
        yield from _mark_batches(itertools.repeat(first, int(count)))
        raise SystemExit(0)
    if mode == "drain":
        for _ in itertools.islice(batches, int(count)):
            pass
        raise SystemExit(0)
    yield from batches


def _mark_batches(pipeline: Iterable[Batch]) -> Iterator[Batch]:
    iterator = iter(pipeline)
    while True:
        _MARKS.add(INPUT)
        try:
            batch = next(iterator)
        except StopIteration:
            return
        _MARKS.add(INPUT_END)
        yield batch
