"""Roles of op types: sets of TensorFlow ops with the same role in transforms and the quantizer.

`quantkit.ops.layers` has the layers with their channel axes.
"""

from collections.abc import Mapping

from quantkit.ir.graph import Graph
from quantkit.ops.layers import LAYER_OPS

ADD_OPS = frozenset({"Add", "AddV2"})
CONCAT_OPS = frozenset({"Concat", "ConcatV2"})
AVERAGE_OPS = frozenset({"AvgPool", "Mean"})
CALL_OPS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
IF_OPS = frozenset({"If", "StatelessIf"})
CASE_OPS = frozenset({"Case", "StatelessCase"})
LOOP_OPS = frozenset({"While", "StatelessWhile"})

# Elementwise activations without other inputs.
ACTIVATION_OPS = frozenset({"Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Sigmoid", "Tanh", "Softplus"})

# Quantization: layers of fused patterns, and the activations that the kernel of a layer can compute.
PATTERN_LAYER_OPS = LAYER_OPS - {"Conv2DBackpropInput"}
FUSED_ACTIVATION_OPS = frozenset({"Relu", "Relu6"})
# Ops whose output values are a selection of their input values.
COPY_OPS = FUSED_ACTIVATION_OPS | {"MaxPool", "Reshape", "Squeeze", "ExpandDims", "Pad", "MirrorPad", "Identity"}
# Ops that keep the quantization parameters of their inputs.
PASS_THROUGH_OPS = CONCAT_OPS | AVERAGE_OPS | COPY_OPS
# Reasons why op types stay float.
FLOAT_REASONS: Mapping[str, str] = {
    "Softmax": "small probabilities would quantize to zero",
    "Conv2DBackpropInput": "no runtime has a faster int8 kernel for this op type",
    "BatchNormWithGlobalNormalization": "BatchNorm is not folded: run fold_old_batch_norms first",
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        "BatchNorm is not folded: run fold_batch_norms first",
    ),
    "BiasAdd": "the layer is float",
    "CheckNumerics": "identity at inference: remove it with remove_nodes(op=CheckNumerics)",
}

ONNX_QUANTIZED_OPS = frozenset({"QuantizeLinear", "QLinearConv", "ConvInteger", "MatMulInteger"})


def is_quantized(graph: Graph) -> bool:
    """Return True if a graph of either dialect has layers that compute with quantized values."""
    return any(op in ONNX_QUANTIZED_OPS or op.lstrip("_").startswith("Quantized") for op in graph.op_counts)
