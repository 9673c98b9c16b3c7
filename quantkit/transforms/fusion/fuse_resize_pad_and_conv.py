"""Fuse a bilinear resize, MirrorPad and the following convolution.

conv(mirror_pad(resize(x)), w)  ==  FusedResizeAndPadConv2D(x, w)
"""

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.fusion._fused_convolutions import fuse_before_convolution
from quantkit.transforms.registry import transform


@transform
def fuse_resize_pad_and_conv(graph: Graph) -> Outcome:
    """Fuse ResizeBilinear, MirrorPad and Conv2D into FusedResizeAndPadConv2D.

    Before:  x -> ResizeBilinear(size) -> MirrorPad(paddings) -> Conv2D(w)
    After:   FusedResizeAndPadConv2D(x, size, paddings, w)

    Options: none. Run it before fuse_resize_and_conv and fuse_pad_and_conv, which fuse parts of the
    pattern.

    Skips if the batch size is not known to be 1 (TensorFlow's kernel computes only the first image
    of a batch correctly), if the convolution is dilated, NCHW or has EXPLICIT padding, if the
    paddings are not constant or include batch or channels, if the resize has half_pixel_centers or
    changes the element type, or if the pad or the resize has other consumers.

    Example:
        fuse_resize_pad_and_conv
        inputs: x
        outputs: y
        x = Placeholder[1x6x6x2]()
        size = Const[int32]([9, 9])
        paddings = Const[int32]([[0, 0], [1, 1], [1, 1], [0, 0]])
        w = Const[3x3x2x2]()
        resize = ResizeBilinear(x, size)
        pad = MirrorPad(resize, paddings, mode=REFLECT)
        y = Conv2D(pad, w, padding=VALID, strides=[1, 1, 1, 1])
    """
    return fuse_before_convolution(graph, resize="ResizeBilinear", pad="MirrorPad")
