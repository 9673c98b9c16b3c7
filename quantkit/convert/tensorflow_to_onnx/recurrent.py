"""Conversion of the loops of recurrent layers to the ONNX ops LSTM and GRU.

A loop is a recurrent layer if each iteration computes exactly a cell of `cells` for the next row of one list, if the
number of iterations is the number of rows, and if the lists that it writes are the values of the state h. With
sequence lengths n, iteration t keeps the states and writes 0 if t >= n.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quantkit.convert.tensorflow_to_onnx.cells import Cell, CellReader
from quantkit.convert.tensorflow_to_onnx.lists import EMPTY_ROWS
from quantkit.convert.tensorflow_to_onnx.loops import Loop, loop_limits, num_rows
from quantkit.convert.tensorflow_to_onnx.subgraphs import source_of
from quantkit.convert.tensorflow_to_onnx.translator import PLAIN, Translator, converts
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.onnx.types import NUMBERS

RECURRENCE = "_Recurrence"


@dataclass(frozen=True)
class Recurrence:
    """Recurrent layer; edges are those of the calling graph.

    Attributes:
        cell: cell.
        rows: list of the inputs.
        states: initial values of h and, for an LSTM, c.
        lengths: sequence lengths.
        state_ports: port of the loop for each state.
        list_ports: ports of the lists of all values of h.
        last_ports: ports of the lists of the last value of h.
    """

    cell: Cell
    rows: Edge
    states: tuple[Edge, ...]
    lengths: Edge | None
    state_ports: tuple[int, ...]
    list_ports: tuple[int, ...]
    last_ports: tuple[int, ...]


@dataclass(frozen=True)
class RecurrenceReader:
    """Loop that may be a recurrent layer.

    Attributes:
        graph: calling graph.
        node: node of the loop.
        loop: loop.
        shapes: shapes of the edges of the calling graph.
        body_shapes: shapes of the edges of the body.
    """

    graph: Graph
    node: Node
    loop: Loop
    shapes: Mapping[Edge, Shape]
    body_shapes: Mapping[Edge, Shape]

    def read(self) -> Recurrence | None:
        """Return the recurrent layer; None if the loop computes anything else."""
        loop, body = self.loop, self.loop.body
        ports = tuple(port for port in loop.variables if port not in loop.counters)
        if len(ports) not in (1, 2) or any(self._is_used(port) for port in loop.counters):
            return None
        updates = {port: self._unmask(body.outputs[port], body.inputs[port]) for port in ports}
        values = [self._unmask(scan.value, None) for scan in loop.scans.values()]
        lengths = {edge for edge, _ in (*updates.values(), *values)}
        if len(lengths) != 1:
            return None
        reader = CellReader(body, self.body_shapes)
        for order in {ports, ports[::-1]}:
            old, new = [body.inputs[port] for port in order], [updates[port][1] for port in order]
            cell = reader.lstm(*old, *new) if len(ports) == 2 else reader.gru(*old, *new)
            rows = self._rows(cell.row) if cell is not None else None
            if cell is None or rows is None or any(value != new[0] for _, value in values):
                continue
            layer = Recurrence(
                cell,
                rows,
                tuple(loop.initial[port] for port in order),
                lengths.pop(),
                order,
                tuple(port for port, scan in loop.scans.items() if not scan.keeps_last),
                tuple(port for port, scan in loop.scans.items() if scan.keeps_last),
            )
            return layer if self._has_one_iteration_per_row(layer) else None
        return None

    def _is_used(self, port: int) -> bool:
        edge = Edge(self.node.name, port)
        return bool(self.graph.uses.get(edge)) or edge in self.graph.outputs

    def _find_captured(self, edge: Edge) -> Edge | None:
        """Return the edge of the calling graph for a captured value of the body; None for other values."""
        inputs = self.loop.body.inputs
        port = inputs.index(edge) if edge in inputs else None
        return self.loop.initial[port] if port in self.loop.captured else None

    def _is_counter(self, edge: Edge) -> bool:
        return any(edge == self.loop.body.inputs[port] for port in self.loop.counters)

    def _unmask(self, edge: Edge, final_value: Edge | None) -> tuple[Edge | None, Edge]:
        """Return the sequence lengths of a value, None without them, and the value before the end of a sequence.

        Args:
            edge: value of an iteration.
            final_value: value after the end of a sequence; None for zeros.
        """
        body = self.loop.body
        select = body[edge.node]
        test = body[select.inputs[0].node] if select.op in ("Select", "SelectV2") else None
        if test is None or test.op != "GreaterEqual" or not self._is_counter(test.inputs[0]):
            return None, edge
        lengths, after = self._find_captured(test.inputs[1]), select.inputs[1]
        is_final = after == final_value if final_value is not None else self._is_zero(after)
        return (lengths, select.inputs[2]) if lengths is not None and is_final else (None, edge)

    def _is_zero(self, edge: Edge) -> bool:
        """Return True if a value of the body is zero in each element."""
        outer = self._find_captured(edge)
        graph, edge = (self.loop.body, edge) if outer is None else (self.graph, outer)
        if graph[edge.node].op == "Fill":
            edge = source_of(graph, graph[edge.node].inputs[1])
        tensor = graph.constant_of(edge)
        return tensor is not None and not tensor.array.any()

    def _rows(self, row: Edge) -> Edge | None:
        """Return the list whose next row an iteration reads; None if the row has another source."""
        node = self.loop.body[row.node]
        if node.op != "GatherV2" or not self._is_counter(node.inputs[1]) or node.attrs.get("batch_dims"):
            return None
        axis = self.loop.body.constant_of(node.inputs[2])
        return self._find_captured(node.inputs[0]) if axis is not None and int(axis.array) == 0 else None

    def _has_one_iteration_per_row(self, layer: Recurrence) -> bool:
        """Return True if the loop reads all rows, and writes as many."""
        limits = loop_limits(self.loop) or []
        written = [num_rows(self.graph, self.loop.initial[port]) for port in layer.list_ports]
        single = [num_rows(self.graph, self.loop.initial[port]) for port in layer.last_ports]
        is_zero = all(self.graph[self.loop.initial[port].node].op == EMPTY_ROWS for port in layer.list_ports)
        if any(number != 1 for number in single) or (layer.lengths is not None and (single or not is_zero)):
            return False
        ends = [self._ends_with_sequences(limit, layer) for limit in limits]
        is_exact = any(end or self._is_length(limit, layer.rows) for limit, end in zip(limits, ends, strict=True))
        reads_all = all(end or self._is_long(limit, layer.rows) for limit, end in zip(limits, ends, strict=True))
        return is_exact and reads_all and all(self._is_length(number, layer.rows) for number in written)

    def _is_length(self, value: Edge | int | None, rows: Edge) -> bool:
        """Return True if a value is the number of rows."""
        dims = self.shapes[rows].dims if rows in self.shapes else None
        if not isinstance(value, Edge):
            return value is not None and dims is not None and dims[0] == value
        node = self.graph[value.node]
        if node.op == "Minimum":
            parts = [source_of(self.graph, edge) for edge in node.inputs]
            are_long = all(self._is_long(edge, rows) for edge in parts)
            return are_long and any(self._is_length(edge, rows) for edge in parts)
        if node.op != "StridedSlice" or node.attrs.get("shrink_axis_mask") != 1:
            tensor = self.graph.constant_of(value)
            return tensor is not None and self._is_length(int(tensor.array), rows)
        sizes, begin = self.graph[source_of(self.graph, node.inputs[0]).node], self.graph.constant_of(node.inputs[1])
        is_first = begin is not None and not begin.array.any()
        return is_first and sizes.op == "Shape" and source_of(self.graph, sizes.inputs[0]) == rows

    def _is_long(self, value: Edge | int, rows: Edge) -> bool:
        """Return True if a value is at least the number of rows."""
        if self._is_length(value, rows):
            return True
        dims = self.shapes[rows].dims if rows in self.shapes else None
        tensor = self.graph.constant_of(value) if isinstance(value, Edge) else None
        number = int(tensor.array) if tensor is not None else value
        if not isinstance(number, Edge):
            return dims is not None and dims[0] is not None and number >= dims[0]
        node = self.graph[number.node]
        return node.op == "Maximum" and any(self._is_long(source_of(self.graph, edge), rows) for edge in node.inputs)

    def _ends_with_sequences(self, value: Edge | int, layer: Recurrence) -> bool:
        """Return True if a value is the minimum of the number of rows and the length of the longest sequence."""
        node = self.graph[value.node] if isinstance(value, Edge) else None
        if node is None or node.op != "Minimum" or layer.lengths is None:
            return False
        parts = [source_of(self.graph, edge) for edge in node.inputs]
        longest = next((edge for edge in parts if not self._is_long(edge, layer.rows)), parts[0])
        maximum = self.graph[longest.node]
        reductions = [self.graph[source_of(self.graph, edge).node] for edge in maximum.inputs]
        is_longest = maximum.op == "Maximum" and any(
            node.op == "Max" and source_of(self.graph, node.inputs[0]) == layer.lengths for node in reductions
        )
        return is_longest and any(self._is_length(edge, layer.rows) for edge in parts)


def lower_recurrence(graph: Graph, node: Node, layer: Recurrence) -> Graph:
    """Return the calling graph with a recurrent layer as one node."""
    inputs = (layer.rows, *layer.states, *([layer.lengths] if layer.lengths is not None else []))
    lowered = node.with_(op=RECURRENCE, inputs=inputs, controls=())
    return graph.with_nodes(lowered if other is node else other for other in graph.nodes.values())


@converts(RECURRENCE)
def _recurrence(translator: Translator, node: Node) -> None:
    layer = translator.regions[node.name]
    assert isinstance(layer, Recurrence)
    cell, name = layer.cell, node.name
    first, second = (translator.add_integers(f"{name}/{axis}", [axis]) for axis in (0, 1))
    arrays = {"weights": cell.weights, "recurrent_weights": cell.recurrent_weights, "bias": cell.bias}
    constants = [
        translator.add_constant(f"{name}/{suffix}", Tensor.of(np.ascontiguousarray(array[None], np.float32)))
        for suffix, array in arrays.items()
    ]
    lengths = Edge(onnx.ABSENT.name)
    if layer.lengths is not None:
        edge = translator.plain(layer.lengths)
        lengths = translator.add_node(f"{name}/lengths", "Cast", [edge], to=NUMBERS[DType.INT32])
    states = [
        translator.add_node(f"{name}/initial_{index}", "Unsqueeze", [translator.plain(edge), first])
        for index, edge in enumerate(layer.states)
    ]
    outputs = [Edge(name, port) for port in range(1 + len(states))]
    attrs: dict[str, Attr] = {
        "hidden_size": cell.recurrent_weights.shape[1],
        onnx.OUTPUTS: tuple(str(edge).encode() for edge in outputs),
    }
    if cell.op == "GRU":
        attrs["linear_before_reset"] = int(cell.is_reset_after)
    translator.add_node(name, cell.op, [translator.plain(layer.rows), *constants, lengths, *states], **attrs)
    for port in layer.list_ports:
        translator.values[Edge(name, port), PLAIN] = translator.add_node(
            f"{name}/states/{port}", "Squeeze", [outputs[0], second]
        )
    for port in layer.last_ports:
        translator.values[Edge(name, port), PLAIN] = outputs[1]
    for port, edge in zip(layer.state_ports, outputs[1:], strict=True):
        translator.values[Edge(name, port), PLAIN] = translator.add_node(
            f"{name}/state/{port}", "Squeeze", [edge, first]
        )
