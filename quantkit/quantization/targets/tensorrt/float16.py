"""Float ops of quantized ONNX files in float16."""

from quantkit.ir.graph import Graph
from quantkit.quantization.targets.tensorrt.check import find_int8_layers
from quantkit.transforms.precision.convert_precision import narrow_ops


def narrow_floats(graph: Graph) -> Graph:
    """Return a quantized ONNX graph whose float ops compute in float16."""
    # The sums of an int8 layer contain its zero point until its bias is added, which float16 would round.
    layers = find_int8_layers(graph)
    sums = {node.name for layer in layers for node in graph.consumers(layer) if node.op == "Add"}
    return narrow_ops(graph, "float16", layers | sums)
