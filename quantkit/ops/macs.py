"""Multiply-accumulate operations (MACs) of convolutions and matrix products."""

import math
import re
from collections.abc import Mapping

from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_rules import UNKNOWN
from quantkit.ops.tensorflow.signatures import attribute

# Endings of op types that call functions.
CALL_OP_ENDINGS = ("While", "If", "Case", "PartitionedCall")
# Op types of layers, including fused and quantized variants.
_LAYER = re.compile(r"(Depthwise|Pad)?[Cc]onv(2d|2D|3D)|MatMul|Einsum")
# Input index of the weights, if it is not 1.
_WEIGHTS_INDEX = {"FusedPadConv2D": 2, "FusedResizeAndPadConv2D": 3}


def count_macs(node: Node, shapes: Mapping[Edge, Shape]) -> int | None:
    """Return the MACs of a node; 0 for ops that are not layers.

    Args:
        node: node of dialect ``tensorflow``.
        shapes: shapes by edge.

    Returns:
        The MACs, or None if a shape is unknown or the op calls functions (loops, branches, calls).
    """
    if node.op.endswith(CALL_OP_ENDINGS):
        return None
    if not _LAYER.search(node.op) or "BackpropFilter" in node.op:
        return 0
    inputs = [shapes.get(edge, UNKNOWN) for edge in node.inputs]
    output = shapes.get(Edge(node.name), UNKNOWN)
    if node.op == "Einsum":
        return count_einsum_macs(attribute(node, "equation").decode(), inputs)
    if "BackpropInput" in node.op:
        inputs, output = [inputs[1], inputs[1]], inputs[2]
    slot = _WEIGHTS_INDEX.get(node.op, 1)
    if len(inputs) <= slot or not output.is_known or not inputs[slot].is_known:
        return None
    weights = inputs[slot].sizes
    if "MatMul" in node.op:
        is_transposed = any(node.attrs.get(name) for name in ("transpose_b", "adj_y"))
        return math.prod(output.sizes) * weights[-1 if is_transposed else -2]
    # Each output element needs h * w * c_in MACs; a depthwise one h * w.
    return math.prod(output.sizes) * math.prod(weights[: 2 if "Depthwise" in node.op else -1])


def count_einsum_macs(equation: str, shapes: list[Shape]) -> int | None:
    """Return the MACs of an Einsum: the product of the sizes of all its indices; None if a shape is unknown.

    Args:
        equation: for example ``abc,cde->abde``.
        shapes: shape of each operand.
    """
    operands = equation.replace(" ", "").partition("->")[0].split(",")
    if len(operands) != 2:
        return 0  # a single operand is only summed
    sizes: dict[str, int] = {}
    for operand, shape in zip(operands, shapes, strict=False):
        if not shape.is_known:
            return None
        first, dots, last = operand.partition("...")
        num_dots = len(shape.sizes) - len(first) - len(last)
        letters = [*first, *(f".{index}" for index in range(num_dots, 0, -1) if dots), *last]
        for letter, size in zip(letters, shape.sizes, strict=False):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return math.prod(sizes.values())
