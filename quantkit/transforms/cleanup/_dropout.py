"""Dropout as TensorFlow writes it.

dropout(x) = mask * x / keep        mask = 1 with probability keep, else 0

mask   floor(u + keep), u >= rate, u > rate, u < keep, u <= keep; as a number or as the condition of a choice
x/keep x * (1 / keep), x / keep, x / (1 - rate)
u      uniform random numbers from 0 to 1; keep = 1 - rate
"""

from typing import NamedTuple

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Skip
from quantkit.ops import kernels

UNIFORM = frozenset({"RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2"})
ADDITIONS = frozenset({"Add", "AddV2"})
QUOTIENTS = frozenset({"Div", "RealDiv"})
PASSING = frozenset({"Identity", "PlaceholderWithDefault"})
SCALARS = frozenset({"Add", "AddV2", "Sub", "Mul", "Div", "RealDiv", "Reciprocal", "Inv", "Cast"}) | PASSING
# How many steps of scalars are computed to learn a rate.
MOST_STEPS = 16
# A factor that was rounded to 16 bits is this far from the inverse of its probability.
TOLERANCE = 2e-3


class Mask(NamedTuple):
    """What decides which elements stay: the edge that holds the probability to stay, or (is_rate) to go."""

    edge: Edge
    is_rate: bool


class Dropout:
    """Finds dropout in a graph.

    Args:
        graph: as it is now.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def source(self, root: Node) -> Edge | Skip | None:
        """What a dropout drops from, where the node is the last of one; a skip where it is only like one."""
        for scaled, mask in self._parts(root):
            found = self._unscaled(scaled, mask)
            if found is not None:
                return found
            if root.op in QUOTIENTS:
                return None
            if self.scalar(mask.edge) == (0.0 if mask.is_rate else 1.0):
                return scaled
            return Skip("it drops elements at random, but does not scale the others by the inverse of how many stay")
        return None

    def scalar(self, edge: Edge, steps: int = MOST_STEPS) -> float | None:
        """The value of a scalar that is computed from constants."""
        node = self._graph[edge.node]
        if node.name in self._graph.input_names or edge.port:
            return None
        if node.is_constant:
            value = self._graph.constant_of(edge)
            is_number = value is not None and value.num_elements == 1 and value.array.dtype.kind in "fiu"
            return float(value.array.reshape(-1)[0]) if value is not None and is_number else None
        if node.op not in SCALARS or not steps:
            return None
        inputs = [self.scalar(one, steps // 2) for one in node.inputs]
        values = [value for value in inputs if value is not None]
        if len(values) < len(inputs) or not values:
            return None
        if node.op in PASSING or node.op == "Cast":
            return values[0]
        try:
            arrays = [np.asarray(value, np.float64) for value in values]
            return float(kernels.evaluate(Node(node.name, node.op), arrays)[0])
        except QuantkitError:
            return None

    def _parts(self, root: Node) -> list[tuple[Edge, Mask]]:
        """What is scaled and what decides, if the node puts the two together."""
        if root.op in ("Select", "SelectV2") and len(root.inputs) == 3:
            mask = self._condition(root.inputs[0])
            return [(root.inputs[1], mask)] if mask and self._is_zero(root.inputs[2]) else []
        if root.op == "Mul" and len(root.inputs) == 2:
            pairs = (root.inputs, root.inputs[::-1])
            return [(scaled, mask) for scaled, number in pairs if (mask := self._number(number))]
        if root.op in QUOTIENTS and len(root.inputs) == 2:
            product = self._maker(root.inputs[0])
            parts = self._parts(product) if product is not None and product.op == "Mul" else []
            return [(Edge(root.name), mask) for _, mask in parts]
        return []

    def _maker(self, edge: Edge) -> Node | None:
        """The node behind an edge, past nodes that pass it on."""
        node = self._graph[edge.node]
        for _ in range(MOST_STEPS):
            if node.name in self._graph.input_names or edge.port:
                return None
            if node.op not in PASSING or not node.inputs:
                return node
            edge = node.inputs[0]
            node = self._graph[edge.node]
        return None

    def _number(self, edge: Edge) -> Mask | None:
        """A mask of 0 and 1."""
        node = self._maker(edge)
        if node is None or not node.inputs:
            return None
        if node.op == "Cast":
            return self._condition(node.inputs[0])
        total = self._maker(node.inputs[0]) if node.op == "Floor" else None
        if total is None or total.op not in ADDITIONS:
            return None
        for keep, uniform in (total.inputs, total.inputs[::-1]):
            if self._is_uniform(uniform):
                return Mask(keep, False)
        return None

    def _condition(self, edge: Edge) -> Mask | None:
        """A mask of false and true."""
        node = self._maker(edge)
        if node is None or node.op not in ("GreaterEqual", "Greater", "Less", "LessEqual"):
            return None
        first, second = node.inputs
        is_above = node.op.startswith("Greater")
        if self._is_uniform(first):
            return Mask(second, is_above)
        return Mask(first, not is_above) if self._is_uniform(second) else None

    def _is_uniform(self, edge: Edge) -> bool:
        """Whether it is random numbers from 0 to 1, perhaps times 1 plus 0."""
        node = self._maker(edge)
        if node is None or node.op in UNIFORM:
            return node is not None
        neutral = 0.0 if node.op in ADDITIONS else 1.0 if node.op == "Mul" else None
        if neutral is None:
            return False
        for one, other in (node.inputs, node.inputs[::-1]):
            inner = self._maker(one)
            if inner is not None and inner.op in UNIFORM | {"Mul"} and self.scalar(other) == neutral:
                return inner.op in UNIFORM or (node.op != "Mul" and self._is_uniform(one))
        return False

    def _is_zero(self, edge: Edge) -> bool:
        node = self._maker(edge)
        value = None if node is None else self._graph.constant_of(Edge(node.name))
        is_zero = value is not None and value.num_elements > 0 and not value.array.any()
        return is_zero or (node is not None and node.op == "ZerosLike")

    def _unscaled(self, scaled: Edge, mask: Mask) -> Edge | None:
        """What was scaled by the inverse of the probability to stay."""
        node = self._maker(scaled)
        if node is None or len(node.inputs) != 2:
            return None
        if node.op in QUOTIENTS and self._is_keep(node.inputs[1], mask):
            masked = self._maker(node.inputs[0])
            inner = self._parts(masked) if masked is not None and masked.op == "Mul" else []
            return inner[0][0] if inner and inner[0][1] == mask else node.inputs[0]
        if node.op == "Mul":
            for source, factor in (node.inputs, node.inputs[::-1]):
                if self._is_inverse(factor, mask):
                    return source
        return None

    def _is_keep(self, edge: Edge, mask: Mask) -> bool:
        """Whether an edge holds the probability to stay."""
        keep, chance = self.scalar(edge), self.scalar(mask.edge)
        if keep is not None and chance is not None:
            return abs(keep - (1 - chance if mask.is_rate else chance)) < TOLERANCE * abs(keep)
        node, decides = self._maker(edge), self._maker(mask.edge)
        if not mask.is_rate:
            return edge == mask.edge or (node is not None and node is decides)
        if node is None or node.op != "Sub" or self.scalar(node.inputs[0]) != 1:
            return False
        return node.inputs[1] == mask.edge or (decides is not None and self._maker(node.inputs[1]) is decides)

    def _is_inverse(self, edge: Edge, mask: Mask) -> bool:
        """Whether an edge holds one divided by the probability to stay."""
        factor, chance = self.scalar(edge), self.scalar(mask.edge)
        if factor is not None and chance is not None:
            return abs(factor * (1 - chance if mask.is_rate else chance) - 1) < TOLERANCE
        node = self._maker(edge)
        if node is None:
            return False
        if node.op in ("Reciprocal", "Inv"):
            return self._is_keep(node.inputs[0], mask)
        return node.op in QUOTIENTS and self.scalar(node.inputs[0]) == 1 and self._is_keep(node.inputs[1], mask)
