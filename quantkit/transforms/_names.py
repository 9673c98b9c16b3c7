"""New names for nodes, everywhere a name is written."""

from collections.abc import Mapping

from quantkit.ir.graph import Attr, Edge, Graph, Node

# What an attribute `_class` says of a node that shares its device with another.
COLOCATED = b"loc:@"


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for some nodes; inputs, waits, colocations and the ends of the graph follow.

    Args:
        graph: what to rename in.
        names: from old to new; the new ones must be free.
    """

    def edges(old: tuple[Edge, ...]) -> tuple[Edge, ...]:
        return tuple(Edge(names.get(edge.node, edge.node), edge.port) for edge in old)

    def node(old: Node) -> Node:
        controls = tuple(names.get(name, name) for name in old.controls)
        new = old.with_(name=names.get(old.name, old.name), inputs=edges(old.inputs), controls=controls)
        classes = old.attrs.get("_class")
        if not isinstance(classes, tuple):
            return new
        return new.with_attrs(_class=tuple(_located(one, names) for one in classes))

    made = graph.with_nodes(node(one) for one in graph.nodes.values())
    return made.with_(inputs=edges(graph.inputs), outputs=edges(graph.outputs))


def _located(text: Attr, names: Mapping[str, str]) -> Attr:
    if not isinstance(text, bytes) or not text.startswith(COLOCATED):
        return text
    name = text.removeprefix(COLOCATED).decode(errors="surrogateescape")
    return COLOCATED + names.get(name, name).encode(errors="surrogateescape")
