"""The original's fusion of ResizeBilinear and MirrorPad into convolutions."""

from collections.abc import Sequence

import numpy as np

from quantkit.compat.transforms.flatten_atrous_conv import copy_attribute
from quantkit.compat.transforms.matching import ANY, ClassicMatch, pattern, replace_matches
from quantkit.compat.transforms.nodes import NodeDef, constant
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.ir.graph import Attr

CONV_AFTER_RESIZE = pattern("Conv2D", pattern("ResizeBilinear"), ANY)
CONV_AFTER_PAD = pattern("Conv2D", pattern("MirrorPad", ANY, ANY), ANY)
CONV_AFTER_BOTH = pattern("Conv2D", pattern("MirrorPad", pattern("ResizeBilinear"), ANY), ANY)


@classic_transform
def fuse_pad_and_conv(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Fuse MirrorPad and Conv2D, and drop dilations, data format and device."""

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        conv, weights, pad = match.node, match.inputs[1].node, match.inputs[0].node
        source, paddings = (inner.node for inner in match.inputs[0].inputs)
        attrs = {**_conv_attributes(conv), "mode": copy_attribute(pad, "mode")}
        inputs = (pad.inputs[0], pad.inputs[1], conv.inputs[1])
        return [weights, source, paddings, NodeDef(conv.name, "FusedPadConv2D", inputs, attrs)]

    return replace_matches(nodes, CONV_AFTER_PAD, replace)


@classic_transform
def fuse_resize_and_conv(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Fuse ResizeBilinear and Conv2D.

    Drops dilations, data format, device and half_pixel_centers.
    """

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        conv, resize, weights = match.node, match.inputs[0].node, match.inputs[1].node
        paddings = constant(f"{conv.name}_dummy_paddings", np.zeros((4, 2), np.int32))
        attrs = {**_fused_attributes(conv, resize), "mode": b"REFLECT"}
        inputs = (resize.inputs[0], resize.inputs[1], paddings.name, conv.inputs[1])
        return [weights, paddings, NodeDef(conv.name, "FusedResizeAndPadConv2D", inputs, attrs)]

    return replace_matches(nodes, CONV_AFTER_RESIZE, replace)


@classic_transform
def fuse_resize_pad_and_conv(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Fuse ResizeBilinear, MirrorPad and Conv2D.

    Drops dilations, data format, device and half_pixel_centers.
    """

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        conv, weights, pad = match.node, match.inputs[1].node, match.inputs[0].node
        resize, paddings = (inner.node for inner in match.inputs[0].inputs)
        attrs = {**_fused_attributes(conv, resize), "mode": copy_attribute(pad, "mode")}
        inputs = (resize.inputs[0], resize.inputs[1], pad.inputs[1], conv.inputs[1])
        return [weights, paddings, NodeDef(conv.name, "FusedResizeAndPadConv2D", inputs, attrs)]

    return replace_matches(nodes, CONV_AFTER_BOTH, replace)


def _conv_attributes(conv: NodeDef) -> dict[str, Attr]:
    return {key: copy_attribute(conv, key) for key in ("T", "padding", "strides")}


def _fused_attributes(conv: NodeDef, resize: NodeDef) -> dict[str, Attr]:
    corners = copy_attribute(resize, "align_corners")
    return {**_conv_attributes(conv), "resize_align_corners": corners}
