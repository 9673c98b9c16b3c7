"""The original's fusing of resizes and mirrored borders into convolutions."""

from collections.abc import Sequence

import numpy as np

from quantkit.compat.transforms.flatten_atrous_conv import copied
from quantkit.compat.transforms.matching import ANY, Match, pattern, replace_matches
from quantkit.compat.transforms.nodes import NodeDef, constant
from quantkit.compat.transforms.table import Context, classic_transform
from quantkit.ir.graph import Attr

RESIZED = pattern("Conv2D", pattern("ResizeBilinear"), ANY)
PADDED = pattern("Conv2D", pattern("MirrorPad", ANY, ANY), ANY)
BOTH = pattern("Conv2D", pattern("MirrorPad", pattern("ResizeBilinear"), ANY), ANY)


@classic_transform
def fuse_pad_and_conv(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """Dilations, layout and device are forgotten."""

    def make(match: Match, outside: frozenset[str]) -> list[NodeDef]:
        conv, weights = match.node, match.inputs[1].node
        pad, source, paddings = match.inputs[0].node, *(inner.node for inner in match.inputs[0].inputs)
        attrs = {**_attrs(conv), "mode": copied(pad, "mode")}
        inputs = (pad.inputs[0], pad.inputs[1], conv.inputs[1])
        return [weights, source, paddings, NodeDef(conv.name, "FusedPadConv2D", inputs, attrs)]

    return replace_matches(nodes, PADDED, make)


@classic_transform
def fuse_resize_and_conv(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """Dilations, layout, device and half_pixel_centers are forgotten."""

    def make(match: Match, outside: frozenset[str]) -> list[NodeDef]:
        conv, resize, weights = match.node, match.inputs[0].node, match.inputs[1].node
        nothing = constant(f"{conv.name}_dummy_paddings", np.zeros((4, 2), np.int32))
        attrs = {**_attrs(conv), "resize_align_corners": copied(resize, "align_corners"), "mode": b"REFLECT"}
        inputs = (resize.inputs[0], resize.inputs[1], nothing.name, conv.inputs[1])
        return [weights, nothing, NodeDef(conv.name, "FusedResizeAndPadConv2D", inputs, attrs)]

    return replace_matches(nodes, RESIZED, make)


@classic_transform
def fuse_resize_pad_and_conv(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """Dilations, layout, device and half_pixel_centers are forgotten."""

    def make(match: Match, outside: frozenset[str]) -> list[NodeDef]:
        conv, weights = match.node, match.inputs[1].node
        pad, resize, paddings = match.inputs[0].node, *(inner.node for inner in match.inputs[0].inputs)
        attrs = {**_attrs(conv), "resize_align_corners": copied(resize, "align_corners"), "mode": copied(pad, "mode")}
        inputs = (resize.inputs[0], resize.inputs[1], pad.inputs[1], conv.inputs[1])
        return [weights, paddings, NodeDef(conv.name, "FusedResizeAndPadConv2D", inputs, attrs)]

    return replace_matches(nodes, BOTH, make)


def _attrs(conv: NodeDef) -> dict[str, Attr]:
    return {key: copied(conv, key) for key in ("T", "padding", "strides")}
