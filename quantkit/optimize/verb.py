"""`optimize`: from a float model and data to the fastest file inside an accuracy bound."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import numpy as np

from quantkit.arguments import (
    as_names,
    expand_user,
    parse_duration,
    public,
    require_callable,
    require_choice,
    require_duration,
    require_fraction,
    require_names,
    require_natural,
    require_path,
    require_positive,
    require_text,
)
from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.sampling.candidate import digest
from quantkit.data import DATA_KINDS, Dataset, as_dataset
from quantkit.data.options import LABELS, InputImageOptions
from quantkit.data.pipeline import rank_of
from quantkit.distribution import installed_version
from quantkit.errors import InputError, QuantkitError, UsageError
from quantkit.evaluation.options import TASK
from quantkit.evaluation.tasks import Score
from quantkit.formats import check_folder, check_outputs, check_target
from quantkit.formats.documents import check_structure
from quantkit.formats.temporary import OwnedFolder
from quantkit.model import Model
from quantkit.model.early_checks import check_sources
from quantkit.model.loading import fix_input_shapes
from quantkit.model.model import tensor_info
from quantkit.model.options import LoadingOptions, ShapeOptions
from quantkit.model.receipt import receipt
from quantkit.optimize.deployment import SERVERS
from quantkit.optimize.deployment.served_model import check_name
from quantkit.optimize.forms import (
    TARGETS,
    Sizes,
    float_forms,
    has_dynamic_sizes,
    metadata_of_file,
    sample_sizes,
    write_form,
)
from quantkit.optimize.result import Optimization, OptimizationInterrupted, format_suffix
from quantkit.optimize.search import FEATURES, Choice, FileSearch, Goal, name_of
from quantkit.optimize.state import SearchState
from quantkit.options import Declaration, names_of, option, takes
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.quantization.ranges import UNKNOWN, graph_digest
from quantkit.quantization.targets import find_target
from quantkit.quantization.workflow.calibration_run import compute_reference, is_read_once
from quantkit.quantization.workflow.description import RECEIPT_SCHEMA, describe_model
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.options import CALIBRATION_LIMIT, Options
from quantkit.quantization.workflow.preparation import load_float_model
from quantkit.runtimes import REFERENCE, find_runtime
from quantkit.runtimes import runtimes as all_runtimes

PathLike = str | os.PathLike[str]
OBJECTIVES = ("latency", "throughput", "size")
PRECISIONS = ("float32", *FEATURES, "int8")
DEFAULT_PRECISIONS = ("float32", "bfloat16", "int8")
# Suffixes of the files of a search.
SUFFIXES = tuple(find_target(name).suffixes[0] for name in TARGETS)
MAX_DROP, TIME_BUDGET = 0.01, 600.0
# Arguments as in `quantize`: of the files that are built, and of all calls.
CALIBRATING = ("task", "limit", "labels", *names_of(InputImageOptions))
SHARED = (*CALIBRATING, *names_of(ShapeOptions, LoadingOptions), "held_out", "on_progress", "on_message")
# Arguments of a search that its receipt contains, and the types of the goal.
REPEATED = ("objective", "max_drop", "precisions", "runtimes", "seed", "time_budget")
_GOAL = {"objective": str, "max_drop": float | int, "precisions": [str], "runtimes": [str], "seed": int}
_GOAL |= {"suffix": str, "server": str}
# Most samples that are held out; fewest that calibrate, if there are twice as many, and fewest of each kind.
MOST_SAMPLES, FEWEST_CALIBRATING, FEWEST_SAMPLES = 2000, 32, 2


@dataclass(frozen=True)
class OptimizeOptions(InputImageOptions, ShapeOptions, LoadingOptions):
    """The arguments of `optimize`, in the order of the flags."""

    model: Annotated[Any, Declaration(doc="float model, graph, path or card name")]
    data: Annotated[
        Any,
        Declaration(
            metavar="DATA",
            help=f"samples that calibrate: {DATA_KINDS}",
            doc="samples that calibrate and choose: see `quantkit.data.as_dataset`",
        ),
    ]
    _: KW_ONLY
    output: PathLike | None = option(
        None,
        require_path,
        metavar="OUT",
        help="file to write; a suffix (.onnx, .pb, .tflite) limits the formats; without one, that of the best file is "
        "added",
        convert=expand_user,
        is_required=True,
    )
    held_out: Any = option(
        None,
        metavar="DATA",
        help="samples that the drop is measured on (default: those of --data that do not calibrate, at least half)",
    )
    max_drop: float = option(
        MAX_DROP,
        require_fraction,
        help="limit of the drop at 95 % confidence, a fraction: of top-1 if samples have labels, else of the agreement "
        f"with the float model, or of the metric of --task (default: {MAX_DROP:g})",
    )
    task: str | Score | None = option(
        None,
        TASK,
        help="metric of the outputs with the float model as reference (default: agreement for class scores, else R2)",
        doc="metric of the outputs, see `quantkit.quantize` (default: agreement for class scores, else R2)",
    )
    objective: str = option(
        OBJECTIVES[0],
        choices=OBJECTIVES,
        help="quantity to improve: the latency of a call, the throughput, or the size of the file (default: latency)",
        doc="``latency`` of one call at a time, ``throughput``, or ``size`` of the file",
    )
    runtimes: str | Iterable[str] | None = option(
        None, require_names, metavar="LIST", help="runtimes that may be used (default: all installed ones)"
    )
    precisions: str | Iterable[str] = option(
        DEFAULT_PRECISIONS,
        require_names,
        metavar="LIST",
        help=f"precisions that may be used, of {','.join(PRECISIONS)} (default: {','.join(DEFAULT_PRECISIONS)})",
    )
    time_budget: float | str = option(
        TIME_BUDGET,
        require_duration,
        help="time limit, for example 2m (default: 10m); after it, the best file so far is written",
        doc="time limit in seconds, or a text such as ``10m``; the best file so far is the result",
    )
    resume: PathLike | None = option(
        None,
        require_path,
        metavar="FILE",
        help="file for the finished work; the same command resumes an interrupted search",
        doc="file for the finished work, with a folder for the built files next to it; the same call resumes",
    )
    limit: int = option(
        CALIBRATION_LIMIT,
        require_positive,
        help=f"maximum number of samples that calibrate (default: {CALIBRATION_LIMIT})",
    )
    from_receipt: PathLike | None = option(
        None,
        require_path,
        metavar="FILE",
        help="repeat the search that wrote this file: its objective, bound, runtimes, precisions, time budget and "
        "seed, unless another value than the default is given here",
    )
    seed: int = option(0, require_natural, help="seed of the measurements (default: 0)")
    deploy: PathLike | None = option(
        None,
        require_path,
        metavar="FOLDER",
        help="write a folder that serves the best file, with a client that checks it",
        doc="write a folder that serves the best file: see `Optimization.deploy`",
    )
    server: str = option(
        "python",
        require_text,
        metavar=lambda: f"{{{','.join(SERVERS.objects())}}}",
        help="server of --deploy, which limits runtimes and formats (default: python)",
    )
    labels: PathLike | None = option(None, LABELS)
    on_progress: OnProgress = option(
        ignore_progress,
        require_callable,
        doc="receives the step, the best candidate so far, and the seconds of the time budget",
    )
    on_message: OnMessage = option(ignore_message, require_callable, doc="receives messages")


@public
@takes(OptimizeOptions)
def optimize(options: OptimizeOptions) -> Optimization:
    """Find the fastest file, runtime and settings of a model inside an accuracy bound.

    The float model in each runtime, int8 files in the forms of each runtime, fixed sizes, lower precisions of the float
    layers, and threads are measured side by side; see `quantkit.optimize.search`. The bound holds for the upper limit
    of the drop at 95 % confidence, on samples that are not used to choose anything.

    Returns:
        The best file with its proof, and all other candidates.

    Raises:
        UsageError: arguments contradict each other or do not fit the model, or there are too few samples.
        InputError: a model, file or dataset is missing or broken.
        OptimizationInterrupted: Ctrl-C, with the best that is known.
    """
    start, output = monotonic(), None if options.output is None else Path(options.output)
    search_options = {name: getattr(options, name) for name in REPEATED}
    if options.from_receipt is not None:
        recorded = _read_search(options.from_receipt)
        default = {each.name: each.default for each in fields(options)}
        search_options |= {name: recorded[name] for name in REPEATED if search_options[name] == default[name]}
    goal = Goal(
        search_options["objective"],
        search_options["max_drop"],
        _check_precisions(search_options["precisions"]),
        _check_runtimes(search_options["runtimes"]),
        _check_output(output),
        search_options["seed"],
        _check_server(options.deploy, options.server, output),
    )
    written = {"--output": output, "--resume": options.resume}
    read = {
        "the model": options.model,
        "--data": options.data,
        "--held-out": options.held_out,
        "--labels": options.labels,
        "--from-receipt": options.from_receipt,
    }
    for suffix in SUFFIXES if output is not None and not goal.suffix else ("",):
        # Without a suffix, that of the best file is added.
        written["--output"] = output and output.with_name(output.name + suffix)
        check_outputs(written, read)
    check_sources(options.model, data=(options.data, options.held_out), labels=options.labels, runtimes=goal.runtimes)
    float_options = Options(options.model, options.data, **{name: getattr(options, name) for name in SHARED})
    float_model = load_float_model(float_options)
    calibration, held_out_data = _split(float_model, float_options)
    folder = OwnedFolder()
    options.on_progress(Progress("running the float model", 0))
    reference, sizes = _run_float_model(float_model, held_out_data, float_options)
    facts = [graph_digest(float_model.graph)]
    facts += [_digest_samples(float_model, dataset) for dataset in (calibration, held_out_data)]
    metric = "" if float_options.metric is None else float_options.metric.metric
    facts += map(str, (goal, options.limit, options.labels, options.preprocessing, metric))
    state = _open_state(facts, goal, options.resume, folder.path)
    float_files = float_forms(float_model.graph, state.folder, goal.runtimes, goal.suffix)
    measured_sizes = sample_sizes(float_model, iter([reference.sample_shapes]), reference.rows) or {}
    search = FileSearch(
        goal,
        float_model,
        calibration,
        reference,
        sizes,
        measured_sizes,
        float_files,
        {name: getattr(options, name) for name in CALIBRATING},
        state,
        start,
        parse_duration(search_options["time_budget"]),
        options.on_progress,
    )
    try:
        search.run()
    except KeyboardInterrupt:
        if search.baseline is None:
            raise
        result = _conclude(search, float_model, float_options, output, folder)
        raise OptimizationInterrupted(result) from None
    result = _conclude(search, float_model, float_options, output, folder)
    if options.deploy is not None:
        deployed = result.deploy(options.deploy, options.server)
        options.on_message(f"{deployed}: README.md has the commands that start the server and check its outputs")
    return result


def _read_search(path: PathLike) -> dict[str, Any]:
    """Return the arguments of the search in the receipt of a file.

    Raises:
        InputError: the file is missing or broken, was changed, or is not that of a search.
    """
    checked = receipt(path)
    facts = (checked.receipt or {}).get("search")
    hint = "name a file that quantkit optimize wrote"
    if facts is None or not checked.matches:
        reason = next(iter(checked.problems), "the receipt of the file has no search")
        raise InputError(f"{path}: {reason}", hint=hint)
    try:
        check_structure(facts["goal"], _GOAL, "goal")
        check_structure(facts["time_budget"], float | int, "time_budget")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: the search of the receipt is damaged: {error}", hint=hint) from None
    return {**facts["goal"], "time_budget": facts["time_budget"]}


def _check_precisions(value: str | Iterable[str]) -> tuple[str, ...]:
    names = as_names(value) or ()
    for name in names:
        require_choice(PRECISIONS, precisions=name)
    if not names:
        raise UsageError("no precision may be used", hint=f"use {', '.join(PRECISIONS)}")
    return tuple(name for name in PRECISIONS if name in names)


def _check_runtimes(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the runtimes of the search, all installed ones by default."""
    if value is not None:
        names = tuple(dict.fromkeys(as_names(value) or ()))
        for name in names:
            availability = find_runtime(name).available()
            if not availability.ok:
                raise UsageError(f"{name} is not available: {availability.detail}", hint="quantkit doctor lists all")
        return names
    return tuple(name for name, each in all_runtimes().items() if name != REFERENCE and each.available().ok)


def _check_server(folder: PathLike | None, server: str, output: Path | None) -> str:
    """Return the name of the server; empty without a folder to write.

    Raises:
        UsageError: the server is unknown, the folder has files, or the name of the output is not one of a model there.
    """
    name = SERVERS.find(server).name
    if folder is None:
        return ""
    check_folder(expand_user(folder))
    if output is not None:
        check_name(output.name.partition(".")[0])
    return name


def _check_output(output: Path | None) -> str:
    """Return the suffix of the output that names a format; empty without one.

    Raises:
        UsageError: no file of the search has the format.
    """
    if output is None:
        return ""
    suffix = format_suffix(output)
    if suffix and suffix not in SUFFIXES:
        raise UsageError(
            f"cannot write {output.name}", hint=f"use the suffix {', '.join(SUFFIXES)}, or none for the best format"
        )
    check_target(output if suffix else output.with_name(output.name + SUFFIXES[0]))
    return suffix


def _split(model: Model, options: Options) -> tuple[Dataset, Dataset]:
    """Return the samples that calibrate and choose, and those that do not.

    Raises:
        UsageError: there are too few samples, or they can be read only once.
    """
    data = as_dataset(options.calibration, inputs=model.input_names)
    held_out = None if options.held_out is None else as_dataset(options.held_out, inputs=model.input_names)
    for dataset in (data, held_out):
        if dataset is not None and is_read_once(dataset):
            raise UsageError(
                f"{dataset.source} can be read only once, and the search reads it for each file",
                hint="give a list, or a function that returns an iterator",
            )
    if held_out is not None:
        return data.subset(options.limit), held_out
    rank = rank_of([tensor_info(model.graph, edge) for edge in model.graph.inputs])
    size = sum(1 for _ in data.read(rank)) if data.size is None else data.size
    if size < 2 * FEWEST_SAMPLES:
        raise UsageError(
            f"{data.source} has {size} samples: calibration and held-out samples need at least {FEWEST_SAMPLES} each",
            hint="give more data, or held_out (--held-out DATA)",
        )
    count = min(options.limit, max(size // 4, min(FEWEST_CALIBRATING, size // 2)))
    return data.subset(count), data.subset(MOST_SAMPLES, skip=count)


def _digest_samples(model: Model, dataset: Dataset) -> str:
    """Return the digest of the names and arrays of samples."""
    rank, result = rank_of([tensor_info(model.graph, edge) for edge in model.graph.inputs]), sha256()
    for sample in dataset.read(rank):
        result.update(f"{sample.name} {sample.label}\n".encode(errors="surrogateescape"))
        for name, array in sorted((sample.arrays or {}).items()):
            values = array.astype(str) if array.dtype.kind == "O" else array
            result.update(f"{name} {array.dtype} {array.shape}\n".encode() + np.ascontiguousarray(values).tobytes())
    return result.hexdigest()


def _open_state(facts: Sequence[str], goal: Goal, resume: PathLike | None, folder: Path) -> SearchState:
    """Return the state of an earlier search, or a new one.

    Args:
        facts: texts that differ for another model, other data and other options.
        goal: objective, bound and candidates.
        resume: file of the state; None for a state that is not saved.
        folder: for the files of such a state.
    """
    machine = this_machine()
    if resume is None:
        return SearchState(machine, "", folder)
    versions = [find_runtime(name).available().detail for name in goal.runtimes]
    key = sha256("\n".join((installed_version(), *versions, *facts)).encode()).hexdigest()
    return SearchState.read(expand_user(resume), machine, key)


def _run_float_model(model: Model, held_out_data: Dataset, options: Options) -> tuple[FloatReference, Sizes | None]:
    """Return the outputs of the float model on samples that do not choose, and the sizes of one sample.

    With dynamic sizes, the float model gets one sample in each run, so that files with fixed sizes run on the same
    feeds.
    """
    if has_dynamic_sizes(model.graph):
        silent = replace(options, on_message=ignore_message)
        probe = compute_reference(
            model, model.graph, held_out_data.subset(FEWEST_SAMPLES, keep_order=True), silent, UNKNOWN
        )
        shapes = ({name: array.shape for name, array in feeds.items()} for feeds in probe.feeds)
        sizes = sample_sizes(model, shapes, probe.rows)
        if sizes:
            try:
                fixed = fix_input_shapes(model, sizes)
                return compute_reference(fixed, fixed.graph, held_out_data, options, UNKNOWN), sizes
            except QuantkitError:  # later samples have other sizes
                pass
    return compute_reference(model, model.graph, held_out_data, options, UNKNOWN), None


def _conclude(
    search: FileSearch, model: Model, options: Options, output: Path | None, folder: OwnedFolder
) -> Optimization:
    """Choose the best candidate, and write its file with a receipt."""
    assert search.baseline is not None, "the caller checks it"
    baseline = search.choices[name_of(search.baseline)]
    best = _choose(search, baseline)
    name = f"{Path(model.name).stem}.optimized{best.form.path.suffix}"
    file = folder.path / name if output is None else output
    if not format_suffix(file):
        file = file.with_name(file.name + best.form.path.suffix)
    # A float file states the preprocessing and the labels of the caller, too: a deployed client uses them.
    metadata = describe_model(model, model.graph, "", options) | metadata_of_file(best.form.path)
    facts = metadata.get("receipt") or {
        "schema": RECEIPT_SCHEMA,
        "versions": {"quantkit": installed_version()},
        "source": {"file": None if model.path is None else digest(model.path)[0], "graph": graph_digest(model.graph)},
    }
    write_form(best.form, {**metadata, "receipt": {**facts, "search": _describe(search, best)}}, file)
    return Optimization(
        model.name,
        file,
        search.goal,
        best,
        baseline,
        tuple(sorted(search.choices.values(), key=lambda each: -each.ratio)),
        {**search.state.failures, **search.skipped},
        tuple(search.state.trials),
        search.state.machine,
        monotonic() - search.start,
        search.is_complete,
        folder,
    )


def _choose(search: FileSearch, baseline: Choice) -> Choice:
    """Return the best candidate, which must be shown to be faster than a baseline that may be used.

    Raises:
        UsageError: no candidate that may be used is within the bound.
    """
    ranked, may_keep = search.rank(), "float32" in search.goal.precisions
    if not ranked:
        if not may_keep:
            names = ", ".join(search.goal.precisions)
            hint = "allow float32 (--precisions), raise max_drop (--max-drop), or give more held-out samples"
            raise UsageError(f"no file in {names} is within the bound of {search.goal.max_drop:g}", hint=hint)
        return baseline
    if search.goal.objective == "size" or not search.is_complete:
        return ranked[0]
    faster = [each for each in ranked if each.speedup is not None and each.speedup.outcome == "faster"]
    return faster[0] if faster else baseline if may_keep else ranked[0]


def _describe(search: FileSearch, best: Choice) -> dict[str, Any]:
    """Return the search for the receipt: all candidates with their measurements."""
    machine = search.state.machine
    return {
        "goal": asdict(replace(search.goal, suffix="")),
        "time_budget": search.budget,
        "best": best.name,
        "runtime": best.candidate.settings.runtime,
        "drop": None if best.drop is None else best.drop.to_json(),
        "speed_up": None if best.speedup is None else best.speedup.to_json(),
        "candidates": [
            {
                "name": each.name,
                "ratio": round(each.ratio, 4),
                "ms": round(1000 * each.seconds, 4),
                "drop": None if each.drop is None else each.drop.to_json(),
            }
            for each in search.choices.values()
        ],
        "skipped": {**search.state.failures, **search.skipped},
        "machine": {"cpu": machine.cpu, "physical_cores": machine.physical_cores, "isa": list(machine.isa)},
    }
