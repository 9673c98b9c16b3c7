"""What was timed, and under which circumstances; what it means is computed, never stored."""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from quantkit.benchmark.bootstrap import median_interval
from quantkit.benchmark.machine import Machine
from quantkit.errors import InputError

SCHEMA = "quantkit.measurement/1"

# A first call this many times as slow as the median is a warm-up that was not made.
SLOW_FIRST_CALL = 3.0
# A slowest tenth this much above the median is somebody else's work on the same machine.
WIDE_SPREAD = 1.3
# First against last third of the calls: more than this is a machine that changes while it is measured.
LARGE_DRIFT = 0.1
# Half the interval's width against the median.
WIDE_INTERVAL = 0.1


@dataclass(frozen=True)
class Context:
    """The circumstances of a measurement.

    Attributes:
        model: path, or name of the card.
        digest: SHA-256 of the file.
        num_bytes: size of the file.
        runtime: the engine's name.
        version: the engine's version.
        machine: the host.
        started: when the benchmark began (UTC, ISO 8601); measurements that share it were interleaved.
        seed: of the data, and of the order of the rounds.
        batch: pictures, or whatever the model takes, in one call.
        intra_op, inter_op: threads asked for; None: the engine's default.
        cpus: hardware threads that the process was bound to; empty: not bound.
        device: ``cpu``, ``gpu`` or ``gpu:N``.
        precision: arithmetic that the engine was allowed.
        environment: variables set for this process only.
        inputs: type and shape by name, as ``float 1x299x299x3``.
        engine_device: where it ran, in the engine's words.
        placement: where each operation ran, a line for each, where this was asked for.
        passed_over: engines that ``auto`` tried first, with reasons.
        openmp: OpenMP libraries found in the process after loading the engine.
    """

    model: str
    digest: str
    num_bytes: int
    runtime: str
    version: str
    machine: Machine
    started: str = ""
    seed: int = 0
    batch: int = 1
    intra_op: int | None = None
    inter_op: int | None = None
    cpus: tuple[int, ...] = ()
    device: str = "cpu"
    precision: str = "float32"
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    engine_device: str = ""
    placement: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    openmp: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The context as JSON knows it."""
        return asdict(self) | {"machine": self.machine.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        fields = dict(document)
        for name in ("cpus", "placement", "passed_over", "openmp"):
            fields[name] = tuple(fields[name])
        return cls(**fields | {"machine": Machine.from_json(fields["machine"])})


@dataclass(frozen=True)
class Summary:
    """What the samples say.

    Attributes:
        median: seconds of the middle call.
        low, high: 95 % bootstrap interval of the median.
        p90: seconds that nine of ten calls stay below.
        minimum: seconds of the fastest call.
        warnings: why the numbers may not come out the same again, and what to do; empty: stable.
    """

    median: float
    low: float
    high: float
    p90: float
    minimum: float
    warnings: tuple[str, ...] = ()

    @property
    def is_stable(self) -> bool:
        return not self.warnings


@dataclass(frozen=True)
class Measurement:
    """Raw samples of one model in one engine.

    Attributes:
        seconds: every timed call, in order; at least one.
        warmup_seconds: every call that was not counted: the warm-up, and the lead-in of each block.
        context: circumstances.
        block_sizes: calls of each round, in order; their sum is the number of calls. Empty: one round.
        is_settled: whether the warm-up ended because the times stood still; None: a fixed number of calls.
        warmup_calls: how many of ``warmup_seconds`` came before the first round.
    """

    seconds: tuple[float, ...]
    warmup_seconds: tuple[float, ...]
    context: Context
    block_sizes: tuple[int, ...] = ()
    is_settled: bool | None = None
    warmup_calls: int = 0

    @property
    def blocks(self) -> tuple[tuple[float, ...], ...]:
        """Seconds of the calls of each round."""
        ends = np.cumsum(self.block_sizes or (len(self.seconds),))
        starts = (0, *ends[:-1])
        return tuple(self.seconds[start:end] for start, end in zip(starts, ends, strict=True))

    @cached_property
    def summary(self) -> Summary:
        median = statistics.median(self.seconds)
        low, high = median_interval(self.blocks, self.context.seed)
        # The median itself is always inside, which a resampled quantile does not promise.
        low, high = min(low, median), max(high, median)
        p90 = float(np.quantile(self.seconds, 0.9))
        return Summary(median, low, high, p90, min(self.seconds), _warnings(self, median, high - low, p90))

    def to_json(self) -> dict[str, Any]:
        """The measurement and its summary as JSON knows them."""
        return {
            "schema": SCHEMA,
            "context": self.context.to_json(),
            "seconds": list(self.seconds),
            "warmup_seconds": list(self.warmup_seconds),
            "block_sizes": list(self.block_sizes),
            "is_settled": self.is_settled,
            "warmup_calls": self.warmup_calls,
            "summary": asdict(self.summary) | {"warnings": list(self.summary.warnings)},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; the summary is computed again.

        Raises:
            InputError: it is no measurement, or of a version this quantkit does not know.
        """
        if document.get("schema") != SCHEMA:
            raise InputError(
                f"this is {document.get('schema', 'no measurement')!r}, and {SCHEMA!r} is needed",
                hint="measure again with this version of quantkit",
            )
        try:
            return cls(
                seconds=tuple(document["seconds"]),
                warmup_seconds=tuple(document["warmup_seconds"]),
                context=Context.from_json(document["context"]),
                block_sizes=tuple(document["block_sizes"]),
                is_settled=document["is_settled"],
                warmup_calls=document["warmup_calls"],
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"the measurement is not complete: {error}") from None


def _warnings(measurement: Measurement, median: float, width: float, p90: float) -> tuple[str, ...]:
    """Reasons to doubt the numbers, each with what to do about it."""
    found = []
    first, rest = measurement.seconds[0], measurement.seconds[1:]
    usual = statistics.median(rest) if rest else first
    machine = measurement.context.machine
    if measurement.is_settled is False:
        found.append(
            f"still drifting after {measurement.warmup_calls} warm-up calls: "
            f"close other programs, or set a longer --warmup"
        )
    if first > SLOW_FIRST_CALL * usual > 0 and first == max(measurement.seconds):
        found.append(
            f"first call {first / usual:.1f}x slower than the rest: raise --warmup (now {measurement.warmup_calls})"
        )
    drift = _drift(measurement.seconds)
    if abs(drift) > LARGE_DRIFT:
        found.append(
            f"the last third is {abs(drift):.0%} {'slower' if drift > 0 else 'faster'} than the first: "
            "the machine changed meanwhile (heat, clock frequency, other programs); measure again"
        )
    if median > 0 and p90 > WIDE_SPREAD * median:
        load = "" if machine.load is None else f" (load {machine.load:.1f} on {machine.logical_cores} processors)"
        found.append(f"one call in ten takes {p90 / median:.1f}x the median or more{load}: close other programs")
    if median > 0 and width / 2 > WIDE_INTERVAL * median:
        found.append(f"the median is known to ±{width / 2 / median:.0%} only: raise --runs (now {1 + len(rest)})")
    return tuple(found)


def _drift(seconds: tuple[float, ...]) -> float:
    """Median of the last third of the calls against the first's, minus one; 0 where there are few calls."""
    third = len(seconds) // 3
    if third < 5:
        return 0.0
    before = statistics.median(seconds[:third])
    return statistics.median(seconds[-third:]) / before - 1 if before > 0 else 0.0
