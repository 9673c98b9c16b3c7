"""Fused ops of resize, mirror padding and convolution: FusedPadConv2D and FusedResizeAndPadConv2D.

These ops support only NHWC, no dilations, no half_pixel_centers, and no change of the element type
by a resize. TensorFlow's kernels compute only the first image of a batch correctly.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.pattern import any_, op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name, sharing_reason
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import attribute

Shapes = Mapping[Edge, Shape]
FUSED_TYPES = (DType.HALF, DType.FLOAT, DType.DOUBLE)
ONLY_FIRST = "TensorFlow's kernel computes only the first image of a batch correctly"


def fuse_before_convolution(graph: Graph, **ops: str) -> Outcome:
    """Fuse each Conv2D and the ops before it.

    Args:
        graph: graph to rewrite.
        ops: op types before the convolution in the order of the graph, by their roles ``resize`` and ``pad``.
    """
    if not graph.op_counts.keys() >= {*ops.values()}:
        return Outcome(graph)
    pattern = any_()
    for role, op_type in ops.items():
        pattern = op(op_type, role)(pattern, any_())
    rewrite = partial(_fuse, infer_shapes(graph))
    return apply_rules(graph, Rule(op("Conv2D")(pattern, any_()), rewrite, ("root", *ops)))


def _fuse(
    shapes: Shapes, graph: Graph, root: Node, pad: Node | None = None, resize: Node | None = None
) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    before = [node for node in (pad, resize) if node is not None]
    reason = _reason_against_convolution(shapes, root, before[-1])
    if pad is not None:
        reason = reason or _reason_against_pad(graph, pad, root)
    if resize is not None:
        reason = reason or _reason_against_resize(graph, resize, root if pad is None else pad, root)
    if reason:
        return Skip(reason)
    added: list[Node] = []
    if pad is None:
        added = [constant(free_name(graph, f"{root.name}_dummy_paddings"), np.zeros((4, 2), np.int32))]
    paddings = Edge(added[0].name) if pad is None else pad.inputs[1]
    source = before[-1].inputs[:1] if resize is None else resize.inputs
    attrs = {key: root.attrs[key] for key in ("T", "strides", "padding") if key in root.attrs}
    controls = dict.fromkeys((*root.controls, *(name for node in before for name in node.controls)))
    fused = root.with_(
        op="FusedPadConv2D" if resize is None else "FusedResizeAndPadConv2D",
        inputs=(*source, paddings, root.inputs[1]),
        controls=tuple(controls),
        attrs=attrs,
    )
    corners = None if resize is None else attribute(resize, "align_corners")
    mode = b"REFLECT" if pad is None else attribute(pad, "mode")
    return [*added, fused.with_attrs(mode=mode, resize_align_corners=corners)]


def _reason_against_convolution(shapes: Shapes, root: Node, source: Node) -> str:
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
    if _dtype_of(root) not in FUSED_TYPES:
        return "the fused op has no kernel for the element type"
    dims = shapes.get(source.inputs[0], UNKNOWN).dims
    if not dims or dims[0] != 1:
        size = "unknown" if not dims or dims[0] is None else str(dims[0])
        return f"batch size is {size}, but {ONLY_FIRST}"
    return ""


def _reason_against_pad(graph: Graph, pad: Node, consumer: Node) -> str:
    """Return the reason why a MirrorPad cannot be fused with its consumer; empty if it can."""
    if attribute(pad, "Tpaddings") is not DType.INT32:
        return f"the paddings of {pad.name} are not int32"
    widths = graph.constant_of(pad.inputs[1])
    if widths is None or pad.inputs[1].node in graph.input_names:
        return f"the paddings of {pad.name} are not constant"
    if widths.shape != (4, 2) or widths.array[[0, 3]].any():
        return f"{pad.name} pads more than height and width"
    return sharing_reason(graph, pad, consumer)


def _reason_against_resize(graph: Graph, resize: Node, consumer: Node, convolution: Node) -> str:
    """Return the reason why a ResizeBilinear cannot be fused with its consumer; empty if it can."""
    if attribute(resize, "half_pixel_centers"):
        return f"{resize.name} has half_pixel_centers, which the fused op does not support"
    if _dtype_of(resize) is not DType.FLOAT or _dtype_of(convolution) is not DType.FLOAT:
        return f"{resize.name} changes the element type, which the fused op does not support"
    return sharing_reason(graph, resize, consumer)


def _dtype_of(node: Node) -> DType | None:
    """Return the attribute ``T`` of a node, float by default; None if it is not an element type."""
    dtype = node.attrs.get("T", DType.FLOAT)
    return dtype if isinstance(dtype, DType) else None
