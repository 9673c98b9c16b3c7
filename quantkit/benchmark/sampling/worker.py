"""Worker processes from the child's side: one model in one runtime, JSON lines in and out.

    {"do": "load", "runtime": "tensorflow"}            ->  {}
    {"do": "open", "model": ..., "runtime": ..., ...}  ->  {"runtime": ..., "inputs": ..., "load_seconds": ..., ...}
    {"do": "warm_up", ...}                             ->  {"seconds": [...], "is_settled": ..., "peak_bytes": ..., ...}
    {"do": "run", "samples": 5, "group": 1}            ->  {"lead_in": [...], "seconds": [...], "calls": [...], ...}
    {"do": "describe"}                                 ->  {"build": [...], "telemetry": ...}
    {"do": "open_profile"}                             ->  {}
    {"do": "time_profile", "pairs": 60, ...}           ->  {}
    {"do": "read_profile"}                             ->  {"ops": [{"name": ..., "precision": ..., ...}], ...}

The response to a failed request is {"error": {"message": ..., "hint": ..., "exit_code": ...}}. The worker ends at the
end of its input.
"""

import gc
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from quantkit.benchmark.sampling.feeds import seeded_feeds
from quantkit.benchmark.sampling.sampler import (
    Call,
    Clock,
    WarmUpRule,
    lead_in,
    time_calls,
    time_groups,
    time_pairs,
    time_streams,
    warm_up,
)
from quantkit.cores import available_cpus, end_with_parent, restrict_threads
from quantkit.errors import GraphError, QuantkitError, UsageError
from quantkit.ir.tensor import Array, Shape
from quantkit.model import Model, load
from quantkit.runtimes import AUTO, find_runtime, open_session
from quantkit.runtimes.fixed_sizes import fixed_sizes
from quantkit.runtimes.openmp import openmp_libraries
from quantkit.runtimes.random_inputs import INTEGERS
from quantkit.runtimes.session import Session, SessionOptions, TensorInfo
from quantkit.zoo.cards import ModelCard, list_cards

if TYPE_CHECKING:
    from quantkit.benchmark.sampling.end_to_end import EndToEndCall

Document = dict[str, Any]


def main() -> None:
    """Serve standard input; the output of the runtime goes to standard error, apart from the responses."""
    end_with_parent()
    responses = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    serve(sys.stdin, responses.write)


def serve(requests: Iterable[str], send: Callable[[str], object], clock: Clock = perf_counter) -> None:
    """Respond to requests, one line per request.

    Args:
        requests: JSON lines.
        send: function that takes a response with its line end.
        clock: clock of the measurement.
    """
    worker = _Worker(clock)
    for line in requests:
        request = json.loads(line)
        try:
            response = worker.respond(request)
        except QuantkitError as error:
            response = {"error": {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}}
        except Exception as error:  # a runtime may raise any class
            first = (str(error).strip().splitlines() or [""])[0][:300]
            response = {"error": {"message": f"{type(error).__name__}: {first}", "hint": "", "exit_code": 4}}
        send(json.dumps(response) + "\n")
    worker.close()


class _Worker:
    """State of the process between two requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._session: Session | None = None
        self._call: Call | None = None
        self._infer: Call = _no_session
        self._end_to_end: EndToEndCall | None = None
        self._feeds: Mapping[str, Array] = {}
        self._open_profiled: Callable[[], Session] = _no_session
        self._profiled: Session | None = None
        self._pairs: list[tuple[float, float]] = []
        self._streams: int | None = None
        self._batch = 1
        self._import_seconds = 0.0
        self._first_call: tuple[float, ...] = ()
        self._cpus = frozenset(available_cpus())

    def respond(self, request: Document) -> Document:
        requests: Mapping[str, Callable[..., Document]] = {
            "load": self._load,
            "open": self._open,
            "warm_up": self._warm_up,
            "run": self._run,
            "open_profile": self._open_profile,
            "time_profile": self._time_profile,
            "read_profile": self._read_profile,
            "describe": self._describe,
        }
        arguments = dict(request)
        return requests[arguments.pop("do")](**arguments)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _load(self, runtime: str) -> Document:
        start = self._clock()
        find_runtime(runtime).load()
        self._import_seconds = self._clock() - start
        return {}

    def _open(
        self,
        model: str,
        runtime: str,
        options: Document,
        inputs: list[str] | None = None,
        outputs: list[str] | None = None,
        streams: int | None = None,
        batch: int | None = None,
        input_shapes: Mapping[str, Sequence[int]] = {},
        data: str | None = None,
        end_to_end: bool = False,
        seed: int = 0,
        first_call: bool = False,
    ) -> Document:
        start = self._clock()
        loaded = read_model(Path(model), inputs, outputs)
        session = open_session(loaded.runnable, runtime, SessionOptions(**options))
        load_seconds = self._import_seconds + self._clock() - start
        self._session = session
        self._open_profiled = lambda: open_session(
            loaded.runnable, session.runtime.name, replace(SessionOptions(**options), profile=True)
        )
        others: list[Callable[[], dict[str, Array]]] = []
        if data is not None:
            from quantkit.data import as_dataset
            from quantkit.recipes.verify import feed_dataset

            dataset = as_dataset(data, keep_order=True, inputs={info.name for info in session.inputs})
            feeds = dict(next(feed_dataset(loaded, dataset, session.inputs, batch or 1)))
        else:
            shapes = find_card_shapes(session.inputs, session.outputs, list_cards())
            shapes = shapes or fixed_sizes(loaded.runnable, session.inputs)
            make = partial(seeded_feeds, session.inputs, batch=batch, shapes=shapes, sizes=input_shapes, seed=seed)
            feeds, others = make(), [partial(make, integers=integers) for integers in INTEGERS[1:]]
        self._feeds = feeds

        def infer() -> Mapping[str, Array]:
            try:
                return session.run(self._feeds)
            except GraphError:
                if not others:
                    raise
            self._feeds = others.pop(0)()
            return infer()

        self._infer = self._call = infer
        shapes_text = {info.name: f"{info.dtype.value} {Shape(feeds[info.name].shape)}" for info in session.inputs}
        first = next(iter(feeds.values()), None)
        self._streams = streams
        self._batch = first.shape[0] if first is not None and first.ndim else 1
        if end_to_end and data is not None:
            from quantkit.benchmark.sampling.end_to_end import EndToEndCall

            self._call = self._end_to_end = EndToEndCall(loaded, session, data, batch or 1, self._clock)
            self._batch = self._end_to_end.batch
        gc.freeze()
        gc.enable()
        if first_call:
            self._first_call = time_calls(self._opened, 1, self._clock)
        return {
            "runtime": session.runtime.name,
            "version": session.runtime.version,
            "runtime_device": session.runtime.device,
            "skipped_runtimes": [str(skipped) for skipped in session.skipped],
            "inputs": shapes_text,
            "batch": self._batch,
            "load_seconds": load_seconds,
        }

    def _warm_up(self, **rule: Any) -> Document:
        # Runtimes compile in the first call, which is not a sample.
        first = self._first_call or time_calls(self._opened, 1, self._clock)
        done = warm_up(self._opened, WarmUpRule(**rule), self._clock)
        return {"seconds": (*first, *done.seconds), "is_settled": done.is_settled, **self._process_facts()}

    def _process_facts(self) -> Document:
        """Return the facts about the process that are known after a run.

        Raises:
            UnavailableError: a thread of the runtime left the CPUs of the process.
        """
        restrict_threads(self._cpus)
        if self._session is None:
            return {}
        libraries = openmp_libraries(find_runtime(self._session.runtime.name).package)
        return {
            "openmp": list(libraries),
            "placement": list(self._session.placement),
            "peak_bytes": peak_memory(),
        }

    def _run(self, samples: int, group: int = 1) -> Document:
        if self._streams is not None:
            before = time_streams(self._opened, 1, group, self._streams, self._clock)
            times = time_streams(self._opened, samples, group, self._streams, self._clock)
            seconds = [value / self._batch for value in times.seconds]
            return {"lead_in": before.calls, "seconds": seconds, "calls": times.calls}
        lead = lead_in(self._opened, clock=self._clock)
        if self._end_to_end is not None:
            self._end_to_end.take_parts()
        return {
            "lead_in": lead,
            "seconds": time_groups(self._opened, samples, group, self._clock),
            # Percentiles are those of single calls, not of means.
            "calls": time_calls(self._opened, samples, self._clock) if group > 1 else (),
            "parts": self._time_parts(samples) if self._end_to_end is None else self._end_to_end.take_parts(),
        }

    def _time_parts(self, samples: int) -> Mapping[str, list[float]]:
        """Return the seconds of `Session.time_parts` of each sample, by part."""
        assert self._session is not None, "a model is open"
        parts: dict[str, list[float]] = {}
        for _ in range(samples):
            for name, seconds in self._session.time_parts(self._feeds, self._clock).items():
                parts.setdefault(name, []).append(seconds)
        return parts

    def _open_profile(self) -> Document:
        self._profiled = self._open_profiled()
        # Runtimes compile in the first call of each session, which is not timed: other processes may run meanwhile.
        self._infer()
        self._profiled.run(self._feeds)
        return {}

    def _time_profile(self, **limits: Any) -> Document:
        session = self._profiled or _no_session()
        self._pairs = time_pairs(self._infer, lambda: session.run(self._feeds), clock=self._clock, **limits)
        return {}

    def _read_profile(self) -> Document:
        with self._profiled or _no_session() as session:
            trace = session.op_trace
        # The second of two calls is timed.
        timed = slice(1 - 2 * len(self._pairs), None, 2)
        return {
            "untraced_seconds": [untraced for untraced, _ in self._pairs],
            "traced_seconds": [traced for _, traced in self._pairs],
            "ops": [vars(op) | {"seconds": op.seconds[timed]} for op in trace.ops],
            "run_seconds": trace.run_seconds[timed],
        }

    def _describe(self) -> Document:
        runtime = find_runtime(self._session.runtime.name if self._session else AUTO)
        return {"build": runtime.describe_build(), "telemetry": runtime.describe_telemetry()}

    @property
    def _opened(self) -> Call:
        if self._call is None:
            _no_session()
        return self._call


def _no_session() -> NoReturn:
    raise UsageError("no model is open in this worker")


def read_model(path: Path, inputs: list[str] | None, outputs: list[str] | None) -> Model:
    """Return the model, with the graph or the file that the runtime opens.

    Raises:
        UsageError: the inputs of the graph are unknown.
    """
    model = load(path, inputs=inputs, outputs=outputs)
    if not isinstance(model.runnable, Path) and not model.runnable.inputs:
        raise UsageError(f"{path.name} has no placeholder, so that its inputs are unknown", hint="pass --inputs NODE")
    return model


def find_card_shapes(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], cards: Iterable[ModelCard]
) -> Mapping[str, Shape]:
    """Return the input shapes of the model card with the same input names and number of classes, or no shapes."""
    for card in cards:
        has_same_names = {info.name for info in inputs} == {tensor.name for tensor in card.inputs}
        counts = {info.shape.dims[-1] for info in outputs if info.shape.dims}
        if has_same_names and card.num_classes in counts:
            return {tensor.name: Shape([None if size < 0 else size for size in tensor.shape]) for tensor in card.inputs}
    return {}


def peak_memory(status: Path = Path("/proc/self/status")) -> int | None:
    """Return the peak resident memory of this process in bytes; None where the system does not report it."""
    try:
        peak = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(peak[1]) * 1024 if peak else None
