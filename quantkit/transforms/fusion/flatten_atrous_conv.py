"""Replace atrous convolutions that use SpaceToBatchND by dilated convolutions.

batch_to_space(conv(space_to_batch(x, r), w), r)  ==  conv(x, w), dilated by r

The padding of SpaceToBatchND minus the crops of BatchToSpaceND is added to the convolution's
padding.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import any_, op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, sharing_reason
from quantkit.ir.tensor import Array, Shape
from quantkit.ops.layers import channel_axis
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.table import Fact, find_ops
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.folding._channels import explain_not_constant, is_constant
from quantkit.transforms.folding.fold_pads import own_padding, same_widths, set_padding
from quantkit.transforms.registry import transform

LAYERS = "|".join(find_ops(Fact.CONVOLUTION, "tensorflow"))
Shapes = Mapping[Edge, Shape]


@transform
def flatten_atrous_conv(graph: Graph) -> Outcome:
    """Replace SpaceToBatchND, convolution and BatchToSpaceND by one dilated convolution.

    Old versions of TensorFlow dilated a convolution by moving pixels to the batch and back. The
    convolution keeps its weights, which may be shared. Its padding becomes SAME or VALID if the
    widths allow it, else EXPLICIT.

    Before:  x -> SpaceToBatchND(block 2x2, paddings) -> Conv2D(w, VALID) -> BatchToSpaceND(crops)
    After:   Conv2D(x, w, dilations 2x2, padding)

    A convolution of sequences is one with ExpandDims before the layer and Squeeze after it, which remain.

    Options: none. Run fold_constants first, which computes block shape, paddings and crops.

    Skips if block shape, paddings or crops are not constant, if the crops exceed the padding, if
    the convolution has a stride or other consumers, if the block shape includes channels, or if
    Squeeze does not remove the one dimension that ExpandDims inserts.

    Example:
        flatten_atrous_conv
        inputs: x
        outputs: y
        x = Placeholder[1x8x8x2]()
        block = Const[int32]([2, 2])
        paddings = Const[int32]([[2, 2], [2, 2]])
        crops = Const[int32]([[0, 0], [0, 0]])
        w = Const[3x3x2x4]()
        moved = SpaceToBatchND(x, block, paddings)
        conv = Conv2D(moved, w, padding=VALID, strides=[1, 1, 1, 1])
        y = BatchToSpaceND(conv, block, crops)

    Example:
        flatten_atrous_conv
        inputs: x
        outputs: y
        x = Placeholder[1x8x2]()
        block = Const[int32]([2])
        paddings = Const[int32]([[2, 2]])
        crops = Const[int32]([[0, 0]])
        axis = Const[int32](1)
        w = Const[1x3x2x4]()
        moved = SpaceToBatchND(x, block, paddings)
        image = ExpandDims(moved, axis)
        conv = Conv2D(image, w, padding=VALID, strides=[1, 1, 1, 1])
        rows = Squeeze(conv, squeeze_dims=[1])
        y = BatchToSpaceND(rows, block, crops)
    """
    if "BatchToSpaceND" not in graph.op_counts:
        return Outcome(graph)
    moved = op("SpaceToBatchND", "moved")(any_(), any_(), any_())
    sequence = op("Squeeze", "squeeze")(op(LAYERS, "layer")(op("ExpandDims", "expand")(moved, any_()), any_()))
    flatten, names = partial(_flatten, infer_shapes(graph)), ("root", "layer", "moved")
    return apply_rules(
        graph,
        Rule(op("BatchToSpaceND")(op(LAYERS, "layer")(moved, any_()), any_(), any_()), flatten, names),
        Rule(op("BatchToSpaceND")(sequence, any_(), any_()), flatten, (*names, "expand", "squeeze")),
    )


def _flatten(
    shapes: Shapes,
    graph: Graph,
    root: Node,
    layer: Node,
    moved: Node,
    expand: Node | None = None,
    squeeze: Node | None = None,
) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    for node, slot, role in (
        (moved, 1, "block shape"),
        (moved, 2, "paddings"),
        (root, 1, "block shape"),
        (root, 2, "crops"),
    ):
        if not is_constant(graph, node.inputs[slot]):
            return Skip(explain_not_constant(graph, node.inputs[slot].node, f"the {role} of {node.name}"))
    if moved.name in graph.input_names:
        return Skip(f"{moved.name} is a graph input")
    block, paddings = (graph[edge.node].value.array for edge in moved.inputs[1:])
    back, crops = (graph[edge.node].value.array for edge in root.inputs[1:])
    axis, inserted = channel_axis(layer, 4), None
    if expand is not None and squeeze is not None:
        value = graph.constant_of(expand.inputs[1])
        inserted = None if value is None or value.array.size != 1 else value.array.item() % 4
        if inserted not in (1, 2) or [dim % 4 for dim in attribute(squeeze, "squeeze_dims")] != [inserted]:
            return Skip(f"{squeeze.name} does not remove the dimension that {expand.name} inserts before the channels")
        axis = None if axis is None else axis - (axis > inserted)
    if axis is None or not _is_spatial(block, paddings, crops, axis) or not np.array_equal(block, back):
        return Skip(f"{moved.name} and {root.name} need equal block shapes of height and width only")
    if set(attribute(layer, "strides")) != {1}:
        return Skip(f"{layer.name} has a stride")
    chain = [node for node in (expand, layer, squeeze) if node is not None]
    for node, consumer in zip(chain, (*chain[1:], root), strict=True):
        if shared := sharing_reason(graph, node, consumer):
            return Skip(shared)
    # Factors and widths of each dimension; the dimension that is inserted has 1 and 0.
    dims = [dim for dim in range(4) if dim != inserted][1 : len(block) + 1]
    rates, margins = np.ones(4, int), np.zeros((4, 2), int)
    rates[dims], margins[dims] = block, paddings.astype(int) - crops
    own = own_padding(shapes, layer)
    if own is None:
        return Skip(f"the widths of SAME are unknown, because the size of the weights of {layer.name} is unknown")
    widths = own * rates[:, None] + margins
    if (widths < 0).any():
        return Skip(f"{root.name} crops more than {moved.name} and {layer.name} pad")
    dilations = rates * attribute(layer, "dilations")
    controls = tuple(dict.fromkeys((*root.controls, *layer.controls, *moved.controls)))
    source = moved.inputs[0] if expand is None else Edge(expand.name)
    flat = layer.with_(controls=controls, inputs=(source, layer.inputs[1]))
    flat = flat.with_attrs(dilations=tuple(int(dilation) for dilation in dilations))
    flat = set_padding(flat, widths, same_widths(shapes, flat, UNKNOWN) if widths.any() else None)
    if expand is None or squeeze is None:
        return [flat]
    return [expand.with_input(0, moved.inputs[0]), flat, squeeze]


def _is_spatial(block: Array, paddings: Array, crops: Array, channel: int) -> bool:
    """Return True if a block shape with its paddings and crops changes only height and width."""
    count = block.size
    if block.ndim != 1 or not 1 <= count <= 3 or paddings.shape != (count, 2) or crops.shape != (count, 2):
        return False
    if channel > count:
        return True
    return bool(block[channel - 1] == 1 and not paddings[channel - 1].any() and not crops[channel - 1].any())
