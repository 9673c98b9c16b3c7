"""Convert the layout of images between NHWC and NCHW.

NHWC  ->  NCHW:  converted[n, c, h, w] = image[n, h, w, c]
"""

from typing import Literal

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.layout._layout_ops import HANDLERS
from quantkit.transforms.layout._layouts import LayoutConverter
from quantkit.transforms.registry import transform


@transform
def convert_layout(graph: Graph, *, to: Literal["NCHW", "NHWC"]) -> Outcome:
    """Convert image layers to channels first (NCHW) or channels last (NHWC).

    Convolutions, pooling, biases and norms get the other data format. Elementwise ops, pads,
    concats, splits, slices and reductions are converted with them. A Transpose converts a tensor
    for nodes that need the other layout; converted nodes are connected without Transposes, and
    existing Transposes that become unnecessary are removed. Inputs and outputs keep their layout.
    The order of weights is the same in both layouts. TensorFlow supports few NCHW ops on CPUs; NCHW
    is for GPUs and other runtimes.

    Before:  x -> Conv2D(NHWC) -> Relu -> Conv2D(NHWC) -> y
    After:   x -> Transpose -> Conv2D(NCHW) -> Relu -> Conv2D(NCHW) -> Transpose -> y

    Options:
        to: target layout, NCHW or NHWC.

    Skips an op that supports one layout only (resize, softmax, LRN), whose per-dimension operands
    are computed, or which has an operand of unknown rank. Skips ops whose remaining dimensions
    would have another order, and nodes of which several outputs are graph outputs.

    Example:
        convert_layout(to=NCHW)
        inputs: x
        outputs: y
        x = Placeholder[1x6x6x2]()
        w = Const[3x3x2x2]()
        conv = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
        y = Relu(conv)
    """
    return LayoutConverter(graph, to, HANDLERS).outcome()
