"""Linear layers of ONNX graphs: constant factors and offsets per output channel are folded into their constants.

Conv           y = x * W + b           W: (c_out, c_in / groups, ...)    b: (c_out,)
ConvTranspose  y = x * W + b           W: (c_in, c_out / groups, ...)    b: (c_out,)
Gemm           y = alpha x W + beta c  W: (k, c_out), or (c_out, k) with transB
MatMul         y = x W                 W: (..., k, c_out)
"""

from dataclasses import dataclass

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Skip
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.table import LAYER, find_ops
from quantkit.transforms.onnx._facts import has_input, new_constant, reason_to_keep

LAYER_OPS = find_ops(LAYER, "onnx")
FLOAT_TYPES = (DType.FLOAT, DType.DOUBLE, DType.HALF, DType.BFLOAT16)
BIAS_SLOT = 2


@dataclass(frozen=True)
class LinearLayer:
    """LinearLayer with constant weights.

    Attributes:
        graph: graph of the layer.
        node: the layer.
        weights: constant of the weights.
        bias: values of the bias, (c_out,); None without a bias.
        num_channels: c_out.
    """

    graph: Graph
    node: Node
    weights: Node
    bias: Array | None
    num_channels: int

    @property
    def has_bias_input(self) -> bool:
        """True if an offset per channel can become the bias of the layer."""
        return self.node.op != "MatMul"

    def rank(self) -> int | None:
        """Return the rank of the output; None if it is not given by the weights."""
        if self.node.op == "Gemm":
            return 2
        return None if self.node.op == "MatMul" else len(self.weights.value.shape)

    def channel_values(self, tensor: Tensor, rank: int | None) -> Array | None:
        """Return a constant operand of the output as (c_out,); None if it is not one value per channel.

        Args:
            tensor: constant that is broadcast against the output.
            rank: rank of the output; None if unknown.
        """
        if tensor.dtype is not self.weights.value.dtype:
            return None
        shape = tensor.shape
        if tensor.num_elements == 1 and ((rank is not None and len(shape) <= rank) or not shape):
            return np.broadcast_to(tensor.array.reshape(()), (self.num_channels,))
        is_last = self.node.op in ("Gemm", "MatMul")
        if rank is None and not is_last:
            return None
        axis = -1 if is_last else 1 - (rank or 0)
        if len(shape) < -axis or (rank is not None and len(shape) > rank) or (rank is None and len(shape) > 1):
            return None
        if shape[axis] != self.num_channels or tensor.num_elements != self.num_channels:
            return None
        return tensor.array.reshape(-1)

    def fold(self, scale: Array | None, offset: Array | None) -> list[Node] | Skip:
        """Return new constants and the layer that computes ``y scale + offset``.

        Args:
            scale: (c_out,), or None.
            offset: (c_out,), or None; only if `has_bias_input`.
        """
        nodes: list[Node] = []
        layer, dtype = self.node, self.weights.value.dtype
        if scale is not None:
            nodes.append(self.weights.with_(extra=b"").with_attrs(value=self._scale_weights(scale)))
        bias = None if self.bias is None else self.bias.astype(np.float64)
        if bias is not None and scale is not None:
            bias = bias * scale
        if offset is not None:
            bias = offset if bias is None else bias + offset
        if bias is None:
            return [*nodes, layer]
        if not np.isfinite(bias).all():
            return Skip(f"the bias of {layer.name} would not be finite")
        value = np.ascontiguousarray(bias).astype(dtype.numpy)
        if has_input(layer, BIAS_SLOT) and not reason_to_keep(self.graph, old := self._bias_node(), layer):
            constant = old.with_(extra=b"").with_attrs(value=Tensor.of(value, dtype))
        else:
            constant = new_constant(self.graph, f"{self.weights.name}_bias", Tensor.of(value, dtype))
        inputs = (*layer.inputs[:BIAS_SLOT], Edge(constant.name))
        layer = layer.with_(inputs=inputs)
        return [*nodes, constant, layer.with_attrs(beta=None) if layer.op == "Gemm" else layer]

    def _bias_node(self) -> Node:
        return self.graph[self.node.inputs[BIAS_SLOT].node]

    def _scale_weights(self, scale: Array) -> Tensor:
        """Return the scaled weights; large ones are computed on access."""
        weights = self.weights.value
        factor = scale.astype(np.float64)
        shape = weights.shape
        if self.node.op == "Conv":
            factor = factor.reshape(-1, *(1,) * (len(shape) - 1))
        elif self.node.op == "ConvTranspose":
            groups = self.node.attrs.get("group", 1)
            blocks = np.repeat(factor.reshape(groups, 1, -1), shape[0] // groups, axis=1)
            factor = blocks.reshape(shape[0], shape[1], *(1,) * (len(shape) - 2))
        elif self.node.op == "Gemm" and self.node.attrs.get("transB"):
            factor = factor.reshape(-1, 1)

        def load() -> Array:
            with np.errstate(over="ignore", invalid="ignore"):
                return np.asarray(weights.array * factor).astype(weights.dtype.numpy)

        return Tensor.of(load(), weights.dtype) if weights.num_bytes <= 1 << 16 else Tensor(weights.dtype, shape, load)


def find_layer(graph: Graph, edge: Edge, consumer: Node, *, scales: bool) -> LinearLayer | Skip | None:
    """Return the layer that produces an edge.

    Args:
        graph: graph of the edge.
        edge: output of the layer.
        consumer: node that scales or shifts the edge; other consumers prevent folding.
        scales: the weights change.

    Returns:
        The layer, or the reason why its constants cannot change, or None if no layer produces the edge.
    """
    node = graph.nodes.get(edge.node)
    if node is None or edge.port or node.op not in LAYER_OPS or len(node.inputs) < 2:
        return None
    weights = graph[node.inputs[1].node]
    if not _is_changeable(graph, weights):
        # Without constant weights the node is a product of two activations, not a layer.
        return None
    shape = weights.value.shape
    channels = _num_channels(node, shape)
    if channels is None:
        return Skip(f"the weights of {node.name} have the unsupported shape {shape}")
    reason = reason_to_keep(graph, node, consumer) or (scales and reason_to_keep(graph, weights, node)) or ""
    if reason:
        return Skip(reason)
    bias = _bias(graph, node, channels)
    return bias if isinstance(bias, Skip) else LinearLayer(graph, node, weights, bias, channels)


def _is_changeable(graph: Graph, constant: Node) -> bool:
    return (
        constant.is_constant
        and isinstance(constant.attrs.get("value"), Tensor)
        and constant.name not in graph.input_names
        and constant.value.dtype in FLOAT_TYPES
    )


def _num_channels(node: Node, shape: tuple[int, ...]) -> int | None:
    """Return the number of output channels; None for weights of an unsupported rank."""
    group = node.attrs.get("group", 1)
    if node.op == "Conv":
        return shape[0] if len(shape) >= 3 else None
    if node.op == "ConvTranspose":
        return shape[1] * group if len(shape) >= 3 and group and not shape[0] % group else None
    if node.op == "Gemm":
        return shape[0 if node.attrs.get("transB") else 1] if len(shape) == 2 else None
    return shape[1] if len(shape) == 2 else None


def _bias(graph: Graph, node: Node, num_channels: int) -> Array | Skip | None:
    """Return the bias of a layer as (c_out,), None without a bias, or the reason why it cannot change."""
    if not has_input(node, BIAS_SLOT):
        return None
    constant = graph[node.inputs[BIAS_SLOT].node]
    if not _is_changeable(graph, constant):
        return Skip(f"{constant.name}, the bias of {node.name}, is not a float constant")
    value = constant.value.array
    if value.size not in (1, num_channels) or (value.size > 1 and value.shape[-1] != num_channels):
        return Skip(f"{constant.name}, the bias of {node.name}, is not one value per channel")
    beta = node.attrs.get("beta", 1.0) if node.op == "Gemm" else 1.0
    bias = np.broadcast_to(value.reshape(-1), (num_channels,))
    return bias if beta == 1 else bias * value.dtype.type(beta)
