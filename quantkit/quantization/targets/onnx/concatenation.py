"""Concatenations of int8 values in ONNX models."""

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Array


def concatenate_integers(graph: Graph) -> Graph:
    """Move each QuantizeLinear from the output of a Concat to its inputs.

        before:  Concat(x, y) -> QuantizeLinear
        after:   Concat(QuantizeLinear(x), QuantizeLinear(y))

    The Concat takes the name of the QuantizeLinear. An input that has the parameters of the output is copied.

    OpenVINO 2026.4 rounds the real values of an int8 tensor to whole numbers if a float Concat is between the tensor
    and a convolution. It computes other inputs of such a Concat, such as transposed convolutions, with float outputs.

    Args:
        graph: quantized ONNX graph.
    """
    for quantize in graph.nodes.values():
        concat = graph[quantize.inputs[0].node] if quantize.op == "QuantizeLinear" else quantize
        if concat.op != "Concat" or concat is quantize or len(concat.inputs) < 2 or graph.is_shared(concat):
            continue
        graph = _quantize_inputs(graph, concat, quantize)
    return graph


def _quantize_inputs(graph: Graph, concat: Node, quantize: Node) -> Graph:
    nodes = dict(graph.nodes)
    inputs = []
    for slot, edge in enumerate(concat.inputs):
        producer = graph[edge.node]
        if producer.op == "DequantizeLinear" and _parameters(graph, producer) == _parameters(graph, quantize):
            inputs.append(producer.inputs[0])
            continue
        name = free_name(graph, f"{quantize.name}/{slot}")
        nodes[name] = quantize.with_(name=name, inputs=(edge, *quantize.inputs[1:]))
        inputs.append(Edge(name))
    del nodes[concat.name]
    nodes[quantize.name] = concat.with_(name=quantize.name, inputs=tuple(inputs))
    graph = graph.with_nodes(nodes.values())
    unused = {edge.node for edge in concat.inputs if not graph.consumers(edge) and edge not in graph.outputs}
    return graph.with_nodes(node for node in nodes.values() if node.name not in unused)


def _parameters(graph: Graph, node: Node) -> tuple[Array, Array]:
    """Return scale and zero point of a QuantizeLinear or DequantizeLinear."""
    scale, zero = (graph[edge.node].value.array for edge in node.inputs[1:3])
    return scale, zero
