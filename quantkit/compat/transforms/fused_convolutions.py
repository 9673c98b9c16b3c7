"""The original's fusion of ResizeBilinear and MirrorPad into convolutions."""

from collections.abc import Sequence

import numpy as np

from quantkit.compat.transforms.flatten_atrous_conv import copy_attribute
from quantkit.compat.transforms.matching import ANY, ClassicMatch, ClassicPattern, pattern, replace_matches
from quantkit.compat.transforms.nodes import NodeDef, constant
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.ir.graph import Attr

RESIZE = pattern("ResizeBilinear")


@classic_transform()
def fuse_pad_and_conv(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Fuse MirrorPad and Conv2D, and drop dilations, data format and device."""
    return _fuse(nodes, pattern("MirrorPad", ANY, ANY))


@classic_transform()
def fuse_resize_and_conv(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Fuse ResizeBilinear and Conv2D.

    Drops dilations, data format, device and half_pixel_centers.
    """
    return _fuse(nodes, RESIZE)


@classic_transform()
def fuse_resize_pad_and_conv(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Fuse ResizeBilinear, MirrorPad and Conv2D.

    Drops dilations, data format, device and half_pixel_centers.
    """
    return _fuse(nodes, pattern("MirrorPad", RESIZE, ANY))


def _fuse(nodes: Sequence[NodeDef], before: ClassicPattern) -> list[NodeDef]:
    """Fuse the ops of a pattern and the Conv2D after them."""

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        conv, first, weights = match.node, match.inputs[0], match.inputs[1].node
        attrs: dict[str, Attr] = {key: copy_attribute(conv, key) for key in ("T", "padding", "strides")}
        if first.inputs:
            source, paddings = (inner.node for inner in first.inputs)
            last, edge, mode = source, first.node.inputs[1], copy_attribute(first.node, "mode")
        else:
            last, mode = first.node, b"REFLECT"
            paddings = constant(f"{conv.name}_dummy_paddings", np.zeros((4, 2), np.int32))
            edge = paddings.name
        if before.ops == "MirrorPad" and before.inputs[0] is ANY:
            fused = NodeDef(conv.name, "FusedPadConv2D", (first.node.inputs[0], edge, conv.inputs[1]))
            return [weights, last, paddings, fused.with_attrs(**attrs, mode=mode)]
        attrs["resize_align_corners"] = copy_attribute(last, "align_corners")
        inputs = (*last.inputs[:2], edge, conv.inputs[1])
        return [weights, paddings, NodeDef(conv.name, "FusedResizeAndPadConv2D", inputs, {**attrs, "mode": mode})]

    return replace_matches(nodes, pattern("Conv2D", before, ANY), replace)
