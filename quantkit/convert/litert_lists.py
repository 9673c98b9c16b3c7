"""Lists of loops whose elements have an unknown size: TensorFlow's converter requires known sizes.

The elements are collected in one flat tensor. The counter of the loop gives the number of elements:

    list = EmptyTensorList            ->    rows = []
    list = PushBack(list, value)      ->    rows = Concat(rows, Reshape(value, [-1]))
    TensorListStack(list, shape)      ->    Reshape(rows, [counter, *shape])
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.semantics import ADD_OPS, LOOP_OPS


@dataclass(frozen=True)
class _List:
    """List of a loop.

    Attributes:
        loop: node of the loop.
        port: index of the loop variable.
        counter: index of the loop variable that counts the iterations from 0.
        push: node of the body that appends an element.
        dtype: element type.
        stacks: nodes after the loop that convert the list to one tensor.
        dims: element shape, with -1 for one unknown size.
    """

    loop: Node
    port: int
    counter: int
    push: Node
    dtype: DType
    stacks: tuple[Node, ...]
    dims: tuple[int, ...]


def flatten_lists(graph: Graph) -> Graph:
    """Replace the lists of loops by flat tensors if one size of their elements is unknown."""
    lists = [list_ for node in graph.nodes.values() if node.op in LOOP_OPS for list_ in _find_lists(graph, node)]
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
            functions[name] = _flatten_in(functions.get(name, graph.library[name]), list_)
    for name, loop in loops.items():
        draft.replace(name, loop)
    return draft.graph().with_(library=graph.library.with_(*functions.values())) if lists else graph


def _function_name(loop: Node, role: str) -> str:
    function = loop.attrs.get(role)
    return function.name if isinstance(function, FunctionName) else ""


def _find_lists(graph: Graph, loop: Node) -> Iterator[_List]:
    """Yield the lists of a loop with functions of its own."""
    names = [_function_name(loop, role) for role in ("body", "cond")]
    if any(name not in graph.library or graph.library.is_open(name) for name in names):
        return
    if not _has_own_functions(graph, loop, names):
        return
    body, condition = (graph.library[name].graph for name in names)
    counter = _find_counter(graph, loop, body)
    for port, edge in enumerate(loop.inputs):
        push = body[body.outputs[port].node]
        is_pushed = push.op == "TensorListPushBack" and push.inputs[0] == body.inputs[port]
        uses = (*body.uses.get(body.inputs[port], ()), *condition.uses.get(condition.inputs[port], ()))
        is_list = graph[edge.node].op == "EmptyTensorList" and is_pushed and len(uses) == 1
        stacks = [use.node for use in graph.uses.get(Edge(loop.name, port), ())]
        dims = _element_dims(graph, graph[edge.node], stacks) if is_list else None
        if counter is not None and dims is not None and dims.count(-1) == 1:
            dtype = push.attrs["element_dtype"]
            assert isinstance(dtype, DType)
            yield _List(loop, port, counter, push, dtype, tuple(stacks), dims)


def _has_own_functions(graph: Graph, loop: Node, names: list[str]) -> bool:
    """Return True if no other node of the graph calls the functions."""
    others = [node for node in graph.nodes.values() if node.name != loop.name]
    return not any(
        isinstance(value, FunctionName) and value.name in names for node in others for value in node.attrs.values()
    )


def _find_counter(graph: Graph, loop: Node, body: Graph) -> int | None:
    """Return the index of the loop variable that counts the iterations from 0."""
    for port, (edge, result) in enumerate(zip(loop.inputs, body.outputs, strict=True)):
        first, step = graph.constant_of(edge), body[result.node]
        if first is None or first.shape or first.array != 0 or step.op not in ADD_OPS:
            continue
        increments = [body.constant_of(source) for source in step.inputs if source != body.inputs[port]]
        if len(increments) == 1 and increments[0] is not None and increments[0].array == 1:
            return port
    return None


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
    nodes = {**body.nodes, argument.name: argument.with_attrs(T=list_.dtype)}
    results = function.results
    if list_.push.name in nodes:
        nodes |= {node.name: node for node in _append(body, list_)}
        name = list(results)[list_.port]
        results = {**results, name: list_.dtype}
    return replace(function, graph=body.with_nodes(nodes.values()), results=results)


def _append(body: Graph, list_: _List) -> list[Node]:
    """Return the nodes that append the elements of a value to flat rows."""
    push = list_.push
    flat = constant(free_name(body, f"{push.name}/shape"), np.array([-1], np.int32))
    axis = constant(free_name(body, f"{push.name}/axis"), np.int32(0))
    reshape: dict[str, Attr] = {"T": list_.dtype, "Tshape": DType.INT32}
    value = Node(free_name(body, f"{push.name}/value"), "Reshape", (push.inputs[1], Edge(flat.name)), attrs=reshape)
    inputs = (push.inputs[0], Edge(value.name), Edge(axis.name))
    attrs: dict[str, Attr] = {"T": list_.dtype, "Tidx": DType.INT32, "N": 2}
    return [flat, axis, value, Node(push.name, "ConcatV2", inputs, controls=push.controls, attrs=attrs)]


def _stack(graph: Graph, list_: _List, stack: Node) -> list[Node]:
    """Return the nodes that reshape flat rows to (counter, element shape)."""
    first, dims, axis = (
        constant(free_name(graph, f"{stack.name}/{suffix}"), np.array(values, np.int32))
        for suffix, values in (("one", [1]), ("dims", list_.dims), ("axis", 0))
    )
    count, number, shape = (free_name(graph, f"{stack.name}/{suffix}") for suffix in ("count", "number", "shape"))
    types: tuple[DType, ...] = list_.loop.attrs["T"]  # type: ignore[assignment]
    dtype = types[list_.counter]
    counter = Edge(list_.loop.name, list_.counter)
    return [
        first,
        dims,
        axis,
        Node(count, "Cast", (counter,), attrs={"SrcT": dtype, "DstT": DType.INT32}),
        Node(number, "Reshape", (Edge(count), Edge(first.name)), attrs={"T": DType.INT32, "Tshape": DType.INT32}),
        Node(
            shape,
            "ConcatV2",
            (Edge(number), Edge(dims.name), Edge(axis.name)),
            attrs={"T": DType.INT32, "Tidx": DType.INT32, "N": 2},
        ),
        Node(stack.name, "Reshape", (stack.inputs[0], Edge(shape)), attrs={"T": list_.dtype, "Tshape": DType.INT32}),
    ]
