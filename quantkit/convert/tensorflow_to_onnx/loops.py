"""Conversion of While nodes to the ONNX op Loop.

    TensorFlow   While(initial values), body: new values of the variables; condition: function of the variables
    ONNX         Loop(condition of the initial values, initial values), body: condition of the new values, new values

The condition exists twice, because ONNX computes the condition of an iteration at the end of the iteration before.
Constants from outside are copied into the body. The body refers to other values from outside by name. A list that
receives one element in each iteration becomes a scan output:

    rows = TensorScatterUpdate(rows, iteration, value)    ->    rows = Concat(all values, rows that stay)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quantkit.convert.tensorflow_to_onnx.lists import EMPTY_ROWS, WRITE, size_of
from quantkit.convert.tensorflow_to_onnx.slices import SLICE_LIMIT
from quantkit.convert.tensorflow_to_onnx.subgraphs import (
    as_results,
    copy_into,
    fold_constants,
    instantiate,
    source_of,
    with_constants,
)
from quantkit.convert.tensorflow_to_onnx.translator import (
    LIST_ORDER,
    PLAIN,
    LoweredGraph,
    Translator,
    conversion_error,
    converts,
    translate_all,
)
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.onnx.types import NUMBERS

LOOP = "_Loop"


@dataclass(frozen=True)
class Scan:
    """List that receives one element in each iteration.

    Attributes:
        value: element, an edge of the body.
        keeps_last: each iteration writes element 0.
    """

    value: Edge
    keeps_last: bool


@dataclass(frozen=True)
class Loop:
    """While loop; a port is the index of an input and of an output of its node.

    Attributes:
        condition: graph with an input for each port; its output is the condition.
        body: graph with an input for each port; its outputs are the new values.
        initial: initial value of each port, an edge of the calling graph.
        variables: ports of the variables without the lists of `scans`.
        captured: ports of the values that all iterations share.
        scans: lists by port.
        counters: ports of the variables that are the number of the iteration, from 0.
    """

    condition: Graph
    body: Graph
    initial: tuple[Edge, ...]
    variables: tuple[int, ...]
    captured: tuple[int, ...]
    scans: Mapping[int, Scan]
    counters: frozenset[int]


def read_loop(graph: Graph, node: Node) -> Loop:
    """Return the loop of a While node.

    Raises:
        UnavailableError: the graph has no such functions.
    """
    initial = tuple(source_of(graph, edge) for edge in node.inputs)
    condition = instantiate(graph, node, "cond", f"{node.name}/cond", initial)
    body = instantiate(graph, node, "body", node.name, initial)
    captured = [port for port, edge in enumerate(body.inputs) if body.outputs[port] == edge]
    constants = {port: graph[initial[port].node] for port in captured if graph.constant_of(initial[port]) is not None}
    condition, body = (fold_constants(with_constants(inner, constants)) for inner in (condition, body))
    changing = [port for port in range(len(initial)) if port not in captured]
    from_zero = [port for port in changing if _integer(graph, initial[port]) == 0]
    counting = [body.outputs[port] for port in from_zero if _counts(body, port)]
    counters = frozenset(port for port in from_zero if body.outputs[port] in counting)
    scans = {port: scan for port in changing if (scan := _find_scan(condition, body, port, counters)) is not None}
    variables = tuple(port for port in changing if port not in scans)
    return Loop(condition, body, initial, variables, tuple(captured), scans, counters)


def _integer(graph: Graph, edge: Edge) -> int | None:
    tensor = graph.constant_of(edge)
    is_integer = tensor is not None and tensor.dtype in (DType.INT32, DType.INT64) and tensor.num_elements == 1
    return int(tensor.array.reshape(())) if tensor is not None and is_integer else None


def _counts(body: Graph, port: int) -> bool:
    """Return True if each iteration adds 1 to a variable."""
    update, variable = body[body.outputs[port].node], body.inputs[port]
    if update.op not in ("Add", "AddV2") or variable not in update.inputs:
        return False
    return _integer(body, update.inputs[1 - update.inputs.index(variable)]) == 1


def _num_uses(graph: Graph, edge: Edge) -> int:
    return len(graph.uses.get(edge, ())) + graph.outputs.count(edge)


def _find_scan(condition: Graph, body: Graph, port: int, counters: frozenset[int]) -> Scan | None:
    """Return the list of a variable; None for other variables."""
    rows, write = body.inputs[port], body[body.outputs[port].node]
    if write.op != WRITE or write.inputs[0] != rows or condition.uses.get(condition.inputs[port]):
        return None
    if len(body.uses[rows]) > 1 or rows in body.outputs or _num_uses(body, body.outputs[port]) > 1:
        return None
    indices, row = (body[edge.node] for edge in write.inputs[1:])
    is_iteration = indices.op == "Reshape" and any(indices.inputs[0] == body.inputs[counter] for counter in counters)
    keeps_last = _integer(body, write.inputs[1]) == 0
    if row.op != "ExpandDims" or _integer(body, row.inputs[1]) != 0 or not (is_iteration or keeps_last):
        return None
    return Scan(row.inputs[0], keeps_last)


def loop_limits(loop: Loop) -> list[Edge | int] | None:
    """Return the limits of the number of iterations, which is their minimum; None for another condition.

    A limit is an integer or an edge of the calling graph.
    """
    condition = loop.condition
    ports = {edge: port for port, edge in enumerate(condition.inputs)}
    limits: list[Edge | int] = []
    stack = list(condition.outputs)
    while stack:
        node = condition[stack.pop().node]
        if node.op == "LogicalAnd":
            stack.extend(source_of(condition, edge) for edge in node.inputs)
            continue
        if node.op != "Less" or ports.get(node.inputs[0]) not in loop.counters:
            return None
        limit, number = ports.get(node.inputs[1]), _integer(condition, node.inputs[1])
        if number is not None:
            limits.append(number)
        elif limit is not None and limit in loop.captured:
            limits.append(loop.initial[limit])
        else:
            return None
    return limits


def lower_loop(graph: Graph, node: Node, loop: Loop) -> Graph:
    """Return the calling graph with the nodes of the initial condition, which becomes the first input of the loop."""
    nodes, [condition] = copy_into(loop.condition, f"{node.name}/initial", loop.initial)
    lowered = node.with_(op=LOOP, inputs=(condition, *loop.initial), controls=())
    return graph.with_nodes([*(lowered if other is node else other for other in graph.nodes.values()), *nodes])


def iteration_of(name: str, loop: Loop) -> Graph:
    """Return one iteration as a graph.

    Its inputs are the variables and the captured values that it uses, its outputs the condition of the next
    iteration, the new values, and the elements of the lists.
    """
    body = loop.body
    values = [body.inputs[port] if port in loop.captured else body.outputs[port] for port in range(len(body.inputs))]
    nodes, [condition] = copy_into(loop.condition, f"{name}/next", values)
    whole = body.with_nodes([*body.nodes.values(), *nodes])
    elements = [scan.value for scan in loop.scans.values()]
    results = as_results(whole, name, [condition, *(values[port] for port in loop.variables), *elements])
    variables = [body.inputs[port] for port in loop.variables]
    captured = [body.inputs[port] for port in loop.captured if body.constant_of(body.inputs[port]) is None]
    whole = whole.with_nodes([*whole.nodes.values(), *results])
    whole = whole.with_(outputs=tuple(Edge(node.name) for node in results), inputs=(*variables, *captured))
    needed = whole.reachable()
    used = tuple(edge for edge in captured if edge.node in needed)
    return whole.with_(inputs=(*variables, *used)).without_unused_nodes()


@dataclass(frozen=True)
class LoopRegion:
    """Loop with its body for ONNX.

    Attributes:
        loop: loop.
        iteration: result of `iteration_of`, lowered.
    """

    loop: Loop
    iteration: LoweredGraph


@converts(EMPTY_ROWS)
def _empty_rows(translator: Translator, node: Node) -> None:
    """Add no node: a loop computes the shape of the elements from those that it writes."""


@converts(LOOP)
def _loop(translator: Translator, node: Node) -> None:
    region = translator.regions[node.name]
    assert isinstance(region, LoopRegion)
    loop, iteration = region.loop, region.iteration
    ports = {edge: port for port, edge in enumerate(loop.body.inputs)}
    captured = iteration.graph.inputs[len(loop.variables) :]
    for edge in captured:
        translator.add_node(edge.node, "Identity", [translator.plain(loop.initial[ports[edge]])])
    scalars = {f"{node.name}/iteration": DType.INT64, f"{node.name}/condition": DType.BOOL}
    [inner] = translate_all([iteration])
    body = onnx.encode_subgraph("body", inner, node.name, scalars=scalars, num_inputs=len(loop.variables))
    outputs = [Edge(node.name, index) for index in range(len(loop.variables) + len(loop.scans))]
    initial = (node.inputs[0], *(loop.initial[port] for port in loop.variables))
    for edge in initial:
        if translator.graph[edge.node].op == EMPTY_ROWS:
            raise conversion_error(node, f"{LIST_ORDER} {edge.node!r} in iteration i, or also reads the list")
    inputs = (Edge(onnx.ABSENT.name), *map(translator.plain, initial))
    attrs: dict[str, Attr] = {"body": body, onnx.OUTPUTS: tuple(str(edge).encode() for edge in outputs)}
    translator.nodes[node.name] = Node(node.name, "Loop", inputs, tuple(edge.node for edge in captured), attrs)
    for port, edge in zip((*loop.variables, *loop.scans), outputs, strict=True):
        value = _join_rows(translator, node, loop, port, edge) if port in loop.scans else edge
        translator.values[Edge(node.name, port), PLAIN] = value
    for port in loop.captured:
        if any(use.node.name in translator.graph for use in translator.graph.uses.get(Edge(node.name, port), ())):
            translator.values[Edge(node.name, port), PLAIN] = translator.plain(loop.initial[port])


def _join_rows(translator: Translator, node: Node, loop: Loop, port: int, written: Edge) -> Edge:
    """Return the list after the loop: the rows that the iterations have written, then the rows that stay."""
    name, initial = f"{node.name}/{port}", loop.initial[port]

    def integers(value: int) -> Edge:
        return translator.add_integers(f"{name}/{value}", [value])

    def part(suffix: str, edge: Edge, begin: Edge, end: Edge) -> Edge:
        return translator.add_node(f"{name}/{suffix}", "Slice", [edge, begin, end, integers(0)])

    if loop.scans[port].keeps_last:
        written = part("last", written, integers(-1), integers(SLICE_LIMIT))
    if _writes_all(translator.graph, loop, port):
        return written
    sizes = translator.add_node(f"{name}/sizes", "Shape", [written])
    count = part("count", sizes, integers(0), integers(1))
    if (empty := translator.graph[initial.node]).op != EMPTY_ROWS:
        rest = part("rest", translator.plain(initial), count, integers(SLICE_LIMIT))
    else:
        size = translator.add_node(f"{name}/size", "Cast", [translator.plain(empty.inputs[0])], to=NUMBERS[DType.INT64])
        missing = translator.add_node(f"{name}/missing", "Sub", [size, count])
        missing = translator.add_node(f"{name}/num_rows", "Max", [missing, integers(0)])
        shape = [missing, part("shape", sizes, integers(1), integers(SLICE_LIMIT))]
        dtype = translator.dtype(initial)
        zero = translator.add_constant(f"{name}/zero", Tensor.of(np.zeros((), dtype.numpy), dtype))
        rest_shape = translator.add_node(f"{name}/rest/shape", "Concat", shape, axis=0)
        rest = translator.add_node(f"{name}/rest", "Expand", [zero, rest_shape])
    return translator.add_node(f"{name}/rows", "Concat", [written, rest], axis=0)


def num_rows(graph: Graph, edge: Edge) -> Edge | int | None:
    """Return the number of rows of a list; None if it is unknown."""
    size = size_of(graph, graph[edge.node])
    if size is not None:
        size = source_of(graph, size)
        number = _integer(graph, size)
        return size if number is None else number
    tensor = graph.constant_of(edge)
    return tensor.shape[0] if tensor is not None and tensor.shape else None


def list_length(graph: Graph, loop: Loop, port: int) -> int | None:
    """Return the number of rows of a list after the loop; None if it is unknown."""
    rows, limits = num_rows(graph, loop.initial[port]), loop_limits(loop) or []
    if not isinstance(rows, int):
        return None
    stays_inside = loop.scans[port].keeps_last or any(isinstance(limit, int) and limit <= rows for limit in limits)
    return rows if stays_inside else None


def _writes_all(graph: Graph, loop: Loop, port: int) -> bool:
    """Return True if the iterations write all rows of a list."""
    rows, limits = num_rows(graph, loop.initial[port]), loop_limits(loop)
    if rows is None or not limits:
        return False
    numbers = [limit for limit in limits if isinstance(limit, int)]
    if len(numbers) == len(limits):
        return rows == (1 if loop.scans[port].keeps_last and min(numbers) > 0 else min(numbers))
    return not loop.scans[port].keeps_last and all(limit == rows for limit in limits)
