"""Shapes of ONNX graphs, with those that the file states."""

from collections.abc import Mapping

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Shape
from quantkit.ops import shape_inference


def infer_shapes(graph: Graph) -> Mapping[Edge, Shape]:
    """Return the shape of each edge."""
    stated = {edge: shape for edge, (_, shape) in onnx.value_infos(graph).items()}
    return shape_inference.infer_shapes(graph, stated)
