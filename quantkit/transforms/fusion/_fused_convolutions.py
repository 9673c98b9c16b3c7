"""Fused ops of resize, mirror padding and convolution: FusedPadConv2D and FusedResizeAndPadConv2D.

These ops support only NHWC, no dilations, no half_pixel_centers, and no change of the element type
by a resize. TensorFlow's kernels compute only the first image of a batch correctly.
"""

from collections.abc import Mapping

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import sharing_reason
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.tensorflow.signatures import attribute

Shapes = Mapping[Edge, Shape]
FUSED_TYPES = (DType.HALF, DType.FLOAT, DType.DOUBLE)
ONLY_FIRST = "TensorFlow's kernel computes only the first image of a batch correctly"


def reason_against_convolution(shapes: Shapes, root: Node, source: Node) -> str:
    """Return the reason why a convolution cannot be fused with the ops before it; empty if it can.

    Args:
        shapes: shapes of the graph.
        root: convolution.
        source: first op of the fused pattern.
    """
    if attribute(root, "data_format") != b"NHWC":
        return f"the fused op has no data_format {attribute(root, 'data_format').decode(errors='replace')}"
    if set(attribute(root, "dilations")) != {1}:
        return "the fused op has no dilations"
    if attribute(root, "padding") not in (b"SAME", b"VALID"):
        return f"the fused op has no padding {attribute(root, 'padding').decode(errors='replace')}"
    if dtype_of(root) not in FUSED_TYPES:
        return "the fused op has no kernel for the element type"
    dims = shapes.get(source.inputs[0], UNKNOWN).dims
    if not dims or dims[0] != 1:
        size = "unknown" if not dims or dims[0] is None else str(dims[0])
        return f"batch size is {size}, but {ONLY_FIRST}"
    return ""


def reason_against_pad(graph: Graph, pad: Node, consumer: Node) -> str:
    """Return the reason why a MirrorPad cannot be fused with its consumer; empty if it can."""
    if attribute(pad, "Tpaddings") is not DType.INT32:
        return f"the paddings of {pad.name} are not int32"
    widths = graph.constant_of(pad.inputs[1])
    if widths is None or pad.inputs[1].node in graph.input_names:
        return f"the paddings of {pad.name} are not constant"
    if widths.shape != (4, 2) or widths.array[[0, 3]].any():
        return f"{pad.name} pads more than height and width"
    return sharing_reason(graph, pad, consumer)


def reason_against_resize(graph: Graph, resize: Node, consumer: Node, convolution: Node) -> str:
    """Return the reason why a ResizeBilinear cannot be fused with its consumer; empty if it can."""
    if attribute(resize, "half_pixel_centers"):
        return f"{resize.name} has half_pixel_centers, which the fused op does not support"
    if dtype_of(resize) is not DType.FLOAT or dtype_of(convolution) is not DType.FLOAT:
        return f"{resize.name} changes the element type, which the fused op does not support"
    return sharing_reason(graph, resize, consumer)


def dtype_of(node: Node) -> DType | None:
    """Return the attribute ``T`` of a node, float by default; None if it is not an element type."""
    dtype = node.attrs.get("T", DType.FLOAT)
    return dtype if isinstance(dtype, DType) else None


def fuse(root: Node, op: str, inputs: tuple[Edge, ...], mode: bytes, *before: Node) -> Node:
    """Return the fused op of a convolution and the nodes before it, with their dependencies."""
    attrs = {key: root.attrs[key] for key in ("T", "strides", "padding") if key in root.attrs}
    corners = next((attribute(node, "align_corners") for node in before if node.op == "ResizeBilinear"), None)
    controls = dict.fromkeys((*root.controls, *(name for node in before for name in node.controls)))
    fused = root.with_(op=op, inputs=inputs, controls=tuple(controls), attrs=attrs)
    return fused.with_attrs(mode=mode, resize_align_corners=corners)
