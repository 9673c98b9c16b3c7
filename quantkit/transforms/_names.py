"""New names for nodes, everywhere a name is written.

The values of an ONNX graph have names of their own where a node makes several (`quantkit.formats.onnx.OUTPUTS`), and
subgraphs refer to values by name.
"""

from collections.abc import Mapping
from itertools import count

from quantkit.formats.onnx import DIALECT, OUTPUTS, renamed_infos
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
        values = old.attrs.get(OUTPUTS)
        if graph.dialect == DIALECT and new.name != old.name and isinstance(values, tuple):
            new = new.with_attrs(**{OUTPUTS: _values(values, new.name)})
        classes = old.attrs.get("_class")
        if not isinstance(classes, tuple):
            return new
        return new.with_attrs(_class=tuple(_located(one, names) for one in classes))

    made = graph.with_nodes(node(one) for one in graph.nodes.values())
    extra = renamed_infos(graph.extra, names) if graph.dialect == DIALECT else graph.extra
    return made.with_(inputs=edges(graph.inputs), outputs=edges(graph.outputs), extra=extra)


def pinned(graph: Graph) -> frozenset[str]:
    """Nodes whose values the subgraphs of an ONNX graph read by name: they can be neither renamed nor replaced."""
    if graph.dialect != DIALECT:
        return frozenset()
    return frozenset(name for node in graph.nodes.values() for name in node.controls)


def _values(values: tuple[bytes, ...], name: str) -> tuple[bytes, ...]:
    """Names for the values of a node that is called like its first one; what was left out stays so."""
    first = next(port for port, value in enumerate(values) if value)
    new = (f"{name}:{port}" if port != first else name for port in range(len(values)))
    return tuple(text.encode() if value else b"" for text, value in zip(new, values, strict=True))


def _located(text: Attr, names: Mapping[str, str]) -> Attr:
    if not isinstance(text, bytes) or not text.startswith(COLOCATED):
        return text
    name = text.removeprefix(COLOCATED).decode(errors="surrogateescape")
    return COLOCATED + names.get(name, name).encode(errors="surrogateescape")


class FreeNames:
    """Names that no node of a graph has, each given once.

    Args:
        graph: whose names are taken.
    """

    def __init__(self, graph: Graph) -> None:
        self._taken = set(graph.nodes)

    def free(self, wanted: str) -> str:
        """The wanted name, or that with a number."""
        names = (f"{wanted}_{number}" if number else wanted for number in count())
        name = next(one for one in names if one not in self._taken)
        self._taken.add(name)
        return name
