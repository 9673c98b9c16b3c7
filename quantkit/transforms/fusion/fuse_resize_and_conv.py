"""Fuse a bilinear resize and the following convolution.

conv(resize(x), w)  ==  FusedResizeAndPadConv2D(x, w) with padding 0
"""

from functools import partial

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.pattern import any_, op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name
from quantkit.ops.shape_inference import infer_shapes
from quantkit.transforms.fusion._fused_convolutions import (
    Shapes,
    fuse,
    reason_against_convolution,
    reason_against_resize,
)
from quantkit.transforms.registry import transform


@transform
def fuse_resize_and_conv(graph: Graph) -> Outcome:
    """Fuse ResizeBilinear and the following Conv2D into FusedResizeAndPadConv2D.

    Before:  x -> ResizeBilinear(size) -> Conv2D(w)
    After:   FusedResizeAndPadConv2D(x, size, zero paddings, w)

    Options: none. Run fuse_resize_pad_and_conv before it and fuse_pad_and_conv after it.

    Skips if the batch size is not known to be 1 (TensorFlow's kernel computes only the first image
    of a batch correctly), if the convolution is dilated, NCHW or has EXPLICIT padding, or if the
    resize has half_pixel_centers, changes the element type or has other consumers.

    Example:
        fuse_resize_and_conv
        inputs: x
        outputs: y
        x = Placeholder[1x6x6x2]()
        size = Const[int32]([9, 9])
        w = Const[3x3x2x2]()
        resize = ResizeBilinear(x, size)
        y = Conv2D(resize, w, padding=VALID, strides=[1, 1, 1, 1])
    """
    if "ResizeBilinear" not in graph.op_counts:
        return Outcome(graph)
    pattern = op("Conv2D")(op("ResizeBilinear", "resize")(any_(), any_()), any_())
    return apply_rules(graph, Rule(pattern, partial(_fuse_resize, infer_shapes(graph)), ("root", "resize")))


def _fuse_resize(shapes: Shapes, graph: Graph, root: Node, resize: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    reason = reason_against_convolution(shapes, root, resize) or reason_against_resize(graph, resize, root, root)
    if reason:
        return Skip(reason)
    paddings = constant(free_name(graph, f"{root.name}_dummy_paddings"), np.zeros((4, 2), np.int32))
    inputs = (*resize.inputs, Edge(paddings.name), root.inputs[1])
    return [paddings, fuse(root, "FusedResizeAndPadConv2D", inputs, b"REFLECT", resize)]
