"""Options of `quantize`, and their contradictions, which are errors before any work starts."""

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from quantkit import formats
from quantkit.arguments import (
    expand_user,
    parse_duration,
    require_callable,
    require_duration,
    require_fraction,
    require_natural,
    require_path,
    require_positive,
    require_text,
)
from quantkit.data import DATA_KINDS
from quantkit.data.options import LABELS, InputImageOptions
from quantkit.distribution import install_command
from quantkit.errors import UnavailableError, UsageError
from quantkit.evaluation.options import TASK
from quantkit.evaluation.tasks import Score, TaskMetric, find_task
from quantkit.ir.graph import Graph
from quantkit.model import Model
from quantkit.model.early_checks import check_sources
from quantkit.model.options import LoadingOptions, ShapeOptions
from quantkit.options import Declaration, option, path_or
from quantkit.progress import OnMessage, OnProgress, ignore_message, ignore_progress
from quantkit.quantization.calibration.trained_ranges import FAKE_QUANT_OPS
from quantkit.quantization.finetuning.training import Budget
from quantkit.quantization.observers import create_observer
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets import Target, find_target, targets
from quantkit.quantization.targets.base import BFLOAT16, FLOAT, is_folder, needs_gpu, stores_bfloat16
from quantkit.recipes import Recipe, parse
from quantkit.recipes.named import find_recipe
from quantkit.recipes.trace import check_trace_path
from quantkit.runtimes import AUTO
from quantkit.runtimes.tensorflow_library import available as tensorflow_available
from quantkit.transforms.registry import REGISTRY

PathLike = str | os.PathLike[str]

DEFAULT_TARGET = "onnx"
CALIBRATION_LIMIT = 100
TIME_BUDGET = 600.0
FALLBACK_PRECISIONS = (FLOAT, BFLOAT16)
FLOAT_PARTS = (ORIGINAL, FLOAT32, FLOAT16) = ("original", "float32", "float16")


@dataclass(frozen=True)
class Options(InputImageOptions, ShapeOptions, LoadingOptions):
    """The arguments of `quantize`, in the order of the flags."""

    model: Annotated[
        Any,
        Declaration(
            doc="model, graph, path or card name; or a model of `quantkit.training.quantization_aware`, whose training "
            "has fixed target, plan and ranges"
        ),
    ]
    calibration: Any = option(
        None,
        metavar="DATA",
        help=f"calibration dataset: {DATA_KINDS}",
        doc="calibration dataset; not needed with ``ranges``, ``weights_only``, or the trained ranges of "
        "quantization-aware training (TF-MOT). With it, layers without trained ranges are quantized, too",
    )
    _: KW_ONLY
    output: PathLike | None = option(
        None,
        require_path,
        help="file to write, or a SavedModel folder without a suffix (targets tensorflow and eightbit)",
        doc="write the quantized model to this file or SavedModel folder as soon as it is checked. The state of an "
        "interrupted calibration or search is saved next to it, and the same call resumes",
        is_required=True,
        convert=expand_user,
    )
    target: str | None = option(
        None,
        require_text,
        metavar=lambda: f"{{{','.join(sorted(targets()))}}}",
        help="target format and runtime (default: the scheme's, else onnx)",
    )
    scheme: Scheme | Mapping[str, Any] | PathLike | None = option(
        None,
        path_or(Scheme, Mapping),
        metavar="FILE.toml",
        help="quantization scheme (default: the target's)",
        doc="quantization scheme, its fields, or its TOML file (default: the target's)",
    )
    weights_only: bool = option(False, help="quantize weights only and compute in float; needs no data")
    uint8_input: bool = option(False, help="accept uint8 images; preprocessing is folded into the first layer")
    observer: str | None = option(
        None,
        require_text,
        help="range estimator, for example min_max or percentile(99.9) (default: the scheme's, or min_max if that "
        "is better on the data)",
    )
    reduce_range: bool = option(
        False, help="use 7-bit weights (default: 8 bits whose sums of pairs cannot saturate without VNNI)"
    )
    plan: Plan | PathLike | None = option(
        None,
        path_or(Plan),
        metavar="FILE",
        help="read the quantization plan from this file instead of computing it",
        doc="quantization plan to follow instead of computing one, or its file",
    )
    save_plan: PathLike | None = option(
        None,
        require_path,
        metavar="FILE",
        help="write the quantization plan, with precision and reason of each layer",
        doc="write the plan to this file as soon as it is known",
        convert=expand_user,
    )
    ranges: Ranges | PathLike | None = option(
        None,
        path_or(Ranges),
        metavar="FILE",
        help="read the ranges from this file instead of calibrating",
        doc="ranges of an earlier calibration of the same graph, or their file",
    )
    save_ranges: PathLike | None = option(
        None,
        require_path,
        metavar="FILE",
        help="write the calibrated ranges",
        doc="write the ranges to this file as soon as they are known",
        convert=expand_user,
    )
    trace: PathLike | None = option(
        None,
        require_path,
        metavar="FILE",
        help="write a trace of the recipe: .json, or .html with both graphs",
        convert=expand_user,
    )
    verify: bool = option(
        False,
        help="compare the float outputs before and after each step of the recipe",
        doc="compare the outputs of the float model before and after each step of the recipe, on random inputs of "
        "``seed``",
    )
    recipe: str | None = option(None, help="recipe that prepares the float graph (default: the card's, else inference)")
    limit: int = option(
        CALIBRATION_LIMIT,
        require_positive,
        help=f"maximum number of calibration images (default: {CALIBRATION_LIMIT})",
        doc="maximum number of calibration samples",
    )
    held_out: Any = option(
        None,
        metavar="DATA",
        help="held-out images for the accuracy check (default: the calibration images; with --max-drop and --finetune, "
        "the ones after them)",
    )
    labels: PathLike | None = option(None, LABELS)
    runtime: str = option(
        AUTO,
        require_text,
        help="runtime of the float model, which the form of an ONNX model then suits (default: auto, the fastest "
        "available for the float model, a form for all runtimes)",
    )
    runs: int | None = option(
        None,
        require_natural,
        help="samples of the latency of each model; 0 to skip the latency (default: until the comparison is clear)",
    )
    finetune: int | str | None = option(
        None,
        metavar="STEPS|TIME|layerwise",
        help="train weights and ranges on the calibration images, for example 300 steps or 10m; layerwise fits "
        "each layer by itself; requires TensorFlow",
        doc="train weights and ranges against the float model's outputs on the calibration samples: a number of "
        "steps, a time such as ``10m``, or ``layerwise`` for a fit of each layer by itself. Needs TensorFlow. The "
        "calibrated model is kept unless the other one is better on held-out samples",
    )
    seed: int = option(0, require_natural, help="seed of the order of the training images (default: 0)")
    max_drop: float | None = option(
        None,
        require_fraction,
        help="keep layers in float until the drop is at most this fraction, for example 0.01: the drop of top-1 if "
        "images have labels, else of the agreement with the float model",
        doc="keep layers in float until the drop is at most this fraction: the drop of top-1 if samples have "
        "labels, else of the agreement with the float model, or of the metric of ``task``",
    )
    task: str | Score | None = option(
        None,
        TASK,
        help="metric of the accuracy with the float model as reference (default: agreement for class scores, else "
        "SQNR)",
        doc="metric of the outputs with the float model as reference: ``segmentation``, ``detection``, "
        "``regression``, ``embedding``, ``text``, ``language``, or a function of the float model's outputs and the "
        "int8 model's, (n, ...) by name, that returns 1 for equal outputs (default: agreement for class scores, "
        "else SQNR)",
    )
    fallback: str = option(
        FLOAT,
        choices=FALLBACK_PRECISIONS,
        help="precision of the layers that --max-drop keeps; bfloat16 requires --target tensorflow and a processor "
        "with bfloat16 arithmetic (default: float)",
    )
    float_parts: str = option(
        ORIGINAL,
        choices=FLOAT_PARTS,
        help="type of the ops that stay float; float16 requires --target tensorrt (default: original)",
        doc="type of the ops that stay float: ``original`` keeps those of float16 models, ``float32`` is faster on "
        "most CPUs, and ``float16``, for the target ``tensorrt`` only, converts the ops of any model that are safe in "
        "it. It is float32 in LiteRT files, in files of another format than the model, and for models in double or "
        "bfloat16, unless ``float16`` is given. Inputs and outputs keep their types",
    )
    time_budget: float | str = option(
        TIME_BUDGET,
        require_duration,
        help="time limit of the --max-drop search, and of the observers and the fit of layers by --finetune, for "
        "example 90s (default: 10m)",
        doc="time limit of the search of ``max_drop``, and of the observers and the fit of layers by ``finetune``, in "
        "seconds or a text such as ``2m``",
    )
    on_progress: OnProgress = option(ignore_progress, require_callable, doc="receives the progress")
    on_message: OnMessage = option(ignore_message, require_callable, doc="receives messages")

    @property
    def file(self) -> Path | None:
        """Path of ``output``."""
        return None if self.output is None else Path(self.output)

    @property
    def seconds(self) -> float:
        """Time budget."""
        return parse_duration(self.time_budget)

    @cached_property
    def metric(self) -> TaskMetric | None:
        """Metric of the task."""
        return find_task(self.task)

    def state_file(self, suffix: str) -> Path | None:
        """Return the file of an interrupted step next to the output; None without an output."""
        return None if self.file is None else self.file.with_name(f"{self.file.name}.{suffix}")

    @cached_property
    def stated_plan(self) -> Plan | None:
        """The plan of the caller, read once from its file; None without a plan.

        Raises:
            InputError: the file cannot be read.
        """
        if self.plan is None or isinstance(self.plan, Plan):
            return self.plan
        return Plan.load(expand_user(self.plan))


def check_options(options: Options, scheme: Scheme) -> None:
    """Check that the options fit each other, the model and the scheme.

    Args:
        options: options of the caller.
        scheme: scheme that the options select.

    Raises:
        UsageError: options contradict each other, one is missing, or a value is not allowed.
        InputError: the output cannot be written.
    """
    target = find_target(scheme.target)
    if options.file is not None:
        check_output(target, options.file)
    _check_paths(options)
    create_observer(scheme.observer, scheme.activations)  # its number may be out of bounds
    _check_data(options, scheme)
    check_fallback(options, target)
    if options.float_parts == FLOAT16 and not needs_gpu(target):
        others = [other.name for other in targets().values() if needs_gpu(other)]
        raise UsageError(
            f"--float-parts float16 requires --target {' or '.join(others)}",
            hint="most CPUs compute float16 slowly: quantkit benchmark --precision bfloat16 tries 16 bits",
        )
    if options.finetune is not None:
        _check_finetuning(options, scheme)
    files = [options.calibration, options.held_out]
    check_sources(
        *([] if options.random_weights else [options.model]),
        data=files,
        labels=options.labels,
        runtimes=[options.runtime],
    )
    if isinstance(options.ranges, str | os.PathLike):
        Ranges.load(expand_user(options.ranges))
    if options.recipe:
        read_recipe(options.recipe)


def read_recipe(text: str) -> Recipe:
    """Return a recipe of transforms, of a name or of a file.

    Raises:
        RecipeError: there is no such recipe, or it cannot be read.
    """
    is_transforms = {" ", "("} & set(text) or text in REGISTRY
    return parse(text) if is_transforms else find_recipe(text)


def check_output(target: Target, output: Path) -> None:
    """Check that a target can be written to a path.

    Raises:
        UsageError: the suffix is that of another format, or the folder does not exist or has files.
        InputError: the folder is not writable.
    """
    if is_folder(target, output):
        formats.check_folder(output)
        return
    formats.check_target(output)
    suffix = output.suffix.lower()
    if suffix in target.suffixes:
        return
    others = [
        f"target {other.name} (--target {other.name})" for other in targets().values() if suffix in other.suffixes
    ]
    raise UsageError(
        f"cannot write target {target.name!r} to {output.name}",
        hint=f"use the suffix {' or '.join(target.suffixes)}"
        + (", or none for a SavedModel folder" if ".pb" in target.suffixes else "")
        + (f", or {' or '.join(others)}" if others else ""),
    )


def _check_paths(options: Options) -> None:
    """Check that the outputs can be written, to paths of their own, and overwrite no input.

    Raises:
        UsageError: two outputs, or an output and an input, are the same file.
        InputError: an output cannot be written.
    """
    outputs = {
        "--output": options.output,
        "--save-plan": options.save_plan,
        "--save-ranges": options.save_ranges,
        "--trace": options.trace,
    }
    if options.trace is not None:
        check_trace_path(Path(options.trace))
    for path in (options.save_plan, options.save_ranges):
        if path is not None:
            formats.check_target(Path(path))
    formats.check_distinct(
        outputs,
        {
            "the model": options.model.path if isinstance(options.model, Model) else options.model,
            "--calibration": options.calibration,
            "--held-out": options.held_out,
            "--labels": options.labels,
            "--checkpoint": options.checkpoint,
            "--scheme": options.scheme,
            "--plan": options.plan,
            "--ranges": options.ranges,
        },
    )


def _check_data(options: Options, scheme: Scheme) -> None:
    """Check that there is exactly one source of ranges, and none with weights only."""
    if options.ranges is not None and options.calibration is not None:
        raise UsageError("--ranges and --calibration exclude each other", hint="omit ranges or calibration")
    if scheme.weights_only:
        for name in ("calibration", "ranges", "save_ranges", "max_drop"):
            if getattr(options, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} has no effect with --weights-only, which needs no ranges",
                    hint=f"omit {name}; held_out (--held-out DATA) measures the agreement with the float model",
                )


def require_ranges(graph: Graph, options: Options, scheme: Scheme) -> None:
    """Check that there is a source of ranges: data, a file, or FakeQuant nodes of quantization-aware training.

    Raises:
        UsageError: there is no such source.
    """
    if options.ranges is None and options.calibration is None and not scheme.weights_only:
        if FAKE_QUANT_OPS & graph.op_counts.keys():
            return
        raise UsageError(
            "no calibration dataset is given",
            hint="give calibration (--calibration DATA) or ranges (--ranges FILE); weights_only (--weights-only) "
            "needs neither",
        )


def check_fallback(options: Options, target: Target) -> None:
    """Check that the accuracy search has data, and that the target supports its precision."""
    if options.max_drop is not None and options.calibration is None and options.held_out is None:
        raise UsageError("--max-drop needs data to measure the drop on", hint="give held_out (--held-out DATA)")
    if options.fallback == BFLOAT16 and not stores_bfloat16(target):
        others = [other.name for other in targets().values() if stores_bfloat16(other)]
        raise UsageError(
            f"--fallback {options.fallback} requires --target {' or '.join(others)}",
            hint=f"runtimes of {target.name} files choose it at load time: quantkit benchmark --precision bfloat16",
        )


def _check_finetuning(options: Options, scheme: Scheme) -> None:
    """Check that a fine-tuning has data and TensorFlow, and quantizes activations.

    Raises:
        UsageError: the length is not valid, there is no calibration dataset, or only weights are quantized.
        UnavailableError: TensorFlow is not installed.
    """
    assert options.finetune is not None, "the caller checks it"
    Budget.parse(options.finetune)
    if scheme.weights_only:
        raise UsageError("--finetune has no effect with --weights-only, which computes in float", hint="omit one")
    if options.calibration is None:
        raise UsageError("--finetune trains on the calibration dataset", hint="give calibration (--calibration DATA)")
    if not tensorflow_available().ok:
        raise UnavailableError("--finetune needs TensorFlow, which is not installed", hint=install_command("training"))
