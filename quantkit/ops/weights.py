"""Weights of the layers of a graph: convolutions, matrix products and recurrent layers.

The input axis of weights is the axis of the layer's input channels, over which products are summed; groups of the 2:4
sparsity pattern are four adjacent weights along this axis.
"""

from dataclasses import dataclass

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Tensor
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.roles import find_roles
from quantkit.ops.roles.onnx import RECURRENT_OPS

# Ops between a constant and its layer that keep the shape of the weights, and their zeros up to a zero point.
_STORAGE_OPS = frozenset({"Identity", "Cast", "DequantizeLinear"})
_MAX_STORAGE_NODES = 4
_ZERO_POINT_INDEX = 2
_INPUT_AXES = {
    "Conv": 1,
    "ConvTranspose": 0,
    "Conv2D": 2,
    "Conv2DBackpropInput": 3,
    "MatMul": -2,
    "Gemm": -2,
    **dict.fromkeys(RECURRENT_OPS, 2),
}


@dataclass(frozen=True)
class Weights:
    """Constant weights of a layer.

    Attributes:
        constant: constant that stores the weights.
        layer: first layer that consumes them.
        axis: axis of the input channels; None if the layer does not sum over channels, as a depthwise convolution.
        zero_point: stored value of a weight that is zero; None if it differs between channels.
    """

    constant: Node
    layer: Node
    axis: int | None
    zero_point: int | None = 0

    @property
    def value(self) -> Tensor:
        return self.constant.value


def find_weights(graph: Graph) -> tuple[Weights, ...]:
    """Return the constant weights of all layers, one entry for each constant, in file order of the layers."""
    roles = find_roles(graph)
    layer_ops = roles.weights_ops - roles.selection_ops  # a lookup has a table, not weights
    weights_of: dict[str, Weights] = {}
    for layer in graph.nodes.values():
        if layer.op not in layer_ops:
            continue
        slots = (1, 2) if layer.op in RECURRENT_OPS else (WEIGHTS_INDEX,)
        for edge in (layer.inputs[slot] for slot in slots if slot < len(layer.inputs)):
            weights = _find_constant(graph, layer, edge)
            if weights is not None:
                weights_of.setdefault(weights.constant.name, weights)
    return tuple(weights_of.values())


def _find_constant(graph: Graph, layer: Node, edge: Edge) -> Weights | None:
    """Return the weights that an edge brings to a layer; None if they are computed or have no axes."""
    zero_point: int | None = 0
    for _ in range(_MAX_STORAGE_NODES):
        if (value := graph.constant_of(edge)) is not None:
            return Weights(graph[edge.node], layer, _input_axis(layer, value), zero_point) if value.shape else None
        node = graph.nodes.get(edge.node)
        if node is None or node.op not in _STORAGE_OPS or not node.inputs:
            return None
        if node.op == "DequantizeLinear":
            zero_point = _zero_point(graph, node)
        edge = node.inputs[0]
    return None


def _zero_point(graph: Graph, dequantize: Node) -> int | None:
    """Return the zero point of all channels; None if they differ or are computed."""
    if len(dequantize.inputs) <= _ZERO_POINT_INDEX or not dequantize.inputs[_ZERO_POINT_INDEX].node:
        return 0
    value = graph.constant_of(dequantize.inputs[_ZERO_POINT_INDEX])
    distinct = np.unique(value.array.astype(np.int64)) if value is not None else np.empty(0)
    return int(distinct[0]) if len(distinct) == 1 else None


def _input_axis(layer: Node, value: Tensor) -> int | None:
    is_transposed = layer.attrs.get("transpose_b") or layer.attrs.get("transB")
    axis = -1 if is_transposed else _INPUT_AXES.get(layer.op)
    rank = len(value.shape)
    return axis if axis is not None and -rank <= axis < rank else None
