"""Interleaved measurement: each round measures each candidate once, in a random order.

A disturbance of the machine then affects all candidates, and cancels in the ratios of a round. Each candidate has a
process of its own; only one of the processes runs at a time.
"""

import os
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from quantkit.benchmark.candidate import Candidate, digest
from quantkit.benchmark.machine import this_machine
from quantkit.benchmark.measurement import Measurement, MeasurementContext
from quantkit.benchmark.process import WorkerError, WorkerProcess
from quantkit.benchmark.report import Benchmark, BenchmarkRow, Failure
from quantkit.progress import OnProgress, Progress, ignore_progress

# Default number of timed calls: enough for this duration, within these bounds.
TARGET_SECONDS = 2.0
MIN_RUNS, MAX_RUNS = 60, 1000
# Minimum time for a response, also at the end of the time budget.
MIN_TIMEOUT = 5.0


@dataclass(frozen=True)
class SamplingOptions:
    """Number of calls and time limit of a benchmark.

    Attributes:
        runs: timed calls of each candidate (default: about `TARGET_SECONDS`).
        warmup: warm-up calls (default: until latency is stable).
        rounds: number of rounds that the timed calls are distributed over.
        seed: seed of the data, of the order in each round, and of the intervals.
        time_budget: total time limit in seconds; finished rounds are kept.
    """

    runs: int | None = None
    warmup: int | None = None
    rounds: int = 20
    seed: int = 0
    time_budget: float = 600.0


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
) -> Benchmark:
    """Measure candidates side by side; a failed one becomes a row with the reason.

    Args:
        candidates: candidates; each takes part in each round.
        options: number of calls and time limit.
        on_progress: receives the progress.

    Raises:
        InputError: a model file is missing or broken.
        BenchmarkInterrupted: Ctrl-C.
    """
    with open_candidates(candidates, options, on_progress) as measure_rounds:
        return measure_rounds()


@contextmanager
def open_candidates(
    candidates: Sequence[Candidate],
    options: SamplingOptions = SamplingOptions(),
    on_progress: OnProgress = ignore_progress,
) -> Iterator[Callable[[], Benchmark]]:
    """Open candidates in the background, each in its process.

    Args:
        candidates, options, on_progress: see `measure`.

    Yields:
        Function that measures all candidates as soon as they are open; no other work should run meanwhile.

    Raises:
        InputError: a model file is missing or broken.
    """
    digests = {candidate.path: digest(candidate.path) for candidate in candidates}
    runs = [_CandidateRun(candidate, *digests[candidate.path]) for candidate in candidates]
    benchmark_run = _BenchmarkRun(runs, options, on_progress)
    with ExitStack() as workers:
        benchmark_run.start(workers)
        yield benchmark_run.measure


@dataclass
class _CandidateRun:
    """State of one candidate during the measurement."""

    candidate: Candidate
    digest: str
    num_bytes: int
    process: WorkerProcess | None = None
    opened: dict[str, Any] = field(default_factory=dict)
    warm: dict[str, Any] = field(default_factory=dict)
    lead_ins: list[float] = field(default_factory=list)
    blocks: list[list[float]] = field(default_factory=list)
    failure: Failure | None = None
    log: str = ""

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any] | None:
        """Return the response of the worker; None after a failure, which ends the worker."""
        assert self.process is not None
        try:
            response = self.process.ask(request, timeout)
        except WorkerError as error:
            self.failure = Failure(error.message, error.hint, error.exit_code)
        else:
            if "error" not in response:
                return response
            details = response["error"]
            self.failure = Failure(details["message"], details["hint"], details["exit_code"])
        self.end()
        return None

    def end(self) -> None:
        """End the process and keep its log."""
        if self.process is not None:
            self.log = self.process.log
            self.process.close()
            self.process = None

    def open(self, options: SamplingOptions, timeout: float) -> None:
        """Load the runtime and the model."""
        self.opened = self.ask(self.candidate.to_request(options.seed), timeout) or {}

    def warm_up(self, options: SamplingOptions, timeout: float) -> None:
        """Call the model until its latency is stable."""
        self.warm = self.ask({"do": "warm_up", "calls": options.warmup}, timeout) or {}

    def block_sizes(self, options: SamplingOptions) -> list[int]:
        """Return the number of calls in each round."""
        latency = statistics.median(self.warm["seconds"][-20:])
        default = min(max(int(TARGET_SECONDS / max(latency, 1e-9)), MIN_RUNS), MAX_RUNS)
        runs = options.runs or default
        rounds = min(options.rounds, runs)
        return [runs // rounds + (index < runs % rounds) for index in range(rounds)]

    def run(self, calls: int, timeout: float) -> None:
        """Measure the calls of one round."""
        response = self.ask({"do": "run", "calls": calls}, timeout)
        if response is not None:
            self.lead_ins.extend(response["lead_in"])
            self.blocks.append(response["seconds"])

    def row(self, context: dict[str, Any], stop_reason: str) -> BenchmarkRow:
        """Return the row of the report."""
        label, settings = self.candidate.label, self.candidate.settings
        if self.failure is None and not self.blocks:
            self.failure = Failure(
                f"{stop_reason} before its first round", "raise --time-budget, or measure fewer models"
            )
        if self.failure is not None:
            return BenchmarkRow(label, self.opened.get("runtime", settings.runtime), self.failure, self.log)
        warmup = self.warm["seconds"]
        measurement = Measurement(
            seconds=tuple(seconds for block in self.blocks for seconds in block),
            warmup_seconds=(*warmup, *self.lead_ins),
            context=self._context(context),
            block_sizes=tuple(map(len, self.blocks)),
            is_settled=self.warm["is_settled"],
            warmup_calls=len(warmup),
        )
        return BenchmarkRow(label, measurement.context.runtime, measurement, self.log)

    def _context(self, shared: dict[str, Any]) -> MeasurementContext:
        settings, opened = self.candidate.settings, self.opened
        return MeasurementContext(
            model=self.candidate.label,
            digest=self.digest,
            num_bytes=self.num_bytes,
            runtime=opened["runtime"],
            version=opened["version"],
            batch=opened["batch"],
            intra_op=settings.options.intra_op,
            inter_op=settings.options.inter_op,
            cpus=settings.cpus,
            device=settings.options.device,
            precision=settings.options.precision,
            environment=dict(settings.environment),
            inputs=opened["inputs"],
            runtime_device=opened["runtime_device"],
            skipped_runtimes=tuple(opened["skipped_runtimes"]),
            placement=tuple(self.warm["placement"]),
            openmp=tuple(self.warm["openmp"]),
            **shared,
        )


class _BenchmarkRun:
    """State of all candidates of one call."""

    def __init__(self, runs: list[_CandidateRun], options: SamplingOptions, on_progress: OnProgress) -> None:
        self._runs = runs
        self._options = options
        self._on_progress = on_progress
        self._rounds = options.rounds
        self._deadline = monotonic() + options.time_budget
        self._openings: list[Future[None]] = []
        self._random = random.Random(options.seed)
        # The candidates start in a random order, so that no position has an advantage in memory.
        self._start_order = self._random.sample(runs, len(runs))
        self._shared = {
            "machine": this_machine(),
            "started": datetime.now(UTC).isoformat(timespec="microseconds"),
            "seed": options.seed,
        }

    def start(self, workers: ExitStack) -> None:
        """Start to open all candidates, one per CPU at a time."""
        timeout = max(self._deadline - monotonic(), MIN_TIMEOUT)
        for run in self._start_order:
            settings = run.candidate.settings
            run.process = workers.enter_context(WorkerProcess(settings.environment, settings.cpus))
        pool = ThreadPoolExecutor(os.cpu_count())
        self._openings = [pool.submit(run.open, self._options, timeout) for run in self._start_order]
        # After Ctrl-C, the threads end with their workers, which `workers` ends.
        workers.callback(pool.shutdown, wait=False, cancel_futures=True)

    def measure(self) -> Benchmark:
        """Return the result of all rounds.

        Raises:
            BenchmarkInterrupted: Ctrl-C.
        """
        try:
            self._warm_up()
            self._measure_rounds()
        except KeyboardInterrupt:
            raise BenchmarkInterrupted(self._benchmark("interrupted")) from None
        except _TimeBudgetExhaustedError:
            return self._benchmark(f"time budget of {self._options.time_budget:g} s exhausted")
        return self._benchmark()

    def _warm_up(self) -> None:
        """Warm up one candidate after the other, as soon as all are open."""
        total = len(self._runs)
        for index, opening in enumerate(self._openings):
            self._on_progress(Progress("opening", index, total))
            opening.result()
        for index, run in enumerate(self._start_order):
            if run.failure is None:
                self._on_progress(Progress("warming up", index, total))
                run.warm_up(self._options, self._timeout())

    def _measure_rounds(self) -> None:
        sizes = {id(run): run.block_sizes(self._options) for run in self._runs if run.failure is None}
        self._rounds = max(map(len, sizes.values()), default=0)
        for index in range(self._rounds):
            self._on_progress(Progress("measuring", index, self._rounds))
            running = [run for run in self._runs if run.failure is None]
            for run in self._random.sample(running, len(running)):
                run.run(sizes[id(run)][index], self._timeout())
        self._on_progress(Progress("measuring", self._rounds, self._rounds))

    def _benchmark(self, stop_reason: str = "") -> Benchmark:
        """Return the finished rounds; ``stop_reason`` is empty if all are finished."""
        for run in self._runs:
            run.end()
        rows = tuple(run.row(self._shared, stop_reason) for run in self._runs)
        done = max((len(run.blocks) for run in self._runs), default=0)
        notes = (f"{stop_reason} after {done} of {self._rounds} rounds",) if stop_reason else ()
        return Benchmark(rows, notes, is_complete=not stop_reason)

    def _timeout(self) -> float:
        """Return the time limit of a response in seconds.

        Raises:
            _TimeBudgetExhaustedError: the time budget is exhausted.
        """
        remaining = self._deadline - monotonic()
        if remaining <= 0:
            raise _TimeBudgetExhaustedError
        return max(remaining, MIN_TIMEOUT)
