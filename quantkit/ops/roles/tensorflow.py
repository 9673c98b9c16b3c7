"""Roles of TensorFlow ops."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX, Layer, broadcast_channels, find_layer
from quantkit.ops.roles.base import Roles
from quantkit.ops.semantics import CONCAT_OPS, FLOAT_REASONS, FUSED_ACTIVATION_OPS


class TensorFlowRoles(Roles):
    """Roles of TensorFlow ops; images have the layout NHWC."""

    dialect = "tensorflow"
    non_growing_ops = frozenset()
    view_ops = frozenset()
    float_reasons = FLOAT_REASONS

    def is_valid(self, node: Node) -> bool:
        return len(node.inputs) > 1 or node.op not in self.weights_ops | self.bias_ops

    def find_layer(self, graph: Graph, layer: Node) -> Layer | None:
        return find_layer(layer)

    def weights_axes(self, graph: Graph, node: Node) -> Mapping[int, tuple[int, ...]]:
        layer = find_layer(node)
        return {WEIGHTS_INDEX: () if layer is None else layer.weights_axes}

    def pair_axes(self, graph: Graph, layer: Node) -> tuple[int, ...]:
        if layer.op == "MatMul":
            return (1,) if layer.attrs.get("transpose_b") else (0,)
        if layer.op == "DepthwiseConv2dNative":
            weights = graph.constant_of(layer.inputs[WEIGHTS_INDEX])
            return () if weights is None else find_depthwise_pair_axes(weights.shape)
        return (0, 1, 3) if layer.op == "Conv2DBackpropInput" else (0, 1, 2)

    def layer_objection(self, graph: Graph, layer: Node) -> str:
        if layer.attrs.get("T", DType.FLOAT) is not DType.FLOAT:
            return "the data type is not float"
        if find_layer(layer) is None or layer.attrs.get("data_format", b"NHWC") != b"NHWC":
            return f"the data format {_text(layer.attrs.get('data_format'))} is not NHWC"
        return ""

    def weights_objection(self, graph: Graph, layer: Node, weights: Tensor) -> str:
        return "the input is transposed" if layer.attrs.get("transpose_a") else ""

    def product_objection(self, graph: Graph, layer: Node) -> str:
        return "the weights are computed, not constant"

    def is_bias(self, graph: Graph, layer: Node, value: Tensor) -> bool:
        facts, weights = find_layer(layer), graph.constant_of(layer.inputs[WEIGHTS_INDEX])
        if facts is None or weights is None:
            return False
        channels = facts.num_channels(weights.shape)
        return broadcast_channels(value, rank=facts.rank, axis=facts.axis, num_channels=channels) is not None

    def bias_input(self, graph: Graph, layer: Node, bias: str) -> tuple[Node, int] | None:
        if not bias:
            return None
        inputs = graph[bias].inputs
        return graph[bias], next(slot for slot, edge in enumerate(inputs) if graph.constant_of(edge) is not None)

    def mean_outputs(self, layer: Node, weights: Array, means: Array) -> Array | None:
        if layer.op == "DepthwiseConv2dNative":
            separate: Array = (weights.sum((0, 1)) * means[:, None]).reshape(-1)
            return separate
        if layer.op == "Conv2D":
            summed = weights.sum((0, 1))
            # (groups, c_in / groups): each output channel has the inputs of its group.
            by_group = means.reshape(-1, len(summed))
            repeats = summed.shape[1] // len(by_group)
            grouped: Array = np.einsum("ij,ji->j", summed, np.repeat(by_group, repeats, axis=0))
            return grouped
        product: Array = np.einsum("ji,i->j" if layer.attrs.get("transpose_b") else "ij,i->j", weights, means)
        return product

    def sum_objection(self, shapes: tuple[Shape | None, Shape | None]) -> str:
        if None in shapes or shapes[0] != shapes[1]:
            return "the operands have different or unknown shapes"
        return ""

    def is_activation(self, graph: Graph, node: Node) -> bool:
        return node.op in FUSED_ACTIVATION_OPS

    def pass_through_inputs(self, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> tuple[Edge, ...]:
        if node.attrs.get("T", DType.FLOAT) is not DType.FLOAT:
            return ()
        if node.attrs.get("data_format", b"NHWC") != b"NHWC":
            return ()
        if node.op in CONCAT_OPS:
            inputs = node.inputs[1:] if node.op == "Concat" else node.inputs[:-1]
            return () if any(graph.constant_of(edge) for edge in inputs) else inputs
        if node.op == "Mean" and not _is_spatial_mean(graph, node, shapes):
            return ()
        return node.inputs[:1]

    def is_global(self, average: Node, shapes: Mapping[Edge, Shape]) -> bool:
        dims = shapes[Edge(average.name)].dims if Edge(average.name) in shapes else None
        return average.op == "Mean" or (dims is not None and dims[1:3] == (1, 1))


def find_depthwise_pair_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions of the weights (h, w, c, m) of a depthwise convolution whose products a kernel adds.

    Kernels compute one channel, or several outputs of a channel, as an ordinary convolution.
    """
    return () if shape[2] > 1 and shape[3] == 1 else (0, 1)


def _is_spatial_mean(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> bool:
    axes = graph.constant_of(node.inputs[1])
    shape = shapes.get(node.inputs[0])
    return (
        axes is not None
        and shape is not None
        and shape.rank == 4
        and sorted(int(axis) % 4 for axis in axes.array.reshape(-1)) == [1, 2]
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
