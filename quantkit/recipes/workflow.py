"""The verb ``transform``: load a model, apply a recipe, verify, and write the result."""

import itertools
import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from quantkit import formats
from quantkit.arguments import (
    expand_user,
    public,
    require_callable,
    require_natural,
    require_path,
    require_positive,
    require_ratio,
    require_text,
    type_name,
)
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.errors import RecipeError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.model import Model, as_model
from quantkit.model.early_checks import check_sources
from quantkit.model.exporters import EXPORTERS
from quantkit.model.exporters.files import OUTPUT_KINDS, OutputFile
from quantkit.model.options import LoadingOptions, ShapeOptions
from quantkit.options import Declaration, option, takes, values_of
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.recipes.driver import RecipeLike, as_recipe, run
from quantkit.recipes.named import RECIPES
from quantkit.recipes.recipe import Recipe
from quantkit.recipes.trace import SKIP, STOP, Trace, check_trace_path
from quantkit.transforms.plugins import load_file
from quantkit.transforms.registry import REGISTRY

# Transforms that make the constants of a graph smaller.
SHRINKING = frozenset({"convert_precision", "extract_subgraph", "quantize_nodes", "quantize_weights"})

PathLike = str | os.PathLike[str]
Runner = Callable[..., tuple[Graph, Trace]]


@dataclass(frozen=True, kw_only=True)
class VerificationOptions:
    """Comparison of the model outputs before and after each step."""

    verify: bool = option(False, help="compare the model outputs before and after each transform")
    on_mismatch: Literal["stop", "skip"] | None = option(
        None,
        choices=(STOP, SKIP),
        help="if outputs differ: stop with exit code 1 and write no file, or skip (undo) the step (default: stop)",
        doc="``stop`` to raise an error after a failed check (the default), ``skip`` to undo the step; implies "
        "``verify``",
    )
    tolerance: float | None = option(
        None,
        require_ratio,
        help="maximum difference of an exact transform, as a fraction of the largest value of an output (default: the "
        "rounding of the model, measured)",
        doc="maximum difference of an exact step, as a fraction of the largest value of an output (default: the "
        "rounding of the model, measured); implies ``verify``",
    )
    data: Any = option(
        None,
        help="images or arrays (.npz by input name, .npy) to verify with (default: seeded random inputs)",
        doc="dataset to verify with (default: random inputs); implies ``verify``",
    )
    runtime: str | None = option(
        None, require_text, help="runtime that verifies (default: tensorflow if it is installed, else reference)"
    )
    seed: int = option(0, require_natural, help="seed of the random inputs (default: 0)")


@dataclass(frozen=True)
class TransformOptions(VerificationOptions, ShapeOptions, LoadingOptions):
    """The arguments of `transform`."""

    model: Annotated[
        Any,
        Declaration(
            doc="a `Model`, a `Graph`, a path, the name of a model card, or any value that `quantkit.load` takes"
        ),
    ]
    recipe: RecipeLike | None = option(
        None,
        help=f"name of a recipe ({', '.join(RECIPES)}) or a .toml file",
        doc="the name of a recipe, the path of a TOML file, a transforms string, a list of steps, or a `Recipe`; None "
        "if the model is only converted to the format of ``output``. Inputs and outputs of a recipe file apply "
        "by default",
    )
    _: KW_ONLY
    output: PathLike | None = option(
        None,
        require_path,
        metavar="OUT",
        help="file to write (.pb, .pbtxt, .onnx, .tflite; any other suffix: a GraphDef), or a SavedModel folder: NEW/ "
        "or an empty one",
        doc="file or folder to write (default: no file)",
    )
    format: str | None = option(
        None, require_text, choices=OUTPUT_KINDS, help="output format (default: from the suffix)"
    )
    as_text: bool = option(False, doc="write the text form of a GraphDef")
    opset: int | None = option(
        None,
        require_positive,
        help="opset of an ONNX output (default: the model's, else 17)",
        doc="version of the standard operator set of an ONNX output (default: the model's, or 17 for a TensorFlow "
        "model); needs the package onnx",
    )
    trace: PathLike | None = option(
        None, require_path, metavar="FILE", help="write a trace: .json, or .html with both graphs drawn"
    )
    evaluate_with: Literal["numpy", "tensorflow"] = option(
        "numpy", choices=("numpy", "tensorflow"), help="backend for constant folding (default: numpy)"
    )
    plugins: Iterable[PathLike] = option((), doc="Python files whose transforms are registered first")
    on_progress: OnProgress = option(
        ignore_progress, require_callable, doc="receives the bytes of a download and the number of finished steps"
    )
    on_message: OnMessage = option(
        ignore_message, require_callable, doc="receives messages about steps that were omitted, undone or failed"
    )


@public
@takes(TransformOptions)
def transform(options: TransformOptions) -> Model:
    """Rewrite a model with a recipe.

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
    plugins = options.plugins
    if isinstance(plugins, str | os.PathLike) or not isinstance(plugins, Iterable):
        raise UsageError(f"plugins is {type_name(plugins)}, and must be a list of files", hint='plugins=["FILE.py"]')
    files = list(plugins)
    require_path(**{f"plugins[{index}]": file for index, file in enumerate(files)})
    for plugin in files:
        load_file(Path(plugin))
    file = choose_output(options)
    if not options.random_weights:
        check_sources(options.model, data=[options.data], runtimes=[options.runtime])
    if options.recipe is None:
        check_conversion(options.model, options.checkpoint, file)
    steps = Recipe(()) if options.recipe is None else as_recipe(options.recipe)
    # A Model is loaded, so that only its endpoints may change.
    load_options = values_of(LoadingOptions, options)
    for name, endpoints in (("inputs", steps.inputs), ("outputs", steps.outputs)):
        load_options[name] = endpoints or None if load_options[name] is None else load_options[name]
    shapes, on_progress = options.input_shapes, options.on_progress
    model = as_model(options.model, **load_options, input_shapes=shapes, on_progress=on_progress)
    return apply_recipe(model, steps, options, file)


def choose_output(options: TransformOptions) -> OutputFile | None:
    """Return the output file of the options; None if no file is written.

    Raises:
        UsageError: the path or the format cannot be written, or two files are written to one path.
        InputError: the trace cannot be written.
    """
    trace, output = options.trace, options.output
    file = None
    if output is not None:
        file = OutputFile.of(output, options.format, as_text=options.as_text, opset=options.opset)
        file.check_path()
        if file.is_guess:
            options.on_message(file.guess_text)
    if trace is not None:
        check_trace_path(expand_user(trace))
    formats.check_distinct({"the output": output, "the trace": trace}, {"the data": options.data})
    return file


def apply_recipe(
    model: Model, recipe: Recipe, options: TransformOptions, file: OutputFile | None = None, runner: Runner = run
) -> Model:
    """Apply a recipe to a loaded model, verify, and write the result; see `transform`.

    Args:
        model: model to rewrite.
        recipe: steps to apply.
        options: options of the caller.
        file: output file that `choose_output` returns for the options.
        runner: function that applies the steps; see `run`.
    """
    trace, on_message = options.trace, options.on_message
    formats.check_distinct({"the trace": trace}, {"the model": model.path})
    is_tensorflow = file is not None and EXPORTERS[file.kind].is_tensorflow
    before = as_tensorflow(model.graph) if is_tensorflow else model.graph
    recipe = fit_recipe(recipe, model, before)
    if file is not None:
        file.check(before, may_shrink=may_shrink(recipe))
    check = None
    stated = (options.data, options.tolerance, options.on_mismatch)
    if options.verify or any(value is not None for value in stated):
        from quantkit.recipes.verify import make_verifier

        check = make_verifier(
            model,
            before,
            data=options.data,
            runtime=options.runtime,
            seed=options.seed,
            tolerance=options.tolerance,
        )
    count, numbers = len(recipe.steps), itertools.count()
    after, record = runner(
        recipe,
        before,
        services=_services(options.evaluate_with),
        check=check,
        on_mismatch=options.on_mismatch or STOP,
        on_step=lambda step: options.on_progress(Progress("transforming", next(numbers), count, step.name)),
    )
    if check is not None and check.warning:
        on_message(f"warning: {check.warning}")
    elif check is None and any(step.name == "quantize_nodes" for step in recipe.steps):
        on_message(_classic_quantization_note(model.name))
    signature = model.signature.following(before, after) if model.signature else None
    with formats.name_written_files(options.output, trace):
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
