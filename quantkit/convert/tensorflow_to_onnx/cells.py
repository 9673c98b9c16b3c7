"""Recurrent cells in the body of a loop.

    LSTM   c' = sigmoid(f) * c + sigmoid(i) * tanh(g),   h' = sigmoid(o) * tanh(c')
    GRU    h' = sigmoid(z) * h + (1 - sigmoid(z)) * tanh(a)
           a = x @ W + (sigmoid(r) * h) @ R + b,  or  a = x @ W + b + sigmoid(r) * (h @ R + c)

The gates i, f, g, o, z and r are affine functions of the row x and the state h.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantkit.convert.tensorflow_to_onnx.affine import ADDITIONS, AffineFunction, affine_of, columns_of
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, Shape


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
