"""Candidates take turns: every round measures each of them once, in a random order.

What disturbs the machine for a second then disturbs all of them, and cancels in the ratios of a round.
Each candidate has a process of its own; only one of the processes runs at a time.
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
from quantkit.benchmark.measurement import Context, Measurement
from quantkit.benchmark.process import WorkerGone, WorkerProcess
from quantkit.benchmark.report import Benchmark, Failure, Row

Progress = Callable[[str, float], object]

# Left to itself, a candidate is given about so many seconds of timed calls, within these bounds.
TARGET_SECONDS = 2.0
FEWEST_RUNS, MOST_RUNS = 60, 1000
# A worker that is asked at the very end of the budget may still answer.
LEAST_TIMEOUT = 5.0


@dataclass(frozen=True)
class Schedule:
    """How much is measured.

    Attributes:
        runs: timed calls of each candidate; None: what fits `TARGET_SECONDS`.
        warmup: calls before them; None: until the times stand still.
        rounds: turns that each candidate's calls are dealt into.
        seed: of the data, the order in a round, and the intervals.
        time_budget: seconds for everything; then the round that runs is ended, and what was finished is kept.
    """

    runs: int | None = None
    warmup: int | None = None
    rounds: int = 20
    seed: int = 0
    time_budget: float = 600.0


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while measuring; ``benchmark`` holds what was finished."""

    def __init__(self, benchmark: Benchmark) -> None:
        super().__init__()
        self.benchmark = benchmark


class _OutOfTimeError(Exception):
    """The budget is spent."""


def measure(
    candidates: Sequence[Candidate], schedule: Schedule = Schedule(), progress: Progress = lambda message, share: None
) -> Benchmark:
    """Measure candidates side by side; one that fails becomes a row with the reason.

    Args:
        candidates: what to measure; all take part in every round.
        schedule: how much.
        progress: told what happens now, and which share (0 to 1) is done.

    Raises:
        InputError: a model's file is missing or broken.
        Interrupted: by Ctrl-C.
    """
    with opening(candidates, schedule, progress) as finish:
        return finish()


@contextmanager
def opening(
    candidates: Sequence[Candidate], schedule: Schedule = Schedule(), progress: Progress = lambda message, share: None
) -> Iterator[Callable[[], Benchmark]]:
    """Let candidates open, each in its process, while the caller does something else.

    Args:
        candidates, schedule, progress: as for `measure`.

    Yields:
        What waits until all are open and then measures them; nothing else should run meanwhile.

    Raises:
        InputError: a model's file is missing or broken.
    """
    digests = {candidate.path: digest(candidate.path) for candidate in candidates}
    lineup = _Lineup([_Turn(candidate, *digests[candidate.path]) for candidate in candidates], schedule, progress)
    with ExitStack() as workers:
        lineup.start(workers)
        yield lineup.measure


@dataclass
class _Turn:
    """A candidate while it is measured."""

    candidate: Candidate
    digest: str
    num_bytes: int
    process: WorkerProcess | None = None
    opened: dict[str, Any] = field(default_factory=dict)
    warm: dict[str, Any] = field(default_factory=dict)
    lead_ins: list[float] = field(default_factory=list)
    blocks: list[list[float]] = field(default_factory=list)
    failure: Failure | None = None
    said: str = ""

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any] | None:
        """The worker's answer, or None after a failure, which is kept and ends the worker."""
        assert self.process is not None
        try:
            answer = self.process.ask(request, timeout)
        except WorkerGone as gone:
            self.failure = Failure(gone.message, gone.hint, gone.exit_code)
        else:
            if "error" not in answer:
                return answer
            error = answer["error"]
            self.failure = Failure(error["message"], error["hint"], error["exit_code"])
        self.end()
        return None

    def end(self) -> None:
        """Keep what the engine said, and end its process."""
        if self.process is not None:
            self.said = self.process.said
            self.process.close()
            self.process = None

    def open(self, schedule: Schedule, timeout: float) -> None:
        """Load the engine and the model."""
        self.opened = self.ask(self.candidate.to_request(schedule.seed), timeout) or {}

    def warm_up(self, schedule: Schedule, timeout: float) -> None:
        """Call it until the times stand still."""
        self.warm = self.ask({"do": "warm_up", "calls": schedule.warmup}, timeout) or {}

    def sizes(self, schedule: Schedule) -> list[int]:
        """Calls in each round."""
        usual = statistics.median(self.warm["seconds"][-20:])
        fitting = min(max(int(TARGET_SECONDS / max(usual, 1e-9)), FEWEST_RUNS), MOST_RUNS)
        runs = schedule.runs or fitting
        rounds = min(schedule.rounds, runs)
        return [runs // rounds + (index < runs % rounds) for index in range(rounds)]

    def run(self, calls: int, timeout: float) -> None:
        """One round."""
        answer = self.ask({"do": "run", "calls": calls}, timeout)
        if answer is not None:
            self.lead_ins.extend(answer["lead_in"])
            self.blocks.append(answer["seconds"])

    def row(self, context: dict[str, Any], cut_short: str) -> Row:
        """What came of it."""
        label, settings = self.candidate.label, self.candidate.settings
        if self.failure is None and not self.blocks:
            self.failure = Failure(
                f"{cut_short} before its first round", "raise --time-budget, or measure fewer models"
            )
        if self.failure is not None:
            return Row(label, self.opened.get("runtime", settings.runtime), self.failure, self.said)
        warmup = self.warm["seconds"]
        measurement = Measurement(
            seconds=tuple(seconds for block in self.blocks for seconds in block),
            warmup_seconds=(*warmup, *self.lead_ins),
            context=self._context(context),
            block_sizes=tuple(map(len, self.blocks)),
            is_settled=self.warm["is_settled"],
            warmup_calls=len(warmup),
        )
        return Row(label, measurement.context.runtime, measurement, self.said)

    def _context(self, shared: dict[str, Any]) -> Context:
        settings, opened = self.candidate.settings, self.opened
        return Context(
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
            engine_device=opened["engine_device"],
            passed_over=tuple(opened["passed_over"]),
            placement=tuple(self.warm["placement"]),
            openmp=tuple(self.warm["openmp"]),
            **shared,
        )


class _Lineup:
    """All candidates of one call."""

    def __init__(self, turns: list[_Turn], schedule: Schedule, progress: Progress) -> None:
        self._turns = turns
        self._schedule = schedule
        self._progress = progress
        self._rounds = schedule.rounds
        self._deadline = monotonic() + schedule.time_budget
        self._opening: list[Future[None]] = []
        self._shared = {
            "machine": this_machine(),
            "started": datetime.now(UTC).isoformat(timespec="microseconds"),
            "seed": schedule.seed,
        }

    def start(self, workers: ExitStack) -> None:
        """Begin to open all, as many at once as there are processors."""
        timeout = max(self._deadline - monotonic(), LEAST_TIMEOUT)
        for turn in self._turns:
            settings = turn.candidate.settings
            turn.process = workers.enter_context(WorkerProcess(settings.environment, settings.cpus))
        pool = ThreadPoolExecutor(os.cpu_count())
        self._opening = [pool.submit(turn.open, self._schedule, timeout) for turn in self._turns]
        # After an interruption, threads end with the workers they wait for, which `workers` ends.
        workers.callback(pool.shutdown, wait=False, cancel_futures=True)

    def measure(self) -> Benchmark:
        """What came of all rounds.

        Raises:
            Interrupted: by Ctrl-C.
        """
        try:
            self.open()
            self.run()
        except KeyboardInterrupt:
            raise Interrupted(self.benchmark("interrupted")) from None
        except _OutOfTimeError:
            return self.benchmark(f"the time budget of {self._schedule.time_budget:g} s was over")
        return self.benchmark()

    def open(self) -> None:
        """See all opened; then warm up one after the other, undisturbed."""
        for index, (turn, opened) in enumerate(zip(self._turns, self._opening, strict=True)):
            self._progress(f"opening {turn.candidate}", index / len(self._turns) / 4)
            opened.result()
        for index, turn in enumerate(self._turns):
            if turn.failure is None:
                self._progress(f"warming up {turn.candidate}", (1 + index / len(self._turns)) / 4)
                turn.warm_up(self._schedule, self._timeout())

    def run(self) -> None:
        """All rounds."""
        chance = random.Random(self._schedule.seed)
        sizes = {id(turn): turn.sizes(self._schedule) for turn in self._turns if turn.failure is None}
        self._rounds = max(map(len, sizes.values()), default=0)
        for index in range(self._rounds):
            self._progress(f"round {index + 1} of {self._rounds}", (1 + index / self._rounds) / 2)
            running = [turn for turn in self._turns if turn.failure is None]
            for turn in chance.sample(running, len(running)):
                turn.run(sizes[id(turn)][index], self._timeout())

    def benchmark(self, cut_short: str = "") -> Benchmark:
        """The rows as far as they are; ``cut_short`` says why they are not complete."""
        for turn in self._turns:
            turn.end()
        rows = tuple(turn.row(self._shared, cut_short) for turn in self._turns)
        done = max((len(turn.blocks) for turn in self._turns), default=0)
        notes = (f"{cut_short} after {done} of {self._rounds} rounds",) if cut_short else ()
        return Benchmark(rows, notes, is_complete=not cut_short)

    def _timeout(self) -> float:
        """Seconds that a worker may take to answer.

        Raises:
            _OutOfTimeError: there are none left.
        """
        left = self._deadline - monotonic()
        if left <= 0:
            raise _OutOfTimeError
        return max(left, LEAST_TIMEOUT)
