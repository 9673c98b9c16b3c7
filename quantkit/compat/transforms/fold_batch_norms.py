"""The original's folding of factors into weights."""

from collections.abc import Sequence

import numpy as np

from quantkit.compat.transforms.matching import ANY, CONST, Match, pattern, replace_matches
from quantkit.compat.transforms.nodes import NodeDef, constant
from quantkit.compat.transforms.table import Context, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.tensor import Array, DType, Tensor

FACTOR_AFTER_LAYER = pattern("Mul", pattern("Conv2D|MatMul|DepthwiseConv2dNative", ANY, CONST), CONST)


@classic_transform
def fold_batch_norms(nodes: Sequence[NodeDef], context: Context) -> list[NodeDef]:
    """A vector behind a layer goes into its weights; any other constant there is an error."""
    return replace_matches(nodes, FACTOR_AFTER_LAYER, _folded)


def _folded(match: Match, outside: frozenset[str]) -> list[NodeDef]:
    product, factor_node = match.node, match.inputs[1].node
    layer, source, weights_node = match.inputs[0].node, *(inner.node for inner in match.inputs[0].inputs)
    if outside & {layer.name, weights_node.name, factor_node.name}:
        return [product, layer, source, weights_node, factor_node]
    weights, factor = weights_node.value, factor_node.value
    columns = num_columns(layer, weights)
    if factor.shape != (columns,):
        raise GraphError(f"Mul constant input to batch norm has bad shape: {shape_text(factor.shape)}")
    for one, name in ((weights, weights_node.name), (factor, factor_node.name)):
        require_float(one, name)
    return [constant(weights_node.name, scaled_columns(weights, factor.array)), source, layer.with_(name=product.name)]


def scaled_columns(weights: Tensor, factor: Array) -> Array:
    """Weights times factors, which repeat along the weights as they are stored."""
    return np.asarray(weights.array * np.resize(factor, weights.num_elements).reshape(weights.shape), np.float32)


def num_columns(layer: NodeDef, weights: Tensor) -> int:
    """How many factors a layer's weights take.

    Raises:
        GraphError: the original crashed on weights of this rank.
    """
    sizes = weights.shape
    if len(sizes) != (2 if layer.op == "MatMul" else 4):
        raise GraphError(f"the original crashes here: {layer.name} has weights of shape {shape_text(sizes)}")
    if layer.op == "DepthwiseConv2dNative":
        return sizes[2] * sizes[3]
    return sizes[-1]


def shape_text(sizes: Sequence[int]) -> str:
    """Sizes as the original's errors write them."""
    return f"[{','.join(map(str, sizes))}]"


def require_float(tensor: Tensor, name: str) -> None:
    """Refuse what the original crashed on.

    Raises:
        GraphError: the tensor is of another type.
    """
    if tensor.dtype is not DType.FLOAT:
        raise GraphError(
            f"the original crashes here: {name} is {tensor.dtype.value}, not float",
            hint="without --classic it is folded or left alone",
        )
