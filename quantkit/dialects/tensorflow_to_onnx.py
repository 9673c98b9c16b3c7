"""Inference graphs of TensorFlow ops as ONNX graphs."""

# Each registers what it converts.
from quantkit.dialects import elements_to_onnx as elements_to_onnx
from quantkit.dialects import layers_to_onnx as layers_to_onnx
from quantkit.dialects import sequences_to_onnx as sequences_to_onnx
from quantkit.dialects import shapes_to_onnx as shapes_to_onnx
from quantkit.dialects.translator import Translation, Translator
from quantkit.ir.graph import Graph


def convert(graph: Graph) -> Graph:
    """The ONNX graph that computes what a frozen TensorFlow graph does.

    Args:
        graph: with inputs and outputs; fed tensors may be in its middle.

    Raises:
        UnavailableError: naming the first node whose op, or form, this conversion does not know.
        GraphError: an input names no node, or the nodes form a cycle.
    """
    return translate(graph).graph


def translate(graph: Graph) -> Translation:
    """As `convert`, with the place of every value.

    Raises:
        UnavailableError: naming the first node whose op, or form, this conversion does not know.
        GraphError: an input names no node, or the nodes form a cycle.
    """
    return Translator(graph).translation()
