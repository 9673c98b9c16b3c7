"""Conversion of LSTM and GRU to one cell for each step, such that their products can be quantized.

Sequences of unknown length, or of more than `MAX_STEPS` steps, become a loop around one cell.

LSTM, gates i o f c:   c' = sigmoid(f) c + sigmoid(i) tanh(g),   h' = sigmoid(o) tanh(c')
GRU, gates z r h:      h' = (1 - z) n + z h,   n = tanh(x W + r (h R + b))   with linear_before_reset, else (r h) R + b
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantkit.convert.onnx_to_tensorflow.recurrent_loops import convert_by_loop
from quantkit.convert.onnx_to_tensorflow.translator import PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import Array, DType

# Cells of many steps cost more time and space than a loop.
MAX_STEPS = 64
_ACTIVATIONS = {"LSTM": [b"Sigmoid", b"Tanh", b"Tanh"], "GRU": [b"Sigmoid", b"Tanh"]}


@dataclass
class _Cells:
    """Cells of one direction.

    Attributes:
        translator, node, prefix: state of the conversion, the recurrent node, and the prefix of new names.
        size: number of hidden units.
    """

    translator: OnnxTranslator
    node: Node
    prefix: str
    size: int

    def add(self, suffix: str, op: str, inputs: Sequence[Edge], **attrs: Any) -> Edge:
        return self.translator.add_intermediate(self.node, f"{self.prefix}/{suffix}", op, inputs, **attrs)

    def constant(self, suffix: str, values: Array) -> Edge:
        dtype = DType.INT32 if values.dtype.kind == "i" else DType.FLOAT
        return self.translator.add_array(self.node, f"{self.prefix}/{suffix}", values, dtype)

    def product(self, suffix: str, x: Edge, weights: Edge, bias: Edge) -> Edge:
        product = self.add(f"{suffix}/product", "MatMul", [x, weights], transpose_a=False, transpose_b=False)
        return self.add(suffix, "BiasAdd", [product, bias], data_format=b"NHWC")

    def split(self, suffix: str, value: Edge, count: int) -> list[Edge]:
        axis = self.constant(f"{suffix}/axis", np.int32(1))  # type: ignore[arg-type]
        edge = self.add(suffix, "Split", [axis, value], num_split=count)
        self.translator.nodes[edge.node] = self.translator.nodes[edge.node].with_attrs(T=self.translator.types[value])
        parts = [Edge(edge.node, port) for port in range(count)]
        self.translator.types |= dict.fromkeys(parts, self.translator.types[value])
        return parts


def _lstm_step(cells: _Cells, name: str, gates: list[Edge], c: Edge) -> tuple[Edge, Edge]:
    i, o, f = (cells.add(f"{name}/{gate}", "Sigmoid", [edge]) for gate, edge in zip("iof", gates[:3], strict=True))
    new = cells.add(f"{name}/g", "Tanh", [gates[3]])
    remembered, added = cells.add(f"{name}/kept", "Mul", [f, c]), cells.add(f"{name}/added", "Mul", [i, new])
    c = cells.add(f"{name}/c", "AddV2", [remembered, added])
    h = cells.add(f"{name}/h", "Mul", [o, cells.add(f"{name}/tanh", "Tanh", [c])])
    return h, c


@converts("LSTM GRU")
def _recurrent(translator: OnnxTranslator, node: Node) -> None:
    dims = translator.shape(node.inputs[0]).dims
    _check(translator, node)
    if dims is None or dims[0] is None or dims[0] > MAX_STEPS:
        convert_by_loop(translator, node)
        return
    weights, recurrent = translator.constant(node, 1), translator.constant(node, 2)
    bias = translator.constant(node, 3) if translator.has_input(node, 3) else None
    steps = _steps(translator, node, dims[0])
    outputs: list[list[Edge]] = []
    finals: list[list[Edge]] = []
    for number in range(len(weights)):
        is_reverse = node.attrs.get("direction", b"forward") == b"reverse" or number == 1
        cells = _Cells(translator, node, f"direction_{number}", recurrent.shape[-1])
        states = [_initial_state(cells, number, slot, steps[0]) for slot in ((5, 6) if node.op == "LSTM" else (5,))]
        bias_row = np.zeros(2 * weights.shape[1], np.float32) if bias is None else bias[number]
        run = _run_lstm if node.op == "LSTM" else _run_gru
        rows, states = run(
            cells, steps[::-1] if is_reverse else steps, weights[number], recurrent[number], bias_row, states
        )
        outputs.append(rows[::-1] if is_reverse else rows)
        finals.append(states)
    _emit_outputs(translator, node, outputs, finals)


def _check(translator: OnnxTranslator, node: Node) -> None:
    """Check that the node has the usual activations and no options that TensorFlow's cells do not have."""
    count = 2 if node.attrs.get("direction") == b"bidirectional" else 1
    activations = node.attrs.get("activations")
    if activations and [name.lower() for name in activations] != [
        name.lower() for name in _ACTIVATIONS[node.op] * count
    ]:
        raise conversion_error(node, "other activations than sigmoid and tanh are not supported")
    if node.attrs.get("clip") or node.attrs.get("layout") or node.attrs.get("input_forget"):
        raise conversion_error(node, "clip, layout and input_forget are not supported")
    if any(translator.has_input(node, slot) for slot in (4, 7)):
        raise conversion_error(node, "sequence lengths and peepholes are not supported")


def _steps(translator: OnnxTranslator, node: Node, count: int) -> list[Edge]:
    """Return the rows of each step, of shape (batch, features)."""
    source = translator.plain(node.inputs[0])
    unpack = translator.add_intermediate(node, "steps", "Unpack", [source], num=count, axis=0)
    steps = [Edge(unpack.node, port) for port in range(count)]
    translator.types |= dict.fromkeys(steps, translator.types[source])
    return steps


def _initial_state(cells: _Cells, number: int, slot: int, step: Edge) -> Edge:
    translator, node = cells.translator, cells.node
    if translator.has_input(node, slot):
        limits = [
            cells.constant(f"{slot}/{name}", np.array(at, np.int32)) for name, at in (("number", number), ("axis", 0))
        ]
        attrs: dict[str, Attr] = {
            "Tparams": DType.FLOAT,
            "Tindices": DType.INT32,
            "Taxis": DType.INT32,
            "batch_dims": 0,
        }
        name = f"{translator.name(node.name)}/{cells.prefix}/state_{slot}"
        return translator.add_node(name, "GatherV2", [translator.plain(node.inputs[slot]), *limits], **attrs)
    zeros = cells.constant(f"{slot}/zeros", np.zeros((1, cells.size), np.float32))
    first = cells.add(
        f"{slot}/column",
        "Sum",
        [step, cells.constant("one", np.array([1], np.int32))],
        keep_dims=True,
        Tidx=DType.INT32,
    )
    column = cells.add(f"{slot}/zero", "ZerosLike", [first])
    return cells.add(f"{slot}/initial", "AddV2", [column, zeros])


def _run_lstm(
    cells: _Cells, steps: list[Edge], weights: Array, recurrent: Array, bias: Array, states: list[Edge]
) -> tuple[list[Edge], list[Edge]]:
    h, c = states
    kernel = cells.constant("weights", np.concatenate([weights, recurrent], 1).T)
    offset = cells.constant("bias", bias[: 4 * cells.size] + bias[4 * cells.size :])
    axis = cells.constant("axis", np.array(1, np.int32))
    rows = []
    for number, step in enumerate(steps):
        name = f"step_{number}"
        both = cells.add(f"{name}/input", "ConcatV2", [step, h, axis], N=2, Tidx=DType.INT32)
        gates = cells.split(f"{name}/gates", cells.product(f"{name}/sums", both, kernel, offset), 4)
        h, c = _lstm_step(cells, name, gates, c)
        rows.append(h)
    return rows, [h, c]


def _run_gru(
    cells: _Cells, steps: list[Edge], weights: Array, recurrent: Array, bias: Array, states: list[Edge]
) -> tuple[list[Edge], list[Edge]]:
    (h,), size = states, cells.size
    is_linear = bool(cells.node.attrs.get("linear_before_reset"))
    kernel, offset = cells.constant("weights", weights.T), cells.constant("bias", bias[: 3 * size])
    inner, inner_offset = cells.constant("recurrent", recurrent.T), cells.constant("recurrent_bias", bias[3 * size :])
    if not is_linear:
        inner, inner_offset = (
            cells.constant("gates", recurrent[: 2 * size].T),
            cells.constant("gates_bias", bias[3 * size : 5 * size]),
        )
        last, last_offset = cells.constant("new", recurrent[2 * size :].T), cells.constant("new_bias", bias[5 * size :])
    increment = cells.constant("increment", np.array(1, np.float32))
    rows = []
    for number, step in enumerate(steps):
        name = f"step_{number}"
        x_z, x_r, x_n = cells.split(f"{name}/of_input", cells.product(f"{name}/input", step, kernel, offset), 3)
        sums = cells.product(f"{name}/hidden", h, inner, inner_offset)
        h_z, h_r, *h_n = cells.split(f"{name}/of_hidden", sums, 3 if is_linear else 2)
        z = cells.add(f"{name}/z", "Sigmoid", [cells.add(f"{name}/sum_z", "AddV2", [x_z, h_z])])
        r = cells.add(f"{name}/r", "Sigmoid", [cells.add(f"{name}/sum_r", "AddV2", [x_r, h_r])])
        if is_linear:
            reset = cells.add(f"{name}/reset", "Mul", [r, *h_n])
        else:
            reset = cells.product(f"{name}/reset", cells.add(f"{name}/kept", "Mul", [r, h]), last, last_offset)
        new = cells.add(f"{name}/new", "Tanh", [cells.add(f"{name}/sum_n", "AddV2", [x_n, reset])])
        complement = cells.add(f"{name}/complement", "Sub", [increment, z])
        parts = [cells.add(f"{name}/part", "Mul", pair) for pair in ([complement, new], [z, h])]
        h = cells.add(f"{name}/h", "AddV2", parts)
        rows.append(h)
    return rows, [h]


def _emit_outputs(translator: OnnxTranslator, node: Node, outputs: list[list[Edge]], finals: list[list[Edge]]) -> None:
    """Add all hidden states (steps, directions, batch, size), and the final states (directions, batch, size)."""
    name = translator.name(node.name)
    directions = [translator.add_intermediate(node, "rows", "Pack", rows, N=len(rows), axis=0) for rows in outputs]
    translator.emit_typed(node, "Pack", directions, PLAIN, N=len(directions), axis=1)
    for port, states in enumerate(zip(*finals, strict=True), 1):
        edge = translator.add_node(f"{name}/final_{port}", "Pack", states, T=DType.FLOAT, N=len(states), axis=0)
        translator.values[Edge(node.name, port), PLAIN] = edge
