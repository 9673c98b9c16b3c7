"""The original's transform of SpaceToBatchND, Conv2D and BatchToSpaceND into one convolution."""

from collections.abc import Sequence

import numpy as np

from quantkit.compat.transforms.matching import ANY, ClassicMatch, pattern, replace_matches
from quantkit.compat.transforms.nodes import NodeDef, constant
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.graph import Attr
from quantkit.ir.tensor import Array, DType, Tensor

TO_BATCH = pattern("SpaceToBatchND", ANY, ANY, ANY)
LAYER = pattern("Conv2D|DepthwiseConv2dNative", TO_BATCH, ANY)
ATROUS = pattern("BatchToSpaceND", LAYER, ANY, ANY)


@classic_transform()
def flatten_atrous_conv(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Insert zeros between the filter's elements, and use SAME padding for any original padding."""
    return replace_matches(nodes, ATROUS, _flatten)


def _flatten(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
    layer_match = match.inputs[0]
    to_batch = layer_match.inputs[0]
    layer, weights = layer_match.node, layer_match.inputs[1].node
    source, block = to_batch.inputs[0].node, to_batch.inputs[1].node
    rates, filter_ = _constant_tensor(block), _constant_tensor(weights)
    attrs = {key: copy_attribute(layer, key) for key in ("T", "strides", "data_format")}
    if layer.op == "Conv2D":
        attrs["use_cudnn_on_gpu"] = copy_attribute(layer, "use_cudnn_on_gpu")
    attrs["padding"] = b"SAME"
    dilated = constant(weights.name, _dilate(filter_, rates, weights.name))
    flat = NodeDef(match.node.name, layer.op, (source.name, weights.name), attrs, layer.device)
    return [source, dilated, flat]


def _constant_tensor(node: NodeDef) -> Tensor:
    value = node.attrs.get("value")
    if not isinstance(value, Tensor):
        raise GraphError(
            "CHECK failed: it != end(): key not found: value",
            hint=f"run fold_constants first: {node.name} is not constant",
        )
    return value


def copy_attribute(node: NodeDef, key: str) -> Attr:
    """Return an attribute that the original copied without a check.

    Raises:
        GraphError: the node lacks the attribute.
    """
    if key not in node.attrs:
        raise GraphError(
            f"the original crashes here: {node.name} ({node.op}) lacks the attribute {key!r}",
            hint="run add_default_attributes first",
        )
    return node.attrs[key]


def _dilate(weights: Tensor, rates: Tensor, name: str) -> Array:
    """Insert zeros between the elements of a filter.

    Args:
        weights: filter of shape (h, w, c_in, c_out).
        rates: dilations of shape (2,). With rate 0, the last row or column remains.
        name: name of the filter node, for messages.

    Returns:
        Filter of shape ((h - 1) * rates[0] + 1, (w - 1) * rates[1] + 1, c_in, c_out), float32.
    """
    is_float = len(weights.shape) == 4 and weights.dtype is DType.FLOAT
    if not is_float or rates.dtype is not DType.INT32:
        raise GraphError(
            f"the original crashes here: {name} is not a float filter of rank 4, or its block shape is not int32"
        )
    if rates.shape != (2,):
        raise GraphError(
            f"the original accesses memory after the end of the block shape of {name}, "
            f"which has shape {list(rates.shape)} instead of [2]"
        )
    height, width = weights.shape[:2]
    rows, columns = (int(rate) for rate in rates.array)
    sizes = ((height - 1) * rows + 1, (width - 1) * columns + 1, *weights.shape[2:])
    dilated = np.zeros(sizes, np.float32)
    for row in range(height):
        for column in range(width):
            dilated[row * rows, column * columns] = weights.array[row, column]
    return dilated
