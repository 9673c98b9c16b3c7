"""Candidates from any value that names a model, with the settings of their processes."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from quantkit import formats
from quantkit.arguments import (
    as_names,
    as_shapes,
    expand_user,
    require_choice,
    require_flag,
    require_names,
    require_natural,
    require_path,
    require_positive,
    require_text,
    type_name,
    without_none,
)
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.cores import HAS_AFFINITY, available_cpus
from quantkit.data import as_dataset
from quantkit.errors import UsageError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.model import LoadOptions, as_model
from quantkit.progress import OnProgress, ignore_progress
from quantkit.runtimes import AUTO, find_runtime, split_runtime
from quantkit.runtimes.runtime import isa_environment
from quantkit.runtimes.session import PRECISIONS, SessionOptions
from quantkit.transforms.plugins import keras_objects
from quantkit.zoo.cards import find_card, list_cards
from quantkit.zoo.fetch import fetch

# Options of `quantkit.load` that do not change the model: the process of a candidate reads the file itself.
DOWNLOAD_OPTIONS = {"offline", "on_progress"}


class CandidateOptions(TypedDict, total=False):
    """Keyword arguments of `select_candidates`; see `benchmark`."""

    runtime: str
    intra_op: int | None
    inter_op: int | None
    device: str
    precision: str | Iterable[str]
    cpus: Iterable[int]
    environment: Mapping[str, str] | None
    isa: str | None
    streams: int | None
    spinning: bool | None
    batch: int | None
    input_shapes: Mapping[str, Sequence[int]] | None
    data: Any
    end_to_end: bool
    inputs: Iterable[str] | None
    outputs: Iterable[str] | None
    signature: str | None
    tags: Iterable[str] | None
    checkpoint: str | os.PathLike[str] | None
    seed: int
    log_placement: bool
    random_weights: bool
    offline: bool


def select_candidates(
    models: Any, folder: Path, on_progress: OnProgress, **options: Unpack[CandidateOptions]
) -> list[Candidate]:
    """Return the candidates of a benchmark: each model in each precision.

    Args:
        models: see `benchmark`.
        folder: for the files of models and data in memory.
        on_progress: receives the progress of downloads.
        options: see `benchmark`.

    Raises:
        UsageError: there is no such runtime, model card or CPU, or a number is out of range.
        InputError: a model file is missing or broken, or a download failed.
    """
    if (file := find_saved(models)) is not None:
        raise UsageError(f"{file} is a saved benchmark, not a model", hint=f"quantkit benchmark {file} shows it")
    settings, load_options = _settings(options), _load_options(options, on_progress)
    precisions = as_names(options.get("precision", "float32")) or ()
    for name in precisions:
        require_choice(PRECISIONS, precision=name)
    if options.get("data") is not None:
        settings = replace(settings, data=_data_path(options["data"], settings.batch or 1, folder))
    _check_end_to_end(settings)
    candidates = [
        find_candidate(model, settings, folder / str(index), **load_options)
        for index, model in enumerate(_as_list(models))
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
    numbers = {name: options.get(name) for name in ("intra_op", "inter_op", "streams", "batch")}
    require_positive(**without_none(**numbers))
    runtime, device, environment = (
        options.get("runtime", AUTO),
        options.get("device", "cpu"),
        options.get("environment"),
    )
    names = {name: options.get(name) for name in ("inputs", "outputs", "tags")}
    log_placement = options.get("log_placement", False)
    require_text(runtime=runtime, device=device)
    require_names(precision=options.get("precision", "float32"), **without_none(**names))
    spinning = options.get("spinning")
    require_flag(
        log_placement=log_placement, end_to_end=options.get("end_to_end", False), **without_none(spinning=spinning)
    )
    if environment is not None and not isinstance(environment, Mapping):
        raise UsageError(
            f"environment is {type_name(environment)}, and must be a dict", hint='{"OMP_NUM_THREADS": "1"}'
        )
    if runtime != AUTO:
        find_runtime(runtime)
    isa = options.get("isa")
    session = SessionOptions(
        options.get("intra_op"), options.get("inter_op"), device, log_placement=log_placement, spinning=spinning
    ).with_(isa=isa)
    session.gpu_index  # noqa: B018  a wrong device name is an error before any work
    return Settings(
        runtime=runtime,
        options=session,
        environment={**(environment or {}), **({} if isa is None else isa_environment(isa))},
        cpus=_check_cpus(options.get("cpus", ())),
        streams=options.get("streams"),
        is_end_to_end=options.get("end_to_end", False),
        batch=options.get("batch"),
        input_shapes=as_shapes(options.get("input_shapes")),
        inputs=as_names(options.get("inputs")),
        outputs=as_names(options.get("outputs")),
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


def _load_options(options: CandidateOptions, on_progress: OnProgress) -> LoadOptions:
    """Return the keyword arguments of `quantkit.load`."""
    signature, checkpoint = options.get("signature"), options.get("checkpoint")
    random_weights, offline = options.get("random_weights", False), options.get("offline", False)
    require_text(**without_none(signature=signature))
    require_path(**without_none(checkpoint=checkpoint))
    require_flag(random_weights=random_weights, offline=offline)
    load_options: LoadOptions = {"offline": offline, "on_progress": on_progress}
    if random_weights:
        load_options |= {"random_weights": True, "seed": options.get("seed", 0)}
    if signature or options.get("tags") or checkpoint:
        load_options |= {"signature": signature, "tags": as_names(options.get("tags")), "checkpoint": checkpoint}
    return load_options


def find_candidate(model: Any, settings: Settings, file: Path, **load_options: Unpack[LoadOptions]) -> Candidate:
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


def _file_candidate(name: str, settings: Settings, load_options: LoadOptions) -> Candidate:
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
