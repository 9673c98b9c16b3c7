"""Proof that an int8 model computes the same on processors with and without dot products of 8-bit integers.

The weights alone decide: see `pair_sums`. Activations can have every value up to 255, so that a layer is safe for every
input if and only if no pair of its weights exceeds the limit.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from quantkit.arguments import public
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.roles.onnx import find_pair_axes
from quantkit.ops.roles.tensorflow import find_depthwise_pair_axes
from quantkit.quantization.pair_sums import MAX_SUM, find_pair_sums

# Input indices of the activations and of the weights of ONNX ops on quantized values.
INTEGER_OPS = {"QLinearConv": (0, 3), "QLinearMatMul": (0, 3), "ConvInteger": (0, 1), "MatMulInteger": (0, 1)}
# ONNX ops that runtimes compute in int8 between DequantizeLinear and QuantizeLinear.
LAYER_OPS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
# Float op with the weights of an op on quantized values.
FLOAT_OPS = {"QLinearConv": "Conv", "ConvInteger": "Conv"}
# Dimensions of the pairs in the weights of TensorFlow's ops of oneDNN.
CONVOLUTION_AXES, PRODUCT_AXES = (0, 1, 2), (0,)
COMPUTED = "both operands are computed"


@dataclass(frozen=True)
class UnsafeLayer:
    """Layer whose sums of two products can saturate in int16.

    Attributes:
        layer: name of the layer.
        pair_sum: largest sum of the weights of one sign in a pair; None for computed operands.
        limit: largest safe sum.
        reason: description of the worst case.
    """

    layer: str
    pair_sum: int | None
    limit: int
    reason: str


@dataclass(frozen=True)
class Portability:
    """Certificate of a quantized model.

    Attributes:
        num_layers: number of int8 layers.
        unsafe: layers that are not safe for every input.
    """

    num_layers: int
    unsafe: tuple[UnsafeLayer, ...]

    @property
    def is_certified(self) -> bool:
        """True if no sum of two products can saturate in int16, for any input."""
        return not self.unsafe

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "certified": self.is_certified,
            "layers": self.num_layers,
            "unsafe": [asdict(layer) for layer in self.unsafe],
        }

    def __str__(self) -> str:
        if self.is_certified:
            return f"portable: no sum of products in the {self.num_layers} int8 layers can saturate in int16"
        worst = max(self.unsafe, key=lambda layer: layer.pair_sum or 0)
        return (
            f"not portable: {len(self.unsafe)} of {self.num_layers} int8 layers can saturate in int16 on processors "
            f"without VNNI, for example {worst.layer}: {worst.reason}"
        )


@public
def certify(graph: Graph) -> Portability | None:
    """Examine the weights of all int8 layers of a quantized graph.

    Args:
        graph: ONNX graph with QuantizeLinear and DequantizeLinear or with integer ops, of any tool, or a TensorFlow
            graph with the ops of oneDNN.

    Returns:
        None for a graph without int8 layers.
    """
    layers = list(_onnx_layers(graph) if graph.dialect == onnx.DIALECT else _tensorflow_layers(graph))
    if not layers:
        return None
    return Portability(len(layers), tuple(unsafe for layer in layers if (unsafe := _examine(*layer)) is not None))


def _examine(name: str, weights: Tensor | None, axes: tuple[int, ...]) -> UnsafeLayer | None:
    """Return a layer that can saturate, else None."""
    if weights is None:
        return UnsafeLayer(name, None, MAX_SUM, COMPUTED)
    if not axes or weights.dtype not in (DType.INT8, DType.QINT8):
        return None  # depthwise, or kernels with sums of 32 bits
    largest = int(find_pair_sums(weights.array.astype(np.int32), axes).max(initial=0))
    if largest <= MAX_SUM:
        return None
    reason = f"the weights of a pair of input channels add up to {largest}, more than {MAX_SUM}"
    return UnsafeLayer(name, largest, MAX_SUM, reason)


def _onnx_layers(graph: Graph) -> Iterator[tuple[str, Tensor | None, tuple[int, ...]]]:
    """Yield name, weights and dimensions of the pairs of each int8 layer; None for computed weights."""
    for node in graph.nodes.values():
        if node.op in INTEGER_OPS:
            weights = graph.constant_of(node.inputs[INTEGER_OPS[node.op][1]])
            float_op = FLOAT_OPS.get(node.op, "MatMul")
            axes = () if weights is None else find_pair_axes(node.with_(op=float_op), weights.shape)
            yield node.name, weights, axes
        elif node.op in LAYER_OPS and all(_find_quantized(graph, edge) is not None for edge in node.inputs[:2]):
            edge = _find_quantized(graph, node.inputs[WEIGHTS_INDEX])
            weights = None if edge is None else graph.constant_of(edge)
            yield node.name, weights, () if weights is None else find_pair_axes(node, weights.shape)


def _find_quantized(graph: Graph, edge: Edge) -> Edge | None:
    """Return the quantized values of a dequantized edge; None for other edges."""
    node: Node = graph[edge.node]
    return node.inputs[0] if node.op == "DequantizeLinear" else None


def _tensorflow_layers(graph: Graph) -> Iterator[tuple[str, Tensor | None, tuple[int, ...]]]:
    """Yield name, weights and dimensions of the pairs of each layer of oneDNN with qint8 weights."""
    for node in graph.nodes.values():
        if "Quantized" not in node.op or len(node.inputs) < 2:
            continue
        weights = graph.constant_of(node.inputs[WEIGHTS_INDEX])
        if weights is None or weights.dtype is not DType.QINT8:
            continue
        if "Depthwise" in node.op:
            yield node.name, weights, find_depthwise_pair_axes(weights.shape)
        else:
            yield node.name, weights, PRODUCT_AXES if "MatMul" in node.op else CONVOLUTION_AXES
