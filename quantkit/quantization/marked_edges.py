"""Quantized edges of a float graph, marked by Identity nodes at the consumers that take quantized values."""

from collections.abc import Mapping

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType
from quantkit.ops.roles import find_roles
from quantkit.quantization.plan import Plan
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.base import is_litert


def mark_edges(graph: Graph, plan: Plan, edges: list[Edge]) -> tuple[Graph, Mapping[Edge, str]]:
    """Return the graph with an Identity after each edge, and the name of each Identity."""
    roles = find_roles(graph)
    # A tensor of a LiteRT file has one type: float consumers take its quantized values, too.
    all_consumers = is_litert(find_target(plan.scheme.target))
    producers, consumers = set(plan.pass_through), set(plan.pass_through)
    for pattern in plan.patterns:
        consumers.update(pattern.nodes)
        is_quantized = pattern.output in plan.activations and graph[pattern.layer].op in roles.quantized_output_ops
        if plan.scheme.split_patterns or is_quantized:
            producers.update(pattern.nodes)
    nodes = dict(graph.nodes)
    markers: dict[Edge, str] = {}
    outputs = list(graph.outputs)
    attrs = {} if graph.dialect == onnx.DIALECT else {"T": DType.FLOAT}
    for number, edge in enumerate(edges):
        marker = free_name(graph, f"fake_quant_{number}")
        markers[edge] = marker
        is_for_all = all_consumers or edge.node in producers
        for use in graph.uses.get(edge, ()):
            if is_for_all or use.node.name in consumers:
                nodes[use.node.name] = nodes[use.node.name].with_input(use.slot, marker)
        if is_for_all:
            outputs = [Edge(marker) if output == edge else output for output in outputs]
        nodes[marker] = Node(marker, "Identity", (edge,), attrs=attrs)
    return graph.with_nodes(nodes.values()).with_endpoints(None, outputs), markers
