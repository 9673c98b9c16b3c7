"""The function library of a GraphDef <-> `Library`.

Inside a function, a tensor is named ``node:output:index``: the output as its op calls it, and a place among the
tensors of that output. A `Graph` numbers all tensors of a node, as the nodes outside do.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from quantkit.errors import GraphError, InputError
from quantkit.formats import wire
from quantkit.formats.graphdef.generic_functions import MOST, Binding
from quantkit.formats.graphdef.nodes import decode_attr, decode_name, decode_node, encode_attr, encode_node
from quantkit.formats.graphdef.schema import message_class, parse
from quantkit.formats.graphdef.tensors import type_number
from quantkit.ir.functions import Function, Library, Stored, function_names
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import ArgDef, attribute, find_op, output_dtypes

ARGUMENT, UNIQUE_ID = "_Arg", "_resource_arg_unique_id"
FUNCTION, GRADIENT = 1, 2
SIGNATURE, BODY_NODE, SIGNATURE_NAME, SIGNATURE_ATTR = 1, 3, 1, 4


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
            name, is_open = _head(view, start, end)
            if name in entries:
                raise InputError(f"two functions are named {name!r}")
            entries[name] = Stored(bytes(view[start:end]), _decode_function, is_open)
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


def _head(view: memoryview, start: int, end: int) -> tuple[str, bool]:
    """The name in the signature of a serialized FunctionDef, and whether it leaves anything to calls."""
    name, is_open = "", False
    for number, kind, _, first, last in wire.fields(view, start, end):
        if number != SIGNATURE or kind != wire.LENGTH:
            continue
        for part, part_kind, _, begin, stop in wire.fields(view, first, last):
            if part == SIGNATURE_NAME and part_kind == wire.LENGTH:
                name = decode_name(view[begin:stop])
            is_open = is_open or part == SIGNATURE_ATTR
    return name, is_open


def _decode_function(name: str, library: Library[Graph], given: Mapping[str, Attr]) -> Function[Graph]:
    """A function of the library that is stored there, as a call makes it that gives it these attributes.

    Raises:
        InputError: it is broken.
        GraphError: the call leaves open what the function does, too, or a name in it is unknown.
    """
    entry = library.entries[name]
    if isinstance(entry, Function):
        return entry
    stored, rest = _split(memoryview(entry.data))
    message = parse("FunctionDef", rest)
    signature = message.signature
    binding = Binding(name, signature, given)
    nodes = [binding.node(node) for node in stored]
    arguments = {arg.name: _arguments(message, place, binding) for place, arg in enumerate(signature.input_arg)}
    every = [node for made in arguments.values() for node in made]
    resolve = _Resolver(name, library, arguments, nodes)
    results: dict[str, DType | None] = {}
    outputs: list[Edge] = []
    for arg in signature.output_arg:
        tensors = binding.tensors(arg)
        results.update(tensors)
        outputs.extend(resolve.edges(message.ret[arg.name], len(tensors)))
    body = Graph.of(
        [
            *(node.with_(attrs={**node.attrs, "index": place}) for place, node in enumerate(every)),
            *map(resolve.node, nodes),
        ],
        [Edge(node.name) for node in every],
        outputs,
    )
    attrs = {key: decode_attr(value) for key, value in message.attr.items()}
    controls = dict(message.control_ret)
    if missing := set(controls.values()) - body.nodes.keys():
        raise GraphError(f"function {name!r} promises to run {min(missing)!r}, which is not in it")
    for field in ("ret", "control_ret", "attr", "arg_attr", "resource_arg_unique_id"):
        message.ClearField(field)
    return Function(name, body, results, controls, attrs, message.SerializeToString(deterministic=True))


def nodes_in(library: Library[Graph], name: str) -> list[Node]:
    """The nodes of a function, also of one that can not be opened, which may read by names that only functions have.

    Raises:
        InputError: it is broken.
    """
    try:
        return list(library[name].graph.nodes.values())
    except GraphError:
        entry = library.entries[name]
        return _split(memoryview(entry.data))[0] if isinstance(entry, Stored) else []


def names_in(library: Library[Graph], name: str) -> Iterator[str]:
    """What may be names of functions in one, also in one that can not be opened: ops, and what attributes name.

    Raises:
        InputError: it is broken.
    """
    for node in nodes_in(library, name):
        yield from (node.op, *function_names(node.attrs))


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


def _arguments(message: Any, place: int, binding: Binding) -> list[Node]:
    """The nodes of an argument, with all that the FunctionDef says of it by its place."""
    attrs: dict[str, Attr] = {}
    if place in message.arg_attr:
        attrs |= {key: decode_attr(value) for key, value in message.arg_attr[place].attr.items()}
    if place in message.resource_arg_unique_id:
        attrs[UNIQUE_ID] = message.resource_arg_unique_id[place]
    tensors = binding.tensors(message.signature.input_arg[place])
    return [Node(name, ARGUMENT, attrs={**({"T": dtype} if dtype else {}), **attrs}) for name, dtype in tensors]


def _describe_arguments(message: Any, arguments: Iterable[Node]) -> None:
    """Write what `_arguments` read."""
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
        arguments: the nodes of each argument.
        nodes: the others.
    """

    def __init__(
        self, function: str, library: Library[Graph], arguments: Mapping[str, Sequence[Node]], nodes: Iterable[Node]
    ) -> None:
        self._function = function
        self._library = library
        self._nodes = {node.name: node for node in nodes}
        # Of each argument, and of each output that was read, by how the function calls it.
        self._lists = {name: [Edge(node.name) for node in made] for name, made in arguments.items()}

    def node(self, node: Node) -> Node:
        """A node that reads edges of a graph."""
        read = (text for text in node.written_inputs if not text.startswith("^"))
        return node.with_(inputs=tuple(edge for text in read for edge in self.edges(text)), spelling=())

    def edges(self, text: str, count: int | None = None) -> list[Edge]:
        """The edges of ``argument``, ``node:output`` or one of these with an index.

        Raises:
            GraphError: there are none, or not the number that is wanted.
        """
        head, _, last = text.rpartition(":")
        whole, place = (head, int(last)) if head and last.isdecimal() else (text, None)
        if whole in self._nodes:  # by its port, as in a graph
            return [Edge(whole, place or 0)]
        found = self._lists[whole] if whole in self._lists else self._outputs(whole)
        chosen = found if place is None else found[place : place + 1]
        if (place is not None or count is not None) and len(chosen) != (count or 1):
            raise self._unknown(text.removesuffix(":0"))
        return chosen

    def _outputs(self, text: str) -> list[Edge]:
        """The edges of ``node:output``."""
        name, _, output = text.rpartition(":")
        if name not in self._nodes:
            raise GraphError(f"function {self._function!r} reads {text!r}, which is not in it")
        runs = output_runs(self._nodes[name], self._library)
        if output not in runs or runs[output][1] > MOST:
            raise self._unknown(text)
        first, count = runs[output]
        self._lists[text] = [Edge(name, first + number) for number in range(count)]
        return self._lists[text]

    def _unknown(self, text: str) -> GraphError:
        node = next((self._nodes[name] for name in (text.split(":")[0],) if name in self._nodes), None)
        what = node.op if node else "the argument"
        return GraphError(f"function {self._function!r} reads {text!r}, which {what} does not have")


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
        return _numbered(_results(library, node))
    return _numbered((arg.name, _length(node, arg)) for arg in definition.outputs)


def _numbered(outputs: Iterable[tuple[str, int]]) -> Mapping[str, tuple[int, int]]:
    runs: dict[str, tuple[int, int]] = {}
    port = 0
    for name, count in outputs:
        runs[name] = (port, count)
        port += count
    return runs


def _length(node: Node, arg: ArgDef) -> int:
    """How many tensors an output is."""
    name = arg.type_list_attr or arg.number_attr
    value = attribute(node, name) if name else 1
    count = len(value) if isinstance(value, tuple) and arg.type_list_attr else value
    if not isinstance(count, int):
        raise GraphError(f"node {node.name!r} ({node.op}) is damaged: its attribute {name!r} is {count!r}")
    return count


def _results(library: Library[Graph], call: Node) -> list[tuple[str, int]]:
    """Names of the results of a function that a node calls as its op, and how many tensors each is."""
    entry = library.entries[call.op]
    if isinstance(entry, Function):
        return [(name, 1) for name in entry.results]
    signature = parse("FunctionDef", entry.data).signature
    binding = Binding(call.op, signature, call.attrs)
    return [(arg.name, len(binding.tensors(arg))) for arg in signature.output_arg]


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
