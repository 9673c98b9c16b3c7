"""The worker's side: one process, one model in one engine, JSON lines in and out.

    {"do": "open", "model": ..., "runtime": ..., ...}  ->  {"runtime": ..., "version": ..., "inputs": ..., ...}
    {"do": "warm_up", ...}                             ->  {"seconds": [...], "is_settled": ..., "openmp": [...], ...}
    {"do": "run", "calls": 5}                          ->  {"lead_in": [...], "seconds": [...]}

A request that fails is answered {"error": {"message": ..., "hint": ..., "exit_code": ...}}, and the worker stays.
The end of its input ends it.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from quantkit.benchmark.feeds import seeded_feeds
from quantkit.benchmark.sampler import Call, Clock, WarmUpRule, lead_in, timed, warm_up
from quantkit.errors import QuantkitError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Shape
from quantkit.model import load
from quantkit.runtimes import find_runtime, open_session
from quantkit.runtimes.openmp import openmp_libraries
from quantkit.runtimes.session import Session, SessionOptions, TensorInfo
from quantkit.zoo import ModelCard, list_cards

Document = dict[str, Any]


def main() -> None:
    """Serve standard input; what the engine prints goes to standard error, where it disturbs no answer."""
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    serve(sys.stdin, answers.write)


def serve(requests: Iterable[str], send: Callable[[str], object], clock: Clock = perf_counter) -> None:
    """Answer requests, a line for each.

    Args:
        requests: JSON lines.
        send: takes an answer with its line end.
        clock: what calls are timed with.
    """
    worker = _Worker(clock)
    for line in requests:
        request = json.loads(line)
        try:
            answer = worker.answer(request)
        except QuantkitError as error:
            answer = {"error": {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}}
        except Exception as error:  # whatever an engine throws becomes the reason of a row
            first = (str(error).strip().splitlines() or [""])[0][:300]
            answer = {"error": {"message": f"{type(error).__name__}: {first}", "hint": "", "exit_code": 4}}
        send(json.dumps(answer) + "\n")
    worker.close()


class _Worker:
    """The open session between two requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._session: Session | None = None
        self._call: Call | None = None
        self._first: tuple[float, ...] = ()

    def answer(self, request: Document) -> Document:
        requests: Mapping[str, Callable[..., Document]] = {
            "open": self._open,
            "warm_up": self._warm_up,
            "run": self._run,
        }
        arguments = dict(request)
        return requests[arguments.pop("do")](**arguments)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _open(
        self,
        model: str,
        runtime: str,
        options: Document,
        inputs: list[str] | None = None,
        outputs: list[str] | None = None,
        batch: int | None = None,
        seed: int = 0,
    ) -> Document:
        session = open_session(read_model(Path(model), inputs, outputs), runtime, SessionOptions(**options))
        self._session = session
        shapes = known_shapes(session.inputs, session.outputs, list_cards())
        feeds = seeded_feeds(session.inputs, batch=batch, shapes=shapes, seed=seed)
        self._call = lambda: session.run(feeds)
        # Engines compile at the first call, which is never one that counts; here it disturbs nobody who is timed.
        self._first = timed(self._call, 1, self._clock)
        shown = {info.name: f"{info.dtype.value} {Shape(feeds[info.name].shape)}" for info in session.inputs}
        first = next(iter(feeds.values()), None)
        return {
            "runtime": session.runtime.name,
            "version": session.runtime.version,
            "engine_device": session.runtime.device,
            "passed_over": [str(skipped) for skipped in session.skipped],
            "inputs": shown,
            "batch": first.shape[0] if first is not None and first.ndim else 1,
        }

    def _warm_up(self, **rule: Any) -> Document:
        done = warm_up(self._opened, WarmUpRule(**rule), self._clock)
        return {"seconds": (*self._first, *done.seconds), "is_settled": done.is_settled, **self._circumstances()}

    def _circumstances(self) -> Document:
        """What the engine's process shows after a run."""
        if self._session is None:
            return {}
        libraries = openmp_libraries(find_runtime(self._session.runtime.name).package)
        return {"openmp": list(libraries), "placement": list(self._session.placement)}

    def _run(self, calls: int) -> Document:
        return {
            "lead_in": lead_in(self._opened, clock=self._clock),
            "seconds": timed(self._opened, calls, self._clock),
        }

    @property
    def _opened(self) -> Call:
        if self._call is None:
            raise UsageError("no model is open in this worker")
        return self._call


def read_model(path: Path, inputs: list[str] | None, outputs: list[str] | None) -> Graph | Path:
    """What an engine is to open.

    A graph without placeholders, such as the 2015 Inception release, takes the ends of a card that it fits.

    Raises:
        UsageError: nothing says where the graph is fed.
    """
    model = load(path, inputs=inputs, outputs=outputs)
    graph = model.runnable
    if isinstance(graph, Path):
        if inputs or outputs:
            raise UsageError(f"{path.name} has inputs and outputs of its own", hint="leave --inputs and --outputs out")
        return graph
    if graph.inputs:
        return graph
    for card in list_cards():
        ends = [[end.name for end in ends] for ends in (card.inputs, card.outputs)]
        if all(name in graph for names in ends for name in names):
            return graph.with_endpoints(ends[0], outputs or ends[1])
    raise UsageError(f"{path.name} has no placeholder, so it is not known where it is fed", hint="give --inputs NODE")


def known_shapes(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], cards: Iterable[ModelCard]
) -> Mapping[str, Shape]:
    """Shapes of inputs as the card has them whose ends have these names, and as many classes."""
    for card in cards:
        is_named_so = {info.name for info in inputs} == {end.name for end in card.inputs}
        counts = {info.shape.dims[-1] for info in outputs if info.shape.dims}
        if is_named_so and card.num_classes in counts:
            return {end.name: Shape([None if size < 0 else size for size in end.shape]) for end in card.inputs}
    return {}


def _end_with_parent() -> None:
    """Linux: be killed when the parent is, even while halted."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
