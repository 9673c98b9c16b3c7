"""Driver of the original tool: runs the steps of a recipe in order."""

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
    endpoints: tuple[Sequence[str], Sequence[str]] | None = None,
    *,
    services: Mapping[str, Any] | None = None,
    check: Check | None = None,
    on_mismatch: str = STOP,
    on_step: Callable[[Step], None] | None = None,
) -> tuple[Graph, Trace]:
    """Apply the steps of a recipe like the original tool.

    Args:
        recipe: steps in order; the name of a step is resolved just before the step runs.
        graph: TensorFlow graph.
        endpoints: names of the inputs and of the outputs as spelled by the caller; if None those
            of the graph.
        services: functions for transforms, for example ``evaluate``; see `ClassicContext`.
        check: function called with the graph before and after each step.
        on_mismatch: `STOP` or `SKIP`: end the run, or undo the step, if its check fails.
        on_step: function called before each step.

    Raises:
        GraphError: a transform failed, or left a dangling input; the message is the original's.
        RecipeError: a transform is unknown.
    """
    if graph.dialect != "tensorflow":
        raise GraphError(
            f"classic mode supports TensorFlow graphs only, not {graph.dialect} graphs",
            hint="omit --classic: many of quantkit's own transforms support this dialect",
        )
    inputs, outputs = endpoints or (map(str, graph.inputs), map(str, graph.outputs))
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
        after, ignored = _apply(transform, nodes, context)
        check_inputs(after)
        seconds = perf_counter() - start
        checked, undone = "", ""
        if check and not ignored:
            graphs = (_as_graph(nodes, graph, names), _as_graph(after, graph, names))
            checked, undone = run_check(check, *graphs, transform, on_mismatch)
        if undone:
            after = nodes
        elif after is not nodes and not transform.keeps_versions:
            versions, extra = Versions(), b""
        counts = (len(nodes), len(after))
        ops = op_changes(Counter(node.op for node in nodes), Counter(node.op for node in after))
        records.append(Record(step, counts, (), (), seconds, ignored, checked, undone, ops))
        nodes = after
    result = _as_graph(nodes, graph, names).with_(versions=versions, extra=extra)
    return result, Trace(tuple(records), recipe, graph, result)


def _as_graph(nodes: Sequence[NodeDef], like: Graph, names: tuple[tuple[str, ...], tuple[str, ...]]) -> Graph:
    graph = to_graph(nodes, like)
    return graph.with_(inputs=edges(names[0], graph), outputs=edges(names[1], graph))


def _apply(transform: ClassicTransform, nodes: list[NodeDef], context: ClassicContext) -> tuple[list[NodeDef], str]:
    """Return the nodes after a transform, and the message of the ignored error."""
    values = context.values(IGNORE_ERRORS)
    ignore = values[0].lower() if values else "false"
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
