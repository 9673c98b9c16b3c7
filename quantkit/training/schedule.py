"""Sparsity at each training step, Zhu & Gupta, "To prune, or not to prune", 2017."""

from dataclasses import dataclass

from quantkit.arguments import public, require_fraction, require_natural, require_positive
from quantkit.errors import UsageError


@public
@dataclass(frozen=True)
class PruningSchedule:
    """Sparsity of the kernels at each training step.

        sparsity(step) = final + (initial - final) * (1 - (step - begin) / (end - begin)) ** 3

    from ``begin`` to ``end`` (Zhu & Gupta, 2017, equation 1); ``final`` afterwards. A step is one batch.

    Attributes:
        final: fraction of zeros at the end, from 0 to 1, 1 excluded.
        initial: fraction of zeros at ``begin``.
        begin: first step with zeros.
        end: step that reaches ``final``; the same as ``begin`` for a constant sparsity.
        frequency: steps between two selections of the smallest weights.

    Raises:
        UsageError: a fraction or a step is out of bounds.
    """

    final: float
    initial: float = 0.0
    begin: int = 0
    end: int = 0
    frequency: int = 100

    def __post_init__(self) -> None:
        require_fraction(final=self.final, initial=self.initial)
        require_natural(begin=self.begin, end=self.end)
        require_positive(frequency=self.frequency)
        if self.final == 1 or self.initial > self.final:
            raise UsageError(
                f"the sparsity rises from {self.initial} to {self.final}, and must stay below 1 and not fall",
                hint="for example PruningSchedule(0.8, end=1000)",
            )
        if self.end < self.begin:
            raise UsageError(f"end is {self.end}, and begin is {self.begin}", hint="omit end for a constant sparsity")

    @property
    def is_constant(self) -> bool:
        """True if the sparsity is ``final`` from ``begin`` on."""
        return self.end == self.begin

    def sparsity(self, step: int) -> float:
        """Return the fraction of zeros at a step, counted from 0.

        >>> [round(PruningSchedule(0.8, end=100).sparsity(step), 3) for step in (0, 50, 100, 200)]
        [0.0, 0.7, 0.8, 0.8]
        """
        if step < self.begin:
            return 0.0
        remaining = max(0.0, (self.end - step) / (self.end - self.begin)) if not self.is_constant else 0.0
        return self.final + (self.initial - self.final) * remaining**3

    @property
    def selections(self) -> list[int]:
        """Steps that select the smallest weights.

        >>> PruningSchedule(0.8, begin=10, end=60, frequency=20).selections
        [10, 30, 50, 60]
        """
        return [*range(self.begin, self.end, self.frequency), max(self.begin, self.end)]
