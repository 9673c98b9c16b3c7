"""Traced and untraced calls of one model, in turn in one process, so that both meet the same load of the machine."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Self

from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.benchmark.sampling.process import WorkerError, WorkerProcess, start_worker
from quantkit.errors import UnavailableError
from quantkit.facts import join_names
from quantkit.ir.tensor import Shape
from quantkit.runtimes import AUTO, find_runtime, runtimes
from quantkit.runtimes.session import OpTime, OpTrace, RuntimeVersion

# Limits of the timed pairs of calls, and the calls before them.
MAX_PAIRS, SECONDS, WARMUP_PAIRS = 60, 3.0, 3
OPEN_TIMEOUT, TIMEOUT = 180.0, 120.0


@dataclass(frozen=True)
class TracedCalls:
    """Calls of one model with and without a trace.

    Attributes:
        runtime: runtime of the model.
        input_shapes: shapes of the inputs by name.
        untraced_seconds, traced_seconds: duration of each call, seen by the caller; the calls of one index ran in turn.
        trace: time of the ops in the traced calls.
        on_gpu: True if a GPU runs the model.
    """

    runtime: RuntimeVersion
    input_shapes: dict[str, Shape]
    untraced_seconds: tuple[float, ...]
    traced_seconds: tuple[float, ...]
    trace: OpTrace
    on_gpu: bool = False


def trace_calls(candidate: Candidate) -> TracedCalls:
    """Run a model with and without a trace, in a process of its own.

    Raises:
        UnavailableError: the runtime cannot run the model, or does not measure the time of ops.
    """
    with TracedModels() as models:
        return models.trace([candidate])[0][0]


class TracedModels:
    """Models that run with and without a trace, each in a process of its own; a context manager that ends these.

    Args:
        seconds: time limit of all calls; a process that exceeds it is ended, with a `WorkerError`.
    """

    def __init__(self, seconds: float = inf) -> None:
        self._end = monotonic() + seconds
        self._processes = ExitStack()
        self._workers: list[tuple[Candidate, WorkerProcess]] = []
        self._opened: list[dict[str, Any]] = []

    def start(self, candidates: Sequence[Candidate]) -> None:
        """Start the processes of new candidates."""
        for each in candidates:
            if all(each != candidate for candidate, _ in self._workers):
                worker = self._processes.enter_context(start_worker(each.settings))
                self._workers.append((each, worker))

    def trace(
        self, candidates: Sequence[Candidate], rounds: int = 1, seconds: float = SECONDS
    ) -> list[tuple[TracedCalls, ...]]:
        """Run models alternately.

        Args:
            candidates: models.
            rounds: number of repetitions.
            seconds: time limit of each repetition of a model.

        Returns:
            The calls of each repetition, for each model.

        Raises:
            UnavailableError: the runtime of a model cannot run it, or does not measure the time of ops.
        """
        for each in candidates:
            name = each.settings.runtime
            if name != AUTO and not find_runtime(name).traces_ops:
                raise _no_trace(f"{name} {find_runtime(name).available().detail}", each)
        request = {"do": "time_profile", "pairs": MAX_PAIRS, "seconds": seconds, "warmup": WARMUP_PAIRS}
        opened, repetitions = self._open(candidates), []
        workers = [self._workers[self._find(each)] for each in candidates]
        for _ in range(rounds):
            self._ask_together(workers, [{"do": "open_profile"}] * len(workers))
            self._ask(candidates, request)
            responses = self._ask_together(workers, [{"do": "read_profile"}] * len(workers))
            repetitions.append([_parse_calls(*each) for each in zip(candidates, opened, responses, strict=True)])
        return list(zip(*repetitions, strict=True))

    def time(self, candidates: Sequence[Candidate], rounds: int, calls: int) -> list[tuple[tuple[float, ...], ...]]:
        """Run models alternately, without a trace.

        Args:
            candidates: models.
            rounds: number of repetitions.
            calls: number of calls of each repetition.

        Returns:
            The durations of the calls of each repetition in seconds, for each model.

        Raises:
            UnavailableError: the runtime of a model cannot run it.
        """
        self._open(candidates)
        responses = [self._ask(candidates, {"do": "run", "samples": calls}) for _ in range(rounds)]
        return [tuple(tuple(response["seconds"]) for response in each) for each in zip(*responses, strict=True)]

    def _open(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        """Open the models of all processes, and return the descriptions of these."""
        self.start(candidates)
        new = self._workers[len(self._opened) :]
        self._opened += self._ask_together(new, [each.to_request(seed=0) for each, _ in new])
        return [self._opened[self._find(each)] for each in candidates]

    def _ask_together(
        self, workers: Sequence[tuple[Candidate, WorkerProcess]], requests: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the response of each worker to a request without timed calls, on all CPUs."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            responses = pool.map(lambda each, ask: each[1].ask(ask, self._limit(OPEN_TIMEOUT)), workers, requests)
            return [_require_success(each, worker[0]) for each, worker in zip(responses, workers, strict=True)]

    def _limit(self, seconds: float) -> float:
        """Return the time limit of a response, which ends with that of all calls."""
        return max(min(seconds, self._end - monotonic()), 0.0)

    def _find(self, candidate: Candidate) -> int:
        return [each for each, _ in self._workers].index(candidate)

    def _ask(self, candidates: Sequence[Candidate], request: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the responses to a request to each worker, one after the other."""
        workers = [self._workers[self._find(each)][1] for each in candidates]
        responses = (worker.ask(request, self._limit(TIMEOUT)) for worker in workers)
        return [_require_success(response, each) for response, each in zip(responses, candidates, strict=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._processes.close()


def _parse_calls(candidate: Candidate, opened: dict[str, Any], response: dict[str, Any]) -> TracedCalls:
    """Return the calls of one repetition.

    Raises:
        UnavailableError: the runtime does not measure the time of ops.
    """
    runtime = RuntimeVersion(opened["runtime"], opened["version"], opened["runtime_device"])
    if not response["ops"]:
        raise _no_trace(str(runtime), candidate)
    return TracedCalls(
        runtime,
        {name: _parse_shape(text) for name, text in opened["inputs"].items()},
        tuple(response["untraced_seconds"]),
        tuple(response["traced_seconds"]),
        OpTrace(tuple(map(_parse_op, response["ops"])), tuple(response["run_seconds"])),
        on_gpu=candidate.settings.options.gpu_index is not None,
    )


def _no_trace(runtime: str, candidate: Candidate) -> UnavailableError:
    names = join_names(name for name, each in runtimes().items() if each.traces_ops and "cpu" in each.devices)
    return UnavailableError(
        f"{runtime} does not measure the time of the ops of {candidate.label}",
        hint=f"--profile works in {names} on the CPU",
    )


def _require_success(response: dict[str, Any], candidate: Candidate) -> dict[str, Any]:
    if "error" in response:
        error = response["error"]
        raise WorkerError(f"{candidate}: {error['message']}", error["hint"])
    return response


def _parse_shape(text: str) -> Shape:
    """Parse the shape of ``float 1x299x299x3``."""
    sizes = text.partition(" ")[2]
    return Shape(tuple(int(size) for size in sizes.split("x"))) if "x" in sizes or sizes.isdecimal() else Shape(())


def _parse_op(document: dict[str, Any]) -> OpTime:
    texts = {name: tuple(document[name]) for name in ("seconds", "sources", "producers")}
    return OpTime(**document | texts)
