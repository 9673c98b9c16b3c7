"""Applying a recipe: whatever is the same for every transform is done here, once."""

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from quantkit.errors import GraphError, QuantkitError, RecipeError, did_you_mean
from quantkit.ir.check import verify
from quantkit.ir.garbage_collection import garbage_collection_paused
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.model import as_model
from quantkit.recipes.grammar import Step
from quantkit.recipes.named import find_recipe, named_recipes
from quantkit.recipes.recipe import IGNORE_ERRORS, Recipe, parse, read_options
from quantkit.recipes.trace import STOP, Check, Record, Trace, judged, node_changes, op_changes
from quantkit.transforms.registry import OptionError, Transform


@garbage_collection_paused()
def run(
    recipe: Recipe,
    graph: Graph,
    *,
    services: Mapping[str, Any] | None = None,
    check: Check | None = None,
    on_mismatch: str = STOP,
    on_step: Callable[[Step], None] | None = None,
) -> tuple[Graph, Trace]:
    """Apply a recipe.

    Args:
        recipe: what to apply, in order.
        graph: what to apply it to; it stays as it is.
        services: what transforms may ask for beside options (``evaluate``: how constants are computed).
        check: called after each step; a `CheckError` says that the step is not to be trusted.
        on_mismatch: `STOP`: that error ends the run; `SKIP`: the step is undone, and the record says so.
        on_step: told before each step, for progress.

    Returns:
        The new graph and a record for each step.

    Raises:
        RecipeError: an unknown transform or option.
        GraphError: a transform failed and ``ignore_errors`` did not say to go on.
        CheckError: the check refused a step.
    """
    records: list[Record] = []
    for step in recipe.steps:
        if on_step:
            on_step(step)
        graph, record = _run_step(step, graph, services, check, on_mismatch)
        records.append(record)
    return graph, Trace(tuple(records))


def _run_step(
    step: Step, graph: Graph, services: Mapping[str, Any] | None, check: Check | None, on_mismatch: str
) -> tuple[Graph, Record]:
    """The graph after a step, or as it was where the check has it undone."""
    transform, ignores = read_options(step)
    words = {key: given for key, given in step.options.items() if key != IGNORE_ERRORS}
    start = perf_counter()
    outcome, ignored = _apply(transform, graph, words, services, ignores)
    found, undone = "", _fault(outcome.graph, step.name, stops=check is None or on_mismatch == STOP)
    seconds = perf_counter() - start
    if not undone:
        found, undone = judged(None if ignored else check, graph, outcome.graph, transform, on_mismatch)
    if undone:
        outcome = Outcome(graph, (), outcome.skips)
    after = outcome.graph
    return after, Record(
        step,
        (len(graph), len(after)),
        outcome.changes if transform.is_built_in or outcome.changes else node_changes(graph, after),
        outcome.skips,
        seconds,
        ignored,
        found,
        undone,
        op_changes(graph.op_counts, after.op_counts),
    )


def _fault(graph: Graph, blame: str, *, stops: bool) -> str:
    """Why a step made no graph, or nothing.

    Raises:
        GraphError: the same, where that ends the run.
    """
    try:
        verify(graph, blame=blame)
    except GraphError as error:
        if stops:
            raise
        return error.message
    return ""


def transform(model: Any, recipe: Recipe | str, **services: Any) -> Graph:
    """The graph after a recipe.

    Args:
        model: what to rewrite, as `quantkit.load` takes it; it stays as it is.
        recipe: a recipe, a transforms string, the name of a recipe, or a TOML file with one.
        services: see `run`.

    Raises:
        RecipeError: the recipe can not be read.
        GraphError: a transform failed.
    """
    if isinstance(recipe, str):
        is_named = recipe in named_recipes() or recipe.endswith(".toml")
        recipe = find_recipe(recipe) if is_named else _parsed(recipe)
    graph = as_model(model).graph.with_endpoints(recipe.inputs or None, recipe.outputs or None)
    return run(recipe, graph, services=services)[0]


def _parsed(text: str) -> Recipe:
    try:
        return parse(text)
    except RecipeError as error:
        # One word may have been meant as the name of a recipe.
        if near := did_you_mean(text, named_recipes()):
            raise RecipeError(f"no transform and no recipe is named {text!r}", hint=near) from error
        raise


def _apply(
    transform: Transform,
    graph: Graph,
    words: Mapping[str, tuple[str, ...]],
    services: Mapping[str, Any] | None,
    ignores: bool,
) -> tuple[Outcome, str]:
    try:
        return transform.apply(graph, words, services), ""
    except QuantkitError as error:
        # A mistake of the recipe is none that may be passed over; a plugin that crashes is.
        is_recipes = isinstance(error, OptionError if not transform.is_built_in else RecipeError)
        if ignores and not is_recipes:
            return Outcome(graph), error.message
        raise type(error)(
            f"{transform.name}: {error.message}".replace(f"{transform.name}: {transform.name}", transform.name),
            error.hint,
        ) from None
