"""Conversion of If and Loop nodes: a branch or body becomes a function of its variables and of the values from outside.

An If whose condition is constant, for example because it compares static sizes, becomes the nodes of one branch.

    Loop(limit, condition, states)  ->  StatelessWhile(iteration, condition, states, lists, limit, captured values)

The list of a scan output receives one element in each iteration; after the loop it becomes one tensor.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantkit.convert.onnx_to_tensorflow.arrays import num_outputs
from quantkit.convert.onnx_to_tensorflow.translator import PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.formats import onnx
from quantkit.formats.onnx.schema import parse_message
from quantkit.ir.functions import Function, FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node, Opaque, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_rules import join_shapes

# Inputs of a Loop before the states, and of its body: limit or iteration, and condition.
SCALARS = 2
PREFIX = "body/"
ROLES = ("then_branch", "else_branch")


@converts("If")
def _if(translator: OnnxTranslator, node: Node) -> None:
    outputs = [Edge(node.name, port) for port in range(num_outputs(node))]
    condition = translator.fold(node.inputs[0])
    if condition is not None:
        branch, arguments = read_subgraph(translator, node, ROLES[0 if condition.item() else 1])
        branch_translator = OnnxTranslator(branch, translator.function_name(node, "branch_"))
        _inline(translator, node, branch_translator, [translator.plain(edge) for edge in arguments], outputs)
        translator.add_shapes(dict(zip(outputs, map(branch_translator.shape, branch.outputs), strict=True)))
        return
    branches = [read_subgraph(translator, node, role) for role in ROLES]
    captured = list(dict.fromkeys(edge for _, edges in branches for edge in edges))
    arguments = [translator.plain(edge) for edge in captured]
    names = [translator.function_name(node, role) for role in ROLES]
    shapes: list[list[Shape]] = []
    for name, (branch, edges) in zip(names, branches, strict=True):
        shapes.append(_add_function(translator, name, branch, [captured.index(edge) for edge in edges], arguments))
    joined = [join_shapes(*pair) for pair in zip(*shapes, strict=True)]
    translator.add_shapes(dict(zip(outputs, joined, strict=True)))
    results = tuple(translator.functions[names[0]].results.values())
    types = tuple(translator.types[edge] for edge in arguments)
    predicate = translator.condition(node, 0)
    roles = {role: FunctionName(name) for role, name in zip(ROLES, names, strict=True)}
    attrs: dict[str, Attr] = {"Tcond": DType.BOOL, "Tin": types, "Tout": results, "output_shapes": tuple(joined)}
    call = translator.emit(node, "StatelessIf", [predicate, *arguments], PLAIN, **attrs, **roles)
    for edge, dtype in zip(outputs, results, strict=True):
        translator.values[edge, PLAIN] = Edge(call.node, edge.port)
        translator.types[Edge(call.node, edge.port)] = dtype or DType.FLOAT


def read_subgraph(translator: OnnxTranslator, node: Node, role: str) -> tuple[Graph, list[Edge]]:
    """Return a branch or body with a further input for each value that it uses from outside, and these values."""
    outer, attribute = translator.graph, node.attrs[role]
    if not isinstance(attribute, Opaque):
        raise conversion_error(node, f"{role} is not a graph")
    branch = onnx.decode_subgraph(attribute, outer)
    used = [edge for inner in branch.nodes.values() for edge in (*inner.inputs, *map(Edge, inner.controls))]
    captured = list(dict.fromkeys(edge for edge in (*used, *branch.outputs) if edge.node not in branch.nodes))
    names = {edge: str(edge) if edge.port else edge.node for edge in captured if edge.node != onnx.ABSENT.name}
    sources = {edge: _source(translator, edge, name) for edge, name in names.items()}

    def rename(edge: Edge) -> Edge:
        return Edge(names[edge]) if edge in names else edge

    inner_nodes = [inner.with_(inputs=tuple(map(rename, inner.inputs))) for inner in branch.nodes.values()]
    inputs = [edge for edge in names if sources[edge].op == "Placeholder"]
    model = parse_message("ModelProto", branch.extra)
    model.opset_import.extend(parse_message("ModelProto", outer.extra).opset_import)
    absent = [onnx.ABSENT] if onnx.ABSENT.name not in branch.nodes else []
    graph = branch.with_nodes([*absent, *sources.values(), *inner_nodes]).with_(
        inputs=(*branch.inputs, *(Edge(names[edge]) for edge in inputs)),
        outputs=tuple(map(rename, branch.outputs)),
        extra=bytes(model.SerializeToString(deterministic=True)),
    )
    return graph, inputs


def _source(translator: OnnxTranslator, edge: Edge, name: str) -> Node:
    """Return the node of a value from outside: a constant, or an input."""
    tensor = translator.constant_of(edge)
    if tensor is not None:
        return Node(name, "Constant", attrs={"value": tensor})
    return Node(name, "Placeholder", attrs={"dtype": translator.dtype(edge), "shape": translator.shape(edge)})


def _inline(
    translator: OnnxTranslator, node: Node, branch: OnnxTranslator, arguments: Sequence[Edge], outputs: Sequence[Edge]
) -> None:
    """Add the nodes of a branch."""
    inner = branch.translate()
    translator.functions |= branch.functions
    edges = dict(zip(inner.inputs, arguments, strict=True))
    types: dict[str, list[tuple[int, DType]]] = {}
    for edge, dtype in branch.types.items():
        types.setdefault(edge.node, []).append((edge.port, dtype))
    names: dict[str, str] = {}
    for name in inner.order:
        if Edge(name) not in edges:
            new = inner[name]
            inputs = tuple(_rename_edge(edges, names, edge) for edge in new.inputs)
            names[name] = translator.add_node(f"{translator.name(node.name)}/{name}", new.op, inputs, **new.attrs).node
            translator.types |= {Edge(names[name], port): dtype for port, dtype in types[name]}
    for output, edge in zip(outputs, inner.outputs, strict=True):
        translator.values[output, PLAIN] = _rename_edge(edges, names, edge)


def _rename_edge(edges: Mapping[Edge, Edge], names: Mapping[str, str], edge: Edge) -> Edge:
    return edges[edge] if edge in edges else Edge(names[edge.node], edge.port)


def _add_function(
    translator: OnnxTranslator, name: str, branch: Graph, ports: Sequence[int], arguments: Sequence[Edge]
) -> list[Shape]:
    """Add a branch as a function of all arguments, and return the shapes of its results.

    ``ports`` are the arguments that are its inputs.
    """
    branch_translator = OnnxTranslator(branch, f"{name}_")
    body = branch_translator.translate()
    translator.functions |= branch_translator.functions
    types = [translator.types[edge] for edge in arguments]
    argument_names = [f"arg_{port}" for port in range(len(arguments))]
    edges = {edge: Edge(argument_names[port]) for edge, port in zip(body.inputs, ports, strict=True)}
    inputs = {edge.node for edge in body.inputs}
    nodes = [
        Node(argument, "_Arg", attrs={"T": dtype, "index": port})
        for port, (argument, dtype) in enumerate(zip(argument_names, types, strict=True))
    ]
    nodes += [
        inner.with_(inputs=tuple(edges.get(edge, edge) for edge in inner.inputs))
        for inner in body.nodes.values()
        if inner.name not in inputs
    ]
    outputs = [edges.get(edge, edge) for edge in body.outputs]
    results = {f"result_{port}": branch_translator.types[edge] for port, edge in enumerate(body.outputs)}
    translator.functions[name] = Function(name, Graph.of(nodes, argument_names, outputs), results)
    return [branch_translator.shape(edge) for edge in branch.outputs]


@dataclass(frozen=True)
class _TranslatedLoop:
    """Loop with its translated body.

    Attributes:
        name: name of the Loop in the TensorFlow graph.
        body: translated body: inputs are iteration, condition, states and captured values; outputs are condition,
            states and scan outputs.
        types: element types of the outputs of the body.
        shapes: their shapes.
        num_states: number of states.
    """

    name: str
    body: Graph
    types: tuple[DType, ...]
    shapes: tuple[Shape, ...]
    num_states: int

    @property
    def outputs(self) -> tuple[Edge, ...]:
        """Outputs of the body."""
        return self.body.outputs

    @property
    def num_lists(self) -> int:
        """Number of scan outputs."""
        return len(self.outputs) - 1 - self.num_states

    @property
    def limit(self) -> int:
        """Index of the loop variable with the maximum number of iterations."""
        return SCALARS + self.num_states + self.num_lists

    def list_type(self, number: int) -> DType:
        """Return the element type of a scan output."""
        return self.types[1 + self.num_states + number]

    def list_shape(self, number: int) -> Shape:
        """Return the shape of one element of a scan output."""
        return self.shapes[1 + self.num_states + number]


@converts("Loop")
def _loop(translator: OnnxTranslator, node: Node) -> None:
    body, captured = read_subgraph(translator, node, "body")
    convert_loop(translator, node, body, captured)


def convert_loop(translator: OnnxTranslator, node: Node, body: Graph, captured: Sequence[Edge]) -> None:
    """Add the loop of a Loop node, whose outputs then have values.

    Args:
        translator: state of the conversion.
        node: Loop; its attribute ``body`` is not used.
        body: ONNX graph of the body; its inputs are iteration, condition, states and captured values.
        captured: values from outside that the body uses.
    """
    loop = _translate_body(translator, node, body)
    if len(loop.outputs) - 1 < num_outputs(node):
        raise conversion_error(node, "the body has too few outputs")
    states = [translator.plain(edge) for edge in node.inputs[SCALARS:]]
    variables = [*_scalars(translator, node), *states, *_empty_lists(translator, loop), _limit(translator, node)]
    variables += [translator.plain(edge) for edge in captured]
    types = tuple(translator.types[edge] for edge in variables)
    names = [translator.function_name(node, role) for role in ("condition", "body")]
    translator.functions[names[0]] = _condition_function(names[0], types, loop.limit)
    translator.functions[names[1]] = _body_function(names[1], loop, types)
    shapes = [Shape(()), Shape(()), *loop.shapes[1 : 1 + loop.num_states], *[Shape(())] * (loop.num_lists + 1)]
    shapes += [translator.shape(edge) for edge in captured]
    attrs: dict[str, Attr] = {"T": types, "output_shapes": tuple(shapes), "parallel_iterations": 1}
    functions = {"cond": FunctionName(names[0]), "body": FunctionName(names[1])}
    call = translator.emit(node, "StatelessWhile", variables, PLAIN, **attrs, **functions)
    outputs = [Edge(node.name, port) for port in range(len(loop.outputs) - 1)]
    lists = (loop.list_shape(number).dims for number in range(loop.num_lists))
    after = [*loop.shapes[1 : 1 + loop.num_states], *(Shape(None if dims is None else (None, *dims)) for dims in lists)]
    translator.add_shapes(dict(zip(outputs, after, strict=True)))
    for port, output in enumerate(outputs):
        value = Edge(call.node, SCALARS + port)
        translator.types[value] = types[SCALARS + port]
        is_list = port >= loop.num_states
        translator.values[output, PLAIN] = _stack(translator, loop, port - loop.num_states, value) if is_list else value


def _translate_body(translator: OnnxTranslator, node: Node, body: Graph) -> _TranslatedLoop:
    """Return the translated body.

    The shapes of the states are those before the first iteration; sizes that an iteration changes are unknown.
    """
    shapes = [translator.shape(edge) for edge in node.inputs[SCALARS:]]
    types = [DType.INT64, DType.BOOL, *(translator.dtype(edge) for edge in node.inputs[SCALARS:])]
    while True:  # each further pass has more unknown sizes
        stated = zip(body.inputs, types, [Shape(()), Shape(()), *shapes], strict=False)
        infos = {edge.node: (dtype, shape) for edge, dtype, shape in stated}
        nodes = [
            inner.with_attrs(dtype=infos[name][0], shape=infos[name][1]) if name in infos else inner
            for name, inner in body.nodes.items()
        ]
        body_translator = OnnxTranslator(body.with_nodes(nodes), translator.function_name(node, "body_"))
        translated = body_translator.translate()
        results = [body_translator.shape(edge) for edge in body.outputs]
        joined = [join_shapes(*pair) for pair in zip(shapes, results[1:], strict=False)]
        if joined == shapes:
            break
        shapes = joined
    translator.functions |= body_translator.functions
    output_types = tuple(body_translator.types[edge] for edge in translated.outputs)
    output_shapes = (results[0], *shapes, *results[1 + len(shapes) :])
    return _TranslatedLoop(translator.name(node.name), translated, output_types, output_shapes, len(shapes))


def _scalars(translator: OnnxTranslator, node: Node) -> list[Edge]:
    """Return the number of the first iteration, and the condition of the first iteration."""
    zero = translator.add_array(node, "first", 0)
    if translator.has_input(node, 1):
        return [zero, translator.condition(node, 1)]
    return [zero, translator.add_array(node, "always", True, DType.BOOL)]


def _limit(translator: OnnxTranslator, node: Node) -> Edge:
    """Return the maximum number of iterations, a scalar."""
    if not translator.has_input(node, 0):
        return translator.add_array(node, "limit", np.iinfo(np.int64).max)
    return translator.reshape(node, "limit", translator.plain(node.inputs[0]), [])


def _empty_lists(translator: OnnxTranslator, loop: _TranslatedLoop) -> Iterator[Edge]:
    """Yield the list of each scan output before the first iteration."""
    for number in range(loop.num_lists):
        shape = _element_shape(translator, loop, number)
        most = translator.add_integer(f"{loop.name}/{number}/most", -1)
        attrs: dict[str, Attr] = {"element_dtype": loop.list_type(number), "shape_type": DType.INT32}
        edge = translator.add_node(f"{loop.name}/{number}/empty", "EmptyTensorList", [shape, most], **attrs)
        translator.types[edge] = DType.VARIANT
        yield edge


def _element_shape(translator: OnnxTranslator, loop: _TranslatedLoop, number: int) -> Edge:
    """Return the shape of the elements of a list, with -1 for unknown sizes; the scalar -1 for an unknown rank."""
    dims = loop.list_shape(number).dims
    name = f"{loop.name}/{number}/shape"
    if dims is None:
        return translator.add_integer(name, -1)
    return translator.add_integers(name, [-1 if size is None else size for size in dims])


def _stack(translator: OnnxTranslator, loop: _TranslatedLoop, number: int, elements: Edge) -> Edge:
    """Return the elements of a list as one tensor."""
    attrs: dict[str, Attr] = {"element_dtype": loop.list_type(number), "num_elements": -1}
    inputs = [elements, _element_shape(translator, loop, number)]
    rows = translator.add_node(f"{loop.name}/{number}/rows", "TensorListStack", inputs, **attrs)
    translator.types[rows] = loop.list_type(number)
    return rows


def _condition_function(name: str, types: Sequence[DType], limit: int) -> Function[Graph]:
    """Return the function that is true if another iteration follows: the limit is the argument ``limit``."""
    nodes = [
        *_arguments(types),
        Node("is_below", "Less", (Edge("arg_0"), Edge(f"arg_{limit}")), attrs={"T": DType.INT64}),
        Node("is_next", "LogicalAnd", (Edge("arg_1"), Edge("is_below"))),
    ]
    arguments = [f"arg_{port}" for port in range(len(types))]
    return Function(name, Graph.of(nodes, arguments, ["is_next"]), {"result_0": DType.BOOL})


def _body_function(name: str, loop: _TranslatedLoop, types: Sequence[DType]) -> Function[Graph]:
    """Return the function of one iteration, from the loop variables to the loop variables."""
    arguments = [f"arg_{port}" for port in range(len(types))]
    first_list = SCALARS + loop.num_states
    used = [*range(first_list), *range(loop.limit + 1, len(types))]
    edges = {edge: Edge(arguments[port]) for edge, port in zip(loop.body.inputs, used, strict=True)}
    inputs = {edge.node for edge in loop.body.inputs}
    step = constant("next/step", np.int64(1))
    nodes = [*_arguments(types), step]
    nodes.append(Node("next", "AddV2", (Edge(arguments[0]), Edge(step.name)), attrs={"T": DType.INT64}))
    for inner in loop.body.nodes.values():
        if inner.name not in inputs:
            sources = tuple(_in_function(edge, edges) for edge in inner.inputs)
            nodes.append(inner.with_(name=f"{PREFIX}{inner.name}", inputs=sources))
    results = [_in_function(edge, edges) for edge in loop.body.outputs]
    if loop.shapes[0].dims != ():  # the condition
        scalar = constant("next/scalar", np.zeros(0, np.int32))
        attrs: dict[str, Attr] = {"T": DType.BOOL, "Tshape": DType.INT32}
        nodes += [scalar, Node("next/condition", "Reshape", (results[0], Edge(scalar.name)), attrs=attrs)]
        results[0] = Edge("next/condition")
    lists = []
    for number, value in enumerate(results[1 + loop.num_states :]):
        attrs = {"element_dtype": loop.list_type(number)}
        push = Node(f"list_{number}", "TensorListPushBack", (Edge(arguments[first_list + number]), value), attrs=attrs)
        nodes.append(push)
        lists.append(Edge(push.name))
    constants = [Edge(argument) for argument in arguments[loop.limit :]]
    outputs = [Edge("next"), *results[: 1 + loop.num_states], *lists, *constants]
    return Function(
        name, Graph.of(nodes, arguments, outputs), {f"result_{port}": dtype for port, dtype in enumerate(types)}
    )


def _in_function(edge: Edge, arguments: Mapping[Edge, Edge]) -> Edge:
    """Return the edge of the body's function for an edge of the translated body."""
    return arguments[edge] if edge in arguments else Edge(f"{PREFIX}{edge.node}", edge.port)


def _arguments(types: Sequence[DType]) -> list[Node]:
    return [Node(f"arg_{port}", "_Arg", attrs={"T": dtype, "index": port}) for port, dtype in enumerate(types)]
