"""Conversion between the function library of a GraphDef and `Library`.

In a FunctionDef, a tensor has the name ``node:output:index``: the output name of the op, and the index of the tensor
in that output. In a `Graph` all output tensors of a node have consecutive ports.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from quantkit.errors import GraphError, InputError, QuantkitError
from quantkit.formats import wire
from quantkit.formats.graphdef.generic_functions import MAX_TENSORS, Binding
from quantkit.formats.graphdef.nodes import decode_attr, decode_name, decode_node, encode_attr, encode_node
from quantkit.formats.graphdef.schema import message_class, parse
from quantkit.formats.graphdef.tensors import type_number
from quantkit.ir.functions import Function, Library, StoredFunction, function_names
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.names import split_reference
from quantkit.ir.tensor import DType
from quantkit.limits import check_num_nodes
from quantkit.ops.tensorflow.signatures import ArgDef, attribute, find_op, output_dtypes

ARGUMENT, UNIQUE_ID = "_Arg", "_resource_arg_unique_id"
FUNCTION, GRADIENT = 1, 2
SIGNATURE, BODY_NODE, SIGNATURE_NAME, SIGNATURE_ATTR = 1, 3, 1, 4


def decode_library(data: wire.Buffer) -> Library[Graph]:
    """Decode a serialized FunctionDefLibrary; each function is decoded on first access.

    Raises:
        InputError: the bytes are not a library, or two functions have the same name.
    """
    view = memoryview(data)
    entries: dict[str, Function[Graph] | StoredFunction[Graph]] = {}
    gradients: dict[str, str] = {}
    values, rest = wire.split(view, 0, len(view), FUNCTION, GRADIENT)
    for start, end in values[FUNCTION]:
        name, is_open = _read_signature(view, start, end)
        if name in entries:
            raise InputError(f"two functions are named {name!r}")
        entries[name] = StoredFunction(bytes(view[start:end]), _decode_function, is_open)
    for start, end in values[GRADIENT]:
        message = parse("GradientDef", view[start:end])
        gradients[message.function_name] = message.gradient_func
    return Library(entries, gradients, rest)


def encode_library(library: Library[Graph]) -> bytes:
    """Serialize a function library; unchanged functions keep their bytes.

    Raises:
        GraphError: an input in a function names an output that the op does not have.
    """
    pieces: list[wire.Buffer] = []
    for name in library.entries:
        data = encode_function(library, name)
        pieces.extend((wire.header(FUNCTION, len(data)), data))
    for name, gradient in library.gradients.items():
        data = message_class("GradientDef")(function_name=name, gradient_func=gradient).SerializeToString()
        pieces.extend((wire.header(GRADIENT, len(data)), data))
    return b"".join((*pieces, library.extra))


def _read_signature(view: memoryview, start: int, end: int) -> tuple[str, bool]:
    """Return the name of a serialized FunctionDef, and True if its types depend on the call."""
    name, is_open = "", False
    for number, kind, _, first, last in wire.fields(view, start, end):
        if number != SIGNATURE or kind != wire.LENGTH:
            continue
        for part, part_kind, _, begin, stop in wire.fields(view, first, last):
            if part == SIGNATURE_NAME and part_kind == wire.LENGTH:
                name = decode_name(view[begin:stop])
            is_open = is_open or part == SIGNATURE_ATTR
    return name, is_open


def _decode_function(name: str, library: Library[Graph], call_attrs: Mapping[str, Attr]) -> Function[Graph]:
    """Decode a stored function for a call with the given attributes.

    Raises:
        InputError: the function is broken.
        GraphError: the attributes do not determine all types, or a name in the function is unknown.
    """
    entry = library.entries[name]
    if isinstance(entry, Function):
        return entry
    stored, rest = _split(memoryview(entry.data))
    message = parse("FunctionDef", rest)
    signature = message.signature
    binding = Binding(name, signature, call_attrs)
    nodes = [binding.node(node) for node in stored]
    arguments = {arg.name: _argument_nodes(message, index, binding) for index, arg in enumerate(signature.input_arg)}
    argument_nodes = [node for nodes_of_argument in arguments.values() for node in nodes_of_argument]
    resolve = _Resolver(name, library, arguments, nodes)
    results: dict[str, DType | None] = {}
    outputs: list[Edge] = []
    for arg in signature.output_arg:
        tensors = binding.tensors(arg)
        results.update(tensors)
        outputs.extend(resolve.edges(message.ret[arg.name], len(tensors)))
    if len(results) != len(outputs):
        raise GraphError(f"two results of function {name!r} have the same name", hint="the file is damaged")
    body = Graph.of(
        [
            *(node.with_(attrs={**node.attrs, "index": index}) for index, node in enumerate(argument_nodes)),
            *map(resolve.node, nodes),
        ],
        [Edge(node.name) for node in argument_nodes],
        outputs,
    )
    attrs = {key: decode_attr(value) for key, value in message.attr.items()}
    controls = dict(message.control_ret)
    if missing := set(controls.values()) - body.nodes.keys():
        raise GraphError(f"control output {min(missing)!r} of function {name!r} is not a node of the function")
    for field in ("ret", "control_ret", "attr", "arg_attr", "resource_arg_unique_id"):
        message.ClearField(field)
    return Function(name, body, results, controls, attrs, message.SerializeToString(deterministic=True))


def nodes_in(library: Library[Graph], name: str) -> list[Node]:
    """Return the nodes of a function; inputs of a function that cannot be decoded keep the notation of FunctionDefs.

    Raises:
        InputError: the function is broken.
    """
    try:
        return list(library[name].graph.nodes.values())
    except GraphError:
        entry = library.entries[name]
        return _split(memoryview(entry.data))[0] if isinstance(entry, StoredFunction) else []


def names_in(library: Library[Graph], name: str) -> Iterator[str]:
    """Yield all possible function names in a function: op types, and function names in attributes.

    Raises:
        InputError: the function is broken.
    """
    for node in nodes_in(library, name):
        yield from (node.op, *function_names(node.attrs))


def check_inlined_size(graph: Graph) -> None:
    """Check the number of nodes that a graph has after its function calls are inlined.

    If each function calls the next one twice, the number doubles with each level. Every runtime inlines calls.

    Raises:
        GraphError: the number exceeds ``max_nodes`` of the limits in effect.
    """
    sizes: dict[str, int] = {}  # by function; 0 while the functions that it calls are counted
    stack: list[Collection[Node]] = [graph.nodes.values()]
    names = [""]
    while stack:
        names_of_nodes = (name for node in stack[-1] for name in (node.op, *function_names(node.attrs)))
        called = [name for name in names_of_nodes if name in graph.library]
        unknown = next((name for name in called if name not in sizes), None)
        if unknown is not None:
            sizes[unknown] = 0
            names.append(unknown)
            stack.append(_nodes_or_none(graph.library, unknown))
            continue
        size = len(stack.pop()) + sum(sizes[name] for name in called)
        sizes[names.pop()] = size
        check_num_nodes(size)


def _nodes_or_none(library: Library[Graph], name: str) -> Collection[Node]:
    """Return the nodes of a function; none if the function is broken."""
    try:
        return nodes_in(library, name)
    except QuantkitError:
        return ()


def _split(view: memoryview) -> tuple[list[Node], bytes]:
    """Split a serialized FunctionDef into its nodes and all other fields."""
    values, rest = wire.split(view, 0, len(view), BODY_NODE)
    return [decode_node(view, *value) for value in values[BODY_NODE]], rest


def _argument_nodes(message: Any, index: int, binding: Binding) -> list[Node]:
    """Return the nodes of the argument with an index, with the attributes that the FunctionDef stores by index."""
    attrs: dict[str, Attr] = {}
    if index in message.arg_attr:
        attrs |= {key: decode_attr(value) for key, value in message.arg_attr[index].attr.items()}
    if index in message.resource_arg_unique_id:
        attrs[UNIQUE_ID] = message.resource_arg_unique_id[index]
    tensors = binding.tensors(message.signature.input_arg[index])
    return [Node(name, ARGUMENT, attrs={**({"T": dtype} if dtype else {}), **attrs}) for name, dtype in tensors]


def _write_argument_attrs(message: Any, arguments: Iterable[Node]) -> None:
    """Write the attributes that `_argument_nodes` reads."""
    for index, node in enumerate(arguments):
        for key, value in node.attrs.items():
            if key == UNIQUE_ID:
                message.resource_arg_unique_id[index] = value
            elif key not in ("T", "index"):
                encode_attr(message.arg_attr[index].attr[key], value, node)


class _Resolver:
    """Conversion of tensor names in a FunctionDef to edges.

    Args:
        function: name of the function for messages.
        library: functions that may be op types in the function.
        arguments: nodes of each argument.
        nodes: all other nodes.
    """

    def __init__(
        self, function: str, library: Library[Graph], arguments: Mapping[str, Sequence[Node]], nodes: Iterable[Node]
    ) -> None:
        self._function = function
        self._library = library
        self._nodes = {node.name: node for node in nodes}
        # Edges of each argument and of each resolved output, by name in the FunctionDef.
        self._edges = {name: [Edge(node.name) for node in group] for name, group in arguments.items()}

    def node(self, node: Node) -> Node:
        """Return the node with inputs converted to edges."""
        names = (text for text in node.written_inputs if not text.startswith("^"))
        return node.with_(inputs=tuple(edge for name in names for edge in self.edges(name)), spelling=())

    def edges(self, text: str, count: int | None = None) -> list[Edge]:
        """Return the edges of ``argument``, ``node:output`` or one of these with an index.

        Raises:
            GraphError: no such tensor exists, or the number of tensors is not ``count``.
        """
        name, port = split_reference(text)
        index = int(port) if port else None
        if name in self._nodes:  # ``node:port``, as in a graph
            return [Edge(name, index or 0)]
        all_edges = self._edges[name] if name in self._edges else self._output_edges(name)
        edges = all_edges if index is None else all_edges[index : index + 1]
        if (index is not None or count is not None) and len(edges) != (count or 1):
            raise self._missing_output_error(text.removesuffix(":0"))
        return edges

    def _output_edges(self, text: str) -> list[Edge]:
        """Return the edges of ``node:output``."""
        name, _, output = text.rpartition(":")
        if name not in self._nodes:
            raise GraphError(f"input {text!r} in function {self._function!r} names no node of the function")
        port_ranges = output_ports(self._nodes[name], self._library)
        if output not in port_ranges or port_ranges[output][1] > MAX_TENSORS:
            raise self._missing_output_error(text)
        first, count = port_ranges[output]
        self._edges[text] = [Edge(name, first + number) for number in range(count)]
        return self._edges[text]

    def _missing_output_error(self, text: str) -> GraphError:
        node = next((self._nodes[name] for name in (text.split(":")[0],) if name in self._nodes), None)
        producer = node.op if node else "the argument"
        return GraphError(
            f"input {text!r} in function {self._function!r} names an output that {producer} does not have"
        )


def output_ports(node: Node, library: Library[Graph]) -> Mapping[str, tuple[int, int]]:
    """Return (first port, number of ports) of each output of a node by output name.

    Raises:
        GraphError: the op type is unknown and not a function of the library.
    """
    definition = find_op(node.op)
    if definition is None:
        if node.op not in library:
            raise GraphError(
                f"the outputs of {node.name!r} are not known: Op type not registered '{node.op}'",
                hint="functions with custom ops cannot be decoded",
            )
        return _consecutive_ports(_results(library, node))
    return _consecutive_ports((arg.name, _num_tensors(node, arg)) for arg in definition.outputs)


def _consecutive_ports(outputs: Iterable[tuple[str, int]]) -> Mapping[str, tuple[int, int]]:
    port_ranges: dict[str, tuple[int, int]] = {}
    port = 0
    for name, count in outputs:
        port_ranges[name] = (port, count)
        port += count
    return port_ranges


def _num_tensors(node: Node, arg: ArgDef) -> int:
    """Return the number of tensors of an output."""
    name = arg.type_list_attr or arg.number_attr
    value = attribute(node, name) if name else 1
    count = len(value) if isinstance(value, tuple) and arg.type_list_attr else value
    if not isinstance(count, int):
        raise GraphError(f"node {node.name!r} ({node.op}) is damaged: attribute {name!r} is {count!r}")
    return count


def _results(library: Library[Graph], call: Node) -> list[tuple[str, int]]:
    """Return name and number of tensors of each result of the function that is the op type of ``call``."""
    entry = library.entries[call.op]
    if isinstance(entry, Function):
        return [(name, 1) for name in entry.results]
    signature = parse("FunctionDef", entry.data).signature
    binding = Binding(call.op, signature, call.attrs)
    return [(arg.name, len(binding.tensors(arg))) for arg in signature.output_arg]


def encode_function(library: Library[Graph], name: str) -> bytes:
    """Serialize a function of the library; an unchanged function keeps its bytes.

    Raises:
        GraphError: an input in the function names an output that the op does not have.
    """
    entry = library.entries[name]
    return entry.data if isinstance(entry, StoredFunction) else _encode_function(entry, library)


def _encode_function(function: Function[Graph], library: Library[Graph]) -> bytes:
    message = parse("FunctionDef", function.extra)
    nodes = function.graph.nodes
    signature = message.signature
    signature.name = function.name
    arguments = [nodes[edge.node] for edge in function.graph.inputs]
    _declare(signature.input_arg, {node.name: output_dtypes(node)[0] for node in arguments})
    _declare(signature.output_arg, function.results)
    _write_argument_attrs(message, arguments)
    names = {node.name for node in arguments}
    for name, edge in zip(function.results, function.graph.outputs, strict=True):
        message.ret[name] = _tensor_name(edge, nodes, names, library)
    message.control_ret.update(function.controls)
    signature.control_output[:] = list(function.controls)
    for key, value in function.attrs.items():
        encode_attr(message.attr[key], value, Node(function.name, "function"))
    pieces: list[wire.Buffer] = [message.SerializeToString(deterministic=True)]
    for node in nodes.values():
        if node.name not in names:
            inputs = [_tensor_name(edge, nodes, names, library) for edge in node.inputs]
            inputs.extend(f"^{control}" for control in node.controls)
            pieces.extend(encode_node(node, BODY_NODE, inputs))
    return b"".join(pieces)


def _declare(args: Any, dtypes: Mapping[str, DType | None]) -> None:
    """Write arguments or results of a signature; existing ones keep their other fields."""
    before = {arg.name: arg.SerializeToString(deterministic=True) for arg in args}
    del args[:]
    for name, dtype in dtypes.items():
        arg = args.add()
        arg.MergeFromString(before.get(name, b""))
        arg.name = name
        if dtype is not None:
            arg.type = type_number(dtype)


def _tensor_name(edge: Edge, nodes: Mapping[str, Node], arguments: set[str], library: Library[Graph]) -> str:
    """Return the name of an edge in the notation of FunctionDefs."""
    if edge.node in arguments:
        return edge.node
    for output, (first, count) in output_ports(nodes[edge.node], library).items():
        if first <= edge.port < first + count:
            return f"{edge.node}:{output}:{edge.port - first}"
    raise GraphError(f"node {edge.node!r} ({nodes[edge.node].op}) has no output {edge.port}")
