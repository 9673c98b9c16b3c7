"""Applying a recipe: timing, checks and records, which are the same for every transform."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from quantkit.arguments import public, type_name
from quantkit.errors import GraphError, QuantkitError, RecipeError, UsageError, did_you_mean
from quantkit.ir.check import verify
from quantkit.ir.garbage_collection import garbage_collection_paused
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.recipes.grammar import Step
from quantkit.recipes.named import RECIPES, find_recipe, named_recipes, read_recipe
from quantkit.recipes.recipe import IGNORE_ERRORS, Recipe, parse, read_options
from quantkit.recipes.trace import STOP, Check, Record, Trace, node_changes, op_changes, run_check
from quantkit.transforms.plugins import find_transform
from quantkit.transforms.registry import DIALECTS, OptionError, Transform

OnStep = Callable[[Step], None]


@garbage_collection_paused()
@public
def run(
    recipe: Recipe,
    graph: Graph,
    *,
    services: Mapping[str, Any] | None = None,
    check: Check | None = None,
    on_mismatch: str = STOP,
    on_step: OnStep | None = None,
) -> tuple[Graph, Trace]:
    """Apply a recipe.

    Args:
        recipe: steps to apply, in order.
        graph: graph to rewrite; it does not change.
        services: values for the services of transforms (``evaluate``: the function that computes constants).
        check: function that is called after each step; it raises a `CheckError` to reject the step.
        on_mismatch: `STOP` if that error ends the run, `SKIP` if the step is undone.
        on_step: function that is called before each step.

    Returns:
        The new graph, and a record of each step.

    Raises:
        RecipeError: a transform or an option is unknown.
        GraphError: a transform failed, and ``ignore_errors`` is not set.
        CheckError: the check rejected a step.
    """
    records: list[Record] = []
    before = graph
    for step in recipe.steps:
        if on_step:
            on_step(step)
        reason = _dialect_reason(recipe, step, graph)
        if reason:
            record = Record(step, (len(graph), len(graph)), (), (Skip(reason),), 0.0)
        else:
            graph, record = _run_step(step, graph, services, check, on_mismatch)
        records.append(record)
    return graph, Trace(tuple(records), recipe, before, graph)


def rewrite(graph: Graph, recipe: "RecipeLike", **services: Any) -> Graph:
    """Return the graph after a recipe.

    Args:
        graph: graph to rewrite; it does not change.
        recipe: see `as_recipe`.
        services: see `run`.

    Raises:
        RecipeError: the recipe cannot be read.
        GraphError: a transform failed.
    """
    recipe = as_recipe(recipe)
    graph = graph.with_endpoints(recipe.inputs or None, recipe.outputs or None)
    return run(recipe, graph, services=services)[0]


# A recipe, its name, the path of its TOML file, a transforms string, or a list of steps.
RecipeLike = Recipe | str | os.PathLike[str] | Iterable[Step | str]


@public
def as_recipe(value: RecipeLike) -> Recipe:
    """Return the recipe of any value that stands for one.

    Args:
        value: a recipe, the name of a recipe, the path of a TOML file, a transforms string, or a list of steps, each
            a `Step` or a transforms string.

    Raises:
        RecipeError: the text is neither a name nor a transforms string, or a transform or option is unknown.
        InputError: the file cannot be read.
        UsageError: the value has another type.
    """
    if isinstance(value, Recipe):
        return value
    if isinstance(value, str):
        return find_recipe(value) if value in RECIPES or value.endswith(".toml") else _parse_or_find(value)
    if isinstance(value, os.PathLike):
        return read_recipe(Path(value))
    if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
        steps = list(value)
        if all(isinstance(step, Step | str) for step in steps):
            return parse(" ".join(map(str, steps)))
    raise UsageError(
        f"{type_name(value)} is not a recipe",
        hint="give a name, a transforms string, the path of a TOML file, or a list of steps",
    )


def _parse_or_find(text: str) -> Recipe:
    try:
        return parse(text)
    except RecipeError as error:
        recipes = named_recipes()
        if text in recipes:
            return recipes[text]
        # The text may be a misspelled name of a recipe.
        if near := did_you_mean(text, recipes):
            raise RecipeError(f"no transform and no recipe is named {text!r}", hint=near) from error
        raise


def _dialect_reason(recipe: Recipe, step: Step, graph: Graph) -> str:
    """Return why a step of a named recipe does not apply to the dialect of a graph; empty if it does.

    A transforms string names its transforms for one graph: there, a wrong dialect is an error.
    """
    transform = find_transform(step.name)
    if not recipe.name or graph.dialect in transform.dialects:
        return ""
    titles = " and ".join(DIALECTS.get(dialect, dialect) for dialect in transform.dialects)
    return f"not applied: the transform rewrites {titles} graphs only"


def _run_step(
    step: Step, graph: Graph, services: Mapping[str, Any] | None, check: Check | None, on_mismatch: str
) -> tuple[Graph, Record]:
    """Return the graph after a step and its record; a step that the check rejects may be undone."""
    transform, ignores_errors = read_options(step)
    texts = {key: values for key, values in step.options.items() if key != IGNORE_ERRORS}
    start = perf_counter()
    outcome, ignored = _apply(transform, graph, texts, services, ignores_errors)
    result, undone = "", _find_fault(outcome.graph, step.name, stops=check is None or on_mismatch == STOP)
    seconds = perf_counter() - start
    if not undone:
        result, undone = run_check(None if ignored else check, graph, outcome.graph, transform, on_mismatch)
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
        result,
        undone,
        op_changes(graph.op_counts, after.op_counts),
    )


def _find_fault(graph: Graph, transform: str, *, stops: bool) -> str:
    """Return the fault of a graph that a transform returned; empty if it is well formed.

    Raises:
        GraphError: the graph has a fault, and ``stops`` is True.
    """
    try:
        verify(graph, blame=transform)
    except GraphError as error:
        if stops:
            raise
        return error.message
    return ""


def _apply(
    transform: Transform,
    graph: Graph,
    texts: Mapping[str, tuple[str, ...]],
    services: Mapping[str, Any] | None,
    ignores_errors: bool,
) -> tuple[Outcome, str]:
    """Return the outcome of a transform, and the message of an error that was ignored."""
    try:
        return transform.apply(graph, texts, services), ""
    except QuantkitError as error:
        # An error of the recipe is not ignored; an exception of a plugin is.
        is_recipe_error = isinstance(error, RecipeError if transform.is_built_in else OptionError)
        if ignores_errors and not is_recipe_error:
            return Outcome(graph), error.message
        raise type(error)(
            f"{transform.name}: {error.message}".replace(f"{transform.name}: {transform.name}", transform.name),
            error.hint,
        ) from None
