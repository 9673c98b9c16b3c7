"""Fuse a bilinear resize and the following convolution.

conv(resize(x), w)  ==  FusedResizeAndPadConv2D(x, w) with padding 0
"""

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.fusion._fused_convolutions import fuse_before_convolution
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
    return fuse_before_convolution(graph, resize="ResizeBilinear")
