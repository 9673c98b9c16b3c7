"""Residual sums of the oneDNN ops, which write their result into the memory of the summand.

``QuantizedConv2DWithBiasSumAndReluAndRequantize`` computes ``relu(conv(x) + summand)`` in place. TensorFlow crashes if
the summand has another consumer that may run later, and a graph output is such a consumer.
"""

from collections.abc import Mapping

from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType

IN_PLACE_SUM = "QuantizedConv2DWithBiasSumAndReluAndRequantize"


def copy_shared_summands(graph: Graph) -> Graph:
    """Give each in-place sum its own copy of a summand that other nodes or graph outputs use.

    A graph that was written for the target ``tensorflow`` has these copies already. Apply the function again after
    adding outputs to such a graph.
    """
    if IN_PLACE_SUM not in graph.op_counts:
        return graph
    nodes = dict(graph.nodes)
    positions = {name: position for position, name in enumerate(graph.order)}
    for node in graph.nodes.values():
        if node.op != IN_PLACE_SUM:
            continue
        index = len(node.inputs) - 3
        summand = node.inputs[index]
        if graph[summand.node].op != "Bitcast" and summand.node not in graph.endpoint_names:
            others = {use.node.name for use in graph.uses[summand]} - {node.name}
            if _run_before(graph, others, node.name, positions):
                continue
        # A 1x1 max pool copies; the mark prevents TensorFlow from merging equal copies into one node.
        window: dict[str, Attr] = dict.fromkeys(("ksize", "strides"), (1, 1, 1, 1))
        attrs: dict[str, Attr] = {
            "T": DType.QUINT8,
            "padding": b"VALID",
            "_copied_for": node.name.encode(),
            **window,
        }
        name = free_name(graph, f"{node.name}/summand")
        copy = Node(name, "QuantizedMaxPool", (summand, *node.inputs[index + 1 :]), attrs=attrs)
        nodes[copy.name] = copy
        nodes[node.name] = node.with_input(index, Edge(copy.name))
    return graph.with_nodes(nodes.values())


def _run_before(graph: Graph, names: set[str], last: str, positions: Mapping[str, int]) -> bool:
    """Return True if the data inputs of ``last`` guarantee that all named nodes run before it."""
    first = min((positions[name] for name in names), default=0)
    remaining = set(names)
    visited: set[str] = set()
    stack = [last] if names else []
    while stack and remaining:
        for edge in graph[stack.pop()].inputs:
            # No path leads from a node before the first of them to any of them.
            if edge.node not in visited and positions[edge.node] >= first:
                visited.add(edge.node)
                remaining.discard(edge.node)
                stack.append(edge.node)
    return not remaining
