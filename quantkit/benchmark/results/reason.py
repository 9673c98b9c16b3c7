"""One reason why an int8 model is not faster than the float model."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    """Part of the latency of an int8 model that int8 arithmetic does not reduce.

    Attributes:
        kind: one of the kinds in `quantkit.benchmark.profiling.reasons`.
        seconds: measured time in one call.
        text: one clause with the layers and the time.
        command: next command.
    """

    kind: str
    seconds: float
    text: str
    command: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}; next: {self.command}"

    def to_json(self) -> dict[str, Any]:
        """Return the reason as JSON values."""
        return asdict(self)
