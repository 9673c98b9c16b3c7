"""Shapes of ONNX graphs, and the integers that they compute from shapes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, Shape, Tensor
from quantkit.ops.onnx.kernels import evaluate
from quantkit.ops.onnx.partial_shapes import ATTRIBUTES, PARTIAL_SHAPES
from quantkit.ops.onnx.shapes import RULES
from quantkit.ops.onnx.types import infer_types
from quantkit.ops.shape_rules import UNKNOWN, dims_of
from quantkit.ops.size_inference import Sizes, as_tensor, compute, of_tensor, scalar, vector

# Values with more elements are not computed: no list of sizes is longer.
MAX_ELEMENTS = 64
# Op types of shape arithmetic; their meaning is the same in all opsets.
VALUE_OPS = frozenset(
    {
        *("Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Flatten", "Floor"),
        *("Gather", "Greater", "Identity", "Less", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range"),
        *("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterND", "Slice", "Split"),
        *("Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where"),
    }
)
_FAULTS = (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError, QuantkitError)


def infer(
    graph: Graph, known_shapes: Mapping[Edge, Shape] | None = None
) -> tuple[Mapping[Edge, Shape], Mapping[Edge, Sizes]]:
    """Return the shapes of all edges, and the integers that the graph computes from shapes.

    Args:
        graph: graph of dialect ``onnx``.
        known_shapes: shapes by edge as stated by the file, for ops without a rule.

    Raises:
        GraphError: the nodes form a cycle.
    """
    inference = _Inference(graph, known_shapes or {})
    for name in graph.order:
        inference.visit(graph[name])
    return inference.shapes, inference.sizes


class _Inference:
    """Results for the nodes visited so far."""

    def __init__(self, graph: Graph, known_shapes: Mapping[Edge, Shape]) -> None:
        self._graph = graph
        self._values: dict[Edge, Tensor] = {}
        self._types = infer_types(graph)
        self.shapes: dict[Edge, Shape] = dict(known_shapes)
        self.sizes: dict[Edge, Sizes] = {}

    def visit(self, node: Node) -> None:
        """Infer the outputs of a node whose producers were visited."""
        is_input = node.name in self._graph.input_names
        constants = {slot: value for slot, edge in enumerate(node.inputs) if (value := self._value(edge)) is not None}
        try:
            if not is_input and self._compute(node, constants):
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
        """Compute the values of a small node, some of which may be unknown integers; return False if an input is."""
        if node.op in ("Shape", "Size"):
            outputs: Sequence[Array] = [self._count(node)]
        else:
            inputs = [
                constants[slot].array if slot in constants else self.sizes.get(edge)
                for slot, edge in enumerate(node.inputs)
            ]
            is_known = all(array is not None or not edge.node for array, edge in zip(inputs, node.inputs, strict=True))
            if node.op not in VALUE_OPS or not is_known:
                return False
            if any(array is not None and array.size > MAX_ELEMENTS for array in inputs):
                return False
            if node.op in ("Expand", "ConstantOfShape", "Tile", "Range") and not self._is_small(node, constants):
                return False
            outputs = compute(lambda arrays: evaluate(node, arrays, is_folded=True), inputs)
        for port, array in enumerate(outputs):
            if array.size > MAX_ELEMENTS:
                return False
            edge = Edge(node.name, port)
            self.shapes[edge] = Shape(array.shape)
            is_partial = array.dtype == object
            value = as_tensor(array, self._types.get(edge)) if is_partial else Tensor.of(array)
            sizes = array if is_partial else of_tensor(Tensor.of(array))
            self._values |= {} if value is None else {edge: value}
            self.sizes |= {} if sizes is None else {edge: sizes}
        return True

    def _count(self, node: Node) -> Sizes:
        """Return the integers of a Shape or Size node."""
        shape, attrs = self.shapes.get(node.inputs[0], UNKNOWN), cast("Mapping[str, Any]", node.attrs)
        if node.op == "Size":
            return scalar(math.prod(shape.sizes))
        return vector(dims_of(shape)[attrs.get("start", 0) : attrs.get("end")])

    def _is_small(self, node: Node, constants: Mapping[int, Tensor]) -> bool:
        self._infer_shapes(node, constants)
        shape = self.shapes.get(Edge(node.name), UNKNOWN)
        return shape.is_known and math.prod(shape.sizes) <= MAX_ELEMENTS

    def _infer_shapes(self, node: Node, constants: Mapping[int, Tensor]) -> None:
        input_shapes = [self.shapes.get(edge, UNKNOWN) for edge in node.inputs]
        results: Sequence[Shape] = ()
        if node.op in PARTIAL_SHAPES and (sizes := self._sizes_of(node, constants)):
            try:
                results = PARTIAL_SHAPES[node.op](node, input_shapes, sizes)
            except _FAULTS:
                results = ()
        if not results and node.op in RULES:
            results = RULES[node.op](node, input_shapes, constants)
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
