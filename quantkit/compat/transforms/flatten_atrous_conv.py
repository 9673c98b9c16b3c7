"""The original's flattening of convolutions that are dilated by way of the batch."""

from collections.abc import Sequence

import numpy as np

from quantkit.compat.transforms.matching import ANY, Match, pattern, replace_matches
from quantkit.compat.transforms.nodes import NodeDef, constant
from quantkit.compat.transforms.table import Context, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.graph import Attr
from quantkit.ir.tensor import DType, Tensor

MOVED = pattern("SpaceToBatchND", ANY, ANY, ANY)
ATROUS = pattern("BatchToSpaceND", pattern("Conv2D|DepthwiseConv2dNative", MOVED, ANY), ANY, ANY)


@classic_transform
def flatten_atrous_conv(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """The filter gets zeros between its elements, and the padding is SAME, whatever it was."""
    return replace_matches(nodes, ATROUS, _flattened)


def _flattened(match: Match, outside: frozenset[str]) -> list[NodeDef]:
    layer_match = match.inputs[0]
    moved = layer_match.inputs[0]
    layer, weights = layer_match.node, layer_match.inputs[1].node
    source, block = moved.inputs[0].node, moved.inputs[1].node
    rates, filter_ = _value(block), _value(weights)
    attrs = {key: copied(layer, key) for key in ("T", "strides", "data_format")}
    if layer.op == "Conv2D":
        attrs["use_cudnn_on_gpu"] = copied(layer, "use_cudnn_on_gpu")
    attrs["padding"] = b"SAME"
    spread = constant(weights.name, _spread(filter_, rates, weights.name))
    flat = NodeDef(match.node.name, layer.op, (source.name, weights.name), attrs, layer.device)
    return [source, spread, flat]


def _value(node: NodeDef) -> Tensor:
    value = node.attrs.get("value")
    if not isinstance(value, Tensor):
        raise GraphError("CHECK failed: it != end(): key not found: value", hint=f"{node.name} is not constant")
    return value


def copied(node: NodeDef, key: str) -> Attr:
    """An attribute that the original copied without asking whether it is there.

    Raises:
        GraphError: it is not.
    """
    if key not in node.attrs:
        raise GraphError(
            f"the original crashes here: {node.name} ({node.op}) lacks the attribute {key!r}",
            hint="add_default_attributes before it adds what has a default",
        )
    return node.attrs[key]


def _spread(weights: Tensor, rates: Tensor, name: str) -> Tensor:
    """A filter (h, w, c_in, c_out) whose elements stand apart; where they fall together the last one stays."""
    if len(weights.shape) != 4 or weights.dtype is not DType.FLOAT or rates.dtype is not DType.INT32:
        raise GraphError(f"the original crashes here: {name} or the block shape is of another type or rank")
    if rates.shape != (2,):
        raise GraphError(f"the original reads past the end of the block shape of {name}, which has not two sizes")
    height, width = weights.shape[:2]
    rows, columns = (int(rate) for rate in rates.array)
    made = np.zeros(((height - 1) * rows + 1, (width - 1) * columns + 1, *weights.shape[2:]), np.float32)
    for row in range(height):
        for column in range(width):
            made[row * rows, column * columns] = weights.array[row, column]
    return Tensor.of(made)
