"""Two measurements of one machine: how many times as fast, and how surely.

The speed-up is the first's time over this one's: above 1, this one is faster. Of models that took turns it
is taken within each round, and the median of the rounds is shown.
"""

from dataclasses import asdict, dataclass
from typing import Any, Self

from quantkit.benchmark.bootstrap import paired_ratio, unpaired_ratio
from quantkit.benchmark.measurement import Context, Measurement
from quantkit.errors import UsageError


@dataclass(frozen=True)
class Comparison:
    """A speed-up with its 95 % interval.

    Attributes:
        ratio: how many times as fast as the first; higher is better.
        low, high: bootstrap interval.
        is_paired: whether both ran in the same rounds, so that disturbances cancel.
    """

    ratio: float
    low: float
    high: float
    is_paired: bool

    @classmethod
    def of(cls, first: Measurement, other: Measurement) -> Self:
        """Compare a measurement with the first.

        Raises:
            UsageError: they come from unlike machines, or differ in how much one call computes.
        """
        _check_alike(first.context, other.context)
        is_paired = bool(first.context.started) and first.context.started == other.context.started
        estimate = paired_ratio if is_paired else unpaired_ratio
        ratio, (low, high) = estimate(first.blocks, other.blocks, first.context.seed)
        return cls(ratio, min(low, ratio), max(high, ratio), is_paired)

    @property
    def is_different(self) -> bool:
        """Whether the interval excludes 1."""
        return not self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """The comparison in words.

        >>> Comparison(1.25, 1.21, 1.3, True).verdict
        '1.25x as fast (1.21 to 1.30)'
        >>> Comparison(1.01, 0.98, 1.03, True).verdict
        'no difference shown (0.98 to 1.03)'
        """
        interval = f"({self.low:.2f} to {self.high:.2f})"
        return f"{self.ratio:.2f}x as fast {interval}" if self.is_different else f"no difference shown {interval}"

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON knows it."""
        return asdict(self) | {"is_different": self.is_different}


def _check_alike(first: Context, other: Context) -> None:
    here = other.machine.likeness
    for fact, value in first.machine.likeness.items():
        if here[fact] != value:
            raise UsageError(
                f"the measurements come from unlike machines: {fact} is {value} and {here[fact]}",
                hint="measure both on one machine, in one call of quantkit benchmark",
            )
    if first.batch != other.batch:
        raise UsageError(
            f"the measurements differ in batch: {first.batch} and {other.batch}",
            hint="give both the same --batch",
        )
