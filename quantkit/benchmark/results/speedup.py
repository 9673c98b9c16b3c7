"""Speed-up of one measurement over another on the same machine, with its uncertainty.

    speed-up = seconds of the first / seconds of the other        above 1: the other is faster

Each process of both models contributes the speed-up of its median calls (if both ran in the same rounds, the median
over the rounds) and that of its undisturbed calls, the quantile `UNDISTURBED`; the interval is that of the mean over
processes. On an idle machine both are equal. Other programs delay a part of the calls and scatter the medians: if the
median calls take longer than the undisturbed ones by more than `DISTURBED`, the speed-up is that of the undisturbed
calls. This choice depends neither on the speed-up nor on its spread between processes, so that the interval keeps its
coverage. If the two intervals exclude each other, other programs delay one model more than the other, and the interval
contains both. There are four outcomes:

    same         the interval lies within 1 / (1 + MARGIN) and 1 + MARGIN
    faster       the interval lies above 1
    slower       the interval lies below 1
    undecided    none of them, too few processes, or one of two benchmarks is unstable

An undecided comparison also ends after ten processes, when the estimate of `Speedup.needed_processes` exceeds
`MOST_PROCESSES`. Its interval contains 1, so that this stop is never a wrong decision: in simulations, comparisons of
equal models end after 12 processes instead of 20, intervals cover as often, and up to 9 % of the comparisons that 20
processes would decide stay undecided.

Two benchmarks find the machine in two states: another clock frequency, other programs. A fixed workload in the rounds
of both shows the change, and a model may follow it or not. The interval over a saved benchmark therefore contains that
of the latencies relative to the workload, and that of the latencies themselves.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from itertools import chain
from math import ceil, exp, log
from statistics import fmean, median
from typing import Any, Literal, Self

import numpy as np

from quantkit.benchmark.results.measurement import Measurement, MeasurementContext
from quantkit.benchmark.statistics.bootstrap import Blocks, Estimate, paired_ratio, unpaired_ratio
from quantkit.benchmark.statistics.student import LOOKS, MIN_PROCESSES, geometric_mean, ratio_of_means
from quantkit.errors import UsageError

# Two latencies within this fraction of each other are the same.
MARGIN = 0.02
# Maximum number of processes that is worth a recommendation: that of the most precise benchmark.
MOST_PROCESSES = LOOKS[-1]
# Difference that a quiet machine shows in fewer than `MOST_PROCESSES`, and one that only a busy machine hides.
QUIET, BUSY = 0.1, 0.5
# Quantile of the latency of calls that other programs do not delay.
UNDISTURBED = 0.05
# Relative difference of the median calls from the undisturbed calls on a busy machine.
DISTURBED = 0.05
# Delayed calls move the quantile `UNDISTURBED`, too: by less than this fraction of the difference of both speed-ups.
DISTURBANCE = 0.1
# An interval that is this much narrower than the distance from 1 stays on its side when more processes run.
CLEAR = 2.0
# The same between two of `LOOKS`, and for fewer processes than the first one, whose spread is hardly known.
CLEAR_BETWEEN = 2.5
EARLY_CLEAR = 4.0

Outcome = Literal["faster", "slower", "same", "undecided"]


@dataclass(frozen=True)
class Speedup:
    """Speed-up with its 95 % confidence interval.

    Attributes:
        ratio: latency of the first model divided by that of the other; higher is better.
        low, high: limits of the interval.
        is_paired: True if both models ran in the same rounds, so that disturbances cancel.
        processes: number of processes of each model; with fewer than `MIN_PROCESSES`, the interval lacks the spread
            between processes.
        is_undisturbed: True for the speed-up of the undisturbed calls, because other programs delayed the median ones.
        state: factor by which the change of the machine between two benchmarks widens the interval.
        is_stable: False if the latency of one of two benchmarks is not stable, so that the outcome is undecided.
    """

    ratio: float
    low: float
    high: float
    is_paired: bool
    processes: int
    is_undisturbed: bool = False
    state: float = 1.0
    is_stable: bool = True

    @classmethod
    def of(cls, first: Measurement, other: Measurement) -> Self:
        """Compare a measurement with the first.

        Raises:
            UsageError: the machines or the batch sizes differ.
        """
        _check_comparable(first.context, other.context)
        is_paired = bool(first.context.started) and first.context.started == other.context.started
        processes = min(len(first.processes), len(other.processes))
        (ratio, (low, high)), is_undisturbed = _estimate(first, other, processes, is_paired=is_paired)
        return cls(ratio, min(low, ratio), max(high, ratio), is_paired, processes, is_undisturbed)

    @classmethod
    def over_saved(
        cls, saved: Measurement, present: Measurement, workloads: tuple[Measurement, Measurement] | None = None
    ) -> Self:
        """Compare measurements of two benchmarks of one machine.

        Args:
            saved, present: measurements of the earlier and of the present benchmark.
            workloads: measurements of one fixed workload in the rounds of the saved and of the present benchmark: the
                latencies are compared relative to it, and its change widens the interval.
        """
        measurements = (saved, present, *(workloads or ()))
        processes = min(len(measurement.processes) for measurement in measurements)
        (ratio, (low, high)), is_undisturbed = _estimate(saved, present, processes, is_paired=False)
        state = 1.0
        if workloads is not None and processes >= MIN_PROCESSES:
            pairs = list(zip((saved, present), workloads, strict=True))
            typical = ratio_of_means(*(_relative_medians(*pair) for pair in pairs))
            fast = ratio_of_means(*(_relative_quantiles(*pair) for pair in pairs))
            (ratio, own), is_undisturbed = _choose(typical, fast, _disturbance(saved, present))
            low, high = min(low, own[0]), max(high, own[1])
            state = high / low * own[0] / own[1]
        is_stable = saved.summary.is_stable and present.summary.is_stable
        return cls(ratio, min(low, ratio), max(high, ratio), False, processes, is_undisturbed, state, is_stable)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the speed-up of a JSON document."""
        names = [attribute.name for attribute in fields(cls) if attribute.name in document]
        return cls(**{name: document[name] for name in names})

    @property
    def outcome(self) -> Outcome:
        if self.processes < MIN_PROCESSES or not self.is_stable:
            return "undecided"
        if self.low >= 1 / (1 + MARGIN) and self.high <= 1 + MARGIN:
            return "same"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "undecided"

    @property
    def is_clear(self) -> bool:
        """True if more processes are not expected to change the outcome."""
        if self.processes >= MIN_PROCESSES and self._is_limited_by_state:
            return True
        if self.outcome in ("faster", "slower"):
            clear = CLEAR if self.processes in LOOKS else CLEAR_BETWEEN
            clear = EARLY_CLEAR if self.processes < LOOKS[0] else clear
            return abs(log(self.ratio)) >= clear * log(self.high / self.low) / 2
        # A saved benchmark ended after any number of processes.
        is_look = self.processes in LOOKS if self.is_paired else self.processes >= LOOKS[0]
        return is_look and (self.outcome == "same" or self._is_undecidable)

    @property
    def _is_undecidable(self) -> bool:
        """True if no reasonable number of processes is expected to decide; fewer than ten do not show that."""
        return self.processes >= LOOKS[1] and self.needed_processes > MOST_PROCESSES

    @property
    def _is_limited_by_state(self) -> bool:
        """True if the change of the machine between two benchmarks is the larger part of the interval."""
        return bool(self.state**2 > self.high / self.low)

    @property
    def smallest_difference(self) -> float:
        """Smallest difference that the interval can distinguish from none, as a fraction of the latency."""
        return float((self.high / self.low) ** 0.5 - 1)

    @property
    def width(self) -> float:
        """Width of the interval relative to its lower limit."""
        return self.high / self.low - 1

    @property
    def needed_processes(self) -> int:
        """Estimated number of processes that decide between faster, slower and same."""
        if self.processes < MIN_PROCESSES:
            return MIN_PROCESSES
        distance, half = abs(log(self.ratio)), log(self.high / self.low) / 2
        precision = max(distance, log(1 + MARGIN) - distance)
        return max(self.processes + 1, ceil(self.processes * (half / precision) ** 2))

    @property
    def verdict(self) -> str:
        """Phrase for a report.

        >>> Speedup(1.25, 1.21, 1.3, True, 5).verdict
        '1.25x as fast (95 % CI 1.21-1.30)'
        >>> Speedup(1.01, 1.0, 1.02, True, 5).verdict
        'same within 2 % (95 % CI 1.00-1.02)'
        >>> Speedup(1.3, 0.92, 9.95, True, 5).verdict
        'undecided (95 % CI 0.92-9.95)'
        >>> Speedup(1.3, 1.29, 1.31, True, 1).verdict
        'undecided (1.30x as fast in 1 process)'
        """
        if self.processes < MIN_PROCESSES:
            noun = "process" if self.processes == 1 else "processes"
            return f"undecided ({self.ratio:.2f}x as fast in {self.processes} {noun})"
        phrases = {"same": f"same within {100 * MARGIN:.0f} %", "undecided": "undecided"}
        phrase = phrases.get(self.outcome) or f"{self.ratio:.2f}x as fast"
        return f"{phrase} (95 % CI {self.low:.2f}-{self.high:.2f})"

    @property
    def advised_processes(self) -> int | None:
        """Number of processes to measure again with; None if more processes would not decide."""
        count = self.needed_processes
        is_busy = self.processes >= MIN_PROCESSES and self.smallest_difference > BUSY
        return None if self._is_limited_by_state or is_busy or count > MOST_PROCESSES else count

    @property
    def is_negligible(self) -> bool:
        """True if the difference is undecided and so small that no reasonable number of processes decides it."""
        is_decidable = self.advised_processes is not None or self._is_limited_by_state
        return self.outcome == "undecided" and not (is_decidable or self.is_undisturbed) and self._limit <= QUIET

    @property
    def _limit(self) -> float:
        """Upper limit of the difference, as a fraction of the lower latency."""
        return max(self.high, 1 / self.low) - 1

    @property
    def advice(self) -> str:
        """Clause on the smallest visible difference, and the measurement that is expected to decide.

        >>> Speedup(1.05, 0.95, 1.16, True, 5).advice
        'differences below 11 % are not visible in 5 processes per model: measure again with --processes 21'
        >>> Speedup(1.3, 1.2, 1.4, True, 1).advice
        'the spread between processes is unknown: measure again with --processes 3'
        >>> Speedup(1.01, 0.96, 1.05, True, 20).advice
        'the difference is below 5 %, too small to decide in 40 processes per model'
        >>> Speedup(1.01, 0.3, 3.4, True, 20).advice
        'differences below 237 % are not visible in 20 processes per model: measure on a quiet machine'
        """
        if self.processes < MIN_PROCESSES:
            return f"the spread between processes is unknown: measure again with --processes {MIN_PROCESSES}"
        limit = ceil(100 * self._limit - 1e-9)
        if self.is_negligible:
            return f"the difference is below {limit} %, too small to decide in {MOST_PROCESSES} processes per model"
        visible = f"differences below {100 * self.smallest_difference:.0f} % are not visible"
        if self._is_limited_by_state:
            return f"{visible}, because the machine has another speed than in the saved benchmark"
        if self._is_undecidable and self._limit <= QUIET:
            return f"the difference is below {limit} %: for a smaller limit, measure on a quiet machine"
        if self.advised_processes is None:
            return f"{visible} in {self.processes} processes per model: measure on a quiet machine"
        count = self.advised_processes
        return f"{visible} in {self.processes} processes per model: measure again with --processes {count}"

    def to_json(self) -> dict[str, Any]:
        """Return the speed-up as a JSON document."""
        return asdict(self) | {
            "outcome": self.outcome,
            "margin": MARGIN,
            "smallest_difference": self.smallest_difference,
            "is_different": self.outcome in ("faster", "slower"),
        }


def _estimate(first: Measurement, other: Measurement, processes: int, *, is_paired: bool) -> tuple[Estimate, bool]:
    """Return the speed-up, and True if it is that of the undisturbed calls."""
    if processes < MIN_PROCESSES:
        estimate = paired_ratio if is_paired else unpaired_ratio
        return estimate(first.blocks, other.blocks, first.context.seed), False
    undisturbed = [[_quantile(blocks) for blocks in model.processes] for model in (first, other)]
    if is_paired:
        typical = geometric_mean(list(map(_median_ratio, first.processes, other.processes)))
        fast = geometric_mean([upper / lower for upper, lower in zip(*undisturbed, strict=False)])
    else:
        typical = ratio_of_means(*([_median(blocks) for blocks in model.processes] for model in (first, other)))
        fast = ratio_of_means(*undisturbed)
    return _choose(typical, fast, _disturbance(first, other))


def _choose(typical: Estimate, fast: Estimate, disturbance: float) -> tuple[Estimate, bool]:
    """Return the speed-up of the median calls or of the undisturbed ones, and True for the latter."""
    shift = exp(DISTURBANCE * abs(log(typical[0] / fast[0])))
    (low, high), (fast_low, fast_high) = typical[1], (fast[1][0] / shift, fast[1][1] * shift)
    if low > fast_high or fast_low > high:
        return (typical[0], (min(low, fast_low), max(high, fast_high))), False
    return ((fast[0], (fast_low, fast_high)), True) if disturbance > DISTURBED else (typical, False)


def _disturbance(*models: Measurement) -> float:
    """Return the mean over processes of the relative difference of the median calls from the undisturbed ones."""
    processes = chain.from_iterable(model.processes for model in models)
    return fmean(_median(blocks) / _quantile(blocks) - 1 for blocks in processes)


def _median_ratio(numerator: Blocks, denominator: Blocks) -> float:
    """Return the median of the ratios of the rounds of one process."""
    return median(median(upper) / median(lower) for upper, lower in zip(numerator, denominator, strict=False))


def _relative_medians(model: Measurement, workload: Measurement) -> list[float]:
    """Return the median of the latency relative to the workload in the same round, for each process."""
    return list(map(_median_ratio, model.processes, workload.processes))


def _relative_quantiles(model: Measurement, workload: Measurement) -> list[float]:
    """Return the latency of undisturbed calls relative to those of the workload, for each process."""
    pairs = zip(model.processes, workload.processes, strict=False)
    return [_quantile(blocks) / _quantile(reference) for blocks, reference in pairs]


def _median(blocks: Blocks) -> float:
    return median(seconds for block in blocks for seconds in block)


# A measurement compares its models after each process, and those before it are still the same.
@lru_cache(maxsize=256)
def _quantile(blocks: Blocks) -> float:
    return float(np.quantile([seconds for block in blocks for seconds in block], UNDISTURBED))


def _check_comparable(first: MeasurementContext, other: MeasurementContext) -> None:
    facts = other.machine.identity
    for name, value in first.machine.identity.items():
        if facts[name] != value:
            raise UsageError(
                f"the measurements come from different machines: {name} is {value} and {facts[name]}",
                hint="measure both on one machine, in one call of quantkit benchmark",
            )
    if (first.streams is None) != (other.streams is None):
        raise UsageError("a latency and a throughput cannot be compared", hint="use --streams for both")
    if first.is_end_to_end != other.is_end_to_end:
        raise UsageError("end-to-end calls and calls of the model alone cannot be compared", hint="use one of them")
    if first.streams is None and first.batch != other.batch:
        raise UsageError(
            f"the measurements differ in batch size: {first.batch} and {other.batch}",
            hint="use the same --batch for both",
        )
