"""Fold Pad into the padding of the following convolution or pooling op.

conv(pad(x), VALID)  ==  conv(x, EXPLICIT)
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules
from quantkit.ir.tensor import Array, Shape
from quantkit.ops.layers import channel_axis, same_padding
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.table import Fact, find_ops
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.onnx import _pads as onnx_pads
from quantkit.transforms.registry import transform

PADS = ("Pad", "PadV2")
LAYERS = find_ops(Fact.CONVOLUTION, "tensorflow")
# The outputs of these ops are never negative: zero padding does not change a maximum over them.
NEVER_NEGATIVE = find_ops(Fact.NONNEGATIVE, "tensorflow")
Shapes = Mapping[Edge, Shape]


@transform(dialects=("tensorflow", "onnx"))
def fold_pads(graph: Graph) -> Outcome:
    """Fold Pad into the padding of the following convolution or MaxPool.

    A Pad copies the whole tensor; the kernel of a convolution pads without a copy. The new padding
    is SAME, which every runtime supports, if SAME adds the same widths, else EXPLICIT.

    Before:  x -> Pad([0, 1, 1, 0]) -> Conv2D(VALID)
    After:   x -> Conv2D(SAME) or Conv2D(EXPLICIT)

    Options: none. A Pad of zero widths becomes an Identity, which remove_nodes removes. In ONNX graphs,
    Conv, also after a Transpose, MaxPool, and AveragePool, which then counts the padding.

    Skips if the padded value is not a constant zero, or if batch or channels are padded. Skips
    AvgPool, which averages over the zeros of a Pad but not over its own padding. Skips
    DepthwiseConv2dNative unless SAME adds the same widths. Skips MaxPool, which ignores its own
    padding, unless SAME adds the same widths and the input is never negative or the padded value is
    the lowest float.

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

    Example:
        fold_pads
        dialect: onnx
        inputs: x
        outputs: y, z
        x = Placeholder[1x2x6x6]()
        widths = Constant[int64]([0, 0, 1, 2, 0, 0, 0, 1])
        w = Constant[3x2x3x3]()
        pad = Pad(x, widths)
        other = Pad(x, widths)
        y = Conv(pad, w, pads=[1, 0, 0, 0])
        z = AveragePool(other, kernel_shape=[2, 2])

    Example:
        fold_pads
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x2x6x6]()
        widths = Constant[int64]([0, 0, 1, 1, 0, 0, 1, 1])
        positive = Relu(x)
        pad = Pad(positive, widths)
        y = MaxPool(pad, kernel_shape=[3, 3], strides=[2, 2])
    """
    if graph.op_counts.keys().isdisjoint(PADS):
        return Outcome(graph)
    if graph.dialect == onnx.DIALECT:
        return onnx_pads.fold_pads(graph)
    layers = op("Conv2D|DepthwiseConv2dNative|MaxPool|AvgPool")
    fold_pad = Rule(layers, partial(_fold_pad, infer_shapes(graph)), ("root",))
    return apply_rules(graph, fold_pad, Rule(op("Pad|PadV2"), _replace_empty_pad, ("root",)))


def _replace_empty_pad(graph: Graph, root: Node) -> list[Node] | None:
    """Replace a Pad of zero widths by Identity."""
    widths = _constant(graph, root, 1)
    if widths is None or widths.any() or root.name in graph.input_names:
        return None
    attrs = {"T": root.attrs["T"]} if "T" in root.attrs else {}
    return [root.with_(op="Identity", inputs=root.inputs[:1], attrs=attrs)]


def _fold_pad(shapes: Shapes, graph: Graph, root: Node) -> list[Node] | Skip | None:
    pad = graph[root.inputs[0].node]
    if pad.op not in PADS or root.name in graph.input_names:
        return None
    widths = _constant(graph, pad, 1)
    if pad.name in graph.input_names:
        return Skip(f"{pad.name} is a graph input")
    if widths is None:
        return Skip(f"the widths of {pad.name} are not constant")
    reason = _reason_to_stay(graph, root, pad, widths)
    if reason:
        return Skip(reason)
    own = own_padding(shapes, root)
    if own is None:
        return Skip(f"the widths of SAME are unknown, because the size of {pad.name} is unknown")
    if root.op == "MaxPool" and ((own + widths).max(1) >= attribute(root, "ksize")).any():
        return Skip(f"{pad.name} is as wide as the window: some windows would contain only padding")
    same = same_widths(shapes, root, shapes.get(pad.inputs[0], UNKNOWN))
    if root.op == "DepthwiseConv2dNative" and (same is None or not np.array_equal(own + widths, same)):
        return Skip(f"the widths of {pad.name} differ from SAME, and TensorFlow crashes when it fuses EXPLICIT padding")
    if root.op == "MaxPool" and (same is None or not np.array_equal(own + widths, same)):
        return Skip(f"the widths of {pad.name} differ from SAME, and few runtimes support EXPLICIT padding of MaxPool")
    return [set_padding(root, own + widths, same).with_input(0, pad.inputs[0])]


def _constant(graph: Graph, node: Node, slot: int) -> Array | None:
    """Return the value of a constant input that is not a graph input."""
    value = graph.constant_of(node.inputs[slot]) if len(node.inputs) > slot else None
    return None if value is None or node.inputs[slot].node in graph.input_names else value.array


def _reason_to_stay(graph: Graph, root: Node, pad: Node, widths: Array) -> str:
    axis = channel_axis(root, 4)
    if axis is None or widths.shape != (4, 2) or widths[[0, axis]].any():
        return f"{pad.name} pads more than height and width"
    if (widths < 0).any():
        return f"{pad.name} has negative widths"
    if root.op == "AvgPool" and widths.any():
        return f"AvgPool averages over the zeros of {pad.name}, but not over its own padding"
    values = _constant(graph, pad, 2) if pad.op == "PadV2" else np.float32(0)
    if values is None or values.size != 1:
        return f"the padded value of {pad.name} is not constant"
    value = values.reshape(())
    if root.op in LAYERS:
        return f"{pad.name} pads with {value:g}, not 0" if value else ""
    is_lowest = value.dtype.kind == "f" and value <= np.finfo(value.dtype).min
    if not is_lowest and (value or graph[pad.inputs[0].node].op not in NEVER_NEGATIVE):
        return f"{pad.inputs[0]} may be less than {value:g}, the padded value, which is then the maximum at the border"
    return ""


def _windows(shapes: Shapes, root: Node) -> list[tuple[int, int, int]] | None:
    """Return (axis, span, stride) along height and width; None if the window size is unknown."""
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


def own_padding(shapes: Shapes, root: Node) -> Array | None:
    """Return the widths of the node's own padding, (4, 2); None if unknown."""
    padding = attribute(root, "padding")
    if padding == b"EXPLICIT":
        return np.array(attribute(root, "explicit_paddings")).reshape(4, 2)
    if padding == b"VALID":
        return np.zeros((4, 2), int)
    return same_widths(shapes, root, shapes.get(root.inputs[0], UNKNOWN))


def same_widths(shapes: Shapes, root: Node, shape: Shape) -> Array | None:
    """Return the widths that SAME adds around a tensor of a shape, (4, 2); None if unknown."""
    windows = _windows(shapes, root)
    if not windows:
        return None
    widths = np.zeros((4, 2), int)
    for axis, span, stride in windows:
        same = same_padding(shape.dims[axis] if shape.dims and shape.rank == 4 else None, span, stride)
        if same is None:
            return None
        widths[axis] = same
    return widths


def set_padding(root: Node, widths: Array, same: Array | None) -> Node:
    """Return the node with padding of these widths, (4, 2); ``same`` has those of SAME."""
    if same is not None and np.array_equal(widths, same):
        return root.with_attrs(padding=b"SAME", explicit_paddings=None)
    if not widths.any():
        return root.with_attrs(padding=b"VALID", explicit_paddings=None)
    return root.with_attrs(padding=b"EXPLICIT", explicit_paddings=tuple(int(width) for width in widths.reshape(-1)))
