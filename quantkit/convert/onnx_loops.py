"""Workarounds for defects of tf2onnx in loops."""

from dataclasses import replace
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ops.semantics import LOOP_OPS

LIST_OP = "TensorListReserve"


def copy_shared_lists(graph: Graph) -> Graph:
    """Copy each empty list that several loops start with: tf2onnx removes the list together with the first loop."""
    changed = []
    for name in graph.library:
        try:
            function = graph.library[name]
        except QuantkitError:
            continue
        body = _copy_shared_lists(function.graph)
        if body is not function.graph:
            changed.append(replace(function, graph=body))
    graph = graph.with_(library=graph.library.with_(*changed)) if changed else graph
    return _copy_shared_lists(graph)


def _copy_shared_lists(graph: Graph) -> Graph:
    nodes: list[Node] = []
    used: set[str] = set()
    for node in graph.nodes.values():
        if node.op in LOOP_OPS:
            for index, edge in enumerate(node.inputs):
                if graph[edge.node].op == LIST_OP and edge.node in used:
                    copy = graph[edge.node].with_(name=free_name(graph, f"{edge.node}/of/{node.name}/{index}"))
                    nodes.append(copy)
                    node = node.with_input(index, Edge(copy.name))
                used.add(edge.node)
        nodes.append(node)
    return graph.with_nodes(nodes) if len(nodes) > len(graph) else graph


def set_scalar_loop_inputs(graph: Any) -> None:
    """Set the shape of iteration number and condition, the first two inputs of each loop body, to a scalar.

    Args:
        graph: ONNX GraphProto, which is changed in place.
    """
    graphs = [graph]
    for subgraph in graphs:
        for node in subgraph.node:
            bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            graphs.extend(bodies)
            if node.op_type == "Loop":
                for body in bodies:
                    for value in body.input[:2]:
                        value.type.tensor_type.shape.SetInParent()
