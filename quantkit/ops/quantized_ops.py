"""Op types of quantized graphs, in both dialects."""

from quantkit.ir.graph import Graph

ONNX_QUANTIZED_OPS = frozenset({"QuantizeLinear", "QLinearConv", "ConvInteger", "MatMulInteger"})


def is_quantized(graph: Graph) -> bool:
    """Return whether a graph has layers that compute with quantized values."""
    return any(op in ONNX_QUANTIZED_OPS or op.lstrip("_").startswith("Quantized") for op in graph.op_counts)
