"""Residual sums that write their result over what they add."""

from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.quantization.targets.tensorflow.codes import CODES

SUM = "QuantizedConv2DWithBiasSumAndReluAndRequantize"


def keep_summands(graph: Graph) -> Graph:
    """Give a residual sum a copy of what it adds where something else may read that later: the sum writes over it.

    `convert` has done so for the graph's own ends. Who asks for further tensors of an 8-bit graph does it again with
    these as outputs: TensorFlow crashes where a sum can not have its summand for itself.
    """
    nodes = dict(graph.nodes)
    for node in graph.nodes.values():
        if node.op != SUM:
            continue
        slot = len(node.inputs) - 3
        summand = node.inputs[slot]
        if graph[summand.node].op != "Bitcast" and summand.node not in graph.ends:
            others = {use.node.name for use in graph.uses[summand]} - {node.name}
            if not others or others <= _ancestors(graph, node.name):
                continue
        # A pool of one number copies; the mark keeps TensorFlow from making one node of equal copies.
        window: dict[str, Attr] = dict.fromkeys(("ksize", "strides"), (1, 1, 1, 1))
        attrs: dict[str, Attr] = {"T": CODES, "padding": b"VALID", "_copied_for": node.name.encode(), **window}
        copy = Node(free_name(graph, f"{node.name}/summand"), "QuantizedMaxPool", (summand, *node.inputs[slot + 1 :]))
        nodes[copy.name] = copy.with_(attrs=attrs)
        nodes[node.name] = node.reading(slot, Edge(copy.name))
    return graph.with_nodes(nodes.values())


def _ancestors(graph: Graph, name: str) -> set[str]:
    found: set[str] = set()
    stack = [name]
    while stack:
        for edge in graph[stack.pop()].inputs:
            if edge.node not in found:
                found.add(edge.node)
                stack.append(edge.node)
    return found
