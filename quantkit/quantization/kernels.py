"""What a target has no 8-bit kernel for, though others have one: known before any data."""

from collections.abc import Mapping

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.transforms.precision.quantize_nodes import why_float


def missing_kernel(target: str, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
    """Why a target computes a node in float, in whatever codes it were; empty: nothing is known against it.

    Args:
        target: key of `quantkit.quantization.scheme.TARGETS`.
        graph: in float.
        node: of it.
        shapes: of its edges, as far as they are known.
    """
    if target == "eightbit":
        return why_float(graph, node, shapes)
    if target == "tensorflow" and node.op == "Conv2D":
        return _groups(node, shapes)
    return ""


def _groups(node: Node, shapes: Mapping[Edge, Shape]) -> str:
    channels, weights = (shapes.get(edge, UNKNOWN).dims for edge in node.inputs)
    if not channels or not weights or channels[-1] is None or weights[2] in (None, channels[-1]):
        return ""
    return f"its weights see {weights[2]} of {channels[-1]} channels, and oneDNN's 8-bit kernels see all"
