"""Many edits, one new graph.

A transform that changes more than one node fills a `Draft` and returns `draft.graph()`. A draft
never leaves the function that made it.
"""

from collections.abc import Iterable
from dataclasses import replace

from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Graph, Node


class Draft:
    """Edits of one graph, applied together by `graph`.

    Args:
        graph: what to edit; it stays as it is.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._places: dict[str, list[Node]] = {}
        self._end: list[Node] = []
        self._edges: dict[Edge, Edge] = {}
        self._controls: dict[str, tuple[str, ...]] = {}

    def replace(self, name: str, *nodes: Node) -> None:
        """Put ``nodes`` where the node ``name`` stands (none: remove it)."""
        self._places[name] = list(nodes)

    def remove(self, *names: str) -> None:
        """Remove nodes; whoever reads them must be redirected."""
        for name in names:
            self._places[name] = []

    def before(self, name: str, *nodes: Node) -> None:
        """Put ``nodes`` in front of the node ``name``."""
        self._places.setdefault(name, [self._graph[name]])[:0] = nodes

    def after(self, name: str, *nodes: Node) -> None:
        """Put ``nodes`` behind the node ``name``."""
        self._places.setdefault(name, [self._graph[name]]).extend(nodes)

    def append(self, *nodes: Node) -> None:
        """Put ``nodes`` at the end of the file."""
        self._end.extend(nodes)

    def redirect(self, old: Edge | str, new: Edge | str) -> None:
        """Let the readers of one edge read another; chains of redirections are followed."""
        self._edges[_edge(old)] = _edge(new)

    def redirect_controls(self, name: str, *instead: str) -> None:
        """Let whoever waits for ``name`` wait for the given nodes instead (none: for nothing)."""
        self._controls[name] = instead

    def graph(self) -> Graph:
        """The edited graph. Outputs that were redirected are read from their new edges.

        Raises:
            GraphError: redirections form a circle, or two nodes have one name.
        """
        nodes: list[Node] = []
        for name, node in self._graph.nodes.items():
            nodes.extend(self._places.get(name, (node,)))
        nodes.extend(self._end)
        if self._edges or self._controls:
            nodes = [self._rewired(node) for node in nodes]
        return Graph.of(
            nodes,
            self._graph.inputs,
            [self._final(edge) for edge in self._graph.outputs],
            dialect=self._graph.dialect,
            versions=self._graph.versions,
            library=self._graph.library,
            extra=self._graph.extra,
        )

    def _final(self, edge: Edge) -> Edge:
        chain: list[Edge] = []
        while edge in self._edges:
            chain.append(edge)
            edge = self._edges[edge]
            if len(chain) > len(self._edges):
                raise GraphError(f"the readers of {str(edge)!r} are redirected in a circle")
        self._edges.update(dict.fromkeys(chain, edge))  # the next reader goes straight there
        return edge

    def _waited_for(self, names: Iterable[str]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        seen: set[str] = set()
        stack = list(names)[::-1]
        while stack:
            name = stack.pop()
            if name not in self._controls:
                found[name] = None
            elif name not in seen:
                seen.add(name)
                stack.extend(self._controls[name][::-1])
        return tuple(found)

    def _rewired(self, node: Node) -> Node:
        edges, controls = node.inputs, node.controls
        if any(edge in self._edges for edge in edges):
            edges = tuple(self._final(edge) for edge in edges)
        if any(name in self._controls for name in controls):
            controls = self._waited_for(controls)
        if edges is node.inputs and controls is node.controls:
            return node
        return replace(node, inputs=edges, controls=controls)


def _edge(name: Edge | str) -> Edge:
    return name if isinstance(name, Edge) else Edge.parse(name)
