"""Gain of a rewrite: the rates of pipelines, measured in rounds.

The measurements of one round are neighbors in time, so that other work on the machine changes all of them: pipelines
are compared by the ratios of each round. Each round reverses or rotates the order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from time import perf_counter
from typing import Any

from quantkit.pipelines.execution import Execution

# Longest and shortest duration of one measurement, and of its warm-up.
_MAX_SECONDS, _MAX_WARMUP, _MIN_SECONDS = 0.4, 0.3, 0.02
_MIN_ROUNDS, _RACE_ROUNDS, _MAX_ROUNDS = 3, 5, 9
# A rewrite that is measured alone is applied only if its median gain is at least this fraction.
MIN_GAIN = 0.03
# Ratio that needs no further rounds.
_CLEAR_RATIO = 1.5
# Largest gain over a pipeline with fewer rewrites that does not count in a race.
_TIE = 0.01
# Distance from the fastest pipeline at which a pipeline leaves a race, after the first rounds and after later ones.
_MARGINS = (0.6, 0.3, 0.15, 0.08, 0.05)


@dataclass(frozen=True)
class Gain:
    """Elements per second before and after a rewrite, in pairs.

    Attributes:
        before, after: rates in the order of the rounds.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float]) -> "Gain":
        """Return the gain in the rounds that both pipelines ran."""
        rounds = min(len(before), len(after))
        return cls(tuple(before[:rounds]), tuple(after[:rounds]))

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(after / before for before, after in zip(self.before, self.after, strict=True))

    @property
    def ratio(self) -> float:
        """Median of the ratios; the lower one of an even number."""
        return median_low(self.ratios)

    @property
    def middle_rates(self) -> tuple[float, float]:
        """Rates before and after in the round whose ratio is the median."""
        rounds = zip(self.before, self.after, strict=True)
        return sorted(rounds, key=lambda rates: rates[1] / rates[0])[(len(self.before) - 1) // 2]

    @property
    def objection(self) -> str:
        """Reason why a rewrite without a shown gain is not applied."""
        return "the time budget is too short to show a gain" if self.is_relevant else "no gain"

    @property
    def is_relevant(self) -> bool:
        """True if the median gain is at least `MIN_GAIN`."""
        return self.ratio >= 1 + MIN_GAIN

    @property
    def is_gain(self) -> bool:
        """True if the median gain is relevant and few rounds lack a gain; a clear gain if there are few rounds."""
        if len(self.ratios) < _MIN_ROUNDS:
            return min(self.ratios) >= _CLEAR_RATIO
        return self.is_relevant and sum(ratio <= 1 for ratio in self.ratios) <= (len(self.ratios) - 2) // 3

    @property
    def is_clear(self) -> bool:
        """True if no further round can change the decision: a large gain, or a loss in all rounds."""
        enough = len(self.ratios) >= _MIN_ROUNDS
        return enough and (min(self.ratios) >= _CLEAR_RATIO or max(self.ratios) <= 1)

    def __str__(self) -> str:
        return f"{self.ratio:.2f} times the rate ({min(self.ratios):.2f} to {max(self.ratios):.2f})"


def measure_gain(
    before: Any, after: Any, execution: Execution, seconds: float, clock: Callable[[], float] = perf_counter
) -> Gain:
    """Measure two pipelines in alternation until the gain is clear or the time is used.

    If some rounds contradict a relevant median, more rounds follow after this time.

    Args:
        before, after: results of `Execution.open`.
        execution: execution of both.
        seconds: time of all rounds; three rounds may take twice as long, else there are fewer.
        clock: source of the time in seconds.
    """
    start = clock()
    duration, warmup = _durations(seconds, 2 * _MIN_ROUNDS)
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(_MAX_ROUNDS):
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            rates[index].append(execution.rate((before, after)[index], duration, warmup))
        gain, passed = Gain(tuple(rates[0]), tuple(rates[1])), clock() - start
        is_unclear = number < _MIN_ROUNDS - 1 or (gain.is_relevant and not gain.is_gain)
        if gain.is_clear or passed > (2 if is_unclear else 1) * seconds:
            break
    return gain


def race(
    pipelines: Sequence[Any], execution: Execution, seconds: float, clock: Callable[[], float] = perf_counter
) -> list[tuple[float, ...]]:
    """Measure several pipelines in rounds; those that are clearly slower than the fastest leave the race.

    Args:
        pipelines: results of `Execution.open`.
        execution: execution of all.
        seconds: time of all rounds; there is at least one, and an unclear race may take twice as long.
        clock: source of the time in seconds.

    Returns:
        The rates of each pipeline in the order of the rounds, fewer for those that left the race.
    """
    start = clock()
    duration, warmup = _durations(seconds, len(pipelines) * _RACE_ROUNDS)
    rates: list[list[float]] = [[] for _ in pipelines]
    active = list(range(len(pipelines)))
    for number in range(_MAX_ROUNDS):
        first = number % len(active)
        for index in active[first:] + active[:first]:
            rates[index].append(execution.rate(pipelines[index], duration, warmup))
        margin = _MARGINS[min(number, len(_MARGINS) - 1)]
        fastest = _fastest(rates, active)
        active = [index for index in active if max(Gain.of(rates[fastest], rates[index]).ratios) > 1 - margin]
        gains = [Gain.of(rates[index], rates[fastest]) for index in active if index < fastest]
        is_unclear = any(gain.is_relevant and not gain.is_gain for gain in gains)
        if len(active) == 1 or clock() - start > (2 if is_unclear else 1) * seconds:
            break
    return [tuple(values) for values in rates]


def choose(rates: Sequence[Sequence[float]]) -> int:
    """Return the index of the first pipeline of a race that is about as fast as the fastest one.

    >>> choose([(1.0, 1.0), (2.0, 1.99), (2.0, 2.0)])
    1
    """
    rounds = max(map(len, rates))
    finalists = [index for index, values in enumerate(rates) if len(values) == rounds]
    fastest = _fastest(rates, finalists)
    return next(index for index in finalists if Gain.of(rates[index], rates[fastest]).ratio < 1 + _TIE)


def _fastest(rates: Sequence[Sequence[float]], active: Sequence[int]) -> int:
    return max(active, key=lambda index: median(rates[index]))


def _durations(seconds: float, count: int) -> tuple[float, float]:
    """Return the duration of a measurement and of its warm-up, of which ``count`` fit into the time."""
    available = max(seconds / count / 2, _MIN_SECONDS)
    return min(available, _MAX_SECONDS), min(available, _MAX_WARMUP)
