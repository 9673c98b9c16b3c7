"""Reason for the end of a benchmark, and the precision that it reached."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

StopKind = Literal["clear", "interval width", "processes", "time budget", "interrupted"]


@dataclass(frozen=True)
class Stop:
    """End of a benchmark.

    Attributes:
        kind: ``clear``: more processes are not expected to change an outcome; ``interval width``: each interval is as
            narrow as requested; ``processes``: the given or the largest number of processes; ``time budget``;
            ``interrupted``.
        processes: finished processes of each model.
        width: width of the widest interval relative to its lower limit; None without an interval.
        requested_width: requested width; None without a request.
    """

    kind: StopKind
    processes: int
    width: float | None = None
    requested_width: float | None = None

    @property
    def lines(self) -> list[str]:
        """Sentence on the requested width; empty without a request.

        >>> Stop("interval width", 10, 0.017, 0.02).lines
        ['stopped after 10 processes per model: the widest interval is 1.7 %, and 2 % was requested']
        >>> Stop("time budget", 7, 0.031, 0.02).lines
        ['time budget exhausted after 7 processes per model: the widest interval is 3.1 %, and 2 % was requested']
        """
        if self.requested_width is None:
            return []
        reason = "stopped" if self.kind in ("interval width", "clear") else f"{self.kind} exhausted"
        reason = "interrupted" if self.kind == "interrupted" else reason
        width = "there is no interval" if self.width is None else f"the widest interval is {100 * self.width:.2g} %"
        return [
            f"{reason} after {self.processes} processes per model: {width}, and {100 * self.requested_width:.2g} % was "
            "requested"
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the end as JSON values."""
        return asdict(self)
