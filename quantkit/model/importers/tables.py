"""Tables of words and numbers, which a frozen graph can name, but not fill.

What is in a table, a SavedModel tells in a graph of its own that its loader runs once:

    InitializeTableV2(table, keys, values)        LookupTableFindV2(table, words, default) -> numbers

Frozen, the second is left without the first.
"""

from quantkit.errors import InputError
from quantkit.ir.graph import Graph, Node

_FILLING = frozenset(
    {
        "InitializeTable",
        "InitializeTableFromTextFile",
        "InitializeTableFromTextFileV2",
        "InitializeTableV2",
        "LookupTableImport",
        "LookupTableImportV2",
    }
)
_PASSING = frozenset({"Enter", "Identity", "Switch"})


def check(graph: Graph, name: str) -> None:
    """See that the outputs need no table, unless they fill it as well.

    Args:
        graph: with its inputs and outputs.
        name: of the model.

    Raises:
        InputError: they need one; the hint says what to ask for or to feed instead.
    """
    lookups = _lookups(graph)
    if not lookups:
        return
    source = graph[_table(graph, lookups[0])]
    table = f"the table {source.name!r}" if not source.op.startswith("Placeholder") else "a table"
    raise InputError(
        f"{name}: {lookups[0].name!r} ({lookups[0].op}) reads {table}, and a frozen graph can not hold what is in it",
        hint=_way_around(graph, lookups),
    )


def without_waiting(graph: Graph) -> Graph:
    """The graph with nothing in it that waits for a lookup without reading what is found.

    TensorFlow 2 lets all outputs of a function wait for all that may have an effect, and takes lookups for that.
    """
    lookups = {name for name, node in graph.nodes.items() if _reads(node)}
    if not lookups:
        return graph
    return graph.with_nodes(
        node.with_(controls=tuple(name for name in node.controls if name not in lookups))
        for node in graph.nodes.values()
    )


def _reads(node: Node) -> bool:
    return node.op.startswith("LookupTable") and node.op not in _FILLING


def _lookups(graph: Graph) -> list[Node]:
    """Nodes that the outputs need, and that read a table which they do not fill."""
    names = graph.reachable() - graph.input_names
    nodes = [node for name, node in graph.nodes.items() if name in names and node.inputs]
    filled = {_table(graph, node) for node in nodes if node.op in _FILLING}
    return [node for node in nodes if _reads(node) and _table(graph, node) not in filled]


def _table(graph: Graph, node: Node) -> str:
    """The name of what makes the table that a node takes."""
    seen: set[str] = set()
    source = node.inputs[0].node
    while graph[source].op in _PASSING and graph[source].inputs and source not in seen:
        seen.add(source)
        source = graph[source].inputs[0].node
    return source


def _way_around(graph: Graph, lookups: list[Node]) -> str:
    """Outputs that need no table, or else inputs behind the tables."""
    free = [str(edge) for edge in graph.outputs if not _lookups(graph.with_endpoints(None, [edge]))]
    if free:
        return f"ask for what needs no table: --outputs={','.join(free)}"
    behind = graph.with_endpoints([*graph.inputs, *(node.name for node in lookups)], None)
    needed = behind.reachable()
    fed = [str(edge) for edge in behind.inputs if edge.node in needed]
    return f"look up before, and feed what is found: --inputs={','.join(fed)}"
