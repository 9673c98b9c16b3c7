"""Candidates from any value that names a model, with the settings of their processes."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np

from quantkit import formats
from quantkit.arguments import (
    as_names,
    as_shapes,
    expand_user,
    require_callable,
    require_choice,
    require_flag,
    require_names,
    require_natural,
    require_positive,
    require_text,
    type_name,
)
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.cores import HAS_AFFINITY, available_cpus
from quantkit.data import as_dataset
from quantkit.errors import UsageError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.model import LoadKeywords, as_model
from quantkit.model.options import INPUT_SHAPES, LoadingOptions
from quantkit.options import Declaration, option
from quantkit.progress import OnProgress, ignore_progress
from quantkit.runtimes import AUTO, find_runtime, split_runtime
from quantkit.runtimes.options import RUNTIME_NAME, IsaOptions, ThreadOptions
from quantkit.runtimes.runtime import isa_environment
from quantkit.runtimes.session import PRECISIONS, SessionOptions
from quantkit.transforms.plugins import keras_objects
from quantkit.zoo.cards import find_card, list_cards
from quantkit.zoo.fetch import fetch

# Options of `quantkit.load` that do not change the model: the process of a candidate reads the file itself.
DOWNLOAD_OPTIONS = {"offline", "on_progress"}


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Inputs of a benchmark."""

    streams: int | None = option(
        None,
        require_positive,
        help="number of calls at the same time, to measure the throughput",
        doc="measure the throughput, with this number of calls at the same time (default: the latency of one call at a "
        "time)",
    )
    batch: int | None = option(None, require_positive, help="batch size for models with a dynamic batch (default: 1)")
    input_shapes: Mapping[str, Sequence[int]] | None = option(None, INPUT_SHAPES)
    data: Any = option(
        None,
        help="images or arrays (.npz by input name) as inputs (default: random inputs)",
        doc="dataset whose first samples are the inputs (default: random inputs)",
    )
    end_to_end: bool = option(
        False,
        help="also decode, resize and normalize the images of --data in each call",
        doc="measure calls that also read and decode an image of ``data``, resize and normalize it, and find the "
        "highest scores; the report has the time of each part",
    )


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """Processes of a benchmark."""

    precision: str | Iterable[str] = option(
        "float32",
        require_names,
        help="arithmetic that the runtime may use; several, as float32,bfloat16, give one row each (default: float32)",
        doc="arithmetic that runtimes may use, one of `PRECISIONS`; several give each model one row per precision",
    )
    cpus: Iterable[int] = option(
        (),
        help="CPUs of the processes, as 0,1 or 0-3 (default: all)",
        doc="hardware threads of the processes (default: all)",
    )
    device: str = option("cpu", require_text, help="cpu, gpu or gpu:N (default: cpu)")
    spinning: bool | None = option(
        None,
        require_flag,
        help="allow idle threads of ONNX Runtime to spin",
        doc="idle threads spin, in ONNX Runtime (default: the default of the runtime)",
    )
    environment: Mapping[str, str] | None = option(
        None, doc="variables (``KMP_AFFINITY``, ``OMP_NUM_THREADS`` ...), set before a runtime is loaded"
    )
    seed: int = option(0, require_natural, doc="seed of the data, of the order in each round, and of the intervals")
    log_placement: bool = option(False, help="report the device of each op", doc="record the device of each op")
    on_progress: OnProgress = option(
        ignore_progress, require_callable, doc="receives the progress of downloads and measurements"
    )


@dataclass(frozen=True)
class CandidateOptions(InputOptions, ThreadOptions, IsaOptions, ProcessOptions, LoadingOptions):
    """Models, and the settings of their processes."""

    models: Annotated[
        Any,
        Declaration(
            doc="list of models: each a `Model`, a `Graph`, a path or the name of a model card; a path or name may end "
            "with ``@RUNTIME``. A single model is a list of one"
        ),
    ]
    runtime: str = option(AUTO, RUNTIME_NAME)


def select_candidates(options: CandidateOptions, folder: Path) -> list[Candidate]:
    """Return the candidates of a benchmark: each model in each precision.

    Args:
        options: see `benchmark`.
        folder: for the files of models and data in memory.

    Raises:
        UsageError: there is no such runtime, model card or CPU, or a number is out of range.
        InputError: a model file is missing or broken, or a download failed.
    """
    if (file := find_saved(options.models)) is not None:
        raise UsageError(f"{file} is a saved benchmark, not a model", hint=f"quantkit benchmark {file} shows it")
    settings, load_options = _settings(options), _load_options(options)
    precisions = as_names(options.precision) or ()
    for name in precisions:
        require_choice(PRECISIONS, precision=name)
    if options.data is not None:
        settings = replace(settings, data=_data_path(options.data, settings.batch or 1, folder))
    _check_end_to_end(settings)
    candidates = [
        find_candidate(model, settings, folder / str(index), **load_options)
        for index, model in enumerate(_as_list(options.models))
    ]
    for candidate in candidates:
        if candidate.settings.runtime != AUTO:
            find_runtime(candidate.settings.runtime).check_isa(settings.options.isa)
    if not candidates:
        raise UsageError("there is no model to benchmark", hint="name a model file, or a model card: digits")
    return [_with_precision(candidate, name) for candidate in _distinguish_labels(candidates) for name in precisions]


def find_saved(models: Any) -> Path | None:
    """Return the file of a saved benchmark in place of models; None for models.

    Raises:
        UsageError: there are models next to the file.
    """
    names = _as_list(models)
    files = [name for name in names if isinstance(name, str | os.PathLike) and Path(name).suffix == ".json"]
    if files and len(names) > 1:
        hint = "name one saved benchmark, or only models; --baseline compares with a saved one"
        raise UsageError(f"{os.fspath(files[0])} is a saved benchmark, and is shown alone", hint)
    return Path(files[0]) if files else None


def _settings(options: CandidateOptions) -> Settings:
    """Return the settings of the processes."""
    environment, isa = options.environment, options.isa
    if environment is not None and not isinstance(environment, Mapping):
        raise UsageError(
            f"environment is {type_name(environment)}, and must be a dict", hint='{"OMP_NUM_THREADS": "1"}'
        )
    if options.runtime != AUTO:
        find_runtime(options.runtime)
    session = SessionOptions(
        options.intra_op,
        options.inter_op,
        options.device,
        log_placement=options.log_placement,
        spinning=options.spinning,
        isa=isa,
    )
    session.gpu_index  # noqa: B018  a wrong device name is an error before any work
    return Settings(
        runtime=options.runtime,
        options=session,
        environment={**(environment or {}), **({} if isa is None else isa_environment(isa))},
        cpus=_check_cpus(options.cpus),
        streams=options.streams,
        is_end_to_end=options.end_to_end,
        batch=options.batch,
        input_shapes=as_shapes(options.input_shapes),
        inputs=as_names(options.inputs),
        outputs=as_names(options.outputs),
    )


def _check_end_to_end(settings: Settings) -> None:
    """Check that end-to-end calls have images, and run one at a time.

    Raises:
        UsageError: there is no data, or there are streams.
    """
    if settings.is_end_to_end and settings.data is None:
        raise UsageError("end-to-end calls decode images, and no data is given", hint="add --data IMAGES")
    if settings.is_end_to_end and settings.streams is not None:
        raise UsageError("end-to-end calls run one at a time", hint="omit --streams, or --end-to-end")


def _load_options(options: CandidateOptions) -> LoadKeywords:
    """Return the keyword arguments of `quantkit.load`."""
    load_options: LoadKeywords = {"offline": options.offline, "on_progress": options.on_progress}
    if options.random_weights:
        load_options |= {"random_weights": True, "seed": options.seed}
    if options.signature or options.tags or options.checkpoint:
        load_options |= {"signature": options.signature, "tags": options.tags, "checkpoint": options.checkpoint}
    return load_options


def find_candidate(model: Any, settings: Settings, file: Path, **load_options: Unpack[LoadKeywords]) -> Candidate:
    """Return the candidate of a model.

    Args:
        model: a `Model`, a `Graph`, a path or the name of a model card, with ``@RUNTIME`` or without.
        settings: settings of the process; a runtime in ``model`` overrides `Settings.runtime`.
        file: path without suffix for the file of a model that is not a file yet.
        load_options: keyword arguments of `quantkit.load`.

    Raises:
        UsageError: there is no such runtime or model card, or the value is not a model.
        InputError: the file is missing or broken, or the download failed.
    """
    if isinstance(model, str | os.PathLike):
        model, runtime = split_runtime(os.fspath(model))
        settings = settings if runtime is None else replace(settings, runtime=runtime)
        if load_options.keys() <= DOWNLOAD_OPTIONS and not _needs_objects(expand_user(model)):
            return _file_candidate(model, settings, load_options)
        load_options |= {"inputs": settings.inputs, "outputs": settings.outputs}
    loaded = as_model(model, **load_options)
    if isinstance(loaded.runnable, Path):
        return Candidate(loaded.name, loaded.runnable, settings)
    label = f"graph of {len(loaded.runnable)} nodes" if isinstance(model, Graph) else loaded.name
    return _write_candidate(label, loaded.runnable, settings, file)


def _needs_objects(path: Path) -> bool:
    """Return True if a file may need objects of Keras that are registered in this process, and in no other one."""
    return formats.SUFFIXES.get(path.suffix.lower()) == "keras" and bool(keras_objects())


def _file_candidate(name: str, settings: Settings, load_options: LoadKeywords) -> Candidate:
    """Return the candidate of a file, which its process reads, or of a model card, which is downloaded."""
    path = expand_user(name)
    is_card = name in {card.name for card in list_cards()}
    if is_card or not (path.suffix or os.sep in name or path.exists()):
        offline, on_progress = load_options.get("offline", False), load_options.get("on_progress", ignore_progress)
        path = fetch(find_card(name), offline=offline, on_progress=on_progress)
    return Candidate(name, path, settings)


def _write_candidate(label: str, graph: Graph, settings: Settings, file: Path) -> Candidate:
    """Write a graph to a file for its process; only ONNX files define their inputs and outputs."""
    if graph.dialect == onnx.DIALECT:
        path = file.with_name(f"{file.name}.onnx")
    else:
        path = file.with_name(f"{file.name}.pb")
        settings = replace(
            settings,
            inputs=settings.inputs or tuple(map(str, graph.inputs)) or None,
            outputs=settings.outputs or tuple(map(str, graph.outputs)) or None,
        )
    formats.save(graph, path)
    return Candidate(label, path, settings)


def _data_path(data: Any, num_samples: int, folder: Path) -> str:
    """Return the path of a dataset that the processes read; arrays in memory are written to a file.

    Raises:
        InputError: the data does not exist, or is broken.
        UsageError: the value is not a dataset of arrays.
    """
    dataset = as_dataset(data, num_samples, keep_order=True)
    if isinstance(data, str | os.PathLike):
        return str(Path(data).expanduser().absolute())
    samples = [sample.arrays or {} for sample in dataset.read()]
    if not all(samples):
        raise UsageError("data holds images", hint="give the path of a folder, or arrays")
    path = folder / "data.npz"
    rows_by_name = {name or "data": [sample[name] for sample in samples] for name in samples[0]}
    if all(len({row.shape for row in rows}) == 1 for rows in rows_by_name.values()):
        arrays = {name: _stack(rows) for name, rows in rows_by_name.items()}
    else:
        arrays = {f"{name}_{index}": row for name, rows in rows_by_name.items() for index, row in enumerate(rows)}
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def _stack(rows: list[Array]) -> Array:
    """Stack rows for a NumPy file; byte strings of one length keep their trailing zero bytes."""
    stacked = np.stack(rows)
    if stacked.dtype.kind != "O":
        return stacked
    lengths = {len(value) for value in stacked.flat}
    dtype = f"V{lengths.pop()}" if len(lengths) == 1 and lengths != {0} else "S"
    return np.array(list(stacked.flat), dtype).reshape(stacked.shape)


def _as_list(models: Any) -> list[Any]:
    """Return the models; texts and a `Graph`, which are iterable, are single models."""
    if isinstance(models, str | bytes | os.PathLike | Graph) or not isinstance(models, Iterable):
        return [models]
    return list(models)


def _with_precision(candidate: Candidate, precision: str) -> Candidate:
    options = replace(candidate.settings.options, precision=precision)
    return replace(candidate, settings=replace(candidate.settings, options=options))


def _distinguish_labels(candidates: list[Candidate]) -> list[Candidate]:
    """Label candidates with the names of their files if these are distinct, and number different models of one name."""
    names = {candidate.label: Path(candidate.label).name for candidate in candidates}
    if len(set(names.values())) == len(names):
        candidates = [replace(candidate, label=names[candidate.label]) for candidate in candidates]
    paths: dict[str, list[Path]] = {}
    for candidate in candidates:
        same_label = paths.setdefault(candidate.label, [])
        if candidate.path not in same_label:
            same_label.append(candidate.path)
    return [
        replace(candidate, label=f"{candidate.label} #{paths[candidate.label].index(candidate.path) + 1}")
        if len(paths[candidate.label]) > 1
        else candidate
        for candidate in candidates
    ]


def _check_cpus(cpus: Iterable[int]) -> tuple[int, ...]:
    """Return the CPUs, sorted.

    Raises:
        UsageError: this process may not use a CPU, or the system has no CPU affinity.
    """
    if isinstance(cpus, str | bytes) or not isinstance(cpus, Iterable):
        raise UsageError(f"cpus is {cpus!r}, and must be a list of CPU numbers", hint="for example cpus=[0, 1]")
    numbers = list(cpus)
    require_natural(**{f"cpus[{index}]": cpu for index, cpu in enumerate(numbers)})
    unique = tuple(sorted(set(numbers)))
    if not unique:
        return ()
    if not HAS_AFFINITY:
        raise UsageError("this system has no CPU affinity", hint="omit cpus (--cpus)")
    allowed = available_cpus()
    missing = [cpu for cpu in unique if cpu not in allowed]
    if missing:
        raise UsageError(
            f"CPU {missing[0]} is not available", hint=f"cpus (--cpus) accepts {', '.join(map(str, allowed))}"
        )
    return unique
