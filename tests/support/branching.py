"""Switch and Merge as TensorFlow runs them: a dead tensor kills what reads it, save for a Merge with a live one."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ops.kernels import evaluate


class Run:
    """One run of a graph without loops.

    Args:
        graph: what to run; the op ``Effect`` hands its input on and is noticed.
        feeds: values of its inputs.
    """

    def __init__(self, graph: Graph, feeds: Mapping[str, Any]) -> None:
        self._graph = graph
        self._feeds = feeds
        self._values: dict[str, tuple[Any, ...] | None] = {}

    def output(self, edge: Edge) -> Any:
        """The value of an edge; None: it is dead."""
        values = self._of(edge.node)
        return None if values is None else values[edge.port]

    def effects_behind(self, edge: Edge) -> set[str]:
        """The nodes that do something and ran before the edge had its value."""
        found: set[str] = set()
        stack = [edge.node]
        while stack:
            name = stack.pop()
            if name in found or self._of(name) is None:
                continue
            found.add(name)
            node = self._graph[name]
            edges = [self._chosen(node)] if node.op == "Merge" else node.inputs
            stack.extend((*(one.node for one in edges if one is not None), *node.controls))
        return {name for name in found if self._graph[name].op == "Effect"}

    def _chosen(self, merge: Node) -> Edge | None:
        return next((edge for edge in merge.inputs if self.output(edge) is not None), None)

    def _of(self, name: str) -> tuple[Any, ...] | None:
        if name not in self._values:
            self._values[name] = self._computed(self._graph[name])
        return self._values[name]

    def _computed(self, node: Node) -> tuple[Any, ...] | None:
        if node.name in self._feeds:
            return (self._feeds[node.name],)
        inputs = [self.output(edge) for edge in node.inputs]
        if node.op == "Merge":
            chosen = self._chosen(node)
            return None if chosen is None else (self.output(chosen), np.int32(node.inputs.index(chosen)))
        if any(value is None for value in inputs) or any(self._of(name) is None for name in node.controls):
            return None
        if node.op == "Switch":
            return (None, inputs[0]) if inputs[1] else (inputs[0], None)
        return (inputs[0],) if node.op == "Effect" else evaluate(node, inputs)
