"""Gain of a rewrite: the rate of the pipeline before and after, measured in alternation."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from quantkit.ir.graph import Graph
from quantkit.pipelines.execution import Execution

# Duration of one measurement and of its warm-up, and those for a short time of all rounds.
_SECONDS, _WARMUP = 0.4, 0.3
_MIN_SECONDS, _MIN_WARMUP = 0.2, 0.1
_MIN_ROUNDS, _MAX_ROUNDS = 3, 9
# A rewrite is applied only if its median gain is at least this fraction.
MIN_GAIN = 0.03


@dataclass(frozen=True)
class Gain:
    """Elements per second before and after a rewrite, in pairs.

    Attributes:
        before, after: rates in the order of the rounds.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(after / before for before, after in zip(self.before, self.after, strict=True))

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return median(self.ratios)

    @property
    def is_relevant(self) -> bool:
        """True if the median gain is at least `MIN_GAIN`."""
        return self.ratio >= 1 + MIN_GAIN

    @property
    def is_gain(self) -> bool:
        """True if the median gain is relevant and few rounds lack a gain."""
        return self.is_relevant and sum(ratio <= 1 for ratio in self.ratios) <= (len(self.ratios) - 2) // 3

    def __str__(self) -> str:
        return f"{self.ratio:.2f} times the rate ({min(self.ratios):.2f} to {max(self.ratios):.2f})"


def measure_gain(
    before: Graph,
    after: Graph,
    execution: Execution,
    seconds: float,
    warmup: float | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Gain:
    """Measure two pipelines in alternation until the time is used; each round reverses the order.

    If some rounds contradict a relevant median, more rounds follow after this time.

    Args:
        before, after: graphs of datasets with at least one element.
        execution: execution of both.
        seconds: time of all rounds; at least three rounds are measured.
        warmup: duration of each warm-up (default: 0.1 to 0.3 seconds, depending on ``seconds``).
        clock: source of the time in seconds.
    """
    end = clock() + seconds
    available = seconds / (2 * _MIN_ROUNDS)
    duration = min(max(available, _MIN_SECONDS), _SECONDS)
    warmup = min(max(available, _MIN_WARMUP), _WARMUP) if warmup is None else warmup
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(_MAX_ROUNDS):
        if number >= _MIN_ROUNDS and clock() > end:
            gain = Gain(tuple(rates[0]), tuple(rates[1]))
            if gain.is_gain or not gain.is_relevant:
                break
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for index in order:
            rates[index].append(execution.rate((before, after)[index], duration, warmup))
    return Gain(tuple(rates[0]), tuple(rates[1]))
