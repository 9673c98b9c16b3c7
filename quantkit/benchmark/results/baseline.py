"""Change of the latency since a saved benchmark, with its text and JSON forms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from quantkit.benchmark.results.speedup import Speedup
from quantkit.errors import CheckError


@dataclass(frozen=True)
class Change:
    """Change of one row since the saved benchmark.

    Attributes:
        label: name of the model.
        runtime: runtime that ran.
        speedup: speed-up over the saved row; None if it cannot be computed.
        problem: reason for a missing speed-up, or for an unstable latency; else empty.
    """

    label: str
    runtime: str
    speedup: Speedup | None
    problem: str = ""

    def __str__(self) -> str:
        name = f"{self.label} in {self.runtime}"
        if self.speedup is None:
            return f"{name}: no speed-up: {self.problem}"
        advice = f"; {self.problem or self.speedup.advice}" if self.speedup.outcome == "undecided" else ""
        return f"{name}: {self.speedup.verdict}{advice}"

    def to_json(self) -> dict[str, Any]:
        """Return the change as a JSON document."""
        return {
            "label": self.label,
            "runtime": self.runtime,
            "speed_up": None if self.speedup is None else self.speedup.to_json(),
            "problem": self.problem,
        }


@dataclass(frozen=True)
class BaselineComparison:
    """Changes of all rows since a saved benchmark.

    Attributes:
        file: file of the saved benchmark.
        started: start of the saved benchmark (UTC, ISO 8601).
        is_relative: True if the latencies are relative to the workload that ran in both benchmarks.
        changes: change of each measured row.
    """

    file: str
    started: str
    is_relative: bool
    changes: tuple[Change, ...]

    @property
    def lines(self) -> list[str]:
        """Lines of the report."""
        basis = (
            "latencies relative to a matrix product in the same rounds"
            if self.is_relative
            else "no common matrix product in both, so that changes of the machine count as changes of the model"
        )
        heading = f"speed-up over {self.file} of {self.started[:19]} UTC; {basis}:"
        lines = [heading, *(f"  {change}" for change in self.changes)]
        if any(change.speedup is not None and change.speedup.outcome == "undecided" for change in self.changes):
            lines.append(
                "  to decide, compare both files in the same rounds: quantkit benchmark OLD NEW --fail-below RATIO"
            )
        return lines

    def check(self, minimum: float) -> None:
        """Check the speed-up of each row over the saved row.

        Args:
            minimum: smallest accepted speed-up; an interval that contains it is accepted, and so is an unstable row.

        Raises:
            CheckError: the interval of a speed-up lies below the minimum, or a speed-up is missing.
        """
        for change in self.changes:
            name = f"{change.label} in {change.runtime}"
            if change.speedup is None:
                raise CheckError(
                    f"{name} has no speed-up over {self.file} to compare with {minimum:g}: {change.problem}",
                    hint="measure the models of the saved benchmark, or save it again with --save",
                )
            if change.speedup.high < minimum and change.speedup.is_stable:
                raise CheckError(
                    f"{name} is {change.speedup.ratio:.2f}x as fast as in {self.file} "
                    f"({change.speedup.low:.2f} to {change.speedup.high:.2f}), below {minimum:g}",
                    hint="accept the regression with --save in place of --baseline, "
                    "or find the layer with quantkit benchmark --profile",
                )

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON document."""
        return {
            "file": self.file,
            "started": self.started,
            "is_relative": self.is_relative,
            "changes": [change.to_json() for change in self.changes],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the comparison of a JSON document."""
        changes = tuple(_parse_change(change) for change in document["changes"])
        return cls(document["file"], document["started"], document["is_relative"], changes)


def _parse_change(document: Mapping[str, Any]) -> Change:
    speedup = document["speed_up"]
    return Change(
        document["label"],
        document["runtime"],
        None if speedup is None else Speedup.from_json(speedup),
        document["problem"],
    )
