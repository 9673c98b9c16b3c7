"""Static shapes.

Where a size can not be known it is None, and where an op has no rule (`tensorflow_shapes`, `onnx`) its outputs have
unknown rank. Nothing here raises on a graph that is merely unusual.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape, Tensor
from quantkit.ops import known_sizes
from quantkit.ops.known_sizes import Sizes
from quantkit.ops.onnx import shapes as onnx_shapes
from quantkit.ops.shape_rules import UNKNOWN as UNKNOWN
from quantkit.ops.shape_values import SIZING, shape_value
from quantkit.ops.tensorflow import shapes as tensorflow_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes

COMPUTING = SIZING | known_sizes.RULES.keys()
# Where ops read the shape of what they give.
SIZED = {"Reshape": 1, "Fill": 0, "BroadcastTo": 1, "Conv2DBackpropInput": 0}


class Inference(NamedTuple):
    """What is known of a graph before it runs.

    Attributes:
        shapes: of every edge that something is known of.
        sizes: whole numbers that are computed of shapes, by edge, None for those that are not known.
    """

    shapes: Mapping[Edge, Shape]
    sizes: Mapping[Edge, Sizes]


def infer_shapes(graph: Graph, known: Mapping[Edge, Shape] | None = None) -> Mapping[Edge, Shape]:
    """The shape of every edge that something is known of.

    Args:
        graph: of TensorFlow's or of ONNX's ops.
        known: what the file says of edges whose ops have no rule, or do not tell.

    Raises:
        GraphError: the nodes form a cycle.
    """
    return infer(graph, known).shapes


def infer(graph: Graph, known: Mapping[Edge, Shape] | None = None) -> Inference:
    """The shapes of a graph, and what is known of numbers that it computes of them.

    Args:
        graph: of TensorFlow's or of ONNX's ops.
        known: what the file says of edges whose ops have no rule, or do not tell.

    Raises:
        GraphError: the nodes form a cycle.
    """
    shapes: dict[Edge, Shape] = dict(known or {})
    sizes: dict[Edge, Sizes] = {}
    values: dict[Edge, Tensor] = {}
    rules, sizing = (
        (onnx_shapes.RULES, frozenset[str]()) if graph.dialect == "onnx" else (tensorflow_shapes.RULES, COMPUTING)
    )
    for name in graph.order:
        node = graph[name]
        rule = rules.get(node.op)
        is_sizing = node.op in sizing
        if rule is None and not is_sizing:
            continue
        given = [shapes.get(edge, UNKNOWN) for edge in node.inputs]
        constants = {
            slot: value
            for slot, edge in enumerate(node.inputs)
            if (value := values.get(edge) or graph.constant_of(edge)) is not None
        }
        if is_sizing and (told := _told(graph, node, given, constants, sizes)) is not None:
            sizes[Edge(name)] = told
            shapes[Edge(name)] = Shape(told.shape)
            if (whole := known_sizes.as_tensor(told, output_dtypes(node)[0])) is not None:
                values[Edge(name)] = whole
            continue
        if rule is None:
            continue
        slot = SIZED.get(node.op)
        wanted = None if slot is None or slot in constants else sizes.get(node.inputs[slot])
        try:
            made = rule(node, given, constants) if wanted is None else [known_sizes.as_shape(wanted)]
        except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError, QuantkitError):
            continue  # the graph does not fit the op: whoever runs it will say so better
        for port, shape in enumerate(made):
            if shape.dims is not None or Edge(name, port) not in shapes:
                shapes[Edge(name, port)] = shape
    return Inference(shapes, sizes)


def _told(
    graph: Graph, node: Node, given: Sequence[Shape], constants: Mapping[int, Tensor], sizes: Mapping[Edge, Sizes]
) -> Sizes | None:
    """The whole numbers that a node computes of shapes, as far as they are known; None: none is."""
    if node.name in graph.input_names:
        return None
    if (value := shape_value(node, constants)) is not None:
        return known_sizes.of_tensor(value)
    rule = known_sizes.RULES.get(node.op)
    if rule is None:
        return None
    reads = {slot: sizes[edge] for slot, edge in enumerate(node.inputs) if edge in sizes}
    reads |= {slot: one for slot, value in constants.items() if (one := known_sizes.of_tensor(value)) is not None}
    try:
        return rule(node, given, reads)
    except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError):
        return None
