"""Zeros around a tensor, as the padding of what reads it.

conv(pad(x), VALID)  ==  conv(x, EXPLICIT)
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules
from quantkit.ir.tensor import Array, Shape
from quantkit.ops.layers import channel_axis, same_padding
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.registry import transform

PADS = ("Pad", "PadV2")
LAYERS = ("Conv2D", "DepthwiseConv2dNative")
# A maximum does not see zeros beside such numbers.
NEVER_NEGATIVE = ("Relu", "Relu6", "Sigmoid", "Softmax", "Abs", "Square", "Exp")
Shapes = Mapping[Edge, Shape]


@transform
def fold_pads(graph: Graph) -> Outcome:
    """Let convolutions and maximum pools pad by themselves, instead of reading a tensor that was padded.

    A Pad writes the whole tensor once more; the kernels behind it pad on the way. Where the padding is what SAME
    gives, it becomes SAME, which every engine knows; else EXPLICIT.

    Before:  x -> Pad([0, 1, 1, 0]) -> Conv2D(VALID)
    After:   x -> Conv2D(SAME) or Conv2D(EXPLICIT)

    Options: none. A Pad that adds nothing becomes an Identity, which remove_nodes splices out.

    Skips when what is padded with is not a constant zero, when batch or channels are padded, for average pools
    (they do not count their own padding, but would count those zeros), for depthwise convolutions unless SAME adds
    as much, and for maximum pools, which ignore their padding, unless what they read is never negative or the padding
    is the lowest number, and SAME adds as much.

    Example:
        fold_pads
        inputs: x
        outputs: y
        x = Placeholder[1x6x6x2]()
        widths = Const[int32]([[0, 0], [1, 1], [1, 1], [0, 0]])
        w = Const[3x3x2x2]()
        pad = Pad(x, widths)
        y = Conv2D(pad, w, padding=VALID, strides=[1, 1, 1, 1])

    Example:
        fold_pads
        inputs: x
        outputs: y
        x = Placeholder[2x3]()
        widths = Const[int32]([[0, 0], [0, 0]])
        pad = Pad(x, widths)
        y = Relu(pad)
    """
    if graph.op_counts.keys().isdisjoint(PADS):
        return Outcome(graph)
    readers = Rule(op("Conv2D|DepthwiseConv2dNative|MaxPool|AvgPool"), partial(_folded, infer_shapes(graph)), ("root",))
    return apply_rules(graph, readers, Rule(op("Pad|PadV2"), _spared, ("root",)))


def _spared(graph: Graph, root: Node) -> list[Node] | None:
    """A Pad of no width."""
    widths = _constant(graph, root, 1)
    if widths is None or widths.any() or root.name in graph.input_names:
        return None
    attrs = {"T": root.attrs["T"]} if "T" in root.attrs else {}
    return [root.with_(op="Identity", inputs=root.inputs[:1], attrs=attrs)]


def _folded(shapes: Shapes, graph: Graph, root: Node) -> list[Node] | Skip | None:
    pad = graph[root.inputs[0].node]
    if pad.op not in PADS or root.name in graph.input_names:
        return None
    widths = _constant(graph, pad, 1)
    if pad.name in graph.input_names:
        return Skip(f"{pad.name} is an input of the graph")
    if widths is None:
        return Skip(f"the widths of {pad.name} are not constant")
    reason = _reason_to_stay(graph, root, pad, widths)
    if reason:
        return Skip(reason)
    own = _own_padding(shapes, root)
    if own is None:
        return Skip(f"the size of {pad.name} is not known, and with it what SAME adds")
    if root.op == "MaxPool" and ((own + widths).max(1) >= attribute(root, "ksize")).any():
        return Skip(f"{pad.name} is so wide that windows would see nothing else")
    same = _all_same(shapes, root, shapes.get(pad.inputs[0], UNKNOWN))
    if root.op == "DepthwiseConv2dNative" and (same is None or not np.array_equal(own + widths, same)):
        return Skip(f"{pad.name} is not what SAME adds, and TensorFlow breaks down where it fuses another padding")
    if root.op == "MaxPool" and (same is None or not np.array_equal(own + widths, same)):
        return Skip(f"{pad.name} is not what SAME adds, and few engines know another padding of a MaxPool")
    return [_padding(root, own + widths, same).with_input(0, pad.inputs[0])]


def _constant(graph: Graph, node: Node, slot: int) -> Array | None:
    """The values of a constant input that nobody feeds."""
    value = graph.constant_of(node.inputs[slot]) if len(node.inputs) > slot else None
    return None if value is None or node.inputs[slot].node in graph.input_names else value.array


def _reason_to_stay(graph: Graph, root: Node, pad: Node, widths: Array) -> str:
    axis = channel_axis(root, 4)
    if axis is None or widths.shape != (4, 2) or widths[[0, axis]].any():
        return f"{pad.name} pads more than height and width"
    if (widths < 0).any():
        return f"{pad.name} has negative widths"
    if root.op == "AvgPool" and widths.any():
        return f"it would not count the zeros of {pad.name}, which belong to its averages"
    values = _constant(graph, pad, 2) if pad.op == "PadV2" else np.float32(0)
    if values is None or values.size != 1:
        return f"what {pad.name} adds is not constant"
    value = values.reshape(())
    if root.op in LAYERS:
        return f"{pad.name} adds {value:g}, not zeros" if value else ""
    is_unseen = value.dtype.kind == "f" and value <= np.finfo(value.dtype).min
    if not is_unseen and (value or graph[pad.inputs[0].node].op not in NEVER_NEGATIVE):
        return f"{pad.inputs[0]} may be below {value:g}, which {pad.name} adds: it would be the maximum at the border"
    return ""


def _windows(shapes: Shapes, root: Node) -> list[tuple[int, int, int]] | None:
    """(axis, span, stride) along height and width; None: the size of the windows is not known."""
    axes = [axis for axis in range(1, 4) if axis != channel_axis(root, 4)]
    strides = attribute(root, "strides")
    if root.op == "MaxPool":
        return [(axis, attribute(root, "ksize")[axis], strides[axis]) for axis in axes]
    kernel = shapes.get(root.inputs[1], UNKNOWN).dims or ()
    spans = []
    for axis, size in zip(axes, kernel, strict=False):
        if size is None:
            return None
        spans.append((axis, (size - 1) * attribute(root, "dilations")[axis] + 1, strides[axis]))
    return spans if len(spans) == len(axes) else None


def _own_padding(shapes: Shapes, root: Node) -> Array | None:
    """What the node itself adds around the padded tensor: (4, 2); None: not known."""
    padding = attribute(root, "padding")
    if padding == b"EXPLICIT":
        return np.array(attribute(root, "explicit_paddings")).reshape(4, 2)
    if padding == b"VALID":
        return np.zeros((4, 2), int)
    return _all_same(shapes, root, shapes.get(root.inputs[0], UNKNOWN))


def _all_same(shapes: Shapes, root: Node, given: Shape) -> Array | None:
    """What SAME adds around a tensor of a shape: (4, 2); None: not known."""
    made = np.zeros((4, 2), int)
    for axis, span, stride in _windows(shapes, root) or ():
        same = same_padding(given.dims[axis] if given.dims and given.rank == 4 else None, span, stride)
        if same is None:
            return None
        made[axis] = same
    return made if _windows(shapes, root) else None


def _padding(root: Node, widths: Array, same: Array | None) -> Node:
    """The node with these widths as its padding."""
    if same is not None and np.array_equal(widths, same):
        return root.with_attrs(padding=b"SAME", explicit_paddings=None)
    if not widths.any():
        return root.with_attrs(padding=b"VALID", explicit_paddings=None)
    return root.with_attrs(padding=b"EXPLICIT", explicit_paddings=tuple(int(width) for width in widths.reshape(-1)))
