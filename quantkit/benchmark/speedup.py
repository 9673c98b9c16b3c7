"""Speed-up of one measurement over another on the same machine, with its uncertainty.

    speed-up = seconds of the first / seconds of the other        above 1: the other is faster

If both models ran in the same rounds, the speed-up is the median of the speed-ups of the rounds.
"""

from dataclasses import asdict, dataclass
from typing import Any, Self

from quantkit.benchmark.bootstrap import paired_ratio, unpaired_ratio
from quantkit.benchmark.measurement import Measurement, MeasurementContext
from quantkit.errors import UsageError


@dataclass(frozen=True)
class Speedup:
    """Speed-up with its 95 % confidence interval.

    Attributes:
        ratio: latency of the first model divided by that of the other; higher is better.
        low, high: limits of the bootstrap interval.
        is_paired: True if both models ran in the same rounds, so that disturbances cancel.
    """

    ratio: float
    low: float
    high: float
    is_paired: bool

    @classmethod
    def of(cls, first: Measurement, other: Measurement) -> Self:
        """Compare a measurement with the first.

        Raises:
            UsageError: the machines or the batch sizes differ.
        """
        _check_comparable(first.context, other.context)
        is_paired = bool(first.context.started) and first.context.started == other.context.started
        estimate = paired_ratio if is_paired else unpaired_ratio
        ratio, (low, high) = estimate(first.blocks, other.blocks, first.context.seed)
        return cls(ratio, min(low, ratio), max(high, ratio), is_paired)

    @property
    def is_significant(self) -> bool:
        """True if the interval excludes 1."""
        return not self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """Sentence for a report.

        >>> Speedup(1.25, 1.21, 1.3, True).verdict
        '1.25x as fast (95 % CI 1.21-1.30)'
        >>> Speedup(1.01, 0.98, 1.03, True).verdict
        'no significant difference (95 % CI 0.98-1.03)'
        """
        interval = f"(95 % CI {self.low:.2f}-{self.high:.2f})"
        return (
            f"{self.ratio:.2f}x as fast {interval}" if self.is_significant else f"no significant difference {interval}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the speed-up as a JSON document."""
        return asdict(self) | {"is_different": self.is_significant}


def _check_comparable(first: MeasurementContext, other: MeasurementContext) -> None:
    facts = other.machine.identity
    for name, value in first.machine.identity.items():
        if facts[name] != value:
            raise UsageError(
                f"the measurements come from different machines: {name} is {value} and {facts[name]}",
                hint="measure both on one machine, in one call of quantkit benchmark",
            )
    if first.batch != other.batch:
        raise UsageError(
            f"the measurements differ in batch size: {first.batch} and {other.batch}",
            hint="use the same --batch for both",
        )
