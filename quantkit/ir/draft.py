"""Collecting edits of a graph and applying them in one step.

A transform that changes more than one node fills a `Draft` and returns `draft.graph()`. A draft
never leaves the function that created it.
"""

from collections.abc import Iterable
from dataclasses import replace

from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Graph, Node


class Draft:
    """Edits of one graph, applied together by `graph`.

    Args:
        graph: graph to edit; it does not change.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._replacements: dict[str, list[Node]] = {}
        self._end: list[Node] = []
        self._edges: dict[Edge, Edge] = {}
        self._controls: dict[str, tuple[str, ...]] = {}

    def replace(self, name: str, *nodes: Node) -> None:
        """Replace the node ``name`` by ``nodes``; without nodes, remove it."""
        self._replacements[name] = list(nodes)

    def remove(self, *names: str) -> None:
        """Remove nodes; their consumers must be redirected."""
        for name in names:
            self._replacements[name] = []

    def before(self, name: str, *nodes: Node) -> None:
        """Insert ``nodes`` before the node ``name``."""
        self._replacements.setdefault(name, [self._graph[name]])[:0] = nodes

    def after(self, name: str, *nodes: Node) -> None:
        """Insert ``nodes`` after the node ``name``."""
        self._replacements.setdefault(name, [self._graph[name]]).extend(nodes)

    def append(self, *nodes: Node) -> None:
        """Append ``nodes`` after the last node."""
        self._end.extend(nodes)

    def redirect(self, old: Edge | str, new: Edge | str) -> None:
        """Redirect the consumers of edge ``old`` to edge ``new``; chains of redirections are followed."""
        self._edges[_edge(old)] = _edge(new)

    def redirect_controls(self, name: str, *instead: str) -> None:
        """Replace control dependencies on ``name`` by those on the given nodes; without nodes, remove them."""
        self._controls[name] = instead

    def graph(self) -> Graph:
        """Return the edited graph; redirected graph outputs are the new edges.

        Raises:
            GraphError: redirections form a cycle, or two nodes have the same name.
        """
        nodes: list[Node] = []
        for name, node in self._graph.nodes.items():
            nodes.extend(self._replacements.get(name, (node,)))
        nodes.extend(self._end)
        if self._edges or self._controls:
            nodes = [self._redirect_inputs(node) for node in nodes]
        return Graph.of(
            nodes,
            self._graph.inputs,
            [self._resolve(edge) for edge in self._graph.outputs],
            dialect=self._graph.dialect,
            versions=self._graph.versions,
            library=self._graph.library,
            extra=self._graph.extra,
        )

    def _resolve(self, edge: Edge) -> Edge:
        chain: list[Edge] = []
        while edge in self._edges:
            chain.append(edge)
            edge = self._edges[edge]
            if len(chain) > len(self._edges):
                raise GraphError(f"the consumers of {str(edge)!r} are redirected in a cycle")
        self._edges.update(dict.fromkeys(chain, edge))  # later look-ups take one step
        return edge

    def _resolve_controls(self, names: Iterable[str]) -> tuple[str, ...]:
        resolved: dict[str, None] = {}
        visited: set[str] = set()
        stack = list(names)[::-1]
        while stack:
            name = stack.pop()
            if name not in self._controls:
                resolved[name] = None
            elif name not in visited:
                visited.add(name)
                stack.extend(self._controls[name][::-1])
        return tuple(resolved)

    def _redirect_inputs(self, node: Node) -> Node:
        edges, controls = node.inputs, node.controls
        if any(edge in self._edges for edge in edges):
            edges = tuple(self._resolve(edge) for edge in edges)
        if any(name in self._controls for name in controls):
            controls = self._resolve_controls(controls)
        if edges is node.inputs and controls is node.controls:
            return node
        return replace(node, inputs=edges, controls=controls)


def _edge(name: Edge | str) -> Edge:
    return name if isinstance(name, Edge) else Edge.parse(name)
