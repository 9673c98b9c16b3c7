"""Rename nodes, and find unused names.

In an ONNX graph, the values of a node with several outputs have names of their own
(`quantkit.formats.onnx.OUTPUTS`), and subgraphs refer to values by name.
"""

from collections.abc import Mapping, Sequence

from quantkit.formats.onnx import DIALECT, OUTPUTS, renamed_infos
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.names import is_tensorflow_name, unused_name

# Prefix of the entries of `_class` that name the node with which another shares its device.
COLOCATION_PREFIX = b"loc:@"


def name_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """Return a TensorFlow graph whose output nodes have these names, where the names are free and valid.

    The graph does not change if a node has several outputs, or if the names are not distinct.

    Args:
        graph: graph with outputs.
        names: one name per output.
    """
    nodes = [edge.node for edge in graph.outputs]
    if len(names) != len(set(nodes)) or len(set(names)) != len(names):
        return graph
    free = {
        node: name for node, name in zip(nodes, names, strict=True) if name not in graph and is_tensorflow_name(name)
    }
    return rename_nodes(graph, free)


def rename_nodes(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return the graph with some nodes renamed, in all references to them.

    References are inputs, control dependencies, colocations, and the inputs and outputs of the
    graph.

    Args:
        graph: graph that contains the nodes.
        names: new name by old name; no node may have a new name.
    """

    def rename_edges(edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
        return tuple(Edge(names.get(edge.node, edge.node), edge.port) for edge in edges)

    def rename_node(old: Node) -> Node:
        controls = tuple(names.get(name, name) for name in old.controls)
        new = old.with_(name=names.get(old.name, old.name), inputs=rename_edges(old.inputs), controls=controls)
        values = old.attrs.get(OUTPUTS)
        if graph.dialect == DIALECT and new.name != old.name and isinstance(values, tuple):
            new = new.with_attrs(**{OUTPUTS: _rename_values(values, new.name)})
        classes = old.attrs.get("_class")
        if not isinstance(classes, tuple):
            return new
        return new.with_attrs(_class=tuple(_rename_colocation(entry, names) for entry in classes))

    renamed = graph.with_nodes(map(rename_node, graph.nodes.values()))
    extra = renamed_infos(graph.extra, names) if graph.dialect == DIALECT else graph.extra
    return renamed.with_(inputs=rename_edges(graph.inputs), outputs=rename_edges(graph.outputs), extra=extra)


def names_in_subgraphs(graph: Graph) -> frozenset[str]:
    """Return the nodes to which the subgraphs of an ONNX graph refer by name.

    Such a node cannot be renamed or replaced.
    """
    if graph.dialect != DIALECT:
        return frozenset()
    return frozenset(name for node in graph.nodes.values() for name in node.controls)


def _rename_values(values: tuple[bytes, ...], name: str) -> tuple[bytes, ...]:
    """Return value names for a node that has the name of its first value; omitted values stay empty."""
    first = next(port for port, value in enumerate(values) if value)
    new = (f"{name}:{port}" if port != first else name for port in range(len(values)))
    return tuple(text.encode() if value else b"" for text, value in zip(new, values, strict=True))


def _rename_colocation(entry: Attr, names: Mapping[str, str]) -> Attr:
    if not isinstance(entry, bytes) or not entry.startswith(COLOCATION_PREFIX):
        return entry
    name = entry.removeprefix(COLOCATION_PREFIX).decode(errors="surrogateescape")
    return COLOCATION_PREFIX + names.get(name, name).encode(errors="surrogateescape")


class FreeNames:
    """Names that no node of a graph has; each is returned once.

    Args:
        graph: graph whose node names are taken.
    """

    def __init__(self, graph: Graph) -> None:
        self._used_names = set(graph.nodes)

    def free(self, name: str) -> str:
        """Return the name itself if it is free, else the name with a number appended."""
        free = unused_name(self._used_names, name)
        self._used_names.add(free)
        return free
