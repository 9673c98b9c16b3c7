"""A bilinear resize and the convolution behind it as one op.

conv(resize(x), w)  ==  FusedResizeAndPadConv2D(x, w), which pads by nothing
"""

from functools import partial

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.pattern import any_, op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name
from quantkit.ops.shape_inference import infer_shapes
from quantkit.transforms.fusion._fused_convolutions import (
    Shapes,
    fused,
    reason_against_convolution,
    reason_against_resize,
)
from quantkit.transforms.registry import transform


@transform
def fuse_resize_and_conv(graph: Graph) -> Outcome:
    """Let a convolution resize the pictures it reads by itself.

    Before:  x -> ResizeBilinear(size) -> Conv2D(w)
    After:   FusedResizeAndPadConv2D(x, size, paddings of nothing, w)

    Options: none. Run fuse_resize_pad_and_conv first and fuse_pad_and_conv after it.

    Skips when the batch is not known to be one picture (TensorFlow's kernel computes only the first of a batch
    right), when the convolution is dilated, NCHW or padded explicitly, when the resize has half_pixel_centers or
    changes the element type, and when it is read elsewhere.

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
    wanted = op("Conv2D")(op("ResizeBilinear", "resize")(any_(), any_()), any_())
    return apply_rules(graph, Rule(wanted, partial(_fused, infer_shapes(graph)), ("root", "resize")))


def _fused(shapes: Shapes, graph: Graph, root: Node, resize: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    reason = reason_against_convolution(shapes, root, resize) or reason_against_resize(graph, resize, root, root)
    if reason:
        return Skip(reason)
    nothing = constant(free_name(graph, f"{root.name}_dummy_paddings"), np.zeros((4, 2), np.int32))
    inputs = (*resize.inputs, Edge(nothing.name), root.inputs[1])
    return [nothing, fused(root, "FusedResizeAndPadConv2D", inputs, b"REFLECT", resize)]
