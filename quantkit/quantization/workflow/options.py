"""Options of `quantize`, and their contradictions, which are errors before any work starts."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from quantkit import formats
from quantkit.arguments import (
    as_names,
    expand_user,
    keywords_of,
    parse_duration,
    require_callable,
    require_flag,
    require_fraction,
    require_names,
    require_natural,
    require_path,
    require_positive,
    require_text,
)
from quantkit.data import PreprocessingOptions
from quantkit.distribution import install_command
from quantkit.errors import UnavailableError, UsageError
from quantkit.evaluation.tasks import TaskMetric, find_task
from quantkit.ir.graph import Graph
from quantkit.model import Model
from quantkit.model.early_checks import check_sources
from quantkit.progress import OnMessage, OnProgress, ignore_message, ignore_progress
from quantkit.quantization.calibration.trained_ranges import FAKE_QUANT_OPS
from quantkit.quantization.finetuning.training import Budget
from quantkit.quantization.observers import create_observer
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets import Target, find_target, targets
from quantkit.quantization.targets.base import BFLOAT16, FLOAT
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
# Arguments of each check; those without a default value are optional.
_CHECKS: Mapping[Callable[..., None], tuple[str, ...]] = {
    require_positive: ("limit",),
    require_natural: ("seed", "runs"),
    require_fraction: ("max_drop",),
    require_flag: ("weights_only", "uint8_input", "reduce_range", "random_weights", "verify", "offline"),
    require_text: ("runtime", "fallback", "float_parts", "target", "observer", "signature"),
    require_names: ("inputs", "outputs", "tags"),
    require_path: ("scheme", "ranges", "plan", "labels", "checkpoint", "output", "trace", "save_plan", "save_ranges"),
    require_callable: ("on_progress", "on_message"),
}
# Arguments that describe images, without the class.
IMAGE_ARGUMENTS = keywords_of(PreprocessingOptions.of)[1:]
# Types of the values that stand for their files.
_VALUES: Mapping[str, Any] = {"scheme": Scheme | Mapping, "ranges": Ranges, "plan": Plan}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `quantize`, which documents them."""

    calibration: Any = None
    target: str | None = None
    scheme: Scheme | PathLike | None = None
    ranges: Ranges | PathLike | None = None
    plan: Plan | PathLike | None = None
    weights_only: bool = False
    uint8_input: bool = False
    observer: str | None = None
    reduce_range: bool = False
    limit: int = CALIBRATION_LIMIT
    held_out: Any = None
    labels: PathLike | None = None
    recipe: str | None = None
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None
    signature: str | None = None
    tags: tuple[str, ...] | None = None
    checkpoint: PathLike | None = None
    input_shapes: Mapping[str, Sequence[int]] | None = None
    random_weights: bool = False
    preprocessing: PreprocessingOptions = field(default_factory=PreprocessingOptions)
    runtime: str = AUTO
    runs: int | None = None
    finetune: int | str | None = None
    seed: int = 0
    max_drop: float | None = None
    task: TaskMetric | None = None
    fallback: str = FLOAT
    verify: bool = False
    trace: Path | None = None
    float_parts: str = ORIGINAL
    time_budget: float = TIME_BUDGET
    offline: bool = False
    output: Path | None = None
    save_plan: Path | None = None
    save_ranges: Path | None = None
    on_progress: OnProgress = ignore_progress
    on_message: OnMessage = ignore_message

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        """Return the options of a function with arguments of `quantize`.

        Raises:
            UsageError: a value is not of the type of its argument, or out of bounds.
        """
        images = {name: arguments.pop(name) for name in IMAGE_ARGUMENTS if name in arguments}
        preprocessing = PreprocessingOptions.of(**images)
        may_be_none = {each.name for each in fields(cls) if each.default is None}
        stated = {name: value for name, value in arguments.items() if value is not None or name not in may_be_none}
        for check, names in _CHECKS.items():
            values = {name: stated[name] for name in names if name in stated}
            check(**{name: value for name, value in values.items() if not isinstance(value, _VALUES.get(name, ()))})
        parsers: dict[str, Callable[[Any], Any]] = {
            **dict.fromkeys(_CHECKS[require_names], as_names),
            **dict.fromkeys(("output", "trace", "save_plan", "save_ranges"), expand_user),
            "task": find_task,
            "time_budget": lambda value: parse_duration(value, "time_budget"),
            "scheme": lambda value: Scheme.from_json(value) if isinstance(value, Mapping) else value,
        }
        parsed = {name: parsers[name](value) if name in parsers else value for name, value in stated.items()}
        return cls(preprocessing=preprocessing, **parsed)

    @cached_property
    def stated_plan(self) -> Plan | None:
        """The plan of the caller, read once from its file; None without a plan.

        Raises:
            InputError: the file cannot be read.
        """
        if self.plan is None or isinstance(self.plan, Plan):
            return self.plan
        return Plan.load(expand_user(self.plan))


def check_options(source: Any, options: Options, scheme: Scheme) -> None:
    """Check that the options fit each other, the model and the scheme.

    Args:
        source: the model, as `quantize` accepts it.
        options: options of the caller.
        scheme: scheme that the options select.

    Raises:
        UsageError: options contradict each other, one is missing, or a value is not allowed.
        InputError: the output cannot be written.
    """
    target = find_target(scheme.target)
    if options.output is not None:
        check_output(target, options.output)
    _check_paths(source, options)
    create_observer(scheme.observer, scheme.activations)  # its number may be out of bounds
    _check_data(options, scheme)
    check_fallback(options, target)
    if options.float_parts not in FLOAT_PARTS:
        raise UsageError(
            f"{options.float_parts!r} is not a type of float parts", hint=f"use {' or '.join(FLOAT_PARTS)}"
        )
    if options.float_parts == FLOAT16 and not target.writes_float16:
        others = [other.name for other in targets().values() if other.writes_float16]
        raise UsageError(
            f"--float-parts float16 requires --target {' or '.join(others)}",
            hint="most CPUs compute float16 slowly: quantkit benchmark --precision bfloat16 tries 16 bits",
        )
    if options.finetune is not None:
        _check_finetuning(options, scheme)
    files = [options.calibration, options.held_out]
    check_sources(
        *([] if options.random_weights else [source]), data=files, labels=options.labels, runtimes=[options.runtime]
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
    if target.is_folder(output):
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
        + (", or none for a SavedModel folder" if target.writes_folders else "")
        + (f", or {' or '.join(others)}" if others else ""),
    )


def _check_paths(source: Any, options: Options) -> None:
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
        check_trace_path(options.trace)
    for path in (options.save_plan, options.save_ranges):
        if path is not None:
            formats.check_target(path)
    formats.check_distinct(
        outputs,
        {
            "the model": source.path if isinstance(source, Model) else source,
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
    if options.fallback not in FALLBACK_PRECISIONS:
        raise UsageError(
            f"{options.fallback!r} is not a fallback precision", hint=f"use {' or '.join(FALLBACK_PRECISIONS)}"
        )
    if options.fallback not in target.fallback_precisions:
        others = [other.name for other in targets().values() if options.fallback in other.fallback_precisions]
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
