"""Fuse MirrorPad and the following convolution.

conv(mirror_pad(x), w)  ==  FusedPadConv2D(x, w)
"""

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.fusion._fused_convolutions import fuse_before_convolution
from quantkit.transforms.registry import transform


@transform
def fuse_pad_and_conv(graph: Graph) -> Outcome:
    """Fuse MirrorPad and the following Conv2D into FusedPadConv2D.

    Before:  x -> MirrorPad(paddings) -> Conv2D(w)
    After:   FusedPadConv2D(x, paddings, w)

    Options: none. For zero padding, use fold_pads. Run fuse_resize_pad_and_conv and
    fuse_resize_and_conv first: this transform would prevent the fusion of a resize before the pad.

    Skips if the batch size is not known to be 1 (TensorFlow's kernel computes only the first image
    of a batch correctly), if the convolution is dilated, NCHW or has EXPLICIT padding, if the
    paddings are not constant or include batch or channels, or if the pad has other consumers.

    Example:
        fuse_pad_and_conv
        inputs: x
        outputs: y
        x = Placeholder[1x6x6x2]()
        paddings = Const[int32]([[0, 0], [1, 1], [1, 1], [0, 0]])
        w = Const[3x3x2x2]()
        pad = MirrorPad(x, paddings, mode=REFLECT)
        y = Conv2D(pad, w, padding=VALID, strides=[1, 1, 1, 1])
    """
    return fuse_before_convolution(graph, pad="MirrorPad")
