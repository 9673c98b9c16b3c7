"""Inference graphs of TensorFlow ops as ONNX graphs."""

# Each module registers the ops that it converts.
from quantkit.convert.tensorflow_to_onnx import elementwise, layers, sequences, shapes  # noqa: F401
from quantkit.convert.tensorflow_to_onnx.translator import Translation, Translator
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
