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
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops import kernels
from quantkit.ops.onnx import kernels as onnx_kernels
from quantkit.ops.onnx import shapes as onnx_shapes
from quantkit.ops.onnx.partial_shapes import ATTRIBUTES
from quantkit.ops.onnx.partial_shapes import PARTIAL_SHAPES as ONNX_PARTIAL_SHAPES
from quantkit.ops.onnx.types import infer_types
from quantkit.ops.shape_rules import UNKNOWN as UNKNOWN
from quantkit.ops.shape_rules import Sizes, dims_of
from quantkit.ops.size_inference import MAX_ELEMENTS, as_tensor, compute, of_tensor, scalar, vector
from quantkit.ops.tensorflow import shapes as tensorflow_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes

# Name of the shapes in `Graph.analyses`.
SHAPES = "shapes"
# Op types of shape arithmetic; in ONNX, their meaning is the same in all opsets.
_TENSORFLOW_OPS = frozenset(
    {
        *("Add", "AddV2", "Cast", "Concat", "ConcatV2", "EnsureShape", "ExpandDims", "FloorDiv", "FloorMod", "Gather"),
        *("GatherV2", "Identity", "Max", "Maximum", "Min", "Minimum", "Mul", "Pack", "Prod", "Range", "Rank"),
        *("Reshape", "Shape", "Size", "Slice", "Squeeze", "StopGradient", "StridedSlice", "Sub", "Sum"),
    }
)
_ONNX_OPS = frozenset(
    {
        *("Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Flatten", "Floor"),
        *("Gather", "Greater", "Identity", "Less", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range"),
        *("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterND", "Shape", "Size"),
        *("Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where"),
    }
)
_FAULTS = (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError, QuantkitError)


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
    inference = _Inference(graph, known_shapes or {})
    for name in graph.order:
        inference.visit(graph[name])
    return Inference(inference.shapes, inference.sizes)


class _Inference:
    """Results for the nodes visited so far."""

    def __init__(self, graph: Graph, known_shapes: Mapping[Edge, Shape]) -> None:
        self._graph = graph
        self._is_onnx = graph.dialect == "onnx"
        self._values: dict[Edge, Tensor] = {}
        self._types = infer_types(graph) if self._is_onnx else {}
        self._value_ops = _ONNX_OPS if self._is_onnx else _TENSORFLOW_OPS
        self._rules = onnx_shapes.RULES if self._is_onnx else tensorflow_shapes.RULES
        self._partial_rules = ONNX_PARTIAL_SHAPES if self._is_onnx else tensorflow_shapes.PARTIAL_SHAPES
        self.shapes: dict[Edge, Shape] = dict(known_shapes)
        self.sizes: dict[Edge, Sizes] = {}

    def visit(self, node: Node) -> None:
        """Infer the outputs of a node whose producers were visited."""
        if node.op not in self._value_ops and node.op not in self._rules:
            return
        constants = {slot: value for slot, edge in enumerate(node.inputs) if (value := self._value(edge)) is not None}
        is_computed = node.op in self._value_ops and node.name not in self._graph.input_names
        try:
            if is_computed and self._compute(node, constants):
                return
        except _FAULTS:
            pass  # the shape may be known without the value
        try:
            self._infer_shapes(node, constants)
        except _FAULTS:
            return  # the node is invalid: the runtime reports that with more detail

    def _value(self, edge: Edge) -> Tensor | None:
        value = self._values.get(edge)
        if value is None and edge.node not in self._graph.input_names:
            value = self._graph.constant_of(edge)
        return value

    def _compute(self, node: Node, constants: Mapping[int, Tensor]) -> bool:
        """Compute the outputs of a node from small inputs, also unknown integers; return False without one."""
        if node.op in ("Shape", "Size", "Rank"):
            outputs: Sequence[Array] = [self._count(node)]
        else:
            inputs = [
                constants[slot].array if slot in constants else self.sizes.get(edge)
                for slot, edge in enumerate(node.inputs)
            ]
            # Pack requires equal shapes: if one input is a scalar, all are, including unknown ones.
            if node.op == "Pack" and any(array is not None and not array.ndim for array in inputs):
                inputs = [scalar(None) if array is None else array for array in inputs]
            if not inputs or any(
                edge.node if array is None else array.size > MAX_ELEMENTS or array.dtype.kind not in "biufO"
                for array, edge in zip(inputs, node.inputs, strict=True)
            ):
                return False
            if self._is_onnx and node.op in ("Expand", "ConstantOfShape", "Tile", "Range"):
                self._infer_shapes(node, constants)
                shape = self.shapes.get(Edge(node.name), UNKNOWN)
                if not shape.is_known or prod(shape.sizes) > MAX_ELEMENTS:
                    return False
            outputs = compute(lambda arrays: self._evaluate(node, arrays), inputs)
        for port, array in enumerate(outputs):
            if array.size > MAX_ELEMENTS:
                return False
            edge = Edge(node.name, port)
            self.shapes[edge] = Shape(array.shape)
            is_partial = array.dtype == object
            value = as_tensor(array, self._type(node, port)) if is_partial else Tensor.of(array)
            sizes = array if is_partial else of_tensor(Tensor.of(array))
            self._values |= {} if value is None else {edge: value}
            self.sizes |= {} if sizes is None else {edge: sizes}
        return True

    def _count(self, node: Node) -> Sizes:
        """Return the integers of a Shape, Size or Rank node."""
        shape, attrs = self.shapes.get(node.inputs[0], UNKNOWN), node.attrs
        if node.op == "Size":
            return scalar(prod(shape.sizes) if shape.is_known else None)
        if node.op == "Rank":
            return scalar(len(dims_of(shape)))
        return vector(dims_of(shape)[attrs.get("start", 0) : attrs.get("end")])

    def _evaluate(self, node: Node, arrays: Sequence[Array | None]) -> Sequence[Array]:
        if self._is_onnx:
            return onnx_kernels.evaluate(node, arrays, is_folded=True)
        return kernels.evaluate(node, cast("list[Array]", arrays), MAX_ELEMENTS * DType.INT64.num_bytes)

    def _type(self, node: Node, port: int) -> DType | None:
        return self._types.get(Edge(node.name, port)) if self._is_onnx else output_dtypes(node)[port]

    def _infer_shapes(self, node: Node, constants: Mapping[int, Tensor]) -> None:
        input_shapes = [self.shapes.get(edge, UNKNOWN) for edge in node.inputs]
        results: Sequence[Shape] = ()
        if node.op in self._partial_rules and (sizes := self._sizes_of(node, constants)):
            try:
                results = self._partial_rules[node.op](node, input_shapes, sizes)
            except _FAULTS:
                results = ()
        if not results and node.op in self._rules:
            results = self._rules[node.op](node, input_shapes, constants)
        for port, shape in enumerate(results):
            edge = Edge(node.name, port)
            if shape.dims is not None or edge not in self.shapes:
                self.shapes[edge] = shape  # stated sizes are often those of another batch size

    def _sizes_of(self, node: Node, constants: Mapping[int, Tensor]) -> dict[int, Sizes]:
        """Return the integers of the inputs, and of attributes that later opsets replace by inputs."""
        sizes = {slot: self.sizes[edge] for slot, edge in enumerate(node.inputs) if edge in self.sizes}
        constant_sizes = {slot: of_tensor(value) for slot, value in constants.items()}
        stated = {slot: node.attrs.get(name) for slot, name in enumerate(ATTRIBUTES.get(node.op, ()), 1)}
        attributes = {slot: vector(values) for slot, values in stated.items() if isinstance(values, tuple)}
        return attributes | sizes | {slot: values for slot, values in constant_sizes.items() if values is not None}
