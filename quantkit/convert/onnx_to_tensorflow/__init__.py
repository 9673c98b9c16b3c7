"""Conversion of ONNX graphs to TensorFlow graphs.

Transforms and targets for TensorFlow graphs then apply to ONNX models.
"""

from quantkit.formats import onnx
from quantkit.formats.metadata import text_of, with_text
from quantkit.ir.graph import Graph
from quantkit.registry import import_modules


def convert(graph: Graph) -> Graph:
    """Convert an ONNX graph to a TensorFlow graph.

    Inputs and outputs keep their layout, and their names except for characters that TensorFlow rejects. A graph with
    Upsample, which later opsets lack, is converted from its form in opset 13.

    Raises:
        UnavailableError: a node is not supported.
        GraphError: the nodes form a cycle.
    """
    from quantkit.convert.onnx_opsets import raise_opset
    from quantkit.convert.onnx_to_tensorflow.scaled_swishes import separate_scales
    from quantkit.convert.onnx_to_tensorflow.translator import OnnxTranslator

    import_modules(__name__)  # they register handlers for op types; TensorFlow graphs need none of them
    graph = raise_opset(graph) if "Upsample" in graph.op_counts else graph
    return separate_scales(OnnxTranslator(graph).translate())


def as_tensorflow(graph: Graph) -> Graph:
    """Return a graph of TensorFlow ops; an ONNX graph is converted with `convert`."""
    return with_text(convert(graph), text_of(graph)) if graph.dialect == onnx.DIALECT else graph
