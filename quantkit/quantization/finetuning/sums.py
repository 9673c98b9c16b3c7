"""Sums of the classic 8-bit ops: their kernels convert both operands to int32 steps before they add.

    QuantizedBiasAdd    round(x / step)                                    step = limit / 2^14
    QuantizedAdd        first + (x - low) / scale * (second - first)       step = limit / 2^17
                        first = round(low / step), second = round((low + scale) / step)

The limit is the largest absolute value of both ranges. A step is 1/128 to 1/64 of a quantization step of the larger
operand, so that one of some hundred sums is rounded to another quantized value than an exact sum. A deep network
amplifies these differences.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ops.roles import find_roles
from quantkit.quantization.plan import Plan

# Number of steps up to the limit.
BIAS_STEPS, ADD_STEPS = float(1 << 14), float(1 << 17)
# Gradient of the identity.
STRAIGHT_THROUGH = b"QuantkitStraightThrough"
FLOAT = {"T": DType.FLOAT}


@dataclass(frozen=True)
class QuantizedSum:
    """Sum of two quantized operands.

    Attributes:
        node: the sum.
        operands: quantized edge, or name of the trained constant, of both inputs.
        is_bias: True for a QuantizedBiasAdd.
    """

    node: str
    operands: tuple[Edge | str, Edge | str]
    is_bias: bool

    def name(self, suffix: str) -> str:
        """Return the name of a node that computes or receives a value of the sum."""
        return f"{self.node}/sum/{suffix}"


def find_sums(graph: Graph, plan: Plan) -> Iterator[QuantizedSum]:
    """Yield the sums of the plan's patterns.

    Args:
        graph: float TensorFlow graph.
        plan: plan of ``graph`` whose layers, biases and residuals are separate ops.
    """
    roles = find_roles(graph)
    for pattern in plan.patterns:
        bias_input = roles.bias_input(graph, graph[pattern.layer], pattern.bias)
        for node in (graph[name] for name in (pattern.bias, pattern.add) if name):
            first, second = (
                edge.node if bias_input is not None and (node, slot) == bias_input else edge
                for slot, edge in enumerate(node.inputs)
            )
            yield QuantizedSum(node.name, (first, second), node.name == pattern.bias)


def round_operands(graph: Graph, sums: Sequence[QuantizedSum]) -> Graph:
    """Return the simulation with the conversions of the operands; the kernel's steps are placeholders."""
    nodes = dict(graph.nodes)
    for quantized_sum in sums:
        inputs = []
        for slot, edge in enumerate(nodes[quantized_sum.node].inputs):
            *new, last = (
                _bias_operand(quantized_sum, slot, edge)
                if quantized_sum.is_bias
                else _operand(quantized_sum, slot, edge)
            )
            nodes.update({node.name: node for node in (*new, last)})
            inputs.append(Edge(last.name))
        nodes[quantized_sum.node] = nodes[quantized_sum.node].with_(inputs=tuple(inputs))
    return graph.with_nodes(nodes.values())


def restore_operands(graph: Graph, sums: Sequence[QuantizedSum]) -> Iterator[Node]:
    """Yield an Identity in the place of each converted operand: the sums of the float model.

    Args:
        graph: result of `round_operands`.
        sums: its sums.
    """
    for quantized_sum in sums:
        first = "quotient" if quantized_sum.is_bias else "product"
        for slot in range(len(quantized_sum.operands)):
            operand = graph[quantized_sum.name(f"{first}_{slot}")].inputs[0]
            yield Node(quantized_sum.name(f"operand_{slot}"), "Identity", (operand,), attrs=FLOAT)


def _bias_operand(quantized_sum: QuantizedSum, slot: int, edge: Edge) -> list[Node]:
    step, quotient, rounded, product = (
        quantized_sum.name(suffix) for suffix in ("step", f"quotient_{slot}", f"rounded_{slot}", f"operand_{slot}")
    )
    return [
        _placeholder(step),
        Node(quotient, "RealDiv", (edge, Edge(step)), attrs=FLOAT),
        Node(rounded, "Round", (Edge(quotient),), attrs={**FLOAT, "_gradient_op_type": STRAIGHT_THROUGH}),
        Node(product, "Mul", (Edge(rounded), Edge(step)), attrs=FLOAT),
    ]


def _operand(quantized_sum: QuantizedSum, slot: int, edge: Edge) -> list[Node]:
    factor, offset, product, moved = (
        quantized_sum.name(f"{suffix}_{slot}") for suffix in ("factor", "offset", "product", "operand")
    )
    return [
        _placeholder(factor),
        _placeholder(offset),
        Node(product, "Mul", (edge, Edge(factor)), attrs=FLOAT),
        Node(moved, "AddV2", (Edge(product), Edge(offset)), attrs=FLOAT),
    ]


def _placeholder(name: str) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": DType.FLOAT})


def sum_tensors(
    tf: Any, quantized_sum: QuantizedSum, limits: Mapping[Edge | str, tuple[Any, Any]], scales: Mapping[Edge, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the values of the placeholders of a sum by name; they have no gradient.

    Args:
        tf: TensorFlow.
        quantized_sum: the sum.
        limits: lowest and highest quantized value of each operand.
        scales: scale of each edge.
    """
    # float32 would round some of the quotients, which exceed 2^16, to another integer.
    ranges = [tuple(tf.cast(value, tf.float64) for value in limits[operand]) for operand in quantized_sum.operands]
    limit = tf.reduce_max([value for low, high in ranges for value in (-low, high)])
    step = limit / (BIAS_STEPS if quantized_sum.is_bias else ADD_STEPS)
    if quantized_sum.is_bias:
        yield quantized_sum.name("step"), tf.stop_gradient(tf.cast(step, tf.float32))
        return
    for slot, (operand, (low, _)) in enumerate(zip(quantized_sum.operands, ranges, strict=True)):
        assert isinstance(operand, Edge), "both operands are tensors"
        scale = tf.cast(scales[operand], tf.float64)
        first, second = tf.round(low / step) * step, tf.round((low + scale) / step) * step
        factor = (second - first) / scale
        for name, value in (("factor", factor), ("offset", first - low * factor)):
            yield quantized_sum.name(f"{name}_{slot}"), tf.stop_gradient(tf.cast(value, tf.float32))
