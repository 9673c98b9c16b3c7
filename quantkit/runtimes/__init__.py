"""Runtimes with one contract; the package of a runtime is imported when a session is opened in it.

An installed distribution adds a runtime through an entry point of the group ``quantkit.runtimes``.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from quantkit.arguments import public
from quantkit.errors import InputError, UnavailableError, UnknownOpError, UsageError, did_you_mean
from quantkit.formats import metadata
from quantkit.formats.files import load
from quantkit.formats.kinds import kind_of
from quantkit.ir.graph import Graph
from quantkit.registry import Registry
from quantkit.runtimes import litert, onnxruntime, openvino, reference, tensorflow, tensorrt
from quantkit.runtimes.onnxruntime import custom_op_libraries, custom_op_library
from quantkit.runtimes.runtime import Runtime, check_runtime
from quantkit.runtimes.session import Session, SessionOptions, SkippedRuntime

__all__ = [
    "AUTO",
    "REFERENCE",
    "Runtime",
    "Session",
    "SessionOptions",
    "custom_op_libraries",
    "custom_op_library",
    "find_runtime",
    "observing_runtime",
    "observing_runtimes",
    "open_session",
    "runtimes",
    "split_runtime",
]

# Name that stands for the runtime of a file's receipt, else the one of the highest priority that can run the model.
AUTO = "auto"
# Name of the NumPy runtime, which is always installed.
REFERENCE = reference.RUNTIME.name
REGISTRY: Registry[Runtime] = Registry(
    "runtime",
    Runtime,
    (
        *(module.RUNTIME for module in (openvino, onnxruntime, tensorflow, litert, reference)),
        onnxruntime.TENSORRT_RUNTIME,
        tensorrt.RUNTIME,
    ),
    check_runtime,
)


@public
def runtimes() -> Mapping[str, Runtime]:
    """Return all runtimes by name, in the order of their priority."""
    ranked = sorted(REGISTRY.objects().values(), key=lambda runtime: -runtime.priority)
    return {runtime.name: runtime for runtime in ranked}


@public
def find_runtime(name: str) -> Runtime:
    """Return the runtime of a name.

    Raises:
        UsageError: there is no such runtime; the hint suggests similar names.
        UnavailableError: a plugin of that name could not be loaded.
    """
    return REGISTRY.find(name)


@public
def split_runtime(text: str) -> tuple[str, str | None]:
    """Split ``MODEL@RUNTIME``; without a runtime, or if a file has this name, the whole text is the model.

    Raises:
        UsageError: there is no such runtime.
    """
    model, at, runtime = text.rpartition("@")
    if not at or Path(text).exists():
        return text, None
    names = (AUTO, *runtimes())
    if runtime not in names:
        hint = did_you_mean(runtime, names) or f"use one of {', '.join(names)}"
        raise UsageError(f"{text}: {runtime!r} is not a runtime", hint)
    return model, runtime


@public
def observing_runtime(dialect: str) -> str:
    """Return the name of the best installed runtime for observing all tensors of a graph.

    Such a runtime runs the dialect natively; those that keep all tensors are preferred.

    Raises:
        UnavailableError: no runtime runs the dialect natively.
    """
    return observing_runtimes(dialect)[0]


@public
def observing_runtimes(dialect: str) -> tuple[str, ...]:
    """Return the names of the runtimes that run a dialect natively, the best one for observing all tensors first.

    Raises:
        UnavailableError: no runtime runs the dialect natively.
    """
    native = [runtime for runtime in runtimes().values() if runtime.native_dialect == dialect]
    if not native:
        raise UnavailableError(f"no runtime runs {dialect} graphs natively", hint="quantkit doctor lists the runtimes")
    ranked = sorted(native, key=lambda runtime: (not runtime.available().ok, not runtime.keeps_tensors))
    return tuple(runtime.name for runtime in ranked)


@public
def open_session(
    model: Graph | str | os.PathLike[str],
    runtime: str = AUTO,
    options: SessionOptions = SessionOptions(),
    *,
    threads: int | None = None,
) -> Session:
    """Open a graph or a file in a runtime.

    Args:
        model: a graph, a file with a frozen graph, or a file of a kind that the runtime opens itself.
        runtime: name of a runtime, or ``auto``: the one that the receipt of a file names, else the one of the highest
            priority that can run the model here.
        options: threads, device and precision.
        threads: threads inside one op; replaces `SessionOptions.intra_op` if given.

    Returns:
        A session; `Session.skipped` lists the runtimes of higher priority that cannot run the model, with reasons.

    Raises:
        UsageError: there is no such runtime.
        InputError: the file is missing or broken.
        GraphError: the runtime rejects the graph.
        UnavailableError: the runtime, or with ``auto`` every runtime, cannot run the model here.
    """
    if threads is not None:
        options = replace(options, intra_op=threads)
    if runtime != AUTO:
        return find_runtime(runtime).open(_load_graph(model), options)
    source = _load_graph(model)
    skipped: list[SkippedRuntime] = []
    hint = ""
    for candidate in _rank(source, varies=options.varying_sizes):
        try:
            session = candidate.open(source, options)
        except UnavailableError as error:
            skipped.append(SkippedRuntime(candidate.name, error.message))
            hint = error.hint if isinstance(error, UnknownOpError) else hint
        else:
            session.skipped = tuple(skipped)
            return session
    raise UnavailableError(
        f"no installed runtime can run the model ({'; '.join(map(str, skipped))})",
        hint=hint or _installation(source) or "quantkit doctor lists the runtimes",
    )


def _rank(model: Graph | Path, *, varies: bool) -> list[Runtime]:
    """Return all runtimes in the order of their priority, those first that the file is made for.

    Args:
        model: model to run.
        varies: True if the sizes of the inputs vary: of the runtimes that compile for each size, only the reference
            takes more time.
    """
    kind = kind_of(model) if isinstance(model, Path) else ""
    stated = _stated_runtime(model) if isinstance(model, Path) else None

    def rank(runtime: Runtime) -> tuple[bool, bool, float]:
        is_late = varies and runtime.compiles_sizes
        priority = reference.RUNTIME.priority + 0.5 if is_late else runtime.priority
        return kind not in runtime.own_kinds, is_late or runtime.name != stated, -priority

    return sorted(runtimes().values(), key=rank)


def _stated_runtime(file: Path) -> str | None:
    """Return the runtime that the receipt of a file names: the one of its search, else the one of its scheme."""
    with suppress(InputError):  # a damaged receipt is an error of `quantkit receipt` only
        receipt = metadata.decode(metadata.read_text(file)).get("receipt")
        for facts in map(receipt.get, ("search", "scheme")) if isinstance(receipt, dict) else ():
            if isinstance(facts, dict) and isinstance(facts.get("runtime"), str):
                return str(facts["runtime"])
    return None


def _installation(model: Graph | Path) -> str:
    """Return the command that installs a runtime for a model, preferably a native one for a graph."""
    missing = [runtime for runtime in runtimes().values() if runtime.opens(model) and not runtime.available().ok]
    missing.sort(key=lambda runtime: isinstance(model, Graph) and runtime.native_dialect != model.dialect)
    return missing[0].available().command if missing else ""


def _load_graph(model: Graph | str | os.PathLike[str]) -> Graph | Path:
    """Return the graph of a frozen graph's file; other files are opened by the runtime.

    Raises:
        InputError: the file is missing, or not a model.
    """
    if isinstance(model, Graph):
        return model
    path = Path(model)
    return load(path) if kind_of(path) in ("graphdef", "graphdef_text") else path
