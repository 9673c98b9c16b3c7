"""Shapes of ONNX graphs, with those that the file states."""

from collections.abc import Mapping

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Shape
from quantkit.ops import shape_inference

# Name of the shapes in `Graph.analyses`.
STATED_SHAPES = "stated shapes"


def infer_shapes(graph: Graph) -> Mapping[Edge, Shape]:
    """Return the shape of each edge, inferred once for each graph."""
    if STATED_SHAPES not in graph.analyses:
        stated = {edge: shape for edge, (_, shape) in onnx.value_infos(graph).items()}
        graph.analyses[STATED_SHAPES] = shape_inference.infer_shapes(graph, stated)
    shapes: Mapping[Edge, Shape] = graph.analyses[STATED_SHAPES]
    return shapes
