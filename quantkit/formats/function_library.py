"""The function library of a GraphDef <-> `Library`.

Inside a function, a tensor is named ``node:output:index``: the output as its op calls it, and a place among the
tensors of that output. A `Graph` numbers all tensors of a node, as the nodes outside do.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from quantkit.errors import GraphError, InputError
from quantkit.formats import wire
from quantkit.formats.nodes import decode_attr, decode_name, decode_node, encode_attr, encode_node
from quantkit.formats.schema import message_class, parse
from quantkit.formats.tensors import element_type, type_number
from quantkit.ir.functions import Function, Library, Stored, called
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow import ArgDef, attribute, find_op, output_dtypes

ARGUMENT, UNIQUE_ID = "_Arg", "_resource_arg_unique_id"
FUNCTION, GRADIENT = 1, 2
SIGNATURE, BODY_NODE, SIGNATURE_NAME = 1, 3, 1


def decode_library(data: wire.Buffer) -> Library[Graph]:
    """The library of a serialized FunctionDefLibrary; the functions are decoded when they are asked for.

    Raises:
        InputError: the bytes are no library, or two functions have one name.
    """
    view = memoryview(data)
    entries: dict[str, Function[Graph] | Stored[Graph]] = {}
    gradients: dict[str, str] = {}
    rest: list[bytes] = []
    for number, kind, begin, start, end in wire.fields(view, 0, len(view)):
        if number == FUNCTION and kind == wire.LENGTH:
            name = _name(view, start, end)
            if name in entries:
                raise InputError(f"two functions are named {name!r}")
            entries[name] = Stored(bytes(view[start:end]), _decode_function)
        elif number == GRADIENT and kind == wire.LENGTH:
            message = parse("GradientDef", view[start:end])
            gradients[message.function_name] = message.gradient_func
        else:
            rest.append(bytes(view[begin:end]))
    return Library(entries, gradients, b"".join(rest))


def encode_library(library: Library[Graph]) -> bytes:
    """The serialized FunctionDefLibrary; functions that nobody changed are written as they were read.

    Raises:
        GraphError: a function reads an output that its op does not have.
    """
    pieces: list[wire.Buffer] = []
    for name in library.entries:
        data = encode_function(library, name)
        pieces.extend((wire.header(FUNCTION, len(data)), data))
    for name, gradient in library.gradients.items():
        data = message_class("GradientDef")(function_name=name, gradient_func=gradient).SerializeToString()
        pieces.extend((wire.header(GRADIENT, len(data)), data))
    return b"".join((*pieces, library.extra))


def _name(view: memoryview, start: int, end: int) -> str:
    """The name in the signature of a serialized FunctionDef."""
    for number, kind, _, first, last in wire.fields(view, start, end):
        if number != SIGNATURE or kind != wire.LENGTH:
            continue
        for part, part_kind, _, begin, stop in wire.fields(view, first, last):
            if part == SIGNATURE_NAME and part_kind == wire.LENGTH:
                return decode_name(view[begin:stop])
    return ""


def _decode_function(name: str, library: Library[Graph]) -> Function[Graph]:
    """A function of the library that is stored there.

    Raises:
        InputError: it is broken.
        GraphError: it takes or gives lists of tensors or is made for several types, or a name in it is unknown.
    """
    entry = library.entries[name]
    if isinstance(entry, Function):
        return entry
    nodes, rest = _split(memoryview(entry.data))
    message = parse("FunctionDef", rest)
    signature = message.signature
    if signature.attr or any(_is_list(arg) for arg in (*signature.input_arg, *signature.output_arg)):
        raise GraphError(
            f"function {name!r} takes tensors of several types or numbers, which quantkit does not open",
            hint="export the model with tf.function and an input signature, which makes a function of fixed types",
        )
    arguments = [_argument(message, place) for place in range(len(signature.input_arg))]
    resolve = _Resolver(name, library, (*arguments, *nodes))
    results = {arg.name: element_type(arg.type) for arg in signature.output_arg}
    body = Graph.of(
        [*arguments, *(node.with_(inputs=tuple(map(resolve.edge, node.inputs)), spelling=()) for node in nodes)],
        [Edge(node.name) for node in arguments],
        [resolve.edge(Edge.parse(message.ret[result])) for result in results],
    )
    attrs = {key: decode_attr(value) for key, value in message.attr.items()}
    controls = dict(message.control_ret)
    for field in ("ret", "control_ret", "attr", "arg_attr", "resource_arg_unique_id"):
        message.ClearField(field)
    return Function(name, body, results, controls, attrs, message.SerializeToString(deterministic=True))


def names_in(library: Library[Graph], name: str) -> Iterator[str]:
    """What may be names of functions in one, also in one that can not be opened: ops, and what attributes name.

    Raises:
        InputError: it is broken.
    """
    try:
        nodes = list(library[name].graph.nodes.values())
    except GraphError:
        entry = library.entries[name]
        nodes = _split(memoryview(entry.data))[0] if isinstance(entry, Stored) else []
    for node in nodes:
        yield from (node.op, *called(node.attrs))


def _split(view: memoryview) -> tuple[list[Node], bytes]:
    """The nodes of a serialized FunctionDef, and the rest of it."""
    nodes: list[Node] = []
    rest: list[wire.Buffer] = []
    for number, kind, begin, start, end in wire.fields(view, 0, len(view)):
        if number == BODY_NODE and kind == wire.LENGTH:
            nodes.append(decode_node(view, start, end))
        else:
            rest.append(view[begin:end])
    return nodes, b"".join(rest)


def _is_list(arg: Any) -> bool:
    return bool(arg.type_attr or arg.number_attr or arg.type_list_attr)


def _argument(message: Any, place: int) -> Node:
    """The node of an argument, with all that the FunctionDef says of it by its place."""
    arg = message.signature.input_arg[place]
    dtype = element_type(arg.type)
    attrs: dict[str, Attr] = {**({"T": dtype} if dtype else {}), "index": place}
    if place in message.arg_attr:
        attrs |= {key: decode_attr(value) for key, value in message.arg_attr[place].attr.items()}
    if place in message.resource_arg_unique_id:
        attrs[UNIQUE_ID] = message.resource_arg_unique_id[place]
    return Node(arg.name, ARGUMENT, attrs=attrs)


def _describe_arguments(message: Any, arguments: Iterable[Node]) -> None:
    """Write what `_argument` read."""
    for place, node in enumerate(arguments):
        for key, value in node.attrs.items():
            if key == UNIQUE_ID:
                message.resource_arg_unique_id[place] = value
            elif key not in ("T", "index"):
                encode_attr(message.arg_attr[place].attr[key], value, node)


class _Resolver:
    """Edges of a function, numbered as those of graphs are.

    Args:
        function: its name, for messages.
        library: the functions that its nodes may have as op.
        nodes: what is in it, arguments included.
    """

    def __init__(self, function: str, library: Library[Graph], nodes: Iterable[Node]) -> None:
        self._function = function
        self._library = library
        self._nodes = {node.name: node for node in nodes}
        self._runs: dict[str, Mapping[str, tuple[int, int]]] = {}

    def edge(self, read: Edge) -> Edge:
        """The edge of ``node:output`` and an index; an argument, or a node whose port is given, stays as it is."""
        if read.node in self._nodes:
            return read
        name, _, output = read.node.rpartition(":")
        node = self._nodes.get(name)
        if node is None:
            raise GraphError(f"function {self._function!r} reads {str(read)!r}, which is not in it")
        if name not in self._runs:
            self._runs[name] = output_runs(node, self._library)
        first, count = self._runs[name].get(output, (0, 0))
        if read.port >= count:
            raise GraphError(f"function {self._function!r} reads {str(read)!r}, which {node.op} does not have")
        return Edge(name, first + read.port)


def output_runs(node: Node, library: Library[Graph]) -> Mapping[str, tuple[int, int]]:
    """(first port, how many there are) of each output of a node, by the name its op gives it.

    Raises:
        GraphError: the op is neither known nor a function of the library.
    """
    definition = find_op(node.op)
    if definition is None:
        if node.op not in library:
            raise GraphError(
                f"the outputs of {node.name!r} are not known: Op type not registered '{node.op}'",
                hint="functions with custom ops can not be opened",
            )
        return {output: (port, 1) for port, output in enumerate(_results(library, node.op))}
    runs: dict[str, tuple[int, int]] = {}
    port = 0
    for arg in definition.outputs:
        count = _length(node, arg)
        runs[arg.name] = (port, count)
        port += count
    return runs


def _length(node: Node, arg: ArgDef) -> int:
    if arg.type_list_attr:
        return len(attribute(node, arg.type_list_attr))
    return int(attribute(node, arg.number_attr)) if arg.number_attr else 1


def _results(library: Library[Graph], name: str) -> Sequence[str]:
    """Names of the results of a function, without looking into its body."""
    entry = library.entries[name]
    if isinstance(entry, Function):
        return tuple(entry.results)
    return [arg.name for arg in parse("FunctionDef", entry.data).signature.output_arg]


def encode_function(library: Library[Graph], name: str) -> bytes:
    """The serialized FunctionDef of a function of the library; one that nobody changed is as it was read.

    Raises:
        GraphError: it reads an output that its op does not have.
    """
    entry = library.entries[name]
    return entry.data if isinstance(entry, Stored) else _encode_function(entry, library)


def _encode_function(function: Function[Graph], library: Library[Graph]) -> bytes:
    message = parse("FunctionDef", function.extra)
    nodes = function.graph.nodes
    signature = message.signature
    signature.name = function.name
    arguments = [nodes[edge.node] for edge in function.graph.inputs]
    _declare(signature.input_arg, {node.name: output_dtypes(node)[0] for node in arguments})
    _declare(signature.output_arg, function.results)
    _describe_arguments(message, arguments)
    names = {node.name for node in arguments}
    for name, edge in zip(function.results, function.graph.outputs, strict=True):
        message.ret[name] = _written(edge, nodes, names, library)
    message.control_ret.update(function.controls)
    signature.control_output[:] = list(function.controls)
    for key, value in function.attrs.items():
        encode_attr(message.attr[key], value, Node(function.name, "function"))
    pieces: list[wire.Buffer] = [message.SerializeToString(deterministic=True)]
    for node in nodes.values():
        if node.name not in names:
            written = [_written(edge, nodes, names, library) for edge in node.inputs]
            written.extend(f"^{control}" for control in node.controls)
            pieces.extend(encode_node(node, BODY_NODE, written))
    return b"".join(pieces)


def _declare(declared: Any, wanted: Mapping[str, DType | None]) -> None:
    """Write arguments or results of a signature; what the file says of those that stay is kept."""
    before = {arg.name: arg.SerializeToString(deterministic=True) for arg in declared}
    del declared[:]
    for name, dtype in wanted.items():
        arg = declared.add()
        arg.MergeFromString(before.get(name, b""))
        arg.name = name
        if dtype is not None:
            arg.type = type_number(dtype)


def _written(edge: Edge, nodes: Mapping[str, Node], arguments: set[str], library: Library[Graph]) -> str:
    if edge.node in arguments:
        return edge.node
    for output, (first, count) in output_runs(nodes[edge.node], library).items():
        if first <= edge.port < first + count:
            return f"{edge.node}:{output}:{edge.port - first}"
    raise GraphError(f"node {edge.node!r} ({nodes[edge.node].op}) has no output {edge.port}")
