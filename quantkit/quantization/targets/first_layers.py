"""First layers with few channels, which cost little time in float.

They read the rounded input of the model, and all later layers read their rounded outputs.
"""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.layers import WEIGHTS_INDEX, channel_axis
from quantkit.ops.roles import find_roles
from quantkit.ops.shape_inference import UNKNOWN

# Largest product of the input channels and the output channels of such a convolution.
MAX_CHANNEL_PRODUCT = 160
# The same for a kernel of one position, which needs no gathering, after such a convolution.
MAX_POINTWISE_PRODUCT = 256
# Largest number of channels of such a depthwise convolution.
MAX_DEPTHWISE_CHANNELS = 32
# Least number of output positions: smaller layers cost little in any precision.
MIN_POSITIONS = 4096
# Number of dimensions of images and of their weights.
IMAGE_RANK = 4


class _Convolution(NamedTuple):
    """Sizes of a convolution of images.

    Attributes:
        num_inputs: number of input channels of a group.
        num_outputs: number of output channels.
        num_groups: number of groups.
        kernel: number of positions of the kernel.
        num_positions: number of output positions of a sample; None if unknown.
    """

    num_inputs: int
    num_outputs: int
    num_groups: int
    kernel: int
    num_positions: int | None


def find_first_layers(graph: Graph, shapes: Mapping[Edge, Shape]) -> tuple[str, ...]:
    """Return the first layers with few channels, and the ops between and after them.

    Args:
        graph: float graph of any dialect.
        shapes: shapes by edge.
    """
    roles = find_roles(graph)
    # Nodes without an int8 layer before them: True with a float layer before them.
    has_layer = {edge.node: False for edge in graph.inputs}
    first = []
    for name in graph.order:
        node = graph[name]
        sources = [edge.node for edge in node.inputs if edge.node and graph.constant_of(edge) is None]
        if not sources or not has_layer.keys() >= set(sources):
            continue
        is_after = any(has_layer[source] for source in sources)
        is_layer = node.op in roles.layer_ops
        if is_layer and not _has_few_channels(graph, node, shapes, is_after=is_after):
            continue
        has_layer[name] = is_layer or is_after
        if is_layer or (is_after and node.op in roles.pass_through_ops):
            first.append(name)
    return tuple(first)


def _has_few_channels(graph: Graph, layer: Node, shapes: Mapping[Edge, Shape], *, is_after: bool) -> bool:
    """Return True for a large convolution with few channels.

    Args:
        graph: graph of the layer.
        layer: layer; only convolutions of images count.
        shapes: shapes by edge.
        is_after: True after another float layer.
    """
    sizes = _measure(graph, layer, shapes)
    if sizes is None or (sizes.num_positions is not None and sizes.num_positions < MIN_POSITIONS):
        return False
    if sizes.num_groups == sizes.num_outputs > 1 and sizes.num_inputs == 1:
        return sizes.num_outputs <= MAX_DEPTHWISE_CHANNELS
    if sizes.num_groups != 1:
        return False
    if sizes.kernel == 1:
        return is_after and sizes.num_inputs * sizes.num_outputs <= MAX_POINTWISE_PRODUCT
    return sizes.num_inputs * sizes.num_outputs <= MAX_CHANNEL_PRODUCT


def _measure(graph: Graph, layer: Node, shapes: Mapping[Edge, Shape]) -> _Convolution | None:
    """Return the sizes of a convolution of images; None for other layers and unknown groups."""
    weights = graph.constant_of(layer.inputs[WEIGHTS_INDEX])
    if weights is None or len(weights.shape) != IMAGE_RANK:
        return None
    outputs = shapes.get(Edge(layer.name), UNKNOWN).dims
    if graph.dialect == onnx.DIALECT:
        if layer.op != "Conv":
            return None
        num_outputs, num_inputs, *kernel = weights.shape
        num_groups = int(layer.attrs.get("group", 1))  # type: ignore[arg-type]
        return _Convolution(num_inputs, num_outputs, num_groups, prod(kernel), _count_positions(outputs, 1))
    axis = channel_axis(layer, IMAGE_RANK)
    if axis is None or layer.op not in ("Conv2D", "DepthwiseConv2dNative"):
        return None
    *kernel, num_inputs, num_outputs = weights.shape
    num_positions = _count_positions(outputs, axis)
    if layer.op == "DepthwiseConv2dNative":
        return _Convolution(1, num_inputs * num_outputs, num_inputs, prod(kernel), num_positions)
    channels = (shapes.get(layer.inputs[0], UNKNOWN).dims or (None,) * IMAGE_RANK)[axis]
    if channels is None:
        return None
    return _Convolution(num_inputs, num_outputs, channels // num_inputs, prod(kernel), num_positions)


def _count_positions(dims: tuple[int | None, ...] | None, axis: int) -> int | None:
    """Return the number of positions of a sample; None if it is unknown."""
    sizes = [size for index, size in enumerate(dims or (None,)) if index not in (0, axis)]
    return None if dims is None or None in sizes else prod(size or 0 for size in sizes)
