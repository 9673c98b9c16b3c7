"""Quantization of the part of a graph before custom ops, which no runtime has a kernel for."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from quantkit.formats.onnx.schema import parse_message
from quantkit.ir.graph import Edge, Graph, Node, Opaque
from quantkit.ops.roles.onnx import CONTROL_FLOW_OPS
from quantkit.runtimes import runtimes

# Domains of the operator sets of ONNX, as prefixes of op types.
ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training")


def find_custom_ops(graph: Graph) -> list[str]:
    """Return the nodes of an ONNX graph whose op type no operator set of ONNX, runtime or library of the user has.

    Nodes with such an op type in a subgraph are included.
    """
    installed = runtimes().values()
    domains = {*ONNX_DOMAINS, *(domain for runtime in installed for domain in runtime.op_domains)}
    ops = {name: _op_types(node) for name, node in graph.nodes.items()}
    custom = {op for types in ops.values() for op in types if op.rpartition(".")[0] not in domains}
    unknown = {op for op in custom if not any(runtime.has_custom_op(op) for runtime in installed)}
    return [name for name, types in ops.items() if types & unknown]


def _op_types(node: Node) -> set[str]:
    """Return the op types of a node and of its subgraphs, at any depth."""
    bodies = [value for value in node.attrs.values() if isinstance(value, Opaque) and node.op in CONTROL_FLOW_OPS]
    return {node.op}.union(*(_find_ops(parse_message("AttributeProto", body.data)) for body in bodies))


def _find_ops(attribute: Any) -> Iterator[str]:
    """Yield the op types of the subgraphs of an attribute."""
    for node in (node for graph in (attribute.g, *attribute.graphs) for node in graph.node):
        yield f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for inner in node.attribute:
            yield from _find_ops(inner)


def cut_custom_ops(graph: Graph) -> Graph:
    """Return the graph with outputs before the nodes that depend on custom ops; unchanged without such nodes."""
    blocked = set(find_custom_ops(graph))
    if not blocked:
        return graph
    for name in graph.order:
        if not blocked.isdisjoint(graph[name].sources):
            blocked.add(name)
    nodes = [graph[name] for name in graph.order if name in blocked]
    edges = [edge for node in nodes for edge in (*node.inputs, *map(Edge, node.controls))]
    outputs = dict.fromkeys(
        edge
        for edge in (*graph.outputs, *edges)
        if edge.node in graph
        and edge.node not in blocked
        and edge.node not in graph.input_names
        and not (graph[edge.node].is_constant or graph[edge.node].op == "Absent")
    )
    if not outputs:
        return graph
    return graph.with_endpoints(None, list(outputs)).without_unused_nodes()


def join_custom_ops(quantized: Graph, head: Graph, whole: Graph) -> Graph:
    """Return a quantized graph with the float nodes after it.

    Args:
        quantized: quantized graph of ``head``.
        head: result of `cut_custom_ops`.
        whole: its argument.
    """
    renamed: dict[Edge, Edge] = dict(zip(head.outputs, quantized.outputs, strict=True))
    computed = {name for name in head.reachable() if not head[name].is_constant}
    nodes = dict(quantized.nodes)
    for name in whole.reachable():
        node = whole[name]
        if name not in computed and not (node.is_constant and name in nodes):
            nodes[name] = replace(node, inputs=tuple(renamed.get(edge, edge) for edge in node.inputs))
    outputs = [renamed.get(edge, edge) for edge in whole.outputs]
    return quantized.with_nodes(nodes.values()).with_endpoints(None, outputs)
