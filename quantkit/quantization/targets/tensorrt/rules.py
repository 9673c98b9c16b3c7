"""Layers that TensorRT computes faster in int8, by their sizes; ops that it does not have.

The limits are those of NVIDIA's Model-Optimizer. Tensor cores multiply blocks of channels: with fewer than 16 input
channels, a block of 32 in int8 takes as long as one of 16 in float16. Most int8 values are quantized in the kernel that
computes them. A convolution of an input of the model needs a further kernel for that: with few channels it stays float,
and also a depthwise convolution after it, which fills no tensor core. Then the values after both are quantized.
"""

from collections.abc import Mapping
from math import prod
from typing import Any, cast

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.roles import find_roles
from quantkit.ops.roles.onnx import CONVOLUTION_OPS
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.table import Fact, find_ops

# Least number of channels of a convolution, and of rows and columns of the weights of a product.
MIN_SIZE = 16
# Ops between a layer and the values that it takes.
QUANTIZING_OPS = frozenset({"QuantizeLinear", "DequantizeLinear"})
ACTIVATION_OPS = find_ops(Fact.ACTIVATION | Fact.GATE | Fact.FUSED, "onnx") | {"PRelu", "Gelu"}
# Number of channels of which one side of a convolution with fewer channels has a multiple.
CHANNEL_BLOCK = 8
# Least size of the kernel of a grouped convolution with few channels in each group.
MIN_GROUPED_KERNEL = 3
# Standard ops without a converter in the ONNX parser of TensorRT-RTX 1.7.
_UNSUPPORTED = """
AffineGrid Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress
ConcatFromSequence ConvInteger CumProd DFT DeformConv Det DynamicQuantizeLinear ImageDecoder MatMulInteger MaxRoiPool
MaxUnpool MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement OptionalHasElement
QLinearConv QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert
SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat StringNormalizer StringSplit SwiGLU
TfIdfVectorizer Unique
"""
UNSUPPORTED_OPS = frozenset(_UNSUPPORTED.split())


def find_small_size(graph: Graph, layer: Node, shapes: Mapping[Edge, Shape]) -> str:
    """Return why a layer does not gain from int8, by its sizes, or an empty string.

    Args:
        graph: ONNX graph, in float or quantized.
        layer: node; only convolutions and matrix products have a reason.
        shapes: shapes by edge; some may be unknown.
    """
    if layer.op not in find_roles(graph).layer_ops:
        return ""
    weights = shapes.get(layer.inputs[WEIGHTS_INDEX], UNKNOWN).dims or ()
    if layer.op in CONVOLUTION_OPS:
        return _find_small_convolution(layer, weights) or _find_first_layer(graph, layer, shapes)
    rows = (shapes.get(layer.inputs[0], UNKNOWN).dims or (None,))[:-1]
    if None not in rows and prod(size or 0 for size in rows) == 1:
        return "a product with one row is bound by the memory, not by the arithmetic"
    if any(size is not None and size < MIN_SIZE for size in weights[-2:]):
        return f"a product with less than {MIN_SIZE} rows or columns of weights does not fill a tensor core"
    return ""


def _find_small_convolution(layer: Node, weights: tuple[int | None, ...]) -> str:
    attrs: Any = layer.attrs
    group = attrs.get("group", 1)
    first, second, *kernel = (size or 0 for size in weights) if len(weights) > 2 else (MIN_SIZE, MIN_SIZE)
    num_inputs, num_outputs = (second, first) if layer.op == "Conv" else (first // group, second * group)
    if min(num_inputs, num_outputs) >= MIN_SIZE:
        return ""
    if group == 1:
        is_block = not num_inputs % CHANNEL_BLOCK or not num_outputs % CHANNEL_BLOCK
        is_large = is_block and max(num_inputs, num_outputs) >= MIN_SIZE and len(set(kernel)) <= 1
    else:
        is_large = not num_outputs % CHANNEL_BLOCK and min(kernel, default=0) >= MIN_GROUPED_KERNEL
    return "" if is_large else f"a convolution of {num_inputs} to {num_outputs} channels does not fill a tensor core"


def _find_first_layer(graph: Graph, layer: Node, shapes: Mapping[Edge, Shape]) -> str:
    """Return why a convolution of an input, or a depthwise one after it, stays float, or an empty string."""
    if channels := _count_input_channels(graph, layer, shapes):
        return f"a convolution of an input with {channels} channels needs one more kernel to quantize it"
    weights = shapes.get(layer.inputs[WEIGHTS_INDEX], UNKNOWN).dims or ()
    source = find_producer(graph, layer.inputs[0], QUANTIZING_OPS | ACTIVATION_OPS)
    if layer.op == source.op == "Conv" and weights[1:2] == (1,) and _count_input_channels(graph, source, shapes):
        return "a depthwise convolution after a float layer fills no tensor core: the values are quantized after it"
    return ""


def _count_input_channels(graph: Graph, layer: Node, shapes: Mapping[Edge, Shape]) -> int:
    """Return the number of channels of an input that a convolution takes, or 0 for other layers and many channels."""
    weights, attrs = shapes.get(layer.inputs[WEIGHTS_INDEX], UNKNOWN).dims or (), cast(Any, layer.attrs)
    if layer.op != "Conv" or len(weights) < 2 or Edge(find_producer(graph, layer.inputs[0]).name) not in graph.inputs:
        return 0
    channels = (weights[1] or 0) * attrs.get("group", 1)
    return channels if channels < MIN_SIZE else 0


def find_producer(graph: Graph, edge: Edge, ops: frozenset[str] = QUANTIZING_OPS) -> Node:
    """Return the node that computes the values of an edge, before ops of some types."""
    while (node := graph[edge.node]).op in ops and graph.constant_of(node.inputs[0]) is None:
        edge = node.inputs[0]
    return node
