"""The verb ``transform``: load a model, apply a recipe, verify, and write the result."""

import itertools
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from quantkit import formats
from quantkit.arguments import (
    expand_user,
    public,
    require_callable,
    require_choice,
    require_flag,
    require_natural,
    require_path,
    require_positive,
    require_ratio,
    require_text,
    type_name,
    without_none,
)
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.errors import RecipeError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.model import Model, as_model
from quantkit.model.early_checks import check_sources
from quantkit.model.exporters import EXPORTERS
from quantkit.model.exporters.files import OutputFile
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.recipes.driver import RecipeLike, as_recipe, run
from quantkit.recipes.recipe import Recipe
from quantkit.recipes.trace import SKIP, STOP, Trace, check_trace_path
from quantkit.transforms.plugins import load_file
from quantkit.transforms.registry import REGISTRY

# Transforms that make the constants of a graph smaller.
SHRINKING = frozenset({"convert_precision", "extract_subgraph", "quantize_nodes", "quantize_weights"})

Runner = Callable[..., tuple[Graph, Trace]]


class TransformOptions(TypedDict, total=False):
    """Keyword arguments of `transform` that do not concern loading; see there."""

    output: str | os.PathLike[str] | None
    format: str | None
    as_text: bool
    opset: int | None
    verify: bool
    data: Any
    tolerance: float | None
    on_mismatch: Literal["stop", "skip"] | None
    runtime: str | None
    seed: int
    trace: str | os.PathLike[str] | None
    evaluate_with: Literal["numpy", "tensorflow"]
    on_progress: OnProgress
    on_message: OnMessage


@public
def transform(
    model: Any,
    recipe: RecipeLike | None = None,
    *,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    signature: str | None = None,
    tags: Iterable[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    random_weights: bool = False,
    offline: bool = False,
    plugins: Iterable[str | os.PathLike[str]] = (),
    **options: Unpack[TransformOptions],
) -> Model:
    """Rewrite a model with a recipe.

    Args:
        model: a `Model`, a `Graph`, a path, the name of a model card, or any value that `quantkit.load` takes.
        recipe: the name of a recipe, the path of a TOML file, a transforms string, a list of steps, or a `Recipe`;
            None if the model is only converted to the format of ``output``.
        inputs, outputs, signature, tags, checkpoint, input_shapes, random_weights, offline: see `quantkit.load`.
            Inputs and outputs of a recipe file apply otherwise.
        plugins: Python files whose transforms are registered first.
        options: further keyword arguments:
            output: file or folder to write; None to write no file.
            format: format of the output, which overrides its suffix.
            as_text: write the text form of a GraphDef.
            opset: version of the standard operator set of an ONNX output (default: the model's, or 17 for a TensorFlow
                model); needs the package onnx.
            verify: compare the model outputs before and after each step.
            data: dataset to verify with (default: random inputs); implies ``verify``.
            tolerance: maximum difference of an exact step, as a fraction of the largest value of an output (default:
                the rounding of the model, measured); implies ``verify``.
            on_mismatch: ``stop`` to raise an error after a failed check (the default), ``skip`` to undo the step;
                implies ``verify``.
            runtime: runtime that verifies (default: the one of the model's format).
            seed: seed of the random inputs.
            trace: file for the trace: ``.json``, or ``.html`` for a page that draws the graph before and after.
            evaluate_with: backend for constant folding: ``numpy`` or ``tensorflow``.
            on_progress: receives the bytes of a download and the number of finished steps.
            on_message: receives messages about steps that were omitted, undone or failed.

    Returns:
        The rewritten model; its ``trace`` holds the records of all steps.

    Raises:
        UsageError: an argument has another type, or does not apply.
        RecipeError: the recipe cannot be read.
        InputError: the model or the data cannot be read, or a file cannot be written.
        GraphError: a transform failed.
        CheckError: the outputs differ, and ``on_mismatch`` is not ``skip``.
        UnavailableError: a package or an op conversion is not available.
    """
    _check_options(**options)
    if isinstance(plugins, str | os.PathLike) or not isinstance(plugins, Iterable):
        raise UsageError(f"plugins is {type_name(plugins)}, and must be a list of files", hint='plugins=["FILE.py"]')
    files = list(plugins)
    require_path(**{f"plugins[{index}]": file for index, file in enumerate(files)})
    for plugin in files:
        load_file(Path(plugin))
    file = choose_output(**options)
    if not random_weights:
        check_sources(model, data=[options.get("data")], runtimes=[options.get("runtime")])
    if recipe is None:
        check_conversion(model, checkpoint, file)
    steps = Recipe(()) if recipe is None else as_recipe(recipe)
    # A Model is loaded, so that only its endpoints may change.
    load_options: dict[str, Any] = {
        "inputs": inputs if inputs is not None else steps.inputs or None,
        "outputs": outputs if outputs is not None else steps.outputs or None,
        "signature": signature,
        "tags": tags,
        "checkpoint": checkpoint,
        "input_shapes": input_shapes,
        "random_weights": random_weights,
        "offline": offline,
        "on_progress": options.get("on_progress", ignore_progress),
    }
    return apply_recipe(as_model(model, **load_options), steps, file, **options)


def _check_options(**options: Unpack[TransformOptions]) -> None:
    """Check the values of the options before any work.

    Raises:
        UsageError: a value has another type, or is not allowed.
    """
    values: dict[str, Any] = without_none(**options)

    def select(*names: str) -> dict[str, Any]:
        return {name: values[name] for name in names if name in values}

    require_path(**select("output", "trace"))
    require_text(**select("format", "runtime"))
    require_flag(**select("as_text", "verify"))
    require_ratio(**select("tolerance"))
    require_natural(**select("seed"))
    require_positive(**select("opset"))
    require_choice((STOP, SKIP), **select("on_mismatch"))
    require_choice(("numpy", "tensorflow"), **select("evaluate_with"))
    require_callable(**select("on_progress", "on_message"))


def choose_output(**options: Unpack[TransformOptions]) -> OutputFile | None:
    """Return the output file of the options; None if no file is written.

    Raises:
        UsageError: the path or the format cannot be written, or two files are written to one path.
        InputError: the trace cannot be written.
    """
    trace, output = options.get("trace"), options.get("output")
    file = None
    if output is not None:
        as_text, opset = options.get("as_text", False), options.get("opset")
        file = OutputFile.of(output, options.get("format"), as_text=as_text, opset=opset)
        file.check_path()
        if file.is_guess:
            options.get("on_message", ignore_message)(file.guess_text)
    if trace is not None:
        check_trace_path(expand_user(trace))
    formats.check_distinct({"the output": output, "the trace": trace}, {"the data": options.get("data")})
    return file


def apply_recipe(
    model: Model,
    recipe: Recipe,
    file: OutputFile | None = None,
    runner: Runner = run,
    *,
    output: str | os.PathLike[str] | None = None,
    format: str | None = None,
    as_text: bool = False,
    opset: int | None = None,
    verify: bool = False,
    data: Any = None,
    tolerance: float | None = None,
    on_mismatch: Literal["stop", "skip"] | None = None,
    runtime: str | None = None,
    seed: int = 0,
    trace: str | os.PathLike[str] | None = None,
    evaluate_with: Literal["numpy", "tensorflow"] = "numpy",
    on_progress: OnProgress = ignore_progress,
    on_message: OnMessage = ignore_message,
) -> Model:
    """Apply a recipe to a loaded model, verify, and write the result; see `transform`.

    Args:
        model: model to rewrite.
        recipe: steps to apply.
        file: output file that `choose_output` returns for ``output``, ``format``, ``as_text`` and ``opset``.
        runner: function that applies the steps; see `run`.
    """
    formats.check_distinct({"the trace": trace}, {"the model": model.path})
    is_tensorflow = file is not None and EXPORTERS[file.kind].is_tensorflow
    before = as_tensorflow(model.graph) if is_tensorflow else model.graph
    recipe = fit_recipe(recipe, model, before)
    if file is not None:
        file.check(before, may_shrink=may_shrink(recipe))
    check = None
    if verify or data is not None or tolerance is not None or on_mismatch is not None:
        from quantkit.recipes.verify import make_verifier

        check = make_verifier(model, before, data=data, runtime=runtime, seed=seed, tolerance=tolerance)
    count, numbers = len(recipe.steps), itertools.count()
    after, record = runner(
        recipe,
        before,
        services=_services(evaluate_with),
        check=check,
        on_mismatch=on_mismatch or STOP,
        on_step=lambda step: on_progress(Progress("transforming", next(numbers), count, step.name)),
    )
    if check is not None and check.warning:
        on_message(f"warning: {check.warning}")
    elif check is None and any(step.name == "quantize_nodes" for step in recipe.steps):
        on_message(_classic_quantization_note(model.name))
    signature = model.signature.following(before, after) if model.signature else None
    with formats.name_written_files(output, trace):
        num_bytes = 0 if file is None else file.write(after, signature)
        _report_failures(record, on_message)
        record = replace(
            record,
            model=model.name,
            has_random_weights=model.has_random_weights,
            verification=check.to_json() if check else None,
            terms=check.terms if check else "",
            output=file.path if file else None,
            num_bytes=num_bytes,
        )
        if trace is not None:
            record.save(expand_user(trace))
    return replace(model, runnable=after, signature=signature, trace=record)


def _report_failures(record: Trace, on_message: OnMessage) -> None:
    """Report the steps whose errors were ignored, and those that were undone."""
    for step in record.records:
        if step.ignored:
            on_message(f"{step.step.name}: Ignoring error {step.ignored}")
        if step.undone:
            on_message(f"{step.step.name}: undone: {step.undone}")


def _classic_quantization_note(name: str) -> str:
    """Return the warning for 8-bit graphs whose ranges no data has determined."""
    command = ("quantkit", "quantize", name, "-o", "OUT.pb", "--target", "eightbit", "--calibration", "DATA")
    return (
        "warning: quantize_nodes uses no data: 8-bit graphs without calibration often predict other classes "
        "(Inception v3: an abacus instead of a giant panda); --verify --data DATA shows the difference, and this "
        f"command computes better ranges: {shlex.join(command)}"
    )


def may_shrink(recipe: Recipe) -> bool:
    """Return True if the recipe may make the constants smaller; transforms of plugins may."""
    transforms = [REGISTRY[step.name] for step in recipe.steps if step.name in REGISTRY]
    return any(transform.name in SHRINKING or not transform.is_built_in for transform in transforms)


def fit_recipe(recipe: Recipe, model: Model, graph: Graph) -> Recipe:
    """Return the recipe of a model: ``strip_unused_nodes`` gets element type and shape of the model card's input."""
    if model.card is None or len(model.card.inputs) != 1:
        return recipe
    card_input = model.card.inputs[0]
    if graph.inputs != graph.with_endpoints([card_input.name], None).inputs:
        return recipe
    shape = {"type": (card_input.dtype.value,), "shape": (",".join(map(str, card_input.shape)),)}
    steps = (
        replace(step, options={**shape, **step.options}) if step.name == "strip_unused_nodes" else step
        for step in recipe.steps
    )
    return replace(recipe, steps=tuple(steps))


def check_conversion(model: Any, checkpoint: str | os.PathLike[str] | None, file: OutputFile | None) -> None:
    """Check that writing a model without a recipe freezes it, or converts it to another format.

    Raises:
        RecipeError: the output would equal the input.
    """
    is_path = isinstance(model, str | os.PathLike)
    is_graphdef = is_path and Path(model).suffix in ("", ".pb", ".pbtxt") and not Path(model).is_dir()
    if file is None or (is_graphdef and not checkpoint and file.kind.startswith("graphdef")):
        raise RecipeError(
            "You must specify at least one transform.",
            hint="--recipe inference is a good first recipe; quantkit transforms list shows all for --transforms",
        )


def _read_variable(prefix: str, name: str, slice: str = "") -> Array:
    """Read a variable; the module imports the runtimes, which few graphs need."""
    from quantkit.model.importers.checkpoint import read_variable

    return read_variable(prefix, name, slice)


def _services(evaluate_with: str) -> dict[str, Any]:
    if evaluate_with == "numpy":
        return {"read_variable": _read_variable}
    if evaluate_with != "tensorflow":
        raise UsageError(f"{evaluate_with!r} is not a backend for constant folding", hint="use numpy or tensorflow")
    from quantkit.runtimes.tensorflow_constants import evaluate_with_tensorflow

    return {"read_variable": _read_variable, "evaluate": evaluate_with_tensorflow()}
