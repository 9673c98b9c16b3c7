"""Replacement of transposed convolutions by convolutions for LiteRT: see `transposed_convolutions`.

TensorFlow's converter stores the weights of float transposed convolutions in int8 in any case, and LiteRT has only a
reference kernel for them if the batch is not fixed: 23 ms where a convolution takes 1 ms.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import NewNodes, remove_unused
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.layers import WEIGHTS_INDEX, broadcast_channels, same_padding
from quantkit.ops.semantics import ADD_OPS
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.targets.transposed_convolutions import count_taps, divide_kernel

TRANSPOSED = "Conv2DBackpropInput"
# Activations that a convolution computes; they commute with the movement of values.
CLAMPS = frozenset({"Relu", "Relu6"})
INPUT_INDEX = 2
FLOAT = {"T": DType.FLOAT}


def lower_transposed_convolutions(graph: Graph) -> Graph:
    """Return the TensorFlow graph with convolutions instead of transposed ones of known image size."""
    layers = [node for node in graph.nodes.values() if node.op == TRANSPOSED]
    if not layers:
        return graph
    shapes, draft = infer_shapes(graph), Draft(graph)
    for layer in layers:
        tail = _find_tail(graph, layer)
        nodes = _lower(graph, layer, tail, shapes)
        if nodes:
            draft.remove(layer.name, *(node.name for node in tail))
            draft.replace((tail or [layer])[-1].name, *nodes)
    return remove_unused(graph, draft.graph())


def _find_tail(graph: Graph, layer: Node) -> list[Node]:
    """Return the bias and the activation after a layer, if they are the only consumers of the values before them."""
    tail: list[Node] = []
    for accepts in (_is_bias, lambda graph, node: node.op in CLAMPS):
        last = (tail or [layer])[-1]
        consumers = graph.consumers(last.name)
        if last.name in graph.endpoint_names or len(consumers) != 1 or len(graph.node_uses[last.name]) != 1:
            break
        if accepts(graph, consumers[0]):
            tail.append(consumers[0])
    return tail


def _is_bias(graph: Graph, node: Node) -> bool:
    return node.op in ADD_OPS | {"BiasAdd"} and graph.constant_of(node.inputs[1]) is not None


def _lower(graph: Graph, layer: Node, tail: list[Node], shapes: Mapping[Edge, Shape]) -> list[Node]:
    """Return the nodes that replace a layer and its tail; the last one has the name of the last of them.

    Returns:
        Empty if the layer stays.
    """
    weights, geometry = graph.constant_of(layer.inputs[WEIGHTS_INDEX]), _find_geometry(graph, layer, shapes)
    if geometry is None or weights is None:
        return []
    stride, taps, first, size, computed = geometry
    channels = weights.shape[2]
    nodes, edge = NewNodes(graph, layer.name), layer.inputs[INPUT_INDEX]
    if max(taps) > 1:
        margins = np.array([[0, 0], *([tap - 1] * 2 for tap in taps), [0, 0]], np.int32)
        edge = nodes.add("padded", "Pad", edge, nodes.constant("margins", margins), **FLOAT, Tpaddings=DType.INT32)
    kernel = nodes.constant("positions", divide_kernel(weights.array, stride))
    edge = nodes.add("conv", "Conv2D", edge, kernel, **FLOAT, strides=(1, 1, 1, 1), padding=b"VALID")
    for node in tail:
        if node.op in CLAMPS:
            edge = nodes.add("clamped", node.op, edge, **FLOAT)
            continue
        bias = graph.constant_of(node.inputs[1])
        values = None if bias is None else broadcast_channels(bias, rank=4, axis=3, num_channels=channels)
        if values is None:
            return []
        edge = nodes.add("biased", "BiasAdd", edge, nodes.constant("repeated", np.tile(values, stride**2)), **FLOAT)
    if stride > 1:
        edge = nodes.add("moved", "DepthToSpace", edge, **FLOAT, block_size=stride)
    if computed != size or any(first):
        ends = [nodes.constant("first", np.array([0, *first, 0], np.int32))]
        ends.append(nodes.constant("size", np.array([-1, *size, channels], np.int32)))
        nodes.add("sliced", "Slice", edge, *ends, **FLOAT, Index=DType.INT32)
    return [*nodes[:-1], nodes[-1].with_(name=(tail or [layer])[-1].name)]


class _Geometry(NamedTuple):
    """Sizes of a transposed convolution, each for both axes but the stride.

    Attributes:
        stride: stride of both axes.
        taps: inputs of an output.
        first: first computed output that the layer has.
        size: outputs that the layer has.
        computed: outputs that the convolution computes.
    """

    stride: int
    taps: list[int]
    first: list[int]
    size: list[int]
    computed: list[int]


def _find_geometry(graph: Graph, layer: Node, shapes: Mapping[Edge, Shape]) -> _Geometry | None:
    """Return the sizes of a layer; None if they are unknown, or a border of the outputs has no products."""
    weights, attrs = graph.constant_of(layer.inputs[WEIGHTS_INDEX]), layer.attrs
    strides, padding = tuple(attrs.get("strides", ())), attrs.get("padding")
    is_plain = attrs.get("data_format", b"NHWC") == b"NHWC" and attrs.get("dilations", (1, 1, 1, 1)) == (1, 1, 1, 1)
    if weights is None or weights.dtype is not DType.FLOAT or not is_plain or padding not in (b"SAME", b"VALID"):
        return None
    dims = [shapes.get(edge, Shape(None)).dims or () for edge in (layer.inputs[INPUT_INDEX], Edge(layer.name))]
    before, size = ([each for each in sizes[1:3] if each is not None] for sizes in dims)
    if len(strides) != 4 or strides[1] != strides[2] or len(before) != 2 or len(size) != 2:
        return None
    stride, kernel = strides[1], weights.shape[:2]
    taps = count_taps(kernel, stride)
    pads = [same_padding(*axis, stride) or (0, 0) for axis in zip(size, kernel, strict=True)]
    first = [pad if padding == b"SAME" else 0 for pad, _ in pads]
    computed = [stride * (each + tap - 1) for each, tap in zip(before, taps, strict=True)]
    if any(start + each > whole for start, each, whole in zip(first, size, computed, strict=True)):
        return None
    return _Geometry(stride, taps, first, size, computed)
