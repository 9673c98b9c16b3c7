"""Shapes of ONNX graphs, and the integers that they compute from shapes."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, Shape, Tensor
from quantkit.ops.onnx import sizes as size_rules
from quantkit.ops.onnx.kernels import evaluate
from quantkit.ops.onnx.shapes import RULES
from quantkit.ops.onnx.types import infer_types
from quantkit.ops.shape_rules import UNKNOWN
from quantkit.ops.size_inference import Sizes, as_tensor, of_tensor

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
            if not is_input:
                self._infer_sizes(node, constants)
        except _FAULTS:
            return  # the node is invalid: the runtime reports that with more detail

    def _value(self, edge: Edge) -> Tensor | None:
        value = self._values.get(edge)
        if value is None and edge.node not in self._graph.input_names:
            value = self._graph.constant_of(edge)
        return value

    def _compute(self, node: Node, constants: Mapping[int, Tensor]) -> bool:
        """Compute the values of a small node whose inputs are known; return False if an input is not."""
        arrays: list[Array | None]
        if node.op == "Shape" and node.inputs and self.shapes.get(node.inputs[0], UNKNOWN).is_known:
            arrays = [np.broadcast_to(np.int8(0), self.shapes[node.inputs[0]].sizes)]
        elif node.op not in VALUE_OPS or len(constants) < sum(1 for edge in node.inputs if edge.node):
            return False
        else:
            inputs = [constants.get(slot) for slot in range(len(node.inputs))]
            if any(value is not None and value.num_elements > MAX_ELEMENTS for value in inputs):
                return False
            arrays = [None if value is None else value.array for value in inputs]
        if node.op in ("Expand", "ConstantOfShape", "Tile", "Range") and not self._is_small(node, constants):
            return False
        for port, array in enumerate(evaluate(node, arrays, is_folded=True)):
            if array.size > MAX_ELEMENTS:
                return False
            edge = Edge(node.name, port)
            self._values[edge] = Tensor.of(array)
            self.shapes[edge] = Shape(array.shape)
            if (sizes_of_value := of_tensor(self._values[edge])) is not None:
                self.sizes[edge] = sizes_of_value
        return True

    def _is_small(self, node: Node, constants: Mapping[int, Tensor]) -> bool:
        self._infer_shapes(node, constants)
        shape = self.shapes.get(Edge(node.name), UNKNOWN)
        return shape.is_known and math.prod(shape.sizes) <= MAX_ELEMENTS

    def _infer_shapes(self, node: Node, constants: Mapping[int, Tensor]) -> None:
        input_shapes = [self.shapes.get(edge, UNKNOWN) for edge in node.inputs]
        results: Sequence[Shape] = ()
        if node.op in size_rules.PARTIAL_SHAPES and (sizes := self._sizes_of(node, constants)):
            try:
                results = size_rules.PARTIAL_SHAPES[node.op](node, input_shapes, sizes)
            except _FAULTS:
                results = ()
        if not results and node.op in RULES:
            results = RULES[node.op](node, input_shapes, constants)
        for port, shape in enumerate(results):
            edge = Edge(node.name, port)
            if shape.dims is not None or edge not in self.shapes:
                self.shapes[edge] = shape  # stated sizes are often those of another batch size

    def _infer_sizes(self, node: Node, constants: Mapping[int, Tensor]) -> None:
        rule = size_rules.RULES.get(node.op)
        if rule is None:
            return
        input_shapes = [self.shapes.get(edge, UNKNOWN) for edge in node.inputs]
        for port, sizes in enumerate(rule(node, input_shapes, self._sizes_of(node, constants))):
            edge = Edge(node.name, port)
            self.sizes[edge] = sizes
            self.shapes[edge] = Shape(sizes.shape)
            if (value := as_tensor(sizes, self._types.get(edge))) is not None:
                self._values[edge] = value

    def _sizes_of(self, node: Node, constants: Mapping[int, Tensor]) -> dict[int, Sizes]:
        """Return the integers of the inputs; None for an unknown element."""
        sizes = {slot: self.sizes[edge] for slot, edge in enumerate(node.inputs) if edge in self.sizes}
        constant_sizes = {slot: of_tensor(value) for slot, value in constants.items()}
        return sizes | {slot: values for slot, values in constant_sizes.items() if values is not None}
