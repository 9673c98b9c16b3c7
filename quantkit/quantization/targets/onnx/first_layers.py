"""First layers of ONNX graphs that ONNX Runtime computes faster in float.

Its int8 convolution gathers the window of each output position before the product, its float convolution does not:

    int8     positions * kernel size * 3 ns + MACs / (120 G/s)
    float    MACs / (40 G/s)

so that float is faster with few channels. Depthwise kernels with few channels are faster in float, too. At the input of
a model, float layers need no further quantize/dequantize boundary: the quantization moves after them.
"""

from collections.abc import Mapping
from math import prod

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.roles import find_roles
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes

REASON = "ONNX Runtime computes first layers with few channels faster in float"
# Largest product of the input channels and the output channels of such a convolution.
MAX_CHANNEL_PRODUCT = 160
# The same for a kernel of one position, which needs no gathering, after such a convolution.
MAX_POINTWISE_PRODUCT = 256
# Largest number of channels of such a depthwise convolution.
MAX_DEPTHWISE_CHANNELS = 32
# Least number of output positions: smaller layers cost little in any precision.
MIN_POSITIONS = 4096


def find_first_layers(graph: Graph) -> dict[str, str]:
    """Return the first layers that are faster in float, and the ops between and after them, with the reason.

    Args:
        graph: float ONNX graph.
    """
    roles = find_roles(graph)
    shapes = infer_shapes(graph, {edge: shape for edge, (_, shape) in onnx.value_infos(graph).items()})
    # Nodes without an int8 layer before them: True with a float layer before them.
    has_layer = {edge.node: False for edge in graph.inputs}
    first: dict[str, str] = {}
    for name in graph.order:
        node = graph[name]
        sources = [edge.node for edge in node.inputs if edge.node and graph.constant_of(edge) is None]
        if not sources or not has_layer.keys() >= set(sources):
            continue
        is_after = any(has_layer[source] for source in sources)
        is_layer = node.op in roles.layer_ops
        if is_layer and not _is_faster_in_float(graph, node, shapes, is_after=is_after):
            continue
        has_layer[name] = is_layer or is_after
        if is_layer or (is_after and node.op in roles.pass_through_ops):
            first[name] = REASON
    return first


def _is_faster_in_float(graph: Graph, layer: Node, shapes: Mapping[Edge, Shape], *, is_after: bool) -> bool:
    """Return True if ONNX Runtime computes a layer faster in float than in int8.

    Args:
        graph: graph of the layer.
        layer: layer; only convolutions of images can be faster.
        shapes: shapes by edge.
        is_after: True after another float layer.
    """
    weights = graph.constant_of(layer.inputs[1]) if layer.op == "Conv" else None
    if weights is None or len(weights.shape) != 4:
        return False
    positions = (shapes.get(Edge(layer.name), UNKNOWN).dims or ())[2:]
    if None not in positions and prod(size or 0 for size in positions) < MIN_POSITIONS:
        return False
    num_outputs, num_inputs, *kernel = weights.shape
    if layer.attrs.get("group", 1) == num_outputs > 1 and num_inputs == 1:
        return num_outputs <= MAX_DEPTHWISE_CHANNELS
    if layer.attrs.get("group", 1) != 1:
        return False
    if prod(kernel) == 1:
        return is_after and num_inputs * num_outputs <= MAX_POINTWISE_PRODUCT
    return num_inputs * num_outputs <= MAX_CHANNEL_PRODUCT
