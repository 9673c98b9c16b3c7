"""Images with their channels first, or last.

NHWC  ->  NCHW:  turned[n, c, h, w] = image[n, h, w, c]
"""

from typing import Literal

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.layout._layout_ops import HANDLERS
from quantkit.transforms.layout._layouts import Turning
from quantkit.transforms.registry import transform


@transform
def convert_layout(graph: Graph, *, to: Literal["NCHW", "NHWC"]) -> Outcome:
    """Let layers on images work with their channels first (NCHW) or last (NHWC).

    Convolutions, pools, biases and norms take the other data format. What works element by element, pads, joins,
    splits, slices, and reductions follow. Where a tensor is wanted in the graph's own order, a Transpose stands;
    between ops that were converted there is none, and those that stood in the way go. Inputs and outputs keep their
    layout. Weights are in the same order in both formats. TensorFlow itself computes few NCHW ops on a processor;
    NCHW is for GPUs and for other engines.

    Before:  x -> Conv2D(NHWC) -> Relu -> Conv2D(NHWC) -> y
    After:   x -> Transpose -> Conv2D(NCHW) -> Relu -> Conv2D(NCHW) -> Transpose -> y

    Options:
        to: NCHW or NHWC.

    Skips when an op knows one layout only (resizing, softmax, LRN), when what it says of each dimension is
    computed, when the number of dimensions of an operand is not known, when dimensions would be left in another
    order, and when several outputs of one node leave the graph.

    Example:
        convert_layout(to=NCHW)
        inputs: x
        outputs: y
        x = Placeholder[1x6x6x2]()
        w = Const[3x3x2x2]()
        conv = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
        y = Relu(conv)
    """
    return Turning(graph, to, HANDLERS).outcome()
