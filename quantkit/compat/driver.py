"""The driver loop of the original tool."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from quantkit.compat.transforms import NodeDef, find_classic
from quantkit.compat.transforms.nodes import edges, from_graph, to_graph
from quantkit.compat.transforms.table import ClassicContext, ClassicTransform, check_inputs
from quantkit.errors import GraphError, QuantkitError, RecipeError
from quantkit.ir.garbage_collection import garbage_collection_paused
from quantkit.ir.graph import Graph, Versions
from quantkit.recipes.grammar import Step
from quantkit.recipes.recipe import IGNORE_ERRORS, Recipe
from quantkit.recipes.trace import STOP, Check, Record, Trace, op_changes, run_check


@garbage_collection_paused()
def run_classic(
    recipe: Recipe,
    graph: Graph,
    ends: tuple[Sequence[str], Sequence[str]] | None = None,
    *,
    services: Mapping[str, Any] | None = None,
    check: Check | None = None,
    on_mismatch: str = STOP,
    on_step: Callable[[Step], None] | None = None,
) -> tuple[Graph, Trace]:
    """Apply steps as the original did.

    Args:
        recipe: what to apply, in order; a name is looked up when its turn comes.
        graph: what to apply them to; it stays as it is.
        ends: names of what is fed and of what is asked for, as the caller wrote them; None: those of the graph.
        services: what transforms may ask for beside options.
        check: called with the graph before and after each step.
        on_mismatch: whether a step that the check refuses ends the run, or is undone.
        on_step: told before each step.

    Raises:
        GraphError: a transform failed, or left an input that names no node; the message is the original's.
        RecipeError: an unknown transform.
    """
    if graph.dialect != "tensorflow":
        raise GraphError(
            f"classic mode rewrites graphs of TensorFlow, and this is one of {graph.dialect}",
            hint="leave classic mode off: many transforms of today know such graphs",
        )
    inputs, outputs = ends or (map(str, graph.inputs), map(str, graph.outputs))
    names = (tuple(inputs), tuple(outputs))
    nodes = from_graph(graph)
    versions, extra = graph.versions, graph.extra
    records: list[Record] = []
    for step in recipe.steps:
        if on_step:
            on_step(step)
        transform = find_classic(step.name)
        context = ClassicContext(*names, step.options, graph.library, versions, services or {})
        start = perf_counter()
        made, ignored = _applied(transform, nodes, context)
        check_inputs(made)
        seconds = perf_counter() - start
        found, undone = "", ""
        if check and not ignored:
            found, undone = run_check(
                check,
                _graph(nodes, graph, names),
                _graph(made, graph, names),
                transform,
                on_mismatch,
            )
        if undone:
            made = nodes
        elif made is not nodes and not transform.keeps_versions:
            versions, extra = Versions(), b""
        ops = op_changes(Counter(node.op for node in nodes), Counter(node.op for node in made))
        records.append(Record(step, (len(nodes), len(made)), (), (), seconds, ignored, found, undone, ops))
        nodes = made
    after = _graph(nodes, graph, names).with_(versions=versions, extra=extra)
    return after, Trace(tuple(records), recipe, graph, after)


def _graph(nodes: Sequence[NodeDef], like: Graph, names: tuple[tuple[str, ...], tuple[str, ...]]) -> Graph:
    made = to_graph(nodes, like)
    return made.with_(inputs=edges(names[0], made), outputs=edges(names[1], made))


def _applied(transform: ClassicTransform, nodes: list[NodeDef], context: ClassicContext) -> tuple[list[NodeDef], str]:
    """The nodes after a transform, and the error that was ignored."""
    word = context.values(IGNORE_ERRORS)[:1]
    ignore = word[0].lower() if word else "false"
    if ignore not in ("true", "false"):
        raise GraphError(
            f"ignore_errors should be true or false, found {ignore}",
            hint=f"write {transform.name}(ignore_errors=true)",
        )
    try:
        return transform(nodes, context), ""
    except QuantkitError as error:
        if ignore == "true" and not isinstance(error, RecipeError):
            return nodes, error.message
        raise
