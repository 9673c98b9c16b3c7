"""Measure models and engines side by side: from the words of a command line to a table."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from quantkit import formats
from quantkit.benchmark.candidate import Candidate, Settings, find_candidate, named
from quantkit.benchmark.report import Benchmark
from quantkit.benchmark.rounds import Progress, Schedule, measure
from quantkit.errors import UsageError
from quantkit.ir.graph import Graph
from quantkit.model import RANDOM_WEIGHTS_NOTE, load
from quantkit.progress import OnProgress, ignore_progress
from quantkit.runtimes import AUTO, find_runtime
from quantkit.runtimes.session import PRECISIONS, SessionOptions


def benchmark(
    models: Iterable[Graph | str | os.PathLike[str]],
    runtime: str = AUTO,
    *,
    intra_op: int | None = None,
    inter_op: int | None = None,
    device: str = "cpu",
    precision: str | Iterable[str] = "float32",
    cpus: Iterable[int] = (),
    environment: Mapping[str, str] | None = None,
    batch: int | None = None,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    runs: int | None = None,
    warmup: int | None = None,
    seed: int = 0,
    time_budget: float = 600.0,
    log_placement: bool = False,
    random_weights: bool = False,
    offline: bool = False,
    progress: Progress = lambda message, share: None,
    fetching: OnProgress = ignore_progress,
) -> Benchmark:
    """Measure the latency of models side by side, each in a process of its own.

    Args:
        models: graphs, files, names of cards, or any of these words with ``@RUNTIME`` behind it.
        runtime: engine of those that name none; ``auto``: the fastest that can run the model here.
        intra_op: threads inside one operation; None: the engine's default.
        inter_op: operations side by side; None: the engine's default.
        device: ``cpu``, ``gpu`` or ``gpu:N``.
        precision: arithmetic that engines may use, a word of `PRECISIONS`; several give each model a row for each.
        cpus: hardware threads to bind the processes to; empty: all.
        environment: variables (``KMP_AFFINITY``, ``OMP_NUM_THREADS`` ...), set before an engine loads.
        batch: size of a first dimension that a model leaves open; None: 1.
        inputs, outputs: ends of the graphs; None: as the file or its card says.
        runs: timed calls of each model; None: about two seconds of them, at least 60.
        warmup: calls before them; None: until the times stand still.
        seed: of the data, of the order in a round, and of the intervals.
        time_budget: seconds for everything; what was finished by then is kept.
        log_placement: note on which device each operation ran.
        random_weights: take cards' architectures with random parameters instead of fetching the models.
        offline: fetch nothing.
        progress: told what happens now, and which share (0 to 1) is done.
        fetching: told bytes done and bytes in all while a card's model is fetched.

    Returns:
        A row for each model: a measurement, or the reason why there is none.

    Raises:
        UsageError: no such runtime, card or processor, or a number that makes no sense.
        InputError: a model's file is missing or broken, or can not be fetched.
        Interrupted: by Ctrl-C; it holds the rows as far as they were measured.
    """
    words = (precision,) if isinstance(precision, str) else tuple(precision)
    _check_words(runtime, words)
    _check_counts(intra_op=intra_op, inter_op=inter_op, batch=batch, runs=runs)
    options = SessionOptions(intra_op, inter_op, device, log_placement=log_placement)
    options.gpu_index  # noqa: B018  a wrong device name is rejected before any work
    settings = Settings(
        runtime=runtime,
        options=options,
        environment=dict(environment or {}),
        cpus=_usable(cpus),
        batch=batch,
        inputs=None if inputs is None else tuple(inputs),
        outputs=None if outputs is None else tuple(outputs),
    )
    schedule = Schedule(runs, warmup, seed=seed, time_budget=time_budget)
    with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
        candidates = []
        for index, model in enumerate(models):
            file = Path(folder) / f"{index}.pb"
            if isinstance(model, Graph):
                candidate = Candidate(f"graph of {len(model)} nodes", file, _with_ends_of(model, settings))
                formats.save(model, file)
            elif random_weights:
                candidate = replace(named(os.fspath(model), settings), path=file)
                formats.save(load(candidate.label, random_weights=True, seed=seed).graph, file)
            else:
                candidate = find_candidate(os.fspath(model), settings, offline=offline, on_progress=fetching)
            candidates.append(candidate)
        if not candidates:
            raise UsageError("there is no model to measure", hint="name a model file, or a card: digits")
        rows = [_computing_in(word, candidate) for candidate in _labelled(candidates) for word in words]
        measured = measure(rows, schedule, progress)
    return replace(measured, notes=(*measured.notes, RANDOM_WEIGHTS_NOTE)) if random_weights else measured


def _check_words(runtime: str, precisions: Iterable[str]) -> None:
    """Refuse unknown words early: they are the caller's mistake, not an engine's.

    Raises:
        UsageError: naming the first of them.
    """
    if runtime != AUTO:
        find_runtime(runtime)
    for word in precisions:
        if word not in PRECISIONS:
            raise UsageError(f"{word!r} is not a precision", hint=f"use {', '.join(PRECISIONS)}")


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"{name} is {count}, and counts begin with 1", hint=f"leave {name} out, or give 1 or more")


def _computing_in(precision: str, candidate: Candidate) -> Candidate:
    options = replace(candidate.settings.options, precision=precision)
    return replace(candidate, settings=replace(candidate.settings, options=options))


def _labelled(candidates: list[Candidate]) -> list[Candidate]:
    """Candidates called by the names of their files, where these are distinct."""
    short = {candidate.label: Path(candidate.label).name for candidate in candidates}
    is_distinct = len(set(short.values())) == len(short)
    return [replace(one, label=short[one.label]) for one in candidates] if is_distinct else candidates


def _with_ends_of(graph: Graph, settings: Settings) -> Settings:
    """Settings with the graph's own ends, which a file of it does not keep."""
    return replace(
        settings,
        inputs=settings.inputs or tuple(map(str, graph.inputs)) or None,
        outputs=settings.outputs or tuple(map(str, graph.outputs)) or None,
    )


def _usable(cpus: Iterable[int]) -> tuple[int, ...]:
    """The processors, sorted.

    Raises:
        UsageError: this process may not use one of them, or the system can not bind.
    """
    wanted = tuple(sorted(set(cpus)))
    if not wanted:
        return ()
    if not hasattr(os, "sched_getaffinity"):
        raise UsageError("this system can not bind a process to processors", hint="leave --cpus out")
    allowed = os.sched_getaffinity(0)
    missing = [cpu for cpu in wanted if cpu not in allowed]
    if missing:
        raise UsageError(
            f"there is no processor {missing[0]} to use here",
            hint=f"--cpus takes {','.join(map(str, sorted(allowed)))}",
        )
    return wanted
