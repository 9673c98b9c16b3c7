"""Biases that several convolutions of an ONNX model share."""

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.rewrite import free_name
from quantkit.ops.roles.onnx import BIAS_INDEX


def copy_biases(graph: Graph) -> Graph:
    """Give each float convolution a constant bias of its own.

        before:  Conv(x, w, b), Conv(y, w, b)
        after:   Conv(x, w, b), Conv(y, w, b')

    Equal constants of a file are one constant, for example in siamese networks. OpenVINO 2026.4 fuses a bias, and the
    activation after it, with a convolution only if the constant has no other consumer.

    Args:
        graph: quantized ONNX graph.
    """
    draft, biases = Draft(graph), set[Edge]()
    for node in graph.nodes.values():
        if node.op != "Conv" or len(node.inputs) <= BIAS_INDEX or graph.constant_of(node.inputs[BIAS_INDEX]) is None:
            continue
        bias = node.inputs[BIAS_INDEX]
        if bias in biases:
            copy = graph[bias.node].with_(name=free_name(graph, f"{node.name}/bias"))
            draft.replace(node.name, copy, node.with_input(BIAS_INDEX, copy.name))
        biases.add(bias)
    return draft.graph()
