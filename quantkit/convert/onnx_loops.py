"""Loops as tf2onnx takes them, and as it leaves them."""

from dataclasses import replace
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name

LOOPS = frozenset({"While", "StatelessWhile"})
RESERVED = "TensorListReserve"


def with_own_lists(graph: Graph) -> Graph:
    """The graph where no two loops begin with one empty list: tf2onnx takes the list out with the first of them."""
    made = []
    for name in graph.library:
        try:
            function = graph.library[name]
        except QuantkitError:
            continue
        body = _with_own_lists(function.graph)
        if body is not function.graph:
            made.append(replace(function, graph=body))
    graph = graph.with_(library=graph.library.with_(*made)) if made else graph
    return _with_own_lists(graph)


def _with_own_lists(graph: Graph) -> Graph:
    nodes: list[Node] = []
    taken: set[str] = set()
    for node in graph.nodes.values():
        if node.op in LOOPS:
            for slot, edge in enumerate(node.inputs):
                if graph[edge.node].op == RESERVED and edge.node in taken:
                    copy = graph[edge.node].with_(name=free_name(graph, f"{edge.node}/of/{node.name}/{slot}"))
                    nodes.append(copy)
                    node = node.with_input(slot, Edge(copy.name))
                taken.add(edge.node)
        nodes.append(node)
    return graph.with_nodes(nodes) if len(nodes) > len(graph) else graph


def tell_shapes_of_turns(graph: Any) -> None:
    """Say of all loops in an ONNX GraphProto that the number of the turn, and whether it comes, are scalars."""
    graphs = [graph]
    for one in graphs:
        for node in one.node:
            bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            graphs.extend(bodies)
            if node.op_type == "Loop":
                for body in bodies:
                    for value in body.input[:2]:
                        value.type.tensor_type.shape.SetInParent()
