"""Lists of loops whose elements or length have an unknown size: TensorFlow's converter requires known sizes.

The elements are collected in one flat tensor. The counter of the loop gives the number of elements:

    list = EmptyTensorList            ->    rows = []
    list = PushBack(list, value)      ->    rows = Concat(rows, Reshape(value, [-1]))
    TensorListStack(list, shape)      ->    Reshape(rows, [counter, *shape])

Keras' recurrent layers set the elements of a list of known length in their order, which is the same, or replace the
only element of a list in each iteration:

    list = TensorListReserve(shape, 1)       ->    rows = []
    list = TensorListSetItem(list, 0, value) ->    rows = Reshape(value, [-1])
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from quantkit.convert.litert_loops import source_of
from quantkit.ir.draft import Draft
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import NewNodes, free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.semantics import ADD_OPS, LOOP_OPS
from quantkit.ops.shape_inference import Inference, infer
from quantkit.ops.shape_rules import SCALAR


@dataclass(frozen=True)
class _List:
    """List of a loop.

    Attributes:
        loop: node of the loop.
        port: index of the loop variable.
        counter: index of the loop variable that counts the iterations from 0; None if each replaces the only element.
        push: node of the body that appends or replaces an element.
        dtype: element type.
        stacks: nodes after the loop that convert the list to one tensor.
        dims: element shape, with -1 for an unknown size, of which there is at most one.
    """

    loop: Node
    port: int
    counter: int | None
    push: Node
    dtype: DType
    stacks: tuple[Node, ...]
    dims: tuple[int, ...]


def flatten_lists(graph: Graph) -> Graph:
    """Replace the lists of loops by flat tensors if they grow, or if one size of their elements is unknown."""
    loop_nodes = [node for node in graph.nodes.values() if node.op in LOOP_OPS]
    inference = infer(graph) if loop_nodes else Inference({}, {})
    lists = [list_ for node in loop_nodes for list_ in _find_lists(graph, node, inference)]
    draft = Draft(graph)
    loops: dict[str, Node] = {}
    functions: dict[str, Function[Graph]] = {}
    for list_ in lists:
        loop = loops.get(list_.loop.name, list_.loop)
        rows = constant(free_name(graph, f"{loop.name}/{list_.port}/none"), np.zeros(0, list_.dtype.numpy), list_.dtype)
        loops[loop.name] = _with_rows(loop, list_, Edge(rows.name))
        draft.append(rows)
        for stack in list_.stacks:
            draft.replace(stack.name, *_stack(graph, list_, stack))
        for role in ("body", "cond"):
            name = _function_name(loop, role)
            functions[name] = _flatten_in(functions.get(name) or _load(graph, name), list_)
    for name, loop in loops.items():
        draft.replace(name, loop)
    return draft.graph().with_(library=graph.library.with_(*functions.values())) if lists else graph


def _function_name(loop: Node, role: str) -> str:
    function = loop.attrs.get(role)
    return function.name if isinstance(function, FunctionName) else ""


def _load(graph: Graph, name: str) -> Function[Graph]:
    """Return a function of the graph without Identity nodes."""
    function = graph.library[name]
    body = function.graph
    controls = {*function.controls.values(), *(name for node in body.nodes.values() for name in node.controls)}
    nodes = [
        node.with_(inputs=tuple(source_of(body.nodes, edge) for edge in node.inputs))
        for node in body.nodes.values()
        if node.op != "Identity" or node.name in controls
    ]
    outputs = tuple(source_of(body.nodes, edge) for edge in body.outputs)
    return replace(function, graph=body.with_nodes(nodes).with_(outputs=outputs))


def _find_lists(graph: Graph, loop: Node, inference: Inference) -> Iterator[_List]:
    """Yield the lists of a loop with functions of its own."""
    names = [_function_name(loop, role) for role in ("body", "cond")]
    if any(name not in graph.library or graph.library.is_open(name) for name in names):
        return
    if not _has_own_functions(graph, loop, names):
        return
    body, condition = (_load(graph, name).graph for name in names)
    counters = _find_counters(graph, loop, body)
    for port, edge in enumerate(loop.inputs):
        push, source = body[body.outputs[port].node], graph[edge.node]
        uses = (*body.uses.get(body.inputs[port], ()), *condition.uses.get(condition.inputs[port], ()))
        if len(uses) != 1 or push.inputs[:1] != (body.inputs[port],):
            continue
        if (source.op, push.op) == ("EmptyTensorList", "TensorListPushBack"):
            ports: list[int | None] = [*counters]
            least = 0  # the converter states no rank for a list that grows
        elif (source.op, push.op) == ("TensorListReserve", "TensorListSetItem"):
            index, count = push.inputs[1], source.inputs[1]
            is_single = _number(body, index) == 0 and _number(graph, count) == 1
            is_complete = _sets_all(graph, loop, (body, condition), counters, count, inference)
            least = 1
            ports = [None] if is_single else [port for port in counters if is_complete and index == body.inputs[port]]
        else:
            continue
        stacks = [use.node for use in graph.uses.get(Edge(loop.name, port), ())]
        dims = _element_dims(graph, source, stacks)
        if ports and dims is not None and least <= dims.count(-1) <= 1:
            dtype = push.attrs["element_dtype"]
            yield _List(loop, port, ports[0], push, dtype, tuple(stacks), dims)


def _number(graph: Graph, edge: Edge) -> int | None:
    """Return the value of a scalar constant."""
    tensor = graph.constant_of(edge)
    return None if tensor is None or tensor.shape else int(tensor.array)


def _sets_all(
    graph: Graph,
    loop: Node,
    functions: tuple[Graph, Graph],
    counters: list[int],
    count: Edge,
    inference: Inference,
) -> bool:
    """Return True if all conditions of a loop are that a counter is below the number of elements of a list."""
    body, condition = functions
    pending = list(condition.outputs)
    while pending:
        node = condition[pending.pop().node]
        if node.op == "LogicalAnd":
            pending += node.inputs
            continue
        if node.op != "Less" or node.inputs[0] not in [condition.inputs[port] for port in counters]:
            return False
        limit: Edge | int | None = _number(condition, node.inputs[1])
        if node.inputs[1] in condition.inputs:
            port = condition.inputs.index(node.inputs[1])
            limit = _value(graph, loop.inputs[port], inference) if body.outputs[port] == body.inputs[port] else None
        if limit is None or limit != _value(graph, count, inference):
            return False
    return True


def _value(graph: Graph, edge: Edge, inference: Inference) -> Edge | int:
    """Return the value of a scalar if it is known, else the edge that has it."""
    number, sizes = _number(graph, edge), inference.sizes.get(edge)
    if number is None and sizes is not None and not sizes.shape:
        number = sizes.item()
    if number is not None:
        return number
    node = graph[edge.node]
    is_same = node.op == "Max" and inference.shapes.get(node.inputs[0]) == SCALAR
    return _value(graph, node.inputs[0], inference) if is_same else source_of(graph.nodes, edge)


def _has_own_functions(graph: Graph, loop: Node, names: list[str]) -> bool:
    """Return True if no other node of the graph calls the functions."""
    others = [node for node in graph.nodes.values() if node.name != loop.name]
    return not any(
        isinstance(value, FunctionName) and value.name in names for node in others for value in node.attrs.values()
    )


def _find_counters(graph: Graph, loop: Node, body: Graph) -> list[int]:
    """Return the indices of the loop variables that count the iterations from 0."""
    counters = []
    for port, (edge, result) in enumerate(zip(loop.inputs, body.outputs, strict=True)):
        step = body[result.node]
        if _number(graph, edge) == 0 and step.op in ADD_OPS:
            increments = [_number(body, source) for source in step.inputs if source != body.inputs[port]]
            counters += [port] if increments == [1] else []
    return counters


def _element_dims(graph: Graph, empty: Node, stacks: list[Node]) -> tuple[int, ...] | None:
    """Return the element shape of a list; None if it is not constant, or other nodes than stacks use the list."""
    shapes = [graph.constant_of(edge) for edge in (empty.inputs[0], *(stack.inputs[-1] for stack in stacks))]
    if any(stack.op != "TensorListStack" for stack in stacks) or any(
        not shape or len(shape.shape) != 1 for shape in shapes
    ):
        return None
    dims = {tuple(int(size) for size in shape.array) for shape in shapes if shape is not None}
    return dims.pop() if len(dims) == 1 else None


# Replacements


def _with_rows(loop: Node, list_: _List, rows: Edge) -> Node:
    """Return the loop with flat rows as loop variable."""
    attrs = {name: list(values) for name in ("T", "output_shapes") if isinstance(values := loop.attrs.get(name), tuple)}
    for name, value in (("T", list_.dtype), ("output_shapes", Shape((None,)))):
        if attrs.get(name):
            attrs[name][list_.port] = value
    return loop.with_input(list_.port, rows).with_attrs(**{name: tuple(values) for name, values in attrs.items()})


def _flatten_in(function: Function[Graph], list_: _List) -> Function[Graph]:
    """Return the body or the condition of a loop with flat rows as argument."""
    body = function.graph
    argument = body[body.inputs[list_.port].node]
    shapes = (Shape((None,)),) if "_output_shapes" in argument.attrs else None
    nodes = {**body.nodes, argument.name: argument.with_attrs(T=list_.dtype, _output_shapes=shapes)}
    results = function.results
    if list_.push.name in nodes:
        nodes |= {node.name: node for node in _append(body, list_)}
        name = list(results)[list_.port]
        results = {**results, name: list_.dtype}
    return replace(function, graph=body.with_nodes(nodes.values()), results=results)


def _append(body: Graph, list_: _List) -> list[Node]:
    """Return the nodes that append the elements of a value to flat rows, or replace the rows."""
    push, nodes = list_.push, NewNodes(body, list_.push.name)
    reshape: dict[str, Attr] = {"T": list_.dtype, "Tshape": DType.INT32}
    flat = nodes.constant("shape", np.array([-1], np.int32))
    if list_.counter is None:
        return [*nodes, Node(push.name, "Reshape", (push.inputs[-1], flat), push.controls, reshape)]
    axis = nodes.constant("axis", np.int32(0))
    inputs = (push.inputs[0], nodes.add("value", "Reshape", push.inputs[-1], flat, **reshape), axis)
    return [*nodes, Node(push.name, "ConcatV2", inputs, push.controls, {"T": list_.dtype, "Tidx": DType.INT32, "N": 2})]


def _stack(graph: Graph, list_: _List, stack: Node) -> list[Node]:
    """Return the nodes that reshape flat rows to (counter, element shape)."""
    nodes = NewNodes(graph, stack.name)
    number, dims, axis = (
        nodes.constant(suffix, np.array(values, np.int32))
        for suffix, values in (("one", [1]), ("dims", list_.dims), ("axis", 0))
    )
    if list_.counter is not None:
        types: tuple[DType, ...] = list_.loop.attrs["T"]
        counter = Edge(list_.loop.name, list_.counter)
        count = nodes.add("count", "Cast", counter, SrcT=types[list_.counter], DstT=DType.INT32)
        number = nodes.add("number", "Reshape", count, number, T=DType.INT32, Tshape=DType.INT32)
    shape = nodes.add("shape", "ConcatV2", number, dims, axis, T=DType.INT32, Tidx=DType.INT32, N=2)
    attrs: dict[str, Attr] = {"T": list_.dtype, "Tshape": DType.INT32}
    return [*nodes, Node(stack.name, "Reshape", (stack.inputs[0], shape), attrs=attrs)]
