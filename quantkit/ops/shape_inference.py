"""Static shape inference.

None stands for an unknown size. The outputs of an op without a rule have unknown rank. Inference does not raise on a
graph with unusual nodes.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple, cast

from quantkit.arguments import public
from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, Shape, Tensor
from quantkit.ops import size_inference
from quantkit.ops.kernels import evaluate
from quantkit.ops.onnx import inference as onnx_inference
from quantkit.ops.shape_rules import UNKNOWN as UNKNOWN
from quantkit.ops.shape_rules import dims_of
from quantkit.ops.size_inference import MAX_ELEMENTS, Sizes
from quantkit.ops.tensorflow import shapes as tensorflow_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes

# Name of the shapes in `Graph.analyses`.
SHAPES = "shapes"
# Op types of shape arithmetic.
COMPUTED_OPS = frozenset(
    {
        *("Add", "AddV2", "Cast", "Concat", "ConcatV2", "EnsureShape", "ExpandDims", "FloorDiv", "FloorMod", "Gather"),
        *("GatherV2", "Identity", "Max", "Maximum", "Min", "Minimum", "Mul", "Pack", "Prod", "Range", "Rank"),
        *("Reshape", "Shape", "Size", "Slice", "Squeeze", "StopGradient", "StridedSlice", "Sub", "Sum"),
    }
)
# Input index of the output shape.
SHAPE_INPUTS = {"Reshape": 1, "Fill": 0, "BroadcastTo": 1, "Conv2DBackpropInput": 0}


class Inference(NamedTuple):
    """Result of shape inference.

    Attributes:
        shapes: shapes by edge; edges of unknown rank may be missing.
        sizes: integers that the graph computes from shapes, by edge; None for an unknown integer.
    """

    shapes: Mapping[Edge, Shape]
    sizes: Mapping[Edge, Sizes]


@public
def infer_shapes(graph: Graph, known_shapes: Mapping[Edge, Shape] | None = None) -> Mapping[Edge, Shape]:
    """Infer the shapes of all edges, once for each graph unless the file states shapes.

    Args:
        graph: graph of either dialect.
        known_shapes: shapes by edge as stated by the file, for ops without a rule.

    Raises:
        GraphError: the nodes form a cycle.
    """
    if known_shapes:
        return infer(graph, known_shapes).shapes
    if SHAPES not in graph.analyses:
        graph.analyses[SHAPES] = infer(graph).shapes
    shapes: Mapping[Edge, Shape] = graph.analyses[SHAPES]
    return shapes


def infer(graph: Graph, known_shapes: Mapping[Edge, Shape] | None = None) -> Inference:
    """Infer the shapes of all edges, and the integers that the graph computes from shapes.

    Args:
        graph: graph of either dialect.
        known_shapes: shapes by edge as stated by the file, for ops without a rule.

    Raises:
        GraphError: the nodes form a cycle.
    """
    if graph.dialect == "onnx":
        return Inference(*onnx_inference.infer(graph, known_shapes))
    shapes: dict[Edge, Shape] = dict(known_shapes or {})
    sizes: dict[Edge, Sizes] = {}
    values: dict[Edge, Tensor] = {}
    for name in graph.order:
        node = graph[name]
        may_have_sizes = node.op in COMPUTED_OPS
        if node.op not in tensorflow_shapes.RULES and not may_have_sizes:
            continue
        input_shapes = [shapes.get(edge, UNKNOWN) for edge in node.inputs]
        constants = {
            slot: value
            for slot, edge in enumerate(node.inputs)
            if (value := values.get(edge) or graph.constant_of(edge)) is not None
        }
        output_sizes = _infer_sizes(graph, node, input_shapes, constants, sizes) if may_have_sizes else None
        if output_sizes is not None:
            sizes[Edge(name)] = output_sizes
            shapes[Edge(name)] = Shape(output_sizes.shape)
            if (value := size_inference.as_tensor(output_sizes, output_dtypes(node)[0])) is not None:
                values[Edge(name)] = value
            continue
        for port, shape in enumerate(_infer_outputs(node, input_shapes, constants, sizes)):
            if shape.dims is not None or Edge(name, port) not in shapes:
                shapes[Edge(name, port)] = shape
    return Inference(shapes, sizes)


def _infer_outputs(
    node: Node, input_shapes: Sequence[Shape], constants: Mapping[int, Tensor], sizes: Mapping[Edge, Sizes]
) -> Sequence[Shape]:
    """Return the output shapes of a node; empty without a rule, or if the node is invalid.

    The runtime reports an invalid node with more detail.
    """
    rule, slot = tensorflow_shapes.RULES.get(node.op), SHAPE_INPUTS.get(node.op)
    if rule is None:
        return ()
    try:
        if node.op == "Tile" and 1 not in constants:  # by a dynamic batch
            multiples = sizes.get(node.inputs[1])
            unknown = [None] * len(input_shapes[0].dims or ())
            factors = unknown if multiples is None else multiples.tolist()
            return [tensorflow_shapes.multiply_sizes(input_shapes[0], factors)]
        stated = None if slot is None or slot in constants else sizes.get(node.inputs[slot])
        return rule(node, input_shapes, constants) if stated is None else [size_inference.as_shape(stated)]
    except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError, QuantkitError):
        return ()


def _infer_sizes(
    graph: Graph,
    node: Node,
    input_shapes: Sequence[Shape],
    constants: Mapping[int, Tensor],
    sizes: Mapping[Edge, Sizes],
) -> Sizes | None:
    """Return the integers that a node computes from shapes; None if all are unknown."""
    if node.name in graph.input_names:
        return None
    inputs = [sizes.get(edge) for edge in node.inputs]
    for slot, value in constants.items():
        inputs[slot] = size_inference.of_tensor(value)
    try:
        if node.op == "Shape":
            return size_inference.vector(dims_of(input_shapes[0]))
        if node.op == "Rank":
            return size_inference.scalar(len(dims_of(input_shapes[0])))
        if node.op == "Size":
            return size_inference.scalar(prod(input_shapes[0].sizes) if input_shapes[0].is_known else None)
        # Pack requires equal shapes: if one input is a scalar, all are, including unknown ones.
        if node.op == "Pack" and any(part is not None and not part.ndim for part in inputs):
            inputs = [size_inference.scalar(None) if part is None else part for part in inputs]
        if not inputs or any(part is None or part.size > MAX_ELEMENTS for part in inputs):
            return None
        (output,) = size_inference.compute(lambda arrays: evaluate(node, cast("list[Array]", arrays)), inputs)
    except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError, QuantkitError):
        return None
    is_small = output.size <= MAX_ELEMENTS and output.dtype.kind in "iO"
    return output.astype(object) if is_small else None
