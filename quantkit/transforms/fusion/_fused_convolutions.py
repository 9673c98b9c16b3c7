"""Convolutions that resize or mirror what they read by themselves: FusedPadConv2D and FusedResizeAndPadConv2D.

These ops know no dilations, no layout but NHWC, no half_pixel_centers, and no element types of pictures before and
after a resize. TensorFlow's kernels compute the first picture of a batch right, and none of the others.
"""

from collections.abc import Mapping

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import sharing_reason
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.tensorflow.signatures import attribute

Shapes = Mapping[Edge, Shape]
FUSED_TYPES = (DType.HALF, DType.FLOAT, DType.DOUBLE)
ONLY_FIRST = "TensorFlow's kernel computes only the first picture of a batch right"


def reason_against_convolution(shapes: Shapes, root: Node, source: Node) -> str:
    """Why a convolution can not take over what makes its pictures; empty: it can.

    Args:
        shapes: of the edges of the graph.
        root: the convolution.
        source: what makes its pictures.
    """
    if attribute(root, "data_format") != b"NHWC":
        return f"the fused op has no data_format {attribute(root, 'data_format').decode(errors='replace')}"
    if set(attribute(root, "dilations")) != {1}:
        return "the fused op has no dilations"
    if attribute(root, "padding") not in (b"SAME", b"VALID"):
        return f"the fused op has no padding {attribute(root, 'padding').decode(errors='replace')}"
    if dtype_of(root) not in FUSED_TYPES:
        return "the fused op has no kernel for its element type"
    dims = shapes.get(source.inputs[0], UNKNOWN).dims
    if not dims or dims[0] != 1:
        size = "of a batch whose size is not known" if not dims or dims[0] is None else f"of a batch of {dims[0]}"
        return f"it reads pictures {size}, and {ONLY_FIRST}"
    return ""


def reason_against_pad(graph: Graph, pad: Node, reader: Node) -> str:
    """Why a MirrorPad can not be taken over by its reader; empty: it can."""
    if attribute(pad, "Tpaddings") is not DType.INT32:
        return f"the paddings of {pad.name} are not int32"
    widths = graph.constant_of(pad.inputs[1])
    if widths is None or pad.inputs[1].node in graph.input_names:
        return f"the paddings of {pad.name} are not constant"
    if widths.shape != (4, 2) or widths.array[[0, 3]].any():
        return f"{pad.name} pads more than height and width"
    return sharing_reason(graph, pad, reader)


def reason_against_resize(graph: Graph, resize: Node, reader: Node, convolution: Node) -> str:
    """Why a ResizeBilinear can not be taken over by its reader; empty: it can."""
    if attribute(resize, "half_pixel_centers"):
        return f"{resize.name} has half_pixel_centers, which the fused op does not know"
    if dtype_of(resize) is not DType.FLOAT or dtype_of(convolution) is not DType.FLOAT:
        return f"{resize.name} changes the element type, which the fused op does not do"
    return sharing_reason(graph, resize, reader)


def dtype_of(node: Node) -> DType | None:
    """The element type that a node declares; float where it declares none."""
    dtype = node.attrs.get("T", DType.FLOAT)
    return dtype if isinstance(dtype, DType) else None


def fused(root: Node, op: str, inputs: tuple[Edge, ...], mode: bytes, *before: Node) -> Node:
    """The convolution with the nodes before it, a pad or resize or both; it waits for what they waited for."""
    attrs = {key: root.attrs[key] for key in ("T", "strides", "padding") if key in root.attrs}
    corners = next((attribute(node, "align_corners") for node in before if node.op == "ResizeBilinear"), None)
    waits = dict.fromkeys((*root.controls, *(name for node in before for name in node.controls)))
    made = root.with_(op=op, inputs=inputs, controls=tuple(waits), attrs=attrs)
    return made.with_attrs(mode=mode, resize_align_corners=corners)
