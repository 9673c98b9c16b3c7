"""Conversion of LSTM and GRU with many or an unknown number of steps to a loop.

The body of the loop is an ONNX graph with the same op for one step; its conversion is that of a single cell:

    LSTM(x, h, c)  ->  Loop(number of steps, h, c):  y, h, c = LSTM(x[i], h, c)
"""

from collections.abc import Sequence

import numpy as np

from quantkit.convert.onnx_to_tensorflow.arrays import shape_of
from quantkit.convert.onnx_to_tensorflow.loops import convert_loop
from quantkit.convert.onnx_to_tensorflow.translator import PLAIN, OnnxTranslator
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape, Tensor

OPSET = 18
# Slots of the initial states.
STATES = {"LSTM": (5, 6), "GRU": (5,)}


def convert_by_loop(translator: OnnxTranslator, node: Node) -> None:
    """Add a loop for each direction of an LSTM or GRU, and join their outputs."""
    weights = [translator.constant(node, slot) for slot in (1, 2, 3) if translator.has_input(node, slot)]
    outputs = []
    for number in range(len(weights[0])):
        is_reverse = node.attrs.get("direction", b"forward") == b"reverse" or number == 1
        part = [array[number : number + 1] for array in weights]
        outputs.append(_convert_direction(translator, node, number, part, is_reverse))
    rows, *finals = zip(*outputs, strict=True)
    _emit_joined(translator, node, rows)
    for port, states in enumerate(finals, 1):
        translator.values[Edge(node.name, port), PLAIN] = _join_states(translator, node, port, states)


def _convert_direction(
    translator: OnnxTranslator, node: Node, number: int, weights: Sequence[Array], is_reverse: bool
) -> list[Edge]:
    """Return all hidden states (steps, 1, batch, size), and the final states (1, batch, size), of a direction."""
    name = f"{node.name}/direction_{number}"
    source, size = translator.plain(node.inputs[0]), weights[1].shape[-1]
    dims = translator.shape(node.inputs[0]).dims or (None, None, weights[0].shape[-1])
    if is_reverse:
        source = _reverse(translator, node, "reversed", source)
    states = [_initial_state(translator, node, number, slot, size) for slot in STATES[node.op]]
    edges = [Edge(f"{name}/{suffix}") for suffix in ("steps", "x", *(f"state_{port}" for port in range(len(states))))]
    values = [_num_steps(translator, node, source), source, *states]
    translator.values |= {(edge, PLAIN): value for edge, value in zip(edges, values, strict=True)}
    state_shape = Shape((1, dims[1], size))
    translator.add_shapes(dict(zip(edges, [Shape(()), Shape(dims), *[state_shape] * len(states)], strict=True)))
    inputs = (edges[0], Edge(onnx.ABSENT.name), *edges[2:])
    outputs = [Edge(name, port) for port in range(len(states) + 1)]
    loop = Node(name, "Loop", inputs, attrs={onnx.OUTPUTS: tuple(str(edge).encode() for edge in outputs)})
    convert_loop(translator, loop, _one_step(node, weights, Shape(dims), len(states)), [edges[1]])
    *finals, rows = (translator.plain(edge) for edge in outputs)
    return [_reverse(translator, node, "rows", rows) if is_reverse else rows, *finals]


def _one_step(node: Node, weights: Sequence[Array], shape: Shape, num_states: int) -> Graph:
    """Return the body of the loop: iteration, condition, states and x of ``shape`` become condition, states and row."""
    states = [Edge(f"state_{port}") for port in range(num_states)]
    scalars = {Edge("iteration"): DType.INT64, Edge("condition"): DType.BOOL}
    inputs = [*scalars, *states, Edge("x")]
    constants = {"first": np.array([0], np.int64), **{f"weights_{slot}": array for slot, array in enumerate(weights)}}
    layer_inputs = ["step", *(name for name in constants if name != "first")]
    layer_inputs += [onnx.ABSENT.name] * (5 - len(layer_inputs))
    outputs = [Edge("y", port) for port in range(num_states + 1)]
    attrs = {name: value for name, value in node.attrs.items() if name not in ("direction", "activations")}
    attrs[onnx.OUTPUTS] = tuple(str(edge).encode() for edge in outputs)
    nodes = [
        onnx.ABSENT,
        *(
            Node(edge.node, "Placeholder", attrs={"dtype": scalars.get(edge, DType.FLOAT), "shape": shape})
            for edge in inputs
        ),
        *(Node(name, "Constant", attrs={"value": Tensor.of(array)}) for name, array in constants.items()),
        Node("index", "Unsqueeze", (Edge("iteration"), Edge("first"))),
        Node("step", "Gather", (Edge("x"), Edge("index")), attrs={"axis": 0}),
        Node("y", node.op, (*map(Edge, layer_inputs), *states), attrs=attrs),
        Node("row", "Squeeze", (outputs[0], Edge("first"))),
    ]
    results = [Edge("condition"), *outputs[1:], Edge("row")]
    return Graph.of(nodes, inputs, results, dialect=onnx.DIALECT, extra=onnx.header({}, opset=OPSET))


def _num_steps(translator: OnnxTranslator, node: Node, source: Edge) -> Edge:
    shape = shape_of(translator, node, source, "steps/shape")
    return _slice(translator, node, "steps", shape, 0)


def _slice(translator: OnnxTranslator, node: Node, suffix: str, source: Edge, index: int) -> Edge:
    """Return an element of the first axis, without this axis."""
    limits = [
        translator.add_array(node, f"{suffix}/{name}", [value], DType.INT32)
        for name, value in (("begin", index), ("end", index + 1), ("step", 1))
    ]
    attrs: dict[str, Attr] = {"Index": DType.INT32, "shrink_axis_mask": 1}
    return translator.add_intermediate(node, suffix, "StridedSlice", [source, *limits], **attrs)


def _reverse(translator: OnnxTranslator, node: Node, suffix: str, source: Edge) -> Edge:
    axis = translator.add_array(node, f"{suffix}/axis", [0], DType.INT32)
    return translator.add_intermediate(node, suffix, "ReverseV2", [source, axis], Tidx=DType.INT32)


def _initial_state(translator: OnnxTranslator, node: Node, number: int, slot: int, size: int) -> Edge:
    """Return the state (1, batch, size) of a direction before the first step."""
    first = translator.add_array(node, "first", 0, DType.INT32)
    if translator.has_input(node, slot):
        state = translator.plain(node.inputs[slot])
        if (translator.shape(node.inputs[slot]).dims or (None,))[0] == 1:
            return state
        row = _slice(translator, node, f"state_{slot}", state, number)
        return translator.add_intermediate(node, f"initial_{slot}", "ExpandDims", [row, first], Tdim=DType.INT32)
    source = translator.plain(node.inputs[0])
    axes = translator.add_array(node, "axes", [0, 2], DType.INT32)
    column = translator.add_intermediate(node, "column", "Sum", [source, axes], Tidx=DType.INT32, keep_dims=True)
    zero = translator.add_intermediate(node, "zero", "ZerosLike", [column])
    zeros = translator.add_array(node, "zeros", np.zeros((1, 1, size)), DType.FLOAT)
    return translator.add_intermediate(node, "initial", "AddV2", [zero, zeros])


def _emit_joined(translator: OnnxTranslator, node: Node, rows: Sequence[Edge]) -> None:
    """Add the hidden states (steps, directions, batch, size)."""
    if len(rows) == 1:
        translator.emit_typed(node, "Identity", rows, PLAIN)
        return
    axis = translator.add_array(node, "directions", 1, DType.INT32)
    translator.emit_typed(node, "ConcatV2", [*rows, axis], PLAIN, N=len(rows), Tidx=DType.INT32)


def _join_states(translator: OnnxTranslator, node: Node, port: int, states: Sequence[Edge]) -> Edge:
    """Return a final state of all directions."""
    if len(states) == 1:
        return states[0]
    axis = translator.add_array(node, "states", 0, DType.INT32)
    inputs = [*states, axis]
    return translator.add_intermediate(node, f"final_{port}", "ConcatV2", inputs, N=len(states), Tidx=DType.INT32)
