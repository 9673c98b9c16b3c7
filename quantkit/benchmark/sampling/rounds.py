"""Interleaved measurement in several processes of each candidate.

All candidates are opened together, each in a process of its own, and are measured in rounds: each round measures each
candidate once, in a random order, and only one process runs at a time. A disturbance of the machine then affects all
candidates, and cancels in the ratios of a round. Then all processes end, and the candidates are opened again in another
order, until the comparison is clear or as precise as requested: the latency of a model differs from process to process.
A comparison without a clear difference ends after one of `LOOKS` processes, so that the intervals keep their coverage.
"""

import os
import random
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import ceil, inf
from time import monotonic
from typing import Any

from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.results.measurement import Measurement, MeasurementContext
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow, Failure
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.results.stop import Stop, StopKind
from quantkit.benchmark.sampling.candidate import Candidate, digest
from quantkit.benchmark.sampling.process import MAX_PADDING, WorkerError, WorkerProcess, start_worker
from quantkit.benchmark.sampling.sampler import WarmUpRule
from quantkit.benchmark.statistics.student import LOOKS, MIN_PROCESSES
from quantkit.progress import OnProgress, Progress, ignore_progress

# Usual number of processes of each candidate, and the limits if the comparison is not clear, or not precise enough.
DEFAULT_PROCESSES, MAX_PROCESSES, MAX_PRECISE_PROCESSES = LOOKS[0], LOOKS[-2], LOOKS[-1]
# Default number of samples in each process: enough for this duration, within these bounds.
PROCESS_SECONDS = 0.4
MIN_SAMPLES, MAX_SAMPLES = 6, 200
# Processes after the first `MIN_PROCESSES` show the spread between processes, which is larger than that between calls.
MAX_FURTHER_SAMPLES = 100
# Minimum number of samples in a round, and of rounds that have fewer: the load of the machine changes between rounds.
MIN_ROUND_SAMPLES, MIN_ROUNDS = 4, 4
# Calls that are shorter are grouped.
SAMPLE_SECONDS = 1e-3
# Samples of the throughput are longer, because the threads of a sample start and end at different times.
STREAM_SECONDS, MIN_STREAM_CALLS = 0.02, 4
# Time limit in seconds of further processes of a benchmark without a given number of processes or precision.
FURTHER_BUDGET = 15.0
# Total time limit in seconds.
TIME_BUDGET = 600.0
# Minimum time for a response, also at the end of the time budget.
MIN_TIMEOUT = 5.0


@dataclass(frozen=True)
class SamplingOptions:
    """Number of samples and time limit of a benchmark.

    Attributes:
        runs: samples of each candidate in all processes (default: about `PROCESS_SECONDS` in each process).
        warmup: warm-up calls (default: until latency is stable).
        processes: processes of each candidate (default: 3 to 20, until the comparison is clear; with ``runs``, 3 to 5).
        interval_width: width of the intervals that ends the measurement, relative to the lower limit, after 5, 10, 20
            or 40 processes (default: until the comparison is clear).
        rounds: maximum number of rounds that the samples of a process are distributed over.
        seed: seed of the data, of the order in each round, and of the intervals.
        time_budget: total time limit in seconds; finished rounds are kept.
        further_budget: time limit in seconds for processes after the first `MIN_PROCESSES`, if their number is not
            given (default: ``time_budget``).
        process_seconds: duration of the samples in each process, without ``runs``.
        warmup_seconds: maximum duration of a warm-up.
        overlap_first_calls: make the first call of a process, in which runtimes compile, while other processes open. It
            takes less time, and `Measurement.first_call_seconds` is then not that of an idle machine.
    """

    runs: int | None = None
    warmup: int | None = None
    processes: int | None = None
    interval_width: float | None = None
    rounds: int = 8
    seed: int = 0
    time_budget: float = TIME_BUDGET
    further_budget: float = inf
    process_seconds: float = PROCESS_SECONDS
    warmup_seconds: float = WarmUpRule.cap_seconds
    overlap_first_calls: bool = False

    @property
    def min_processes(self) -> int:
        """Number of processes that run in any case."""
        if self.processes is not None:
            return self.processes
        if self.runs is None:
            return DEFAULT_PROCESSES
        return min(max(self.runs // MIN_SAMPLES, MIN_PROCESSES), DEFAULT_PROCESSES, self.runs)

    @property
    def max_processes(self) -> int:
        """Maximum number of processes."""
        if self.runs is not None or self.processes is not None:
            return self.min_processes
        return MAX_PROCESSES if self.interval_width is None else MAX_PRECISE_PROCESSES


# Function that returns the speed-ups that a benchmark is to decide.
Compare = Callable[[Benchmark], Sequence[Speedup]]
# Function that returns the rows of a benchmark that further processes measure: after the first process of each
# candidate, and after `MIN_PROCESSES` and each further one.
Select = Callable[[Benchmark], Sequence[BenchmarkRow]]


def speedups_over_first(benchmark: Benchmark) -> list[Speedup]:
    """Return the speed-ups of the rows over the first one."""
    return [speedup for speedup in benchmark.speedups if isinstance(speedup, Speedup)]


def all_rows(benchmark: Benchmark) -> Sequence[BenchmarkRow]:
    """Return all rows."""
    return benchmark.rows


class BenchmarkInterrupted(KeyboardInterrupt):
    """Ctrl-C during a benchmark; `benchmark` contains the finished rounds."""

    def __init__(self, benchmark: Benchmark) -> None:
        super().__init__()
        self.benchmark = benchmark


class _TimeBudgetExhaustedError(Exception):
    """The time budget is exhausted."""


def measure(
    candidates: Sequence[Candidate],
    options: SamplingOptions = SamplingOptions(),
    on_progress: OnProgress = ignore_progress,
    workload: Candidate | None = None,
    compare: Compare = speedups_over_first,
    select: Select = all_rows,
    stage: str = "measuring",
) -> Benchmark:
    """Measure candidates side by side; a failed one becomes a row with the reason.

    Args:
        candidates: candidates; each takes part in each round.
        options: number of samples and time limit.
        on_progress: receives the progress.
        workload: further candidate in each round, which is not a row of the result.
        compare: function that returns the speed-ups that decide when enough processes have run.
        select: function that returns the rows that further processes measure. The result does not contain rows that are
            omitted after their first process.
        stage: name of the measurement in the progress.

    Raises:
        InputError: a model file is missing or broken.
        BenchmarkInterrupted: Ctrl-C.
    """
    digests = {candidate.path: digest(candidate.path) for candidate in candidates}
    runs = [_CandidateRun(candidate, *digests[candidate.path]) for candidate in candidates]
    workload_run = None if workload is None else _CandidateRun(workload, *digest(workload.path))
    return _BenchmarkRun(runs, options, on_progress, workload_run, compare, select, stage).measure()


@dataclass
class _CandidateRun:
    """State of one candidate during the measurement.

    Attributes:
        worker: running process.
        opened, facts: description of the first process after it opened the model, and after its warm-up.
        warmups: warm-up calls of each process.
        settled: stability after the warm-up of each process.
        group: number of calls in a sample; 0 before the first warm-up.
        processes: samples of each round of each process.
        calls: durations of single calls, if a sample is the mean of several.
        parts: durations of each part of end-to-end calls.
    """

    candidate: Candidate
    digest: str
    num_bytes: int
    worker: WorkerProcess | None = None
    opened: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    warmups: list[list[float]] = field(default_factory=list)
    settled: list[bool | None] = field(default_factory=list)
    lead_ins: list[float] = field(default_factory=list)
    group: int = 0
    processes: list[list[list[float]]] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    load_seconds: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    failure: Failure | None = None
    log: str = ""

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any] | None:
        """Return the response of the worker; None after a failure, which ends the worker."""
        assert self.worker is not None
        try:
            response = self.worker.ask(request, timeout)
        except WorkerError as error:
            self.failure = Failure(error.message, error.hint, error.exit_code)
        else:
            if "error" not in response:
                return response
            details = response["error"]
            self.failure = Failure(details["message"], details["hint"], details["exit_code"])
        self.end()
        return None

    def start(self, padding: int) -> None:
        """Start a process.

        Args:
            padding: number of further bytes in its environment.
        """
        self.worker = start_worker(self.candidate.settings, padding)
        self.processes.append([])

    def end(self) -> None:
        """End the process and keep its log."""
        if self.worker is not None:
            self.log = self.worker.log
            self.worker.close()
            self.worker = None

    def open(self, options: SamplingOptions, timeout: float) -> None:
        """Load the runtime and the model."""
        request = self.candidate.to_request(options.seed)
        opened = self.ask({**request, "first_call": options.overlap_first_calls}, timeout)
        if opened is not None:
            self.opened = self.opened or opened
            self.load_seconds.append(opened["load_seconds"])

    def warm_up(self, options: SamplingOptions, timeout: float) -> None:
        """Call the model until its latency is stable."""
        rule = {"calls": options.warmup, "cap_seconds": options.warmup_seconds}
        warm = self.ask({"do": "warm_up", **rule}, timeout)
        if warm is None:
            return
        self.facts = self.facts or warm
        self.warmups.append(warm["seconds"])
        self.settled.append(warm["is_settled"])
        if warm["peak_bytes"] is not None:
            self.peak_bytes.append(warm["peak_bytes"])
        is_throughput = self.candidate.settings.streams is not None
        calls = (STREAM_SECONDS if is_throughput else SAMPLE_SECONDS) / self._latency
        self.group = self.group or max(MIN_STREAM_CALLS if is_throughput else 1, ceil(calls))

    def num_samples(self, options: SamplingOptions, process: int) -> int:
        """Return the number of samples of a process."""
        if options.runs is not None:
            return _distribute(options.runs, options.min_processes)[process]
        samples = int(options.process_seconds / (self._latency * self.group))
        return min(max(samples, MIN_SAMPLES), MAX_SAMPLES if process < MIN_PROCESSES else MAX_FURTHER_SAMPLES)

    def run(self, samples: int, timeout: float) -> None:
        """Measure the samples of one round."""
        response = self.ask({"do": "run", "samples": samples, "group": self.group}, timeout)
        if response is not None:
            self.lead_ins.extend(response["lead_in"])
            self.processes[-1].append(response["seconds"])
            self.calls.extend(response["calls"])
            for name, seconds in response.get("parts", {}).items():
                self.parts.setdefault(name, []).extend(seconds)

    def row(self, context: dict[str, Any], stop_reason: str) -> BenchmarkRow:
        """Return the row of the report."""
        label, settings = self.candidate.label, self.candidate.settings
        processes = [process for process in self.processes if process]
        failure = self.failure
        if failure is None and not processes:
            failure = Failure(f"{stop_reason} before its first round", "raise --time-budget, or measure fewer models")
        if failure is not None:
            return BenchmarkRow(label, self.opened.get("runtime", settings.runtime), failure, self.log)
        blocks = [block for process in processes for block in process]
        measurement = Measurement(
            seconds=tuple(seconds for block in blocks for seconds in block),
            warmup_seconds=(*(seconds for warmup in self.warmups for seconds in warmup), *self.lead_ins),
            context=self._context(context),
            block_sizes=tuple(map(len, blocks)),
            is_settled=None if None in self.settled else sum(map(bool, self.settled)) * 2 >= len(self.settled),
            warmup_calls=max(map(len, self.warmups)),
            process_rounds=tuple(map(len, processes)),
            calls_per_sample=self.group * (self.candidate.settings.streams or 1),
            call_seconds=tuple(self.calls),
            part_seconds={name: tuple(seconds) for name, seconds in self.parts.items()},
            load_seconds=tuple(self.load_seconds),
            first_call_seconds=tuple(warmup[0] for warmup in self.warmups),
            peak_bytes=max(self.peak_bytes, default=None),
        )
        return BenchmarkRow(label, measurement.context.runtime, measurement, self.log)

    @property
    def _latency(self) -> float:
        """Seconds of a call at the end of the last warm-up."""
        return max(statistics.median_low(self.warmups[-1][-20:]), 1e-9)

    def _context(self, shared: dict[str, Any]) -> MeasurementContext:
        settings, opened = self.candidate.settings, self.opened
        return MeasurementContext(
            model=self.candidate.label,
            digest=self.digest,
            num_bytes=self.num_bytes,
            runtime=opened["runtime"],
            version=opened["version"],
            batch=opened["batch"],
            streams=settings.streams,
            is_end_to_end=settings.is_end_to_end,
            spinning=settings.options.spinning,
            intra_op=settings.options.intra_op,
            inter_op=settings.options.inter_op,
            cpus=settings.cpus,
            device=settings.options.device,
            precision=settings.options.precision,
            environment=dict(settings.environment),
            inputs=opened["inputs"],
            runtime_device=opened["runtime_device"],
            skipped_runtimes=tuple(opened["skipped_runtimes"]),
            placement=tuple(self.facts["placement"]),
            openmp=tuple(self.facts["openmp"]),
            **shared,
        )


class _BenchmarkRun:
    """State of all candidates of one call."""

    def __init__(
        self,
        runs: list[_CandidateRun],
        options: SamplingOptions,
        on_progress: OnProgress,
        workload: _CandidateRun | None = None,
        compare: Compare = speedups_over_first,
        select: Select = all_rows,
        stage: str = "measuring",
    ) -> None:
        self._stage = stage
        self._compare = compare
        self._select = select
        self._runs = runs
        self._workload = workload
        self._options = options
        self._on_progress = on_progress
        self._start = monotonic()
        self._process, self._elapsed = 0, 0.0
        self._random = random.Random(options.seed)
        all_runs = runs if workload is None else [*runs, workload]
        self._start_order = self._random.sample(all_runs, len(all_runs))
        self._shared = {
            "machine": this_machine(),
            "started": datetime.now(UTC).isoformat(timespec="microseconds"),
            "seed": options.seed,
        }

    def measure(self) -> Benchmark:
        """Return the result of all processes.

        Raises:
            BenchmarkInterrupted: Ctrl-C.
        """
        try:
            while (kind := self._stop_kind()) is None:
                self._measure_process()
                self._process += 1
                if self._process == 1 or self._process >= MIN_PROCESSES:
                    self._keep_selected()
        except KeyboardInterrupt:
            raise BenchmarkInterrupted(self._benchmark("interrupted", is_complete=False)) from None
        except _TimeBudgetExhaustedError:
            kind = "time budget"
            if not self._process:
                self._keep_selected()
        is_complete = kind != "time budget" or self._process >= min(self._options.min_processes, MIN_PROCESSES)
        result = self._benchmark(kind, is_complete=is_complete)
        stop = Stop(kind, self._process, self._width(result), self._options.interval_width)
        return replace(result, stop=stop)

    def _stop_kind(self) -> StopKind | None:
        """Return the reason to open no further process of each candidate; None if one is required or helps."""
        options, count = self._options, self._process
        if count >= options.max_processes or all(run.failure is not None for run in self._runs):
            return "processes"
        if options.max_processes == options.min_processes or count < MIN_PROCESSES:
            return None
        elapsed = monotonic() - self._start
        # Fewer candidates are left than in the first processes.
        last = elapsed - self._elapsed if self._elapsed else elapsed / count
        self._elapsed = elapsed
        is_exhausted = elapsed + last > min(options.time_budget, options.further_budget)
        exhausted: StopKind | None = "time budget" if is_exhausted else None
        if count not in LOOKS and options.interval_width is not None:
            return exhausted
        result = self._benchmark("processes")
        if options.interval_width is None:
            return "clear" if self._is_clear(result) else exhausted
        width = self._width(result)
        return "interval width" if width is not None and width <= options.interval_width else exhausted

    def _is_clear(self, result: Benchmark) -> bool:
        """Return True if more processes are not expected to change an outcome."""
        speedups = self._compare(result)
        return all(speedup.is_clear for speedup in speedups) and (bool(speedups) or self._process in LOOKS)

    def _width(self, result: Benchmark) -> float | None:
        """Return the width of the widest interval: of the speed-ups, or of the median of a single model."""
        if self._process < MIN_PROCESSES:
            return None
        widths = [speedup.width for speedup in self._compare(result)]
        return max(widths or [measurement.summary.width for measurement in result.measurements], default=None)

    def _measure_process(self) -> None:
        """Open all candidates, warm up one after the other, and measure all rounds of their processes."""
        running = [run for run in self._start_order if run.failure is None]
        first = self._process % len(running)
        # No position in the order is an advantage: each candidate starts first in turn.
        running = running[first:] + running[:first]
        with ExitStack() as workers:
            self._open(running, workers)
            for index, run in enumerate(running):
                if run.failure is None:
                    self._on_progress(Progress("warming up", index, len(running)))
                    run.warm_up(self._options, self._timeout())
            self._measure_rounds([run for run in running if run.failure is None])

    def _keep_selected(self) -> None:
        """Open no further process of the candidates that the caller does not select."""
        benchmark = self._benchmark("processes")
        selected = {id(row) for row in self._select(benchmark)}
        omitted = {id(run) for run, row in zip(self._runs, benchmark.rows, strict=True) if id(row) not in selected}
        remaining = [run for run in self._start_order if id(run) not in omitted]
        if remaining:
            self._start_order = remaining
        if self._process <= 1:
            self._runs = [run for run in self._runs if id(run) not in omitted]

    def _open(self, runs: list[_CandidateRun], workers: ExitStack) -> None:
        """Open candidates in new processes, one per CPU at a time."""
        timeout = self._timeout()
        for run in runs:
            run.start(self._random.randrange(MAX_PADDING))
            workers.callback(run.end)
        pool = ThreadPoolExecutor(os.cpu_count())
        # After Ctrl-C, the threads end with their workers, which `workers` ends.
        workers.callback(pool.shutdown, wait=False, cancel_futures=True)
        openings = [pool.submit(run.open, self._options, timeout) for run in runs]
        for index, opening in enumerate(openings):
            self._on_progress(Progress("opening", index, len(runs)))
            opening.result()

    def _measure_rounds(self, runs: list[_CandidateRun]) -> None:
        samples = {id(run): run.num_samples(self._options, self._process) for run in runs}
        fewest = min(samples.values(), default=0)
        rounds = min(self._options.rounds, max(MIN_ROUNDS, fewest // MIN_ROUND_SAMPLES), fewest)
        sizes = {name: _distribute(count, rounds) for name, count in samples.items()}
        processes = max(self._options.min_processes, self._process + 1)
        for index in range(rounds):
            self._report(self._process * rounds + index, processes * rounds)
            running = [run for run in runs if run.failure is None]
            for run in self._random.sample(running, len(running)):
                run.run(sizes[id(run)][index], self._timeout())
        self._report((self._process + 1) * rounds, processes * rounds)

    def _report(self, done: int, total: int) -> None:
        """Report finished rounds, and the time by the finished processes, else by the limit for further ones."""
        options, seconds = self._options, self._options.further_budget
        if self._process:
            seconds = (monotonic() - self._start) / self._process * max(options.min_processes, self._process + 1)
        seconds = min(seconds, options.time_budget)
        is_known = self._process > 0 or options.further_budget < inf
        self._on_progress(Progress(self._stage, done, total, seconds=seconds if is_known else None))

    def _benchmark(self, kind: StopKind, *, is_complete: bool = True) -> Benchmark:
        """Return the finished rounds."""
        reason = kind if kind == "interrupted" else f"time budget of {self._options.time_budget:g} s exhausted"
        rows = tuple(run.row(self._shared, reason) for run in self._runs)
        processes = f"{self._process} of {max(self._process, self._options.min_processes)} processes per model"
        notes = () if is_complete else (f"{reason} after {processes}",)
        workload = None if self._workload is None else self._workload.row(self._shared, reason).measurement
        return Benchmark(rows, notes, is_complete, workload=workload, stop=Stop(kind, self._process))

    def _timeout(self) -> float:
        """Return the time limit of a response in seconds.

        Raises:
            _TimeBudgetExhaustedError: the time budget is exhausted.
        """
        remaining = self._start + self._options.time_budget - monotonic()
        if remaining <= 0:
            raise _TimeBudgetExhaustedError
        return max(remaining, MIN_TIMEOUT)


def _distribute(total: int, parts: int) -> list[int]:
    """Distribute a number over parts that differ by one at most.

    >>> _distribute(8, 3)
    [3, 3, 2]
    """
    return [total // parts + (index < total % parts) for index in range(parts)]
