"""Lookup tables, which a frozen graph can name but not initialize.

A SavedModel initializes its tables in a separate graph, which its loader runs once:

    InitializeTableV2(table, keys, values)        LookupTableFindV2(table, keys, default) -> values

A frozen graph has the second node without the first.
"""

from quantkit.errors import InputError
from quantkit.ir.graph import Graph, Node

_INITIALIZERS = frozenset(
    {
        "InitializeTable",
        "InitializeTableFromTextFile",
        "InitializeTableFromTextFileV2",
        "InitializeTableV2",
        "LookupTableImport",
        "LookupTableImportV2",
    }
)
_IDENTITIES = frozenset({"Enter", "Identity", "Switch"})


def check(graph: Graph, name: str) -> None:
    """Check that the outputs depend on no table, unless they initialize it as well.

    Args:
        graph: graph with its inputs and outputs.
        name: name of the model, for messages.

    Raises:
        InputError: an output depends on a table; the hint names other outputs or inputs.
    """
    lookups = _lookups(graph)
    if not lookups:
        return
    source = graph[_table(graph, lookups[0])]
    table = f"the table {source.name!r}" if not source.op.startswith("Placeholder") else "a table"
    raise InputError(
        f"{name}: {lookups[0].name!r} ({lookups[0].op}) uses {table}, whose content a frozen graph cannot hold",
        hint=_suggest(graph, lookups),
    )


def remove_lookup_controls(graph: Graph) -> Graph:
    """Remove the control dependencies on lookups.

    TensorFlow 2 adds control dependencies on all stateful ops to the outputs of a function, lookups
    included.
    """
    lookups = {name for name, node in graph.nodes.items() if _is_lookup(node)}
    if not lookups:
        return graph
    return graph.with_nodes(
        node.with_(controls=tuple(name for name in node.controls if name not in lookups))
        for node in graph.nodes.values()
    )


def _is_lookup(node: Node) -> bool:
    return node.op.startswith("LookupTable") and node.op not in _INITIALIZERS


def _lookups(graph: Graph) -> list[Node]:
    """Return the lookups of the outputs in tables that the outputs do not initialize."""
    names = graph.reachable() - graph.input_names
    nodes = [node for name, node in graph.nodes.items() if name in names and node.inputs]
    initialized = {_table(graph, node) for node in nodes if node.op in _INITIALIZERS}
    return [node for node in nodes if _is_lookup(node) and _table(graph, node) not in initialized]


def _table(graph: Graph, node: Node) -> str:
    """Return the name of the node that creates the table of a node."""
    visited: set[str] = set()
    source = node.inputs[0].node
    while graph[source].op in _IDENTITIES and graph[source].inputs and source not in visited:
        visited.add(source)
        source = graph[source].inputs[0].node
    return source


def _suggest(graph: Graph, lookups: list[Node]) -> str:
    """Suggest outputs that depend on no table, else inputs after the tables."""
    free = [str(edge) for edge in graph.outputs if not _lookups(graph.with_endpoints(None, [edge]))]
    if free:
        return f"choose outputs that depend on no table: --outputs={','.join(free)}"
    after = graph.with_endpoints([*graph.inputs, *(node.name for node in lookups)], None)
    needed = after.reachable()
    inputs = [str(edge) for edge in after.inputs if edge.node in needed]
    return f"look the values up before, and feed them: --inputs={','.join(inputs)}"
