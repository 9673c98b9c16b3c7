"""Roles of op types: sets of TensorFlow ops with the same role in transforms and the quantizer.

`quantkit.ops.layers` has the layers with their channel axes.
"""

from collections.abc import Mapping

from quantkit.ir.graph import Graph
from quantkit.ops.table import LAYER, Fact, find_ops

ADD_OPS = find_ops(Fact.ADDITION, "tensorflow")
CONCAT_OPS = find_ops(Fact.CONCAT, "tensorflow")
CALL_OPS = find_ops(Fact.CALL, "tensorflow")
IF_OPS = find_ops(Fact.IF, "tensorflow")
CASE_OPS = find_ops(Fact.CASE, "tensorflow")
LOOP_OPS = find_ops(Fact.LOOP, "tensorflow")

# Ops of either dialect that use the shape of an input, and not its values.
SHAPE_OPS = find_ops(Fact.SHAPE) | {"OnesLike", "ZerosLike"}

# Elementwise activations without other inputs.
ACTIVATION_OPS = find_ops(Fact.ACTIVATION, "tensorflow")

# Quantization: layers of fused patterns, and the activations that the kernel of a layer can compute.
PATTERN_LAYER_OPS = find_ops(LAYER, "tensorflow") - find_ops(Fact.UNFUSED, "tensorflow")
FUSED_ACTIVATION_OPS = find_ops(Fact.FUSED, "tensorflow")
# Reasons why op types stay float.
FLOAT_REASONS: Mapping[str, str] = {
    "Softmax": "small probabilities would quantize to zero",
    "Conv2DBackpropInput": "no runtime has a faster int8 kernel for this op type",
    **dict.fromkeys(find_ops(Fact.BATCH_NORM, "tensorflow"), "BatchNorm is not folded: run fold_batch_norms first"),
    "BatchNormWithGlobalNormalization": "BatchNorm is not folded: run fold_old_batch_norms first",
    "BiasAdd": "the layer is float",
    "CheckNumerics": "identity at inference: remove it with remove_nodes(op=CheckNumerics)",
}

ONNX_QUANTIZED_OPS = frozenset({"QuantizeLinear", "QLinearConv", "ConvInteger", "MatMulInteger"})


def is_quantized(graph: Graph) -> bool:
    """Return True if a graph of either dialect has layers that compute with quantized values."""
    return any(op in ONNX_QUANTIZED_OPS or op.lstrip("_").startswith("Quantized") for op in graph.op_counts)
