"""Layers that TensorRT computes faster in int8, by their sizes; ops that it does not have.

The limits are those of NVIDIA's Model-Optimizer. Tensor cores multiply blocks of channels.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.roles import find_roles
from quantkit.ops.roles.onnx import CONVOLUTION_OPS
from quantkit.ops.shape_inference import UNKNOWN

# Least number of channels of a convolution, and of rows and columns of the weights of a product.
MIN_SIZE = 16
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
        return _find_small_convolution(layer, weights)
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
