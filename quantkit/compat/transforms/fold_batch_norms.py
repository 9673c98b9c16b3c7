"""The original's folding of per-channel factors into weights."""

from collections.abc import Sequence

import numpy as np

from quantkit.compat.transforms.matching import ANY, CONST, ClassicMatch, pattern, replace_matches
from quantkit.compat.transforms.nodes import NodeDef, constant
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.tensor import Array, DType, Tensor

FACTOR_AFTER_LAYER = pattern("Mul", pattern("Conv2D|MatMul|DepthwiseConv2dNative", ANY, CONST), CONST)


@classic_transform()
def fold_batch_norms(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Fold a constant vector factor after a layer into its weights.

    Raises:
        GraphError: a constant factor is not a vector with one element for each output channel.
    """
    return replace_matches(nodes, FACTOR_AFTER_LAYER, _fold_factor)


def _fold_factor(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
    product, factor_node = match.node, match.inputs[1].node
    layer = match.inputs[0].node
    source, weights_node = (inner.node for inner in match.inputs[0].inputs)
    if outside & {layer.name, weights_node.name, factor_node.name}:
        return [product, layer, source, weights_node, factor_node]
    weights, factor = weights_node.value, factor_node.value
    columns = num_columns(layer, weights)
    if factor.shape != (columns,):
        raise GraphError(f"Mul constant input to batch norm has bad shape: {shape_text(factor.shape)}")
    for tensor, name in ((weights, weights_node.name), (factor, factor_node.name)):
        require_float(tensor, name)
    scaled = constant(weights_node.name, scale_columns(weights, factor.array))
    return [scaled, source, layer.with_(name=product.name)]


def scale_columns(weights: Tensor, factor: Array) -> Array:
    """Multiply weights by factors, which are repeated in the storage order of the weights."""
    repeated = np.resize(factor, weights.num_elements).reshape(weights.shape)
    return np.asarray(weights.array * repeated, np.float32)


def num_columns(layer: NodeDef, weights: Tensor) -> int:
    """Return the number of factors of a layer's weights.

    Raises:
        GraphError: the weights have a rank on which the original crashed.
    """
    sizes = weights.shape
    if len(sizes) != (2 if layer.op == "MatMul" else 4):
        raise GraphError(f"the original crashes here: {layer.name} has weights of shape {shape_text(sizes)}")
    if layer.op == "DepthwiseConv2dNative":
        return sizes[2] * sizes[3]
    return sizes[-1]


def shape_text(sizes: Sequence[int]) -> str:
    """Format the sizes as in the original's errors."""
    return f"[{','.join(map(str, sizes))}]"


def require_float(tensor: Tensor, name: str) -> None:
    """Reject a tensor on which the original crashed.

    Raises:
        GraphError: the tensor is not float32.
    """
    if tensor.dtype is not DType.FLOAT:
        raise GraphError(
            f"the original crashes here: {name} is {tensor.dtype.value}, not float",
            hint="run without --classic, which folds or skips the layer",
        )
