"""Raw samples of one model with their context; summaries are computed from them."""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, Self, TypeVar

import numpy as np

from quantkit.benchmark.host.machine import Machine
from quantkit.benchmark.statistics.bootstrap import Interval, median_interval
from quantkit.benchmark.statistics.percentile import PERCENTILES, percentile_bound
from quantkit.benchmark.statistics.student import MIN_PROCESSES, geometric_mean
from quantkit.errors import InputError

SCHEMA = "quantkit.measurement/1"

# Warn of a missing warm-up if the first call is slower than the median by this factor.
SLOW_FIRST_CALL = 3.0
# Warn of other programs if the 90th percentile exceeds the median by this factor.
WIDE_SPREAD = 1.3
# Warn of a changing machine if first and last third of the calls differ by this fraction.
LARGE_DRIFT = 0.1
# Warn of few samples if half the width of the interval exceeds this fraction of the median.
WIDE_INTERVAL = 0.1
Item = TypeVar("Item")

# Keys of a JSON document that differ from the names of the attributes.
_JSON_KEYS = {"runtime_device": "engine_device", "skipped_runtimes": "passed_over"}


@dataclass(frozen=True)
class MeasurementContext:
    """Context of a measurement: model, runtime, options and machine.

    Attributes:
        model: label: path, or name of the model card.
        digest: SHA-256 of the file.
        num_bytes: size of the file.
        runtime: name of the runtime.
        version: version of the runtime.
        machine: the host.
        started: start of the benchmark (UTC, ISO 8601); measurements with one start were interleaved.
        seed: seed of the data and of the order in each round.
        batch: number of samples in one call.
        streams: number of threads that call the model at the same time; None for one call at a time.
        is_end_to_end: True if a call also decodes and preprocesses images, and sorts the scores.
        spinning: idle threads spin; None for the default of the runtime.
        intra_op, inter_op: thread options; None for the default of the runtime.
        cpus: hardware threads of the process; empty if it may use all.
        device: ``cpu``, ``gpu`` or ``gpu:N``.
        precision: arithmetic that the runtime may use.
        environment: environment variables of the process.
        inputs: type and shape by input name, as ``float 1x299x299x3``.
        runtime_device: name of the device in the runtime.
        placement: device of each op, one line per op, if it was recorded.
        skipped_runtimes: runtimes that ``auto`` skipped, with reasons.
        openmp: OpenMP libraries in the process.
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
    streams: int | None = None
    is_end_to_end: bool = False
    spinning: bool | None = None
    intra_op: int | None = None
    inter_op: int | None = None
    cpus: tuple[int, ...] = ()
    device: str = "cpu"
    precision: str = "float32"
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    runtime_device: str = ""
    placement: tuple[str, ...] = ()
    skipped_runtimes: tuple[str, ...] = ()
    openmp: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the context as a JSON document."""
        document = asdict(self) | {"machine": self.machine.to_json()}
        return {_JSON_KEYS.get(name) or name: value for name, value in document.items()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the context of a JSON document."""
        names = {key: name for name, key in _JSON_KEYS.items()}
        fields: dict[str, Any] = {names.get(key, key): value for key, value in document.items()}
        for name in ("cpus", "placement", "skipped_runtimes", "openmp"):
            fields[name] = tuple(fields[name])
        return cls(**fields | {"machine": Machine.from_json(fields["machine"])})


@dataclass(frozen=True)
class LatencySummary:
    """Statistics of the samples, in seconds.

    Attributes:
        median: median of all samples.
        low, high: 95 % interval of the median; it contains the spread between processes if there are several.
        percentiles: upper bound on each of `PERCENTILES` of the single calls with 99 % confidence; None for too few
            calls.
        minimum: fastest sample.
        warnings: reasons why the result may not be reproducible, with a remedy; empty if it is stable.
    """

    median: float
    low: float
    high: float
    percentiles: Mapping[str, float | None]
    minimum: float
    warnings: tuple[str, ...] = ()

    @property
    def width(self) -> float:
        """Width of the interval of the median relative to its lower limit."""
        return self.high / self.low - 1

    @property
    def is_stable(self) -> bool:
        return not self.warnings


@dataclass(frozen=True)
class Measurement:
    """Raw samples of one model in one runtime.

    Attributes:
        seconds: duration of a call in each sample, in order; at least one. With streams, the wall time for each item of
            the batches: the inverse of the throughput.
        warmup_seconds: duration of each other call: the warm-up, and the lead-in of each block.
        context: model, runtime, options and machine.
        block_sizes: number of samples in each round; empty for one round.
        is_settled: True if the latency was stable after most warm-ups; None for a fixed number of warm-up calls.
        warmup_calls: number of calls of a process before its first round; the largest of all processes.
        process_rounds: number of rounds in each process; empty for one process.
        calls_per_sample: number of calls that one sample is the mean of; above 1 for calls below a millisecond.
        call_seconds: duration of single calls; empty if each sample is a single call.
        part_seconds: duration of each part in each end-to-end call, or of the copies to and from a GPU and the runs
            between them, by name; empty without parts.
        load_seconds: time to read and compile the model in each process, with the import of the runtime.
        first_call_seconds: duration of the first call in each process.
        peak_bytes: peak memory of a process before its rounds, with Python and the runtime; the largest of all
            processes, None if unknown.
    """

    seconds: tuple[float, ...]
    warmup_seconds: tuple[float, ...]
    context: MeasurementContext
    block_sizes: tuple[int, ...] = ()
    is_settled: bool | None = None
    warmup_calls: int = 0
    process_rounds: tuple[int, ...] = ()
    calls_per_sample: int = 1
    call_seconds: tuple[float, ...] = ()
    load_seconds: tuple[float, ...] = ()
    first_call_seconds: tuple[float, ...] = ()
    peak_bytes: int | None = None
    part_seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @cached_property
    def parts(self) -> Mapping[str, tuple[float, float]]:
        """Median of each part of a call in seconds, and its fraction of the sum of the medians."""
        medians = {name: statistics.median(seconds) for name, seconds in self.part_seconds.items()}
        total = max(sum(medians.values()), 1e-12)
        return {name: (seconds, seconds / total) for name, seconds in medians.items()}

    @property
    def blocks(self) -> tuple[tuple[float, ...], ...]:
        """Samples of each round."""
        return _split(self.seconds, self.block_sizes)

    @property
    def processes(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """Rounds of each process."""
        return _split(self.blocks, self.process_rounds)

    @cached_property
    def summary(self) -> LatencySummary:
        median = statistics.median(self.seconds)
        low, high = self._median_interval()
        # The interval of another estimate of the median may exclude it.
        low, high = min(low, median), max(high, median)
        calls = self.call_seconds or self.seconds
        percentiles = {name: percentile_bound(calls, fraction) for name, fraction in PERCENTILES.items()}
        return LatencySummary(median, low, high, percentiles, min(self.seconds), _warnings(self, median, high - low))

    def _median_interval(self) -> Interval:
        if len(self.processes) < MIN_PROCESSES:
            return median_interval(self.blocks, self.context.seed)
        return geometric_mean([statistics.median(chain.from_iterable(blocks)) for blocks in self.processes])[1]

    def to_json(self) -> dict[str, Any]:
        """Return the measurement and its summary as a JSON document."""
        return {
            "schema": SCHEMA,
            "context": self.context.to_json(),
            "seconds": list(self.seconds),
            "warmup_seconds": list(self.warmup_seconds),
            "block_sizes": list(self.block_sizes),
            "is_settled": self.is_settled,
            "warmup_calls": self.warmup_calls,
            "process_rounds": list(self.process_rounds),
            "calls_per_sample": self.calls_per_sample,
            "call_seconds": list(self.call_seconds),
            "load_seconds": list(self.load_seconds),
            "first_call_seconds": list(self.first_call_seconds),
            "peak_bytes": self.peak_bytes,
            "parts": {
                name: {"seconds": list(self.part_seconds[name]), "median": seconds, "fraction": fraction}
                for name, (seconds, fraction) in self.parts.items()
            },
            "summary": asdict(self.summary) | {"warnings": list(self.summary.warnings)},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the measurement of a JSON document; the summary is computed again.

        Raises:
            InputError: the document is not a measurement, is incomplete, or has another version.
        """
        if document.get("schema") != SCHEMA:
            raise InputError(
                f"the schema is {document.get('schema', 'missing')!r}, and {SCHEMA!r} is required",
                hint="measure again with this version of quantkit",
            )
        try:
            return cls(
                seconds=tuple(document["seconds"]),
                warmup_seconds=tuple(document["warmup_seconds"]),
                context=MeasurementContext.from_json(document["context"]),
                block_sizes=tuple(document["block_sizes"]),
                is_settled=document["is_settled"],
                warmup_calls=document["warmup_calls"],
                process_rounds=tuple(document.get("process_rounds", ())),
                calls_per_sample=document.get("calls_per_sample", 1),
                call_seconds=tuple(document.get("call_seconds", ())),
                load_seconds=tuple(document.get("load_seconds", ())),
                first_call_seconds=tuple(document.get("first_call_seconds", ())),
                peak_bytes=document.get("peak_bytes"),
                part_seconds={name: tuple(part["seconds"]) for name, part in document.get("parts", {}).items()},
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"the measurement is incomplete: {error}") from None


def _split(items: tuple[Item, ...], sizes: tuple[int, ...]) -> tuple[tuple[Item, ...], ...]:
    """Split items into groups of the given sizes; without sizes, all items are one group."""
    ends = tuple(accumulate(sizes or (len(items),)))
    return tuple(items[end - size : end] for end, size in zip(ends, sizes or ends, strict=True))


def _warnings(measurement: Measurement, median: float, width: float) -> tuple[str, ...]:
    """Return the reasons why the result may not be reproducible, each with a remedy."""
    warnings = []
    first, rest = measurement.seconds[0], measurement.seconds[1:]
    typical = statistics.median(rest) if rest else first
    machine = measurement.context.machine
    if measurement.is_settled is False:
        warnings.append(
            f"latency is not stable after {measurement.warmup_calls} warm-up calls: "
            "close other programs, or raise --warmup"
        )
    if first > SLOW_FIRST_CALL * typical > 0 and first == max(measurement.seconds):
        warnings.append(
            f"first call {first / typical:.1f}x slower than the rest: raise --warmup (now {measurement.warmup_calls})"
        )
    drift = _drift(measurement.seconds)
    if abs(drift) > LARGE_DRIFT:
        warnings.append(
            f"the last third of the calls is {abs(drift):.0%} {'slower' if drift > 0 else 'faster'} than the first: "
            "heat, clock frequency or other programs changed; measure again"
        )
    p90 = float(np.quantile(measurement.seconds, 0.9))
    if median > 0 and p90 > WIDE_SPREAD * median:
        load = "" if machine.load is None else f" (load {machine.load:.1f} on {machine.logical_cores} CPUs)"
        warnings.append(f"one call in ten takes {p90 / median:.1f}x the median or more{load}: close other programs")
    if median > 0 and width / 2 > WIDE_INTERVAL * median:
        warnings.append(
            f"the uncertainty of the median is ±{width / 2 / median:.0%}: raise --runs (now {1 + len(rest)})"
        )
    return tuple(warnings)


def _drift(seconds: tuple[float, ...]) -> float:
    """Return the relative change of the median from the first to the last third of the calls; 0 for few calls."""
    third = len(seconds) // 3
    if third < 5:
        return 0.0
    before = statistics.median(seconds[:third])
    return statistics.median(seconds[-third:]) / before - 1 if before > 0 else 0.0
