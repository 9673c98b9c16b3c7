"""Match dropout as TensorFlow and Keras write it.

dropout(x) = mask * x / keep        mask = 1 with probability keep, else 0

mask   floor(u + keep), u >= rate, u > rate, u < keep, u <= keep; a number, or the condition of a Select
x/keep x * (1 / keep), x / keep, x / (1 - rate)
u      uniform random numbers in [0, 1); keep = 1 - rate
"""

from typing import NamedTuple

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Skip
from quantkit.ops import kernels
from quantkit.ops.semantics import ADD_OPS

UNIFORM = frozenset({"RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2"})
QUOTIENTS = frozenset({"Div", "RealDiv"})
IDENTITY_OPS = frozenset({"Identity", "PlaceholderWithDefault"})
SCALARS = frozenset({"Add", "AddV2", "Sub", "Mul", "Div", "RealDiv", "Reciprocal", "Inv", "Cast"}) | IDENTITY_OPS
# Limit of the work that evaluates a rate: nodes of a chain; halved at each level of an expression.
MAX_STEPS = 16
# Relative error of a factor 1 / keep that was rounded to 16 bits.
TOLERANCE = 2e-3


class Mask(NamedTuple):
    """Probability of a dropout mask.

    Attributes:
        edge: probability that an element is kept, or the dropout rate.
        is_rate: the edge is the dropout rate.
    """

    edge: Edge
    is_rate: bool


class DropoutMatcher:
    """Matcher of dropout patterns in a graph.

    Args:
        graph: current graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def find_input(self, root: Node) -> Edge | Skip | None:
        """Return the input of the dropout that ends with a node.

        Returns:
            A skip if the pattern is incomplete, None if the node is not the end of a dropout.
        """
        for scaled, mask in self._match_parts(root):
            source = self._match_scale(scaled, mask)
            if source is not None:
                return source
            if root.op in QUOTIENTS:
                return None
            if self.evaluate(mask.edge) == (0.0 if mask.is_rate else 1.0):
                return scaled
            return Skip("random elements are dropped, but the others are not scaled by 1 / keep probability")
        return None

    def evaluate(self, edge: Edge, steps: int = MAX_STEPS) -> float | None:
        """Return the value of a scalar that is computed from constants."""
        node = self._graph[edge.node]
        if node.name in self._graph.input_names or edge.port:
            return None
        if node.is_constant:
            value = self._graph.constant_of(edge)
            is_number = value is not None and value.num_elements == 1 and value.array.dtype.kind in "fiu"
            return float(value.array.reshape(-1)[0]) if value is not None and is_number else None
        if node.op not in SCALARS or not steps:
            return None
        inputs = [self.evaluate(source, steps // 2) for source in node.inputs]
        values = [value for value in inputs if value is not None]
        if len(values) < len(inputs) or not values:
            return None
        if node.op in IDENTITY_OPS or node.op == "Cast":
            return values[0]
        try:
            arrays = [np.asarray(value, np.float64) for value in values]
            return float(kernels.evaluate(Node(node.name, node.op), arrays)[0])
        except QuantkitError:
            return None

    def _match_parts(self, root: Node) -> list[tuple[Edge, Mask]]:
        """Return the possible pairs of scaled input and mask that a node combines."""
        if root.op in ("Select", "SelectV2") and len(root.inputs) == 3:
            mask = self._match_condition(root.inputs[0])
            return [(root.inputs[1], mask)] if mask and self._is_zero(root.inputs[2]) else []
        if root.op == "Mul" and len(root.inputs) == 2:
            pairs = (root.inputs, root.inputs[::-1])
            return [(scaled, mask) for scaled, number in pairs if (mask := self._match_number(number))]
        if root.op in QUOTIENTS and len(root.inputs) == 2:
            product = self._producer(root.inputs[0])
            parts = self._match_parts(product) if product is not None and product.op == "Mul" else []
            return [(Edge(root.name), mask) for _, mask in parts]
        return []

    def _producer(self, edge: Edge) -> Node | None:
        """Return the producer of an edge, not counting pass-through nodes."""
        node = self._graph[edge.node]
        for _ in range(MAX_STEPS):
            if node.name in self._graph.input_names or edge.port:
                return None
            if node.op not in IDENTITY_OPS or not node.inputs:
                return node
            edge = node.inputs[0]
            node = self._graph[edge.node]
        return None

    def _match_number(self, edge: Edge) -> Mask | None:
        """Match a mask of 0 and 1."""
        node = self._producer(edge)
        if node is None or not node.inputs:
            return None
        if node.op == "Cast":
            return self._match_condition(node.inputs[0])
        total = self._producer(node.inputs[0]) if node.op == "Floor" else None
        if total is None or total.op not in ADD_OPS:
            return None
        for keep, uniform in (total.inputs, total.inputs[::-1]):
            if self._is_uniform(uniform):
                return Mask(keep, False)
        return None

    def _match_condition(self, edge: Edge) -> Mask | None:
        """Match a mask of false and true."""
        node = self._producer(edge)
        if node is None or node.op not in ("GreaterEqual", "Greater", "Less", "LessEqual"):
            return None
        first, second = node.inputs
        is_above = node.op.startswith("Greater")
        if self._is_uniform(first):
            return Mask(second, is_above)
        return Mask(first, not is_above) if self._is_uniform(second) else None

    def _is_uniform(self, edge: Edge) -> bool:
        """Return True for uniform random numbers in [0, 1), optionally ``u * 1 + 0``."""
        node = self._producer(edge)
        if node is None or node.op in UNIFORM:
            return node is not None
        neutral = 0.0 if node.op in ADD_OPS else 1.0 if node.op == "Mul" else None
        if neutral is None:
            return False
        for operand, other in (node.inputs, node.inputs[::-1]):
            inner = self._producer(operand)
            if inner is not None and inner.op in UNIFORM | {"Mul"} and self.evaluate(other) == neutral:
                return inner.op in UNIFORM or (node.op != "Mul" and self._is_uniform(operand))
        return False

    def _is_zero(self, edge: Edge) -> bool:
        node = self._producer(edge)
        value = None if node is None else self._graph.constant_of(Edge(node.name))
        is_zero = value is not None and value.num_elements > 0 and not value.array.any()
        return is_zero or (node is not None and node.op == "ZerosLike")

    def _match_scale(self, scaled: Edge, mask: Mask) -> Edge | None:
        """Return the tensor that was divided by the keep probability of a mask."""
        node = self._producer(scaled)
        if node is None or len(node.inputs) != 2:
            return None
        if node.op in QUOTIENTS and self._is_keep(node.inputs[1], mask):
            masked = self._producer(node.inputs[0])
            inner = self._match_parts(masked) if masked is not None and masked.op == "Mul" else []
            return inner[0][0] if inner and inner[0][1] == mask else node.inputs[0]
        if node.op == "Mul":
            for source, factor in (node.inputs, node.inputs[::-1]):
                if self._is_inverse(factor, mask):
                    return source
        return None

    def _is_keep(self, edge: Edge, mask: Mask) -> bool:
        """Return True if an edge is the keep probability of a mask."""
        keep, probability = self.evaluate(edge), self.evaluate(mask.edge)
        if keep is not None and probability is not None:
            return abs(keep - (1 - probability if mask.is_rate else probability)) < TOLERANCE * abs(keep)
        node, mask_node = self._producer(edge), self._producer(mask.edge)
        if not mask.is_rate:
            return edge == mask.edge or (node is not None and node is mask_node)
        if node is None or node.op != "Sub" or self.evaluate(node.inputs[0]) != 1:
            return False
        return node.inputs[1] == mask.edge or (mask_node is not None and self._producer(node.inputs[1]) is mask_node)

    def _is_inverse(self, edge: Edge, mask: Mask) -> bool:
        """Return True if an edge is 1 divided by the keep probability of a mask."""
        factor, probability = self.evaluate(edge), self.evaluate(mask.edge)
        if factor is not None and probability is not None:
            return abs(factor * (1 - probability if mask.is_rate else probability) - 1) < TOLERANCE
        node = self._producer(edge)
        if node is None:
            return False
        if node.op in ("Reciprocal", "Inv"):
            return self._is_keep(node.inputs[0], mask)
        return node.op in QUOTIENTS and self.evaluate(node.inputs[0]) == 1 and self._is_keep(node.inputs[1], mask)
