"""Proof of a verdict by intervention: the job with one repeated batch, and its input pipeline without the job.

The first run has no cost of input, the second one no cost of computing. Their step times bound the gain of each fix.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.errors import InputError, UsageError
from quantkit.monitor.pipeline import LAUNCHER
from quantkit.monitor.steps import Steps

# Steps of an intervention: as many as the job, but no longer than this time.
MAX_SECONDS = 30.0
MIN_STEPS = 10


@dataclass(frozen=True)
class Proof:
    """Step times of a job and of its interventions.

    Attributes:
        seconds: mean step time of the job.
        repeated_seconds: mean step time with one repeated batch; None if the run failed.
        drained_seconds: mean time of a batch of the input pipeline without the job; None if the run failed.
        steps: number of steps of each intervention.
    """

    seconds: float
    repeated_seconds: float | None
    drained_seconds: float | None
    steps: int

    @property
    def input_gain(self) -> float | None:
        """Maximum speed-up of faster input."""
        return self.seconds / self.repeated_seconds if self.repeated_seconds else None

    @property
    def compute_gain(self) -> float | None:
        """Maximum speed-up of faster computing."""
        return self.seconds / self.drained_seconds if self.drained_seconds else None

    @property
    def overlap_gain(self) -> float | None:
        """Maximum speed-up if input and computing overlap completely."""
        if not self.repeated_seconds or not self.drained_seconds:
            return None
        return self.seconds / max(self.repeated_seconds, self.drained_seconds)

    def __str__(self) -> str:
        rows = [
            ("faster input", "one repeated batch", self.repeated_seconds, self.input_gain),
            ("faster computing", "empty model", self.drained_seconds, self.compute_gain),
        ]
        lines = [f"proof: {self.seconds * 1000:.3g} ms per step; {self.steps} steps of each intervention"]
        for fix, intervention, seconds, gain in rows:
            if seconds is None or gain is None:
                lines.append(f"  {fix}: unknown, the run with {intervention} failed")
            else:
                lines.append(f"  {fix}: at most {gain:.2f}x ({intervention}: {seconds * 1000:.3g} ms per step)")
        if self.overlap_gain:
            lines.append(f"  prefetch (input during computing): at most {self.overlap_gain:.2f}x")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the step times and gains as JSON values."""
        return {
            "seconds": self.seconds,
            "repeated_seconds": self.repeated_seconds,
            "drained_seconds": self.drained_seconds,
            "steps": self.steps,
            "input_gain": self.input_gain,
            "compute_gain": self.compute_gain,
            "overlap_gain": self.overlap_gain,
        }


def count_steps(steps: Steps) -> int:
    """Return the number of steps of an intervention."""
    return max(MIN_STEPS, min(steps.count, int(MAX_SECONDS / max(steps.mean_seconds, 1e-6))))


def parse_pipeline(pipeline: str) -> tuple[Path, str]:
    """Return the file and the function of ``FILE.py:FUNCTION``.

    Raises:
        UsageError: the text has another form.
        InputError: the file does not exist, or does not define the function.
    """
    match = re.fullmatch(r"(.+\.py):([^\W\d]\w*)", pipeline)
    if not match:
        raise UsageError(f"pipeline is {pipeline!r}, and must be FILE.py:FUNCTION", hint="for example train.py:dataset")
    path = Path(match[1])
    if not path.is_file():
        raise InputError(f"{path} does not exist", hint="pass the file that defines the input pipeline")
    if not re.search(rf"^def {match[2]}\b", path.read_text(errors="replace"), re.MULTILINE):
        raise InputError(f"{path} does not define a function {match[2]!r}", hint="pass a function of the module")
    return path, match[2]


def launch_with_pipeline(command: Sequence[str]) -> list[str]:
    """Return the command that runs a Python script with the loader of `pipeline`.

    Raises:
        UsageError: the command does not run a Python script.

    >>> launch_with_pipeline(["python", "-u", "train.py", "--epochs", "2"])[:3]
    ['python', '-u', '-c']
    """
    name = Path(command[0]).name
    script = next((index for index, text in enumerate(command) if index and not text.startswith("-")), 0)
    if not re.fullmatch(r"python[\d.]*", name) or not command[script].endswith(".py"):
        raise UsageError(
            f"pipeline needs a command that runs a Python script, not {command[0]!r}",
            hint="for example -- python train.py",
        )
    return [*command[:script], "-c", LAUNCHER, *command[script:]]
