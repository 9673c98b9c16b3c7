"""Multiplications followed by an addition: what convolutions and products of matrices cost."""

import math
import re
from collections.abc import Mapping

from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_rules import UNKNOWN
from quantkit.ops.tensorflow.signatures import attribute

# Ops that run other graphs.
CALLING = ("While", "If", "Case", "PartitionedCall")
# Layers by what their names hold, fused and 8-bit forms included.
_LAYER = re.compile(r"(Depthwise|Pad)?[Cc]onv(2d|2D|3D)|MatMul|Einsum")
# Where weights are not the second input.
_WEIGHTS = {"FusedPadConv2D": 2, "FusedResizeAndPadConv2D": 3}


def multiply_adds(node: Node, shapes: Mapping[Edge, Shape]) -> int | None:
    """How many of them a node does; 0 for ops that are no layers.

    Args:
        node: of TensorFlow's ops.
        shapes: of edges.

    Returns:
        The count, or None where a shape is unknown, or the op runs other graphs (loops, branches, calls).
    """
    if node.op.endswith(CALLING):
        return None
    if not _LAYER.search(node.op) or "BackpropFilter" in node.op:
        return 0
    read = [shapes.get(edge, UNKNOWN) for edge in node.inputs]
    out = shapes.get(Edge(node.name), UNKNOWN)
    if node.op == "Einsum":
        return _of_sum(node, read)
    if "BackpropInput" in node.op:
        read, out = [read[1], read[1]], read[2]
    slot = _WEIGHTS.get(node.op, 1)
    if len(read) <= slot or not out.is_known or not read[slot].is_known:
        return None
    weights = read[slot].sizes
    if "MatMul" in node.op:
        is_turned = any(node.attrs.get(name) for name in ("transpose_b", "adj_y"))
        return math.prod(out.sizes) * weights[-1 if is_turned else -2]
    # A number of the result takes part in all places of the kernel: of one channel, or of all that its group reads.
    return math.prod(out.sizes) * math.prod(weights[: 2 if "Depthwise" in node.op else -1])


def _of_sum(node: Node, shapes: list[Shape]) -> int | None:
    """Of an Einsum: the product of the sizes of all its letters."""
    words = attribute(node, "equation").decode().replace(" ", "").partition("->")[0].split(",")
    if len(words) != 2:
        return 0  # one tensor is only summed
    sizes: dict[str, int] = {}
    for word, shape in zip(words, shapes, strict=False):
        if not shape.is_known:
            return None
        before, dots, behind = word.partition("...")
        middle = len(shape.sizes) - len(before) - len(behind)
        letters = [*before, *(f".{place}" for place in range(middle, 0, -1) if dots), *behind]
        for letter, size in zip(letters, shape.sizes, strict=False):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return math.prod(sizes.values())
