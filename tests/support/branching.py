"""Reference execution of Switch and Merge by TensorFlow's rules.

The consumers of a dead tensor are dead, except a Merge with a live input.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ops.kernels import evaluate


class Run:
    """One run of a graph without loops.

    Args:
        graph: graph to run; the op ``Effect`` forwards its input and has a side effect.
        feeds: value of each input.
    """

    def __init__(self, graph: Graph, feeds: Mapping[str, Any]) -> None:
        self._graph = graph
        self._feeds = feeds
        self._values: dict[str, tuple[Any, ...] | None] = {}

    def output(self, edge: Edge) -> Any:
        """Return the value of an edge, None if the edge is dead."""
        values = self._outputs(edge.node)
        return None if values is None else values[edge.port]

    def effects_before(self, edge: Edge) -> set[str]:
        """Return the ``Effect`` nodes that ran before an edge was computed."""
        visited: set[str] = set()
        stack = [edge.node]
        while stack:
            name = stack.pop()
            if name in visited or self._outputs(name) is None:
                continue
            visited.add(name)
            node = self._graph[name]
            edges = [self._live_input(node)] if node.op == "Merge" else node.inputs
            stack.extend((*(source.node for source in edges if source is not None), *node.controls))
        return {name for name in visited if self._graph[name].op == "Effect"}

    def _live_input(self, merge: Node) -> Edge | None:
        return next((edge for edge in merge.inputs if self.output(edge) is not None), None)

    def _outputs(self, name: str) -> tuple[Any, ...] | None:
        if name not in self._values:
            self._values[name] = self._compute(self._graph[name])
        return self._values[name]

    def _compute(self, node: Node) -> tuple[Any, ...] | None:
        if node.name in self._feeds:
            return (self._feeds[node.name],)
        inputs = [self.output(edge) for edge in node.inputs]
        if node.op == "Merge":
            live = self._live_input(node)
            return None if live is None else (self.output(live), np.int32(node.inputs.index(live)))
        if any(value is None for value in inputs) or any(self._outputs(name) is None for name in node.controls):
            return None
        if node.op == "Switch":
            return (None, inputs[0]) if inputs[1] else (inputs[0], None)
        return (inputs[0],) if node.op == "Effect" else evaluate(node, inputs)
