"""Channels of convolutions whose inputs have unknown sizes: TensorFlow's converter needs them.

x (?, ?, ?, ?) -> Conv2D    ->    x -> Reshape to (shape(x)[0], shape(x)[1], shape(x)[2], channels) -> Conv2D
"""

from typing import Any

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import NewNodes
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.table import Fact, find_ops

CONVOLUTIONS = find_ops(Fact.CONVOLUTION, "tensorflow")


def find_unknown_channels(imported: Any, graph: Graph) -> list[str]:
    """Return the names of the NHWC convolutions with constant weights for whose inputs TensorFlow infers no channels.

    Args:
        imported: ``tf.Graph`` of ``graph``.
        graph: TensorFlow graph.
    """
    return [
        node.name
        for node in graph.nodes.values()
        if node.op in CONVOLUTIONS
        and node.attrs.get("data_format", b"NHWC") == b"NHWC"
        and graph.constant_of(node.inputs[WEIGHTS_INDEX]) is not None
        and not _has_channels(imported.get_operation_by_name(node.name).inputs[0].shape)
    ]


def state_channels(graph: Graph, names: list[str]) -> Graph:
    """Return the graph with a Reshape before each of these convolutions that states the number of channels.

    The number is that of a convolution without groups: neither the weights nor the attributes of a Conv2D state groups.
    With groups, LiteRT stops at the Reshape with an error when it runs the model.
    """
    draft = Draft(graph)
    for name in names:
        layer = graph[name]
        weights = graph.constant_of(layer.inputs[WEIGHTS_INDEX])
        assert weights is not None
        nodes = _reshape(graph, layer, weights)
        draft.replace(name, *nodes, layer.with_input(0, Edge(nodes[-1].name)))
    return draft.graph()


def _has_channels(shape: Any) -> bool:
    return shape.rank is not None and shape[-1] is not None


def _reshape(graph: Graph, layer: Node, weights: Tensor) -> list[Node]:
    """Return the nodes of the Reshape, which is the last one."""
    nodes, source, dtype = NewNodes(graph, f"{layer.name}/channels"), layer.inputs[0], layer.attrs["T"]
    first, last, step = (
        nodes.constant(suffix, np.array([value], np.int32))
        for suffix, value in (("first", 0), ("last", 3), ("step", 1))
    )
    channels = nodes.constant("number", np.array([weights.shape[2]], np.int32))
    axis = nodes.constant("axis", np.int32(0))
    sizes = nodes.add("sizes", "Shape", source, T=dtype, out_type=DType.INT32)
    bounds: dict[str, Attr] = {"T": DType.INT32, "Index": DType.INT32, "begin_mask": 1}
    positions = nodes.add("positions", "StridedSlice", sizes, first, last, step, **bounds)
    shape = nodes.add("shape", "ConcatV2", positions, channels, axis, T=DType.INT32, Tidx=DType.INT32, N=2)
    nodes.add("reshaped", "Reshape", source, shape, T=dtype, Tshape=DType.INT32)
    return nodes
