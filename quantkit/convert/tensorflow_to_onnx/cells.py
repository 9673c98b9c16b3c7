"""Recurrent cells in the body of a loop.

    LSTM   c' = sigmoid(f) * c + sigmoid(i) * tanh(g),   h' = sigmoid(o) * tanh(c')
    GRU    h' = sigmoid(z) * h + (1 - sigmoid(z)) * tanh(a)
           a = x @ W + (sigmoid(r) * h) @ R + b,  or  a = x @ W + b + sigmoid(r) * (h @ R + c)

The gates i, f, g, o, z and r are affine functions of the row x and the state h. A cell computes them in one product of
the concatenated inputs or in several, for all gates together or for each.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.tensorflow.signatures import output_dtypes

ADDITIONS = frozenset({"Add", "AddV2", "BiasAdd"})


@dataclass(frozen=True)
class AffineFunction:
    """Value as an affine function of other values: the sum of edge @ weights[edge] over all edges, plus bias.

    Attributes:
        weights: (k, m) by edge of shape (n, k).
        bias: (m,), or () if all columns have the same bias.
    """

    weights: Mapping[Edge, Array]
    bias: Array

    def columns(self, part: slice) -> "AffineFunction":
        """Return a part of the columns."""
        bias = self.bias[part] if self.bias.ndim else self.bias
        return AffineFunction({edge: matrix[:, part] for edge, matrix in self.weights.items()}, bias)


def affine_of(graph: Graph, shapes: Mapping[Edge, Shape], edge: Edge) -> AffineFunction | None:
    """Return a value of rank 2 as an affine function of inputs of products; None for other values.

    Args:
        graph: graph without copies of values.
        shapes: shapes of its edges.
        edge: value, (n, m).
    """
    node = graph[edge.node]
    tensor = graph.constant_of(edge)
    if tensor is not None:
        is_row = tensor.dtype is DType.FLOAT and (len(tensor.shape) < 2 or tensor.shape[:-1] == (1,))
        return AffineFunction({}, tensor.array.reshape(tensor.shape[-1:])) if is_row else None
    if node.op == "MatMul" and not (node.attrs.get("transpose_a") or node.attrs.get("transpose_b")):
        return _product(graph, shapes, node)
    if node.op in ADDITIONS:
        terms = [affine_of(graph, shapes, source) for source in node.inputs]
        return _sum(terms[0], terms[1]) if terms[0] and terms[1] else None
    if (part := columns_of(graph, shapes, edge)) is not None:
        whole = affine_of(graph, shapes, part[0])
        return whole.columns(part[1]) if whole else None
    return None


def columns_of(graph: Graph, shapes: Mapping[Edge, Shape], edge: Edge) -> tuple[Edge, slice] | None:
    """Return the value of which an edge of rank 2 is a part of the columns, and these columns; None for other nodes."""
    node = graph[edge.node]
    if node.op == "Split":
        axis, source = graph.constant_of(node.inputs[0]), node.inputs[1]
        dims = shapes[source].dims if source in shapes else None
        width = dims[1] if dims is not None and len(dims) == 2 else None
        count = len(output_dtypes(node))
        if axis is None or int(axis.array) not in (1, -1) or width is None:
            return None
        return source, slice(edge.port * (width // count), (edge.port + 1) * (width // count))
    return _sliced_columns(graph, node) if node.op == "StridedSlice" else None


def _sliced_columns(graph: Graph, node: Node) -> tuple[Edge, slice] | None:
    limits = [graph.constant_of(source) for source in node.inputs[1:]]
    masks: dict[str, Any] = {
        name: node.attrs.get(f"{name}_mask", 0) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if any(limit is None or limit.shape != (2,) for limit in limits):
        return None
    if masks["ellipsis"] or masks["new_axis"] or masks["shrink_axis"]:
        return None
    begins, ends, steps = (limit.array.tolist() for limit in limits if limit is not None)
    begin, end = (
        [None if masks[name] >> axis & 1 else values[axis] for axis in (0, 1)]
        for name, values in (("begin", begins), ("end", ends))
    )
    has_all_rows = begin[0] in (None, 0) and end[0] is None
    return (node.inputs[0], slice(begin[1], end[1])) if has_all_rows and steps == [1, 1] else None


def _sum(first: AffineFunction, second: AffineFunction) -> AffineFunction:
    weights = dict(first.weights)
    for edge, matrix in second.weights.items():
        weights[edge] = weights[edge] + matrix if edge in weights else matrix
    return AffineFunction(weights, first.bias + second.bias)


def _product(graph: Graph, shapes: Mapping[Edge, Shape], node: Node) -> AffineFunction | None:
    matrix = graph.constant_of(node.inputs[1])
    if matrix is None or matrix.dtype is not DType.FLOAT:
        return None
    edges = _find_parts(graph, node.inputs[0])
    widths = [
        dims[1] if (dims := shapes[edge].dims if edge in shapes else None) and len(dims) == 2 else None
        for edge in edges
    ]
    if widths.count(None) == 1:  # the other widths determine it
        others = sum(width for width in widths if width is not None)
        widths[widths.index(None)] = matrix.shape[0] - others
    if None in widths or sum(width or 0 for width in widths) != matrix.shape[0]:
        return None
    zero = np.zeros((), np.float32)
    result, start = AffineFunction({}, zero), 0
    for edge, width in zip(edges, widths, strict=True):
        stop = start + (width or 0)
        result = _sum(result, AffineFunction({edge: matrix.array[start:stop]}, zero))
        start = stop
    return result


def _find_parts(graph: Graph, edge: Edge) -> Sequence[Edge]:
    """Return the parts of a value that is concatenated along its columns."""
    node = graph[edge.node]
    if node.op != "ConcatV2":
        return [edge]
    axis = graph.constant_of(node.inputs[-1])
    if axis is None or int(axis.array) not in (1, -1):
        return [edge]
    return node.inputs[:-1]


@dataclass(frozen=True)
class Cell:
    """Cell of a recurrent layer.

    Attributes:
        op: ``LSTM`` or ``GRU``.
        row: x, an edge of the body.
        weights: (gates * m, k) for x; the gates are in ONNX's order i, o, f, g or z, r, a.
        recurrent_weights: (gates * m, m) for h.
        bias: (2 * gates * m,) for both products.
        is_reset_after: the reset gate of a GRU multiplies the product of h instead of h.
    """

    op: str
    row: Edge
    weights: Array
    recurrent_weights: Array
    bias: Array
    is_reset_after: bool = False


@dataclass(frozen=True)
class CellReader:
    """Body of a loop in which cells are found.

    Attributes:
        body: body without copies of values.
        shapes: shapes of its edges.
    """

    body: Graph
    shapes: Mapping[Edge, Shape]

    def lstm(self, state: Edge, cell_state: Edge, new_state: Edge, new_cell_state: Edge) -> Cell | None:
        """Return the LSTM cell that computes the new values of h and c; None if they are computed otherwise."""
        for factor, activated in self._operands(new_state, "Mul"):
            output = self._gate(factor, "Sigmoid")
            tanh = self.body[activated.node]
            if output is None or tanh.op != "Tanh" or tanh.inputs[0] != new_cell_state:
                continue
            for old_part, new_part in self._operands(new_cell_state, *ADDITIONS):
                forget = self._gate_of_product(old_part, cell_state)
                for gate, candidate in self._operands(new_part, "Mul"):
                    gates = [self._gate(gate, "Sigmoid"), output, forget, self._gate(candidate, "Tanh")]
                    if (cell := _cell("LSTM", state, gates)) is not None:
                        return cell
        return None

    def gru(self, state: Edge, new_state: Edge) -> Cell | None:
        """Return the GRU cell that computes the new value of h; None if it is computed otherwise."""
        for old_part, new_part in self._operands(new_state, *ADDITIONS):
            for update, old in self._operands(old_part, "Mul"):
                for rest, candidate in self._operands(new_part, "Mul"):
                    tanh = self.body[candidate.node]
                    if old == state and tanh.op == "Tanh" and self._is_complement(rest, update):
                        gate = self._gate(update, "Sigmoid")
                        if (cell := self._gru_cell(state, gate, tanh.inputs[0])) is not None:
                            return cell
        return None

    def _gru_cell(self, state: Edge, update: AffineFunction | None, candidate: Edge) -> Cell | None:
        whole = affine_of(self.body, self.shapes, candidate)
        if whole is not None:
            for edge, matrix in whole.weights.items():
                reset = self._gate_of_product(edge, state)
                if reset is not None:
                    weights = {state if other == edge else other: array for other, array in whole.weights.items()}
                    weights[state] = matrix
                    return _cell("GRU", state, [update, reset, AffineFunction(weights, whole.bias)])
            return None
        for direct, product in self._operands(candidate, *ADDITIONS):
            for gate, recurrent in self._operands(product, "Mul"):
                gates = [update, self._gate(gate, "Sigmoid"), affine_of(self.body, self.shapes, direct)]
                inner = affine_of(self.body, self.shapes, recurrent)
                if inner is not None and inner.weights.keys() == {state}:
                    cell = _cell("GRU", state, gates, inner)
                    if cell is not None:
                        return cell
        return None

    def _operands(self, edge: Edge, *ops: str) -> Iterator[tuple[Edge, Edge]]:
        """Yield the inputs of a commutative node of some op types in both orders."""
        node = self.body[edge.node]
        if node.op in ops:
            first, second = node.inputs
            yield first, second
            yield second, first

    def _gate(self, edge: Edge, activation: str) -> AffineFunction | None:
        """Return the input of an activation, which may compute several gates at once."""
        source, columns = columns_of(self.body, self.shapes, edge) or (edge, slice(None))
        node = self.body[source.node]
        whole = affine_of(self.body, self.shapes, node.inputs[0]) if node.op == activation else None
        return whole.columns(columns) if whole is not None else None

    def _gate_of_product(self, edge: Edge, factor: Edge) -> AffineFunction | None:
        """Return the gate of the product of a gate and another value."""
        others = [gate for gate, other in self._operands(edge, "Mul") if other == factor]
        return self._gate(others[0], "Sigmoid") if others else None

    def _is_complement(self, edge: Edge, of: Edge) -> bool:
        """Return True if an edge is 1 minus another one."""
        node = self.body[edge.node]
        minuend = self.body.constant_of(node.inputs[0]) if node.op == "Sub" and node.inputs[1] == of else None
        return minuend is not None and bool(np.all(minuend.array == 1))


def _cell(
    op: str, state: Edge, gates: Sequence[AffineFunction | None], inner: AffineFunction | None = None
) -> Cell | None:
    """Return the cell with these gates in ONNX's order; None if a gate has other inputs than one row and the state.

    Args:
        inner: function of h of the last gate, if the last gate does not have h as an input.
    """
    present = [gate for gate in gates if gate is not None]
    rows = {edge for gate in present for edge in gate.weights if edge != state}
    if len(present) != len(gates) or len(rows) != 1:
        return None
    [row] = rows
    hidden = [gate.weights.get(state) for gate in present]
    if inner is not None and hidden[-1] is None:
        hidden[-1] = inner.weights[state]
    inputs = [gate.weights.get(row) for gate in present]
    weights, recurrent = ([matrix for matrix in matrices if matrix is not None] for matrices in (inputs, hidden))
    if (
        len(weights) != len(gates)
        or len(recurrent) != len(gates)
        or (inner is not None and state in present[-1].weights)
    ):
        return None
    size = recurrent[0].shape[0]
    if any(matrix.shape != (size, size) for matrix in recurrent) or any(matrix.shape[1] != size for matrix in weights):
        return None
    biases = [np.broadcast_to(gate.bias, size) for gate in present]
    inner_biases = [np.zeros(size, np.float32)] * len(gates)
    if inner is not None:
        inner_biases[-1] = np.broadcast_to(inner.bias, size)
    return Cell(
        op,
        row,
        np.concatenate(weights, 1).T,
        np.concatenate(recurrent, 1).T,
        np.concatenate([*biases, *inner_biases]),
        inner is not None,
    )
