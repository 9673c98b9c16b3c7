"""Steps of a job from its marks: the time of each step, and the gap before it."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from quantkit.monitor.markers import HOOK, INPUT, INPUT_END, RECORD, STEP, STEP_END

# The first steps load libraries, compile and fill buffers.
WARMUP_STEPS = 2


@dataclass(frozen=True)
class Steps:
    """Marked steps of the process that spends the largest fraction of its time in gaps, without the first steps.

    Attributes:
        count: number of marked steps, those of the warm-up included.
        seconds: median time from one step to the next.
        gap: median time before a step in which the job waits for input; None if the marks do not show it.
        longest_gap: longest of these times.
        gap_fraction: fraction of the time of all steps in gaps.
        mean_seconds: mean time from one step to the next.
        start, end: monotonic clock at the first and the last mark after the warm-up.
        has_input: interventions are possible: the job marks its input with `batches`, or is a Keras ``fit``.
    """

    count: int
    seconds: float
    mean_seconds: float
    start: float
    end: float
    has_input: bool = False
    gap: float | None = None
    longest_gap: float | None = None
    gap_fraction: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the steps as JSON values."""
        return {
            "count": self.count,
            "seconds": self.seconds,
            "mean_seconds": self.mean_seconds,
            "gap_seconds": self.gap,
            "longest_gap_seconds": self.longest_gap,
            "gap_fraction": self.gap_fraction,
        }


def read_steps(folder: Path) -> Steps | None:
    """Return the steps that the processes of a job marked; None if there are fewer than two.

    Args:
        folder: folder with the marks of each process.
    """
    files = sorted(folder.glob("marks-*"))
    steps = [each for each in (summarize_marks(read_marks(path)) for path in files) if each]
    return max(steps, key=lambda each: (each.gap_fraction or 0.0, each.count), default=None)


def read_marks(path: Path) -> list[tuple[bytes, float]]:
    """Return the complete records of a file."""
    data = path.read_bytes()
    return list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))


def summarize_marks(marks: Iterable[tuple[bytes, float]]) -> Steps | None:
    """Return the steps of one process.

    The gap before a step is the time after the end of the step before, or the time in `batches` if no end is marked.
    """
    marks = list(marks)
    kinds = {kind for kind, _ in marks}
    if STEP_END in kinds:
        starts, gaps = _split(marks, STEP, STEP_END)
    else:
        starts, gaps = _split(marks, INPUT_END if INPUT in kinds else STEP, INPUT)
    if len(starts) < 2:
        return None
    first = min(WARMUP_STEPS, len(starts) - 2)
    step_starts, step_gaps = starts[first:], gaps[first + 1 :]
    durations = [end - start for start, end in pairwise(step_starts)]
    elapsed = step_starts[-1] - step_starts[0]
    has_gaps = bool(kinds & {INPUT, STEP_END})
    return Steps(
        count=len(starts),
        seconds=median(durations),
        mean_seconds=elapsed / len(durations),
        start=step_starts[0],
        end=step_starts[-1],
        has_input=not kinds.isdisjoint({INPUT, HOOK}),
        gap=median(step_gaps) if has_gaps else None,
        longest_gap=max(step_gaps) if has_gaps else None,
        gap_fraction=sum(step_gaps) / elapsed if has_gaps and elapsed else None,
    )


def _split(marks: list[tuple[bytes, float]], start_kind: bytes, gap_kind: bytes) -> tuple[list[float], list[float]]:
    """Return the start of each step, and the length of the gap before it."""
    starts: list[float] = []
    gaps: list[float] = []
    gap_start = None
    for kind, seconds in marks:
        if kind == gap_kind:
            gap_start = seconds
        elif kind == start_kind:
            starts.append(seconds)
            gaps.append(0.0 if gap_start is None else seconds - gap_start)
            gap_start = None
    return starts, gaps
