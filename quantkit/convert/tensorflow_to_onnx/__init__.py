"""Conversion of TensorFlow inference graphs to ONNX graphs."""

from quantkit.convert.tensorflow_to_onnx.control_flow import lower
from quantkit.convert.tensorflow_to_onnx.translator import Translation, Translator
from quantkit.ir.graph import Graph
from quantkit.registry import import_modules

import_modules(__name__)  # each module registers handlers for op types


def convert(graph: Graph) -> Graph:
    """Convert a frozen TensorFlow graph to an ONNX graph.

    Args:
        graph: graph with inputs and outputs; inputs can be internal tensors.

    Raises:
        UnavailableError: a node is not supported.
        GraphError: an input is not in the graph, or the nodes form a cycle.
    """
    return translate(graph).graph


def translate(graph: Graph) -> Translation:
    """Convert as `convert`, and return the ONNX edge of each TensorFlow edge as well.

    Raises:
        UnavailableError: a node is not supported.
        GraphError: an input is not in the graph, or the nodes form a cycle.
    """
    return Translator(lower(graph)).translate()
