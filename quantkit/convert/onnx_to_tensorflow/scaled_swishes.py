"""Order of the factors of ``x * relu6(x + 3) * scale``, such that TensorFlow does not replace ``scale`` by 1/6."""

from typing import NamedTuple

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import apply_rules, free_name, rule
from quantkit.ir.tensor import Array, DType

SCALE_OF_HARD_SWISH = 1 / 6
# TensorFlow's remapper accepts scales up to 0.01 from 1/6; the limit here is larger than the rounding of float32.
MAX_DISTANCE = 0.011
ROUNDING = 1e-6


class ScaledEdge(NamedTuple):
    """Edge times a constant of one element.

    Attributes:
        edge: input of the products.
        scale: product of the constants.
    """

    edge: Edge
    scale: Array


def separate_scales(graph: Graph) -> Graph:
    """Multiply ``x`` by the scale first, if TensorFlow would compute HardSwish in place of a scaled HardSwish.

    With oneDNN, TensorFlow fuses a convolution, its bias and ``x * relu6(x + 3) * scale`` as a convolution with
    HardSwish, also if its constant folding has merged 1/6 with another factor: a scale of 0.157 then becomes 1/6.

    Before:  (x * relu6(x + 3)) / 6 * 0.94
    After:   (x * 0.157) * relu6(x + 3)
    """
    return apply_rules(graph, _separate_scale).graph


@rule(op("Mul|RealDiv"))
def _separate_scale(graph: Graph, root: Node) -> list[Node] | None:
    product, scale = _split_scale(graph, Edge(root.name), root)
    gated = graph[product.node]
    if gated.op != "Mul" or (gated is not root and graph.is_shared(gated)):
        return None
    for slot, edge in enumerate(gated.inputs):
        x = gated.inputs[1 - slot]
        gate, gate_scale = _split_scale(graph, edge, root)
        total = np.asarray(scale * gate_scale)
        if _is_gate_of(graph, gate, x, root) and ROUNDING < abs(total.item() - SCALE_OF_HARD_SWISH) < MAX_DISTANCE:
            factor = constant(free_name(graph, f"{root.name}/scale"), total)
            attrs = {"T": factor.value.dtype}
            scaled = Node(free_name(graph, f"{root.name}/scaled"), "Mul", (x, Edge(factor.name)), attrs=attrs)
            return [factor, scaled, root.with_(op="Mul", inputs=(Edge(scaled.name), gate), attrs=attrs)]
    return None


def _is_gate_of(graph: Graph, gate: Edge, x: Edge, root: Node) -> bool:
    """Return True for a Relu6 of a sum with x, or with x times constants; a Relu6 without x is not a gate."""
    if graph[gate.node].op != "Relu6":
        return False
    summands = graph[graph[gate.node].inputs[0].node].inputs
    return any(x in (edge, _split_scale(graph, edge, root).edge) for edge in summands)


def _split_scale(graph: Graph, edge: Edge, root: Node) -> ScaledEdge:
    """Return an edge without its constant factors and divisors of one element, and their product.

    Nodes with several uses keep their factors, except for ``root``.
    """
    scale: Array = np.asarray(1, np.float32)
    while (node := graph[edge.node]).op in ("Mul", "RealDiv") and (node is root or not graph.is_shared(node)):
        slot = next((slot for slot in (1, 0)[: 1 if node.op == "RealDiv" else 2] if _is_factor(graph, node, slot)), -1)
        if slot < 0:
            break
        factor = graph[node.inputs[slot].node].value.array
        with np.errstate(all="ignore"):  # a divisor of 0 gives infinity, which is not near 1/6
            scale = np.asarray(scale / factor if node.op == "RealDiv" else scale * factor)
        edge = node.inputs[1 - slot]
    return ScaledEdge(edge, scale)


def _is_factor(graph: Graph, node: Node, slot: int) -> bool:
    value = graph.constant_of(node.inputs[slot])
    return value is not None and value.dtype is DType.FLOAT and value.array.size == 1
