"""A recipe is an ordered list of transforms; running it gives the new graph and what happened on the way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from quantkit.errors import CheckError, QuantkitError, RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.recipe.classic_grammar import parse_classic_steps
from quantkit.recipe.grammar import Step, parse_steps, pointed
from quantkit.transforms import registry
from quantkit.transforms.registry import Claim, OptionError, Transform

IGNORE_ERRORS = "ignore_errors"

# What happens where a check refuses a step: the run stops, or the step is undone and the run goes on.
STOP, SKIP = "stop", "skip"

# What is asked after each step: (graph before, graph after, transform) -> a line to keep, or an error.
Check = Callable[[Graph, Graph, Claim], str]


@dataclass(frozen=True)
class Recipe:
    """Steps in order; ``str(recipe)`` is the classic string, and ``parse(str(recipe)) == recipe``.

    Attributes:
        steps: transforms with their options.
        inputs, outputs: of the model that the recipe is for; empty: those of the graph. Text has no word for them.
    """

    steps: tuple[Step, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.steps))


def parse(text: str, *, classic: bool = False) -> Recipe:
    """A recipe of a transforms string; names and options are looked up at once.

    Args:
        text: the string.
        classic: read it as the original tool did, which looked names up only when their turn came.

    Raises:
        RecipeError: bad grammar, an unknown transform or option, an unreadable value, or no transform at all.
    """
    if classic:
        return Recipe(parse_classic_steps(text))
    recipe = Recipe(parse_steps(text))
    if not recipe.steps:
        raise RecipeError("You must specify at least one transform.", hint="quantkit transforms list names them all")
    for step in recipe.steps:
        try:
            read_options(step)
        except RecipeError as error:
            option = error.option if isinstance(error, OptionError) else ""
            at = step.places.get(option, step.places[""])
            raise RecipeError(pointed(error.message, text, at), error.hint) from None
    return recipe


def read_options(step: Step) -> tuple[Transform, bool]:
    """The transform of a step, and whether its errors are ignored.

    Raises:
        RecipeError: no such transform or option, or a value that can not be read.
    """
    transform = registry.find(step.name)
    words = dict(step.options)
    ignore = words.pop(IGNORE_ERRORS, ("false",))[0].lower()
    if ignore not in ("true", "false"):
        raise OptionError(
            f"{step.name}: ignore_errors should be true or false, found {ignore}",
            hint=f"write {step.name}(ignore_errors=true)",
            option=IGNORE_ERRORS,
        )
    transform.read(words)
    return transform, ignore == "true"


@dataclass(frozen=True)
class Record:
    """What one step did.

    Attributes:
        step: as written.
        nodes: how many there were before and after.
        changes: what was matched and done.
        skips: near-matches that were declined, with reasons.
        seconds: wall time of the transform.
        ignored: the error that ``ignore_errors`` swallowed, or nothing.
        check: what the check after the step found, or nothing.
        undone: why the check refused the step, which then counts as not done, or nothing.
        ops: by op how many nodes there are more than before; less than 0: fewer.
    """

    step: Step
    nodes: tuple[int, int]
    changes: tuple[str, ...]
    skips: tuple[Skip, ...]
    seconds: float
    ignored: str = ""
    check: str = ""
    undone: str = ""
    ops: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "transform": str(self.step),
            "nodes_before": self.nodes[0],
            "nodes_after": self.nodes[1],
            "changes": list(self.changes),
            "skips": [{"node": skip.node, "reason": skip.reason} for skip in self.skips],
            "seconds": self.seconds,
            "ignored_error": self.ignored,
            "check": self.check,
            "undone": self.undone,
            "ops": dict(self.ops),
        }


@dataclass(frozen=True)
class Trace:
    """What every step of a run did, in order."""

    records: tuple[Record, ...] = field(default=())

    def to_json(self) -> list[dict[str, Any]]:
        return [record.to_json() for record in self.records]


def run(
    recipe: Recipe,
    graph: Graph,
    *,
    services: Mapping[str, Any] | None = None,
    check: Check | None = None,
    on_mismatch: str = STOP,
    on_step: Callable[[Step], None] | None = None,
    classic: bool = False,
    ends: tuple[Sequence[str], Sequence[str]] | None = None,
) -> tuple[Graph, Trace]:
    """Apply a recipe.

    Args:
        recipe: what to apply, in order.
        graph: what to apply it to; it stays as it is.
        services: what transforms may ask for beside options (``evaluate``: how constants are computed).
        check: called after each step; a `CheckError` says that the step is not to be trusted.
        on_mismatch: `STOP`: that error ends the run; `SKIP`: the step is undone, and the record says so.
        on_step: told before each step, for progress.
        classic: apply each transform exactly as the original tool did, its defects included.
        ends: inputs and outputs as the caller wrote them, for the original told ``x`` from ``x:0``.

    Returns:
        The new graph and a record for each step.

    Raises:
        RecipeError: an unknown transform or option.
        GraphError: a transform failed and ``ignore_errors`` did not say to go on.
        CheckError: the check refused a step.
    """
    if classic:
        from quantkit.recipe.classic import run_classic

        given = ends or (None, None)
        return run_classic(
            recipe,
            graph,
            inputs=given[0],
            outputs=given[1],
            services=services,
            check=check,
            on_mismatch=on_mismatch,
            on_step=on_step,
        )
    records: list[Record] = []
    for step in recipe.steps:
        transform, ignores = read_options(step)
        if on_step:
            on_step(step)
        words = {key: given for key, given in step.options.items() if key != IGNORE_ERRORS}
        start = perf_counter()
        outcome, ignored = _apply(transform, graph, words, services, ignores)
        verify(outcome.graph, blame=step.name)
        seconds = perf_counter() - start
        found, undone = judged(None if ignored else check, graph, outcome.graph, transform, on_mismatch)
        if undone:
            outcome = Outcome(graph, (), outcome.skips)
        records.append(
            Record(
                step,
                (len(graph), len(outcome.graph)),
                outcome.changes,
                outcome.skips,
                seconds,
                ignored,
                found,
                undone,
                op_changes(graph.op_counts, outcome.graph.op_counts),
            )
        )
        graph = outcome.graph
    return graph, Trace(tuple(records))


def judged(check: Check | None, before: Graph, after: Graph, transform: Claim, on_mismatch: str) -> tuple[str, str]:
    """What a check finds, and why the step is undone where it is.

    Raises:
        CheckError: the check refuses the step, and `on_mismatch` says to stop.
    """
    if check is None:
        return "", ""
    try:
        return check(before, after, transform), ""
    except CheckError as error:
        if on_mismatch == STOP:
            raise
        return "", error.message


def op_changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By op, in order of name, how many more nodes there are.

    >>> op_changes({"Relu": 2, "Identity": 3}, {"Relu": 2, "Relu6": 1})
    {'Identity': -3, 'Relu6': 1}
    """
    counts = {op: after.get(op, 0) - before.get(op, 0) for op in sorted({*before, *after})}
    return {op: count for op, count in counts.items() if count}


def transform(graph: Graph, recipe: Recipe | str, *, classic: bool = False, **services: Any) -> Graph:
    """The graph after a recipe.

    Args:
        graph: what to rewrite; it stays as it is.
        recipe: a recipe, or a transforms string.
        classic: do exactly what the original tool did, its defects included.
        services: see `run`.

    Raises:
        RecipeError: the recipe can not be read.
        GraphError: a transform failed.
    """
    steps = parse(recipe, classic=classic) if isinstance(recipe, str) else recipe
    return run(steps, graph, services=services, classic=classic)[0]


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
        if ignores and not isinstance(error, RecipeError):
            return Outcome(graph), error.message
        raise type(error)(
            f"{transform.name}: {error.message}".replace(f"{transform.name}: {transform.name}", transform.name),
            error.hint,
        ) from None
