"""First layers of ONNX graphs that ONNX Runtime computes faster in float.

Its int8 convolution gathers the window of each output position before the product, its float convolution does not. The
times in ns, with c input channels, and d output channels padded to blocks of 16:

    int8     positions * kernel size * 2 + MACs / 400      depthwise: positions * kernel size * (1 + d / 64)
    float    positions * kernel size * c * d / 60          depthwise: positions * kernel size * d / 60

so that float is faster with few channels. At the input of a model, float layers need no further quantize/dequantize
boundary: the quantization moves after them, where it costs more with more values.
"""

from collections.abc import Collection, Mapping
from math import prod

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.roles import find_roles
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.precision import policy
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes

REASON = "ONNX Runtime computes first layers with few channels faster in float"
# Number of dimensions of images and of their weights.
IMAGE_RANK = 4
# Output channels that a float convolution computes together.
CHANNEL_BLOCK = 16
# Times in ns of an int8 convolution: of one position of a window, and of a MAC.
WINDOW_TIME, INT8_MAC_TIME = 2.0, 1 / 400
# Time in ns of a MAC of a float convolution.
FLOAT_MAC_TIME = 1 / 60
# Time in ns of a value that leaves the blocks, if the number of channels is not a multiple of 16.
REORDER_TIME = 0.2
# Time in ns of a value at the boundary between float and int8, where its layout changes: of a float layer, of an input.
BOUNDARY_TIME, INPUT_TIME = 0.5, 0.3


def find_slow_layers(graph: Graph) -> dict[str, str]:
    """Return the first layers of `find_first_layers`, with the reason, if they are faster in float in total.

    Args:
        graph: float ONNX graph; its only layers stay int8.
    """
    first = find_first_layers(graph)
    layer_ops = find_roles(graph).layer_ops
    has_others = any(node.op in layer_ops and node.name not in first for node in graph.nodes.values())
    return dict.fromkeys(first, REASON) if has_others and _saved_time(graph, first) >= 0 else {}


def find_first_layers(graph: Graph) -> tuple[str, ...]:
    """Return the first layers with few channels, and the ops between and after them.

    Args:
        graph: float ONNX graph.
    """
    roles, shapes = find_roles(graph), infer_shapes(graph)
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
    """Return True for a large convolution of images with few channels.

    Args:
        graph: graph of the layer.
        layer: layer.
        shapes: shapes by edge.
        is_after: True after another float layer.
    """
    weights = graph.constant_of(layer.inputs[1])
    if layer.op != "Conv" or weights is None or len(weights.shape) != IMAGE_RANK:
        return False
    if _is_known(shapes, Edge(layer.name)) and _count_positions(shapes, layer) < policy.MIN_POSITIONS:
        return False
    num_outputs, num_inputs, *kernel = weights.shape
    num_groups = layer.attrs.get("group", 1)
    if num_groups == num_outputs > 1 and num_inputs == 1:
        return num_outputs <= policy.MAX_DEPTHWISE_CHANNELS
    if prod(kernel) == 1:
        return num_groups == 1 and is_after and num_inputs * num_outputs <= policy.MAX_POINTWISE_PRODUCT
    return num_groups == 1 and num_inputs * num_outputs <= policy.MAX_CHANNEL_PRODUCT


def _saved_time(graph: Graph, first: Collection[str]) -> float:
    """Return the time in ns that float saves for first layers and the boundary after them; 0 for unknown shapes."""
    roles, shapes = find_roles(graph), infer_shapes(graph)
    layers = [graph[name] for name in first if graph[name].op in roles.layer_ops]
    last = [Edge(name) for name in first if any(use.node.name not in first for use in graph.node_uses.get(name, ()))]
    inputs = {layer.inputs[0] for layer in layers} - {Edge(name) for name in first}
    if any(not _is_known(shapes, edge) for edge in (*inputs, *last, *(Edge(layer.name) for layer in layers))):
        return 0.0
    saved = sum(_saved_layer_time(graph, layer, _count_positions(shapes, layer)) for layer in layers)
    boundary = BOUNDARY_TIME * sum(_count_values(shapes, edge) for edge in last)
    return saved + INPUT_TIME * sum(_count_values(shapes, edge) for edge in inputs) - boundary


def _saved_layer_time(graph: Graph, layer: Node, positions: int) -> float:
    """Return the time in ns of a convolution in int8 minus that in float."""
    num_outputs, num_inputs, *kernel = graph[layer.inputs[1].node].value.shape
    padded = -(-num_outputs // CHANNEL_BLOCK) * CHANNEL_BLOCK
    windows = positions * prod(kernel)
    if layer.attrs.get("group", 1) != 1:
        return windows * (1 + padded / 64) - windows * padded * FLOAT_MAC_TIME
    gathering = windows * WINDOW_TIME if prod(kernel) > 1 else 0.0
    int8_time = gathering + windows * num_inputs * num_outputs * INT8_MAC_TIME
    reordering = positions * padded * REORDER_TIME if padded > num_outputs else 0.0
    return int8_time - windows * num_inputs * padded * FLOAT_MAC_TIME - reordering


def _is_known(shapes: Mapping[Edge, Shape], edge: Edge) -> bool:
    dims = shapes.get(edge, UNKNOWN).dims
    return dims is not None and None not in dims[1:]


def _count_values(shapes: Mapping[Edge, Shape], edge: Edge) -> int:
    """Return the number of values of a sample."""
    return prod(size or 1 for size in (shapes[edge].dims or ())[1:])


def _count_positions(shapes: Mapping[Edge, Shape], layer: Node) -> int:
    """Return the number of output positions of a layer for a sample."""
    return prod(size or 1 for size in (shapes[Edge(layer.name)].dims or ())[2:])
