"""Traced and untraced calls of one model, in turn in one process, so that both meet the same load of the machine."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.benchmark.sampling.process import WorkerError, WorkerProcess
from quantkit.errors import UnavailableError
from quantkit.ir.tensor import Shape
from quantkit.runtimes.session import OpTime, OpTrace, RuntimeVersion

# Limits of the timed pairs of calls, and the calls before them.
MAX_PAIRS, SECONDS, WARMUP_PAIRS = 60, 6.0, 3
OPEN_TIMEOUT, TIMEOUT = 180.0, 120.0


@dataclass(frozen=True)
class TracedCalls:
    """Calls of one model with and without a trace.

    Attributes:
        runtime: runtime of the model.
        input_shapes: shapes of the inputs by name.
        untraced_seconds, traced_seconds: duration of each call, seen by the caller; the calls of one index ran in turn.
        trace: time of the ops in the traced calls.
    """

    runtime: RuntimeVersion
    input_shapes: dict[str, Shape]
    untraced_seconds: tuple[float, ...]
    traced_seconds: tuple[float, ...]
    trace: OpTrace


def trace_calls(candidate: Candidate) -> TracedCalls:
    """Run a model with and without a trace, in a process of its own.

    Raises:
        UnavailableError: the runtime cannot run the model, or does not measure the time of ops.
    """
    return trace_alternately([candidate])[0][0]


def trace_alternately(
    candidates: Sequence[Candidate], rounds: int = 1, seconds: float = SECONDS
) -> list[tuple[TracedCalls, ...]]:
    """Run models with and without a trace, alternately and each in a process of its own.

    Args:
        candidates: models.
        rounds: number of repetitions.
        seconds: time limit of each repetition of a model.

    Returns:
        The calls of each repetition, for each model.

    Raises:
        UnavailableError: the runtime of a model cannot run it, or does not measure the time of ops.
    """
    request = {"do": "profile", "pairs": MAX_PAIRS, "seconds": seconds, "warmup": WARMUP_PAIRS}
    repetitions: list[list[TracedCalls]] = [[] for _ in candidates]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(WorkerProcess(each.settings.environment, each.settings.cpus)) for each in candidates
        ]
        opened = [
            _require_success(worker.ask(candidate.to_request(seed=0), OPEN_TIMEOUT), candidate)
            for worker, candidate in zip(workers, candidates, strict=True)
        ]
        for _ in range(rounds):
            for index, (worker, candidate) in enumerate(zip(workers, candidates, strict=True)):
                response = _require_success(worker.ask(request, OPEN_TIMEOUT + TIMEOUT), candidate)
                repetitions[index].append(_parse_calls(candidate, opened[index], response))
    return [tuple(each) for each in repetitions]


def _parse_calls(candidate: Candidate, opened: dict[str, Any], response: dict[str, Any]) -> TracedCalls:
    """Return the calls of one repetition.

    Raises:
        UnavailableError: the runtime does not measure the time of ops.
    """
    runtime = RuntimeVersion(opened["runtime"], opened["version"], opened["runtime_device"])
    if not response["ops"]:
        raise UnavailableError(
            f"{runtime} does not measure the time of the ops of {candidate.label}",
            hint="--profile works in tensorflow, onnxruntime and openvino on the CPU",
        )
    return TracedCalls(
        runtime,
        {name: _parse_shape(text) for name, text in opened["inputs"].items()},
        tuple(response["untraced_seconds"]),
        tuple(response["traced_seconds"]),
        OpTrace(tuple(map(_parse_op, response["ops"])), tuple(response["run_seconds"])),
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
