"""Residual sums that write their result over what they add."""

from collections.abc import Mapping

from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.quantization.targets.tensorflow.parameters import CODES

SUM = "QuantizedConv2DWithBiasSumAndReluAndRequantize"


def keep_summands(graph: Graph) -> Graph:
    """Give a residual sum a copy of what it adds where something else may read that later: the sum writes over it.

    `convert` has done so for the graph's own ends. Who asks for further tensors of an 8-bit graph does it again with
    these as outputs: TensorFlow crashes where a sum can not have its summand for itself.
    """
    if SUM not in graph.op_counts:
        return graph
    nodes = dict(graph.nodes)
    places = {name: place for place, name in enumerate(graph.order)}
    for node in graph.nodes.values():
        if node.op != SUM:
            continue
        slot = len(node.inputs) - 3
        summand = node.inputs[slot]
        if graph[summand.node].op != "Bitcast" and summand.node not in graph.endpoint_names:
            others = {use.node.name for use in graph.uses[summand]} - {node.name}
            if _are_before(graph, others, node.name, places):
                continue
        # A pool of one number copies; the mark keeps TensorFlow from making one node of equal copies.
        window: dict[str, Attr] = dict.fromkeys(("ksize", "strides"), (1, 1, 1, 1))
        attrs: dict[str, Attr] = {"T": CODES, "padding": b"VALID", "_copied_for": node.name.encode(), **window}
        copy = Node(free_name(graph, f"{node.name}/summand"), "QuantizedMaxPool", (summand, *node.inputs[slot + 1 :]))
        nodes[copy.name] = copy.with_(attrs=attrs)
        nodes[node.name] = node.with_input(slot, Edge(copy.name))
    return graph.with_nodes(nodes.values())


def _are_before(graph: Graph, names: set[str], last: str, places: Mapping[str, int]) -> bool:
    """Whether all of some nodes have run when another one starts, which needs them."""
    first = min((places[name] for name in names), default=0)
    left = set(names)
    found: set[str] = set()
    stack = [last] if names else []
    while stack and left:
        for edge in graph[stack.pop()].inputs:
            # What runs before the first of them leads to none of them.
            if edge.node not in found and places[edge.node] >= first:
                found.add(edge.node)
                left.discard(edge.node)
                stack.append(edge.node)
    return not left
