"""Engines behind one contract; none is imported before a session is opened in it."""

import os
from dataclasses import replace
from types import MappingProxyType

from quantkit.errors import UnavailableError, UsageError, did_you_mean
from quantkit.ir.graph import Graph
from quantkit.runtimes import litert, onnxruntime, openvino, reference, tensorflow
from quantkit.runtimes.model import read
from quantkit.runtimes.session import Runtime, Session, SessionOptions, Skipped

# By name, in the order in which `auto` tries them: the fastest first.
RUNTIMES = MappingProxyType[str, Runtime](
    {one.RUNTIME.name: one.RUNTIME for one in (openvino, onnxruntime, tensorflow, litert, reference)}
)
AUTO = "auto"


def find_runtime(name: str) -> Runtime:
    """The engine of that name.

    Raises:
        UsageError: there is none; the hint gives the nearest names.
    """
    if name not in RUNTIMES:
        raise UsageError(
            f"{name!r} is not a runtime", hint=did_you_mean(name, RUNTIMES) or f"use {AUTO}, {', '.join(RUNTIMES)}"
        )
    return RUNTIMES[name]


def open_session(
    model: Graph | str | os.PathLike[str],
    runtime: str = AUTO,
    options: SessionOptions = SessionOptions(),
    *,
    threads: int | None = None,
) -> Session:
    """Make a model ready to run.

    Args:
        model: a graph, or a file: a frozen graph, or what the engine itself reads.
        runtime: a key of `RUNTIMES`, or ``auto``: the fastest that is installed and can run the model here.
        options: threads, device and precision.
        threads: inside one operation, as `SessionOptions.intra_op`, which it replaces; None: what the options say.

    Returns:
        A session; `Session.runtime` says which engine it is, `Session.skipped` which faster ones can not
        run the model, and why.

    Raises:
        UsageError: no runtime has that name.
        InputError: the file is missing or broken.
        GraphError: the engine refuses the graph.
        UnavailableError: the engine, or with ``auto`` every engine, can not run the model here.
    """
    if threads is not None:
        options = replace(options, intra_op=threads)
    if runtime != AUTO:
        return find_runtime(runtime).open(read(model), options)
    source = read(model)
    skipped: list[Skipped] = []
    for name, engine in RUNTIMES.items():
        try:
            session = engine.open(source, options)
        except UnavailableError as error:
            skipped.append(Skipped(name, error.message))
        else:
            session.skipped = tuple(skipped)
            return session
    raise UnavailableError(
        f"no engine here can run the model ({'; '.join(map(str, skipped))})",
        hint="quantkit doctor lists what is installed, and how to install the others",
    )
