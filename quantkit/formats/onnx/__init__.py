"""ONNX ModelProto <-> Graph of dialect ``onnx``.

In ONNX values have names; here nodes have. A node is called like its first output, so that

    value "x"  <->  Edge("x")                       value of a later output  <->  Edge("x", 1), Edge("x", 2) ...

and what the later outputs are called is kept in the attribute ``_outputs``. What is fed is a ``Placeholder``,
an initializer a ``Constant``, an input that is left out reads the node ``""`` (`ABSENT`). Operators of other
domains are ``domain.Op``. A node with subgraphs waits (`Node.controls`) for the values they use.

Reading cuts the file into fields; the contents of large tensors stay views of it. Writing streams.
"""

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError

from quantkit.errors import GraphError, InputError
from quantkit.formats import wire
from quantkit.formats.onnx.schema import DTYPES, NUMBERS, message_class
from quantkit.ir.graph import Attr, Edge, Graph, Node, Opaque
from quantkit.ir.tensor import Array, DType, Shape, Tensor

DIALECT = "onnx"
# The version every engine here reads, and the oldest that has all that quantkit writes.
OPSET, IR_VERSION = 17, 8
# A protobuf message can not be larger; weights of larger models lie in files of their own.
MAX_BYTES = (1 << 31) - 1
# Parts up to this size are parsed whole; of larger ones the tensor's content is left in the file.
SMALL = 2048

# An input that a node leaves out: ONNX writes it as an empty name.
ABSENT = Node("", "Absent")
OUTPUTS = "_outputs"

MODEL_GRAPH = 7
NODE, INITIALIZER, INPUT, OUTPUT, SPARSE = 1, 5, 11, 12, 15
NODE_ATTRIBUTE, ATTRIBUTE_TENSOR, RAW_DATA = 5, 5, 9
# Where tensors begin in a file of their own: engines map it page by page.
PAGE = 4096
FLOAT, INT, STRING, TENSOR, FLOATS, INTS, STRINGS, TENSORS, SPARSE_TENSOR = 1, 2, 3, 4, 6, 7, 8, 9, 11
OWN_DOMAINS = ("", "ai.onnx")

# Reads the file that holds a tensor of its own: (location) -> its bytes.
External = Callable[[str], wire.Buffer]

_FIELD_OF = {
    DType.FLOAT: "float_data",
    DType.COMPLEX64: "float_data",
    DType.DOUBLE: "double_data",
    DType.COMPLEX128: "double_data",
    DType.INT64: "int64_data",
    DType.UINT32: "uint64_data",
    DType.UINT64: "uint64_data",
    DType.STRING: "string_data",
}
# Types whose bits the typed field holds, as an integer of the same size.
_AS_BITS = {
    DType.HALF: np.uint16,
    DType.BFLOAT16: np.uint16,
    DType.FLOAT8_E4M3FN: np.uint8,
    DType.FLOAT8_E5M2: np.uint8,
}


def decode(data: wire.Buffer | mmap.mmap, external: External | None = None) -> Graph:
    """A graph of a serialized model; large tensors stay views of ``data``.

    Args:
        data: the model.
        external: reads the files in which a model keeps its large tensors, by location.

    Raises:
        InputError: the bytes are no ONNX model, or tensors lie in files and ``external`` is not given.
        GraphError: two values have one name.
    """
    view = memoryview(data)
    graph_parts: list[tuple[int, int]] = []
    rest: list[wire.Buffer] = []
    for number, kind, begin, start, end in wire.fields(view, 0, len(view)):
        if number == MODEL_GRAPH and kind == wire.LENGTH:
            graph_parts.append((start, end))
        else:
            rest.append(view[begin:end])
    if not graph_parts:
        raise InputError("it holds no graph")
    try:
        return _Reader(view, external).graph(graph_parts, _parse("ModelProto", b"".join(rest)))
    except (DecodeError, UnicodeDecodeError):
        raise InputError("a part of it is broken") from None


def encode(graph: Graph) -> bytes:
    """The serialized model.

    Raises:
        GraphError: it would be larger than 2 GiB, or two values would have one name.
    """
    return b"".join(chunks(graph))


def write(graph: Graph, file: BinaryIO) -> None:
    """Write the serialized model, tensor by tensor.

    Raises:
        GraphError: it would be larger than 2 GiB, or two values would have one name.
    """
    for chunk in chunks(graph):
        file.write(chunk)


def needs_data_file(graph: Graph) -> bool:
    """Whether the weights of a graph are more than one file can hold."""
    return sum(node.value.num_bytes for node in graph.nodes.values() if _is_initializer(node)) > MAX_BYTES


def write_data(graph: Graph, file: BinaryIO) -> None:
    """Write the weights that `chunks` with a location leaves out, tensor by tensor."""
    for node, offset in _placed(graph):
        file.write(bytes(offset - file.tell()))
        file.write(_content(node.value))


def chunks(graph: Graph, location: str = "") -> Iterator[wire.Buffer]:
    """The serialized model in pieces; content of large tensors is one piece each.

    Args:
        graph: of ONNX's ops.
        location: the name of a file beside the model that holds its weights, see `write_data`; empty: the model does.

    Raises:
        GraphError: it would be larger than 2 GiB, or two values would have one name.
    """
    if graph.dialect != DIALECT:
        raise GraphError(f"a graph of dialect {graph.dialect} is no ONNX model", hint="convert it first")
    model = _parse("ModelProto", graph.extra)
    parts = _Writer(graph, model, location).parts()
    length = sum(part.num_bytes if isinstance(part, Tensor) else len(part) for part in parts)
    if length > MAX_BYTES:
        raise GraphError(
            f"the model has {length / 1e9:.2f} GB, an ONNX file can have 2.15 GB",
            hint="save it to a file, which keeps its weights in another beside it: qk.save(graph, 'model.onnx')",
        )
    model.ClearField("graph")
    yield model.SerializeToString(deterministic=True)
    yield wire.header(MODEL_GRAPH, length)
    for part in parts:
        yield _content(part) if isinstance(part, Tensor) else part


def header(
    outputs: Mapping[str, tuple[DType, Shape]], *, opset: int = OPSET, domains: Mapping[str, int] | None = None
) -> bytes:
    """The `Graph.extra` of a new model: versions, and the types of its outputs.

    Args:
        outputs: element type and shape by name of the value.
        opset: version of ONNX's own operators.
        domains: versions of other operators.
    """
    model = message_class("ModelProto")(ir_version=IR_VERSION, producer_name="quantkit")
    for domain, version in {"": opset, **(domains or {})}.items():
        model.opset_import.add(domain=domain, version=version)
    model.graph.name = "quantkit"
    for name, (dtype, shape) in outputs.items():
        _fill_info(model.graph.output.add(name=name), dtype, shape)
    return bytes(model.SerializeToString(deterministic=True))


def opsets(graph: Graph) -> Mapping[str, int]:
    """Versions of the operator sets a graph uses, by domain; ONNX's own is ``""``.

    Raises:
        InputError: `Graph.extra` is broken.
    """
    model = _parse("ModelProto", graph.extra)
    found = {"" if one.domain in OWN_DOMAINS else one.domain: one.version for one in model.opset_import}
    return found or {"": OPSET}


def value_infos(graph: Graph) -> Mapping[Edge, tuple[DType | None, Shape]]:
    """Element types and shapes that the file states, of values other than what is fed and constants.

    Raises:
        InputError: `Graph.extra` is broken.
    """
    model = _parse("ModelProto", graph.extra)
    known = {info.name: _read_info(info) for info in (*model.graph.value_info, *model.graph.output)}
    found: dict[Edge, tuple[DType | None, Shape]] = {}
    for node in graph.nodes.values():
        named = node.attrs.get(OUTPUTS)
        for port in range(len(named) if isinstance(named, tuple) else 1):
            if (name := value_name(node, port)) in known:
                found[Edge(node.name, port)] = known[name]
    return found


def renamed_infos(extra: bytes, names: Mapping[str, str]) -> bytes:
    """A `Graph.extra` with other names for some values.

    Raises:
        InputError: it is broken.
    """
    model = _parse("ModelProto", extra)
    for info in (*model.graph.value_info, *model.graph.output):
        info.name = names.get(info.name, info.name)
    return bytes(model.SerializeToString(deterministic=True))


def value_name(node: Node, port: int) -> str:
    """What the file calls an output of a node; nothing where the node leaves it out."""
    named = node.attrs.get(OUTPUTS)
    names = named if isinstance(named, tuple) else ()
    if port < len(names) and (port or not names[0]):
        return str(names[port].decode())
    return f"{node.name}:{port}" if port else node.name


def edge_of(graph: Graph, name: str) -> Edge:
    """The edge of a value's name; an edge written the usual way where no value has that name."""
    if name in graph.nodes:
        return Edge(name)
    for node in graph.nodes.values():
        named = node.attrs.get(OUTPUTS)
        if isinstance(named, tuple) and name.encode() in named:
            return Edge(node.name, named.index(name.encode()))
    return Edge.parse(name)


def files_beside(folder: str | os.PathLike[str]) -> External:
    """Reads tensors from files of a folder, mapped."""
    root = os.path.realpath(folder)
    opened: dict[str, memoryview] = {}

    def read(location: str) -> memoryview:
        path = os.path.realpath(os.path.join(root, location))
        if os.path.commonpath([root, path]) != root:
            raise InputError(f"its tensors lie in {location!r}, outside of the model's folder")
        if path not in opened:
            try:
                with open(path, "rb") as file:
                    opened[path] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError):
                raise InputError(
                    f"its tensors lie in {location!r}, which can not be read", hint="put that file beside the model"
                ) from None
        return opened[path]

    return read


def _parse(name: str, data: wire.Buffer) -> Any:
    try:
        return message_class(name).FromString(bytes(data))
    except DecodeError:
        raise InputError(f"a {name} in it is broken") from None


class _Reader:
    """One file, and the names met so far."""

    def __init__(self, view: memoryview, external: External | None) -> None:
        self._view = view
        self._external = external
        self._edges: dict[str, Edge] = {}

    def graph(self, parts: list[tuple[int, int]], model: Any) -> Graph:
        """The graph, of the fields of the graph's message and all else of the model."""
        inputs: dict[str, Node] = {}
        constants: dict[str, Node] = {}
        messages: list[tuple[Any, dict[str, Tensor]]] = []
        outputs, rest = [], []
        for number, kind, begin, start, end in (
            one for part in parts for one in wire.fields(self._view, part[0], part[1])
        ):
            if kind != wire.LENGTH or number not in (NODE, INITIALIZER, INPUT, OUTPUT, SPARSE):
                rest.append(self._view[begin:end])
            elif number == NODE:
                messages.append(self._node_message(start, end))
            elif number == INITIALIZER:
                node = self._initializer(start, end)
                constants[node.name] = node
            elif number == SPARSE:
                node = _sparse_constant(self._view[start:end])
                constants[node.name] = node
            else:
                info = _parse("ValueInfoProto", self._view[start:end])
                if number == INPUT:
                    inputs[info.name] = _placeholder(info)
                else:
                    outputs.append(info)
        model.graph.MergeFromString(b"".join(rest))
        model.graph.output.extend(outputs)
        for name in [name for name in inputs if name in constants]:
            constants[name] = constants[name].with_(extra=inputs.pop(name).extra)
        self._edges = {name: Edge(name) for name in (*inputs, *constants)}
        self._edges[""] = Edge("")
        nodes = self._nodes(messages)
        ends = [self._edge(info.name, "the list of outputs") for info in outputs]
        if any(edge.node == "" for node in nodes for edge in node.inputs):
            nodes.insert(0, ABSENT)
        return Graph.of(
            [*inputs.values(), *constants.values(), *nodes],
            list(map(Edge, inputs)),
            ends,
            dialect=DIALECT,
            extra=model.SerializeToString(deterministic=True),
        )

    def _nodes(self, messages: list[tuple[Any, dict[str, Tensor]]]) -> list[Node]:
        names = [_output_names(message) for message, _ in messages]
        for outputs in names:
            name = next(filter(None, outputs))
            for port, output in enumerate(outputs):
                if output in self._edges and output:
                    raise GraphError(f"two values are named {output!r}", hint="the program that wrote the file erred")
                self._edges.setdefault(output, Edge(name, port))
        return [
            self._node(message, tensors, outputs) for (message, tensors), outputs in zip(messages, names, strict=True)
        ]

    def _edge(self, name: str, reader: str) -> Edge:
        if name not in self._edges:
            raise GraphError(f"{reader} names {name!r}, which nothing computes", hint="the file is incomplete")
        return self._edges[name]

    def _node(self, message: Any, tensors: Mapping[str, Tensor], outputs: list[str]) -> Node:
        name = next(filter(None, outputs))
        if not message.op_type.isidentifier():
            raise InputError(f"the node that makes {name!r} has the op {message.op_type!r}, which is no name")
        op = message.op_type if message.domain in OWN_DOMAINS else f"{message.domain}.{message.op_type}"
        attrs: dict[str, Attr] = {one.name: _decode_attribute(one) for one in message.attribute}
        attrs.update(tensors)
        if len(outputs) > 1 or not outputs[0]:
            attrs[OUTPUTS] = tuple(output.encode() for output in outputs)
        captured = [self._edges[value] for value in _captured(message) if value in self._edges]
        inputs = tuple(self._edge(value, f"node {name!r} ({op})") for value in message.input)
        for field in ("input", "output", "op_type", "domain", "attribute"):
            message.ClearField(field)
        return Node(
            name,
            op,
            inputs,
            tuple(dict.fromkeys(edge.node for edge in captured if edge.node)),
            attrs,
            extra=message.SerializeToString(deterministic=True),
        )

    def _node_message(self, start: int, end: int) -> tuple[Any, dict[str, Tensor]]:
        """A node's message without its large tensors, and those."""
        if end - start <= SMALL:
            return _parse("NodeProto", self._view[start:end]), {}
        small: list[wire.Buffer] = []
        tensors: dict[str, Tensor] = {}
        for number, kind, begin, value, stop in wire.fields(self._view, start, end):
            if number == NODE_ATTRIBUTE and kind == wire.LENGTH and stop - value > SMALL // 2:
                key, tensor = self._large_attribute(value, stop)
                if tensor is not None:
                    tensors[key] = tensor
                    continue
            small.append(self._view[begin:stop])
        return _parse("NodeProto", b"".join(small)), tensors

    def _large_attribute(self, start: int, end: int) -> tuple[str, Tensor | None]:
        found: list[tuple[int, int]] = []
        small: list[wire.Buffer] = []
        for number, kind, begin, value, stop in wire.fields(self._view, start, end):
            if number == ATTRIBUTE_TENSOR and kind == wire.LENGTH:
                found.append((value, stop))
            else:
                small.append(self._view[begin:stop])
        message = _parse("AttributeProto", b"".join(small))
        if message.type != TENSOR or len(found) != 1:
            return message.name, None
        proto, content = self._tensor_message(*found[0])
        return message.name, _decode_tensor(proto, content, self._external) if proto.data_type in DTYPES else None

    def _tensor_message(self, start: int, end: int) -> tuple[Any, memoryview | None]:
        """A tensor's message without its content, and that, left in the file."""
        small: list[wire.Buffer] = []
        content = None
        for number, kind, begin, value, stop in wire.fields(self._view, start, end):
            if number == RAW_DATA and kind == wire.LENGTH:
                content = self._view[value:stop]
            else:
                small.append(self._view[begin:stop])
        return _parse("TensorProto", b"".join(small)), content

    def _initializer(self, start: int, end: int) -> Node:
        proto, content = self._tensor_message(start, end)
        name = proto.name
        if proto.data_type not in DTYPES:
            whole = _parse("TensorProto", self._view[start:end])
            attribute = message_class("AttributeProto")(name="value", type=TENSOR, t=whole)
            return Node(name, "Constant", attrs={"value": Opaque(attribute.SerializeToString(deterministic=True))})
        return Node(name, "Constant", attrs={"value": _decode_tensor(proto, content, self._external)})


def _output_names(message: Any) -> list[str]:
    """A node's outputs, without those that it leaves out at the end."""
    outputs = list(message.output)
    while outputs and not outputs[-1]:
        outputs.pop()
    if not outputs:
        raise InputError(f"node {message.name!r} ({message.op_type}) has no output")
    return outputs


def _captured(message: Any) -> Iterator[str]:
    """Values that a node's subgraphs read and do not make."""
    for attribute in message.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            made = {value for node in graph.node for value in node.output}
            made.update(info.name for info in graph.input)
            made.update(tensor.name for tensor in graph.initializer)
            for node in graph.node:
                yield from (value for value in (*node.input, *_captured(node)) if value and value not in made)
            yield from (info.name for info in graph.output if info.name not in made)


def _sparse_constant(data: wire.Buffer) -> Node:
    sparse = _parse("SparseTensorProto", data)
    attribute = message_class("AttributeProto")(name="sparse_value", type=SPARSE_TENSOR, sparse_tensor=sparse)
    value = Opaque(attribute.SerializeToString(deterministic=True))
    return Node(sparse.values.name, "Constant", attrs={"sparse_value": value})


def _placeholder(info: Any) -> Node:
    dtype, shape = _read_info(info)
    attrs: dict[str, Attr] = {"shape": shape}
    if dtype is not None:
        attrs["dtype"] = dtype
    return Node(info.name, "Placeholder", attrs=attrs, extra=info.SerializeToString(deterministic=True))


def _read_info(info: Any) -> tuple[DType | None, Shape]:
    kind = info.type.tensor_type
    if not kind.HasField("shape"):
        return DTYPES.get(kind.elem_type), Shape(None)
    dims = [one.dim_value if one.HasField("dim_value") and one.dim_value >= 0 else None for one in kind.shape.dim]
    return DTYPES.get(kind.elem_type), Shape(dims)


def _fill_info(info: Any, dtype: DType | None, shape: Shape) -> None:
    if dtype is not None:
        info.type.tensor_type.elem_type = NUMBERS[dtype]
    if shape.dims is not None:
        info.type.tensor_type.shape.SetInParent()
        for size in shape.dims:
            one = info.type.tensor_type.shape.dim.add()
            if size is not None:
                one.dim_value = size


def _decode_attribute(message: Any) -> Attr:
    kind = message.type
    if message.ref_attr_name or message.doc_string:
        return _opaque(message)
    if kind == FLOAT:
        return float(message.f)
    if kind == INT:
        return int(message.i)
    if kind == STRING:
        return bytes(message.s)
    if kind == TENSOR and message.t.data_type in DTYPES and not message.t.external_data:
        return _decode_tensor(message.t, None, None)
    if kind == INTS:
        return tuple(message.ints)
    if kind == FLOATS and message.floats:
        return tuple(message.floats)
    if kind == STRINGS and message.strings:
        return tuple(message.strings)
    if kind == TENSORS and message.tensors and all(one.data_type in DTYPES for one in message.tensors):
        return tuple(_decode_tensor(one, None, None) for one in message.tensors)
    return _opaque(message)


def _opaque(message: Any) -> Opaque:
    return Opaque(message.SerializeToString(deterministic=True))


def _decode_tensor(message: Any, content: memoryview | None, external: External | None) -> Tensor:
    """A tensor of a TensorProto whose content, if it was cut out, is given."""
    dtype, shape = DTYPES[message.data_type], tuple(message.dims)
    if any(size < 0 for size in shape):
        raise InputError(f"the tensor {message.name!r} has the shape {shape}")
    if message.external_data:
        content = _external_content(message, external)
    elif content is None and message.raw_data:
        content = memoryview(message.raw_data)
    count = int(np.prod(shape, dtype=object))
    if content is not None and dtype is not DType.STRING:
        if len(content) != count * dtype.num_bytes:
            raise InputError(
                f"the {dtype.value} tensor {message.name!r} of shape {Shape(shape)} needs "
                f"{count * dtype.num_bytes} bytes and has {len(content)}"
            )
        return Tensor(dtype, shape, partial(_from_content, content, dtype, shape), stored=content)
    values = getattr(message, _FIELD_OF.get(dtype, "int32_data"))
    if len(values) != count * (2 if dtype in (DType.COMPLEX64, DType.COMPLEX128) else 1):
        raise InputError(
            f"the {dtype.value} tensor {message.name!r} of shape {Shape(shape)} lists {len(values)} values"
        )
    return Tensor.of(_from_values(values, dtype).reshape(shape), dtype)


def _external_content(message: Any, external: External | None) -> memoryview:
    facts = {one.key: one.value for one in message.external_data}
    if external is None or not facts.get("location"):
        raise InputError(
            f"the tensor {message.name!r} lies in another file ({facts.get('location')})", hint="load the model's file"
        )
    whole = memoryview(external(facts["location"]))
    try:
        offset = int(facts.get("offset", 0))
        end = offset + int(facts["length"]) if "length" in facts else len(whole)
    except ValueError:
        raise InputError(f"the place of the tensor {message.name!r} is no number") from None
    if not 0 <= offset <= end <= len(whole):
        raise InputError(f"the tensor {message.name!r} lies behind the end of {facts['location']!r}")
    return whole[offset:end]


def _from_content(content: memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
    order = dtype.numpy if dtype.numpy.kind == "V" else dtype.numpy.newbyteorder("<")
    return np.frombuffer(content, order).reshape(shape)


def _from_values(values: Any, dtype: DType) -> Array:
    """The elements of a typed field."""
    if dtype is DType.STRING:
        flat = np.empty(len(values), object)
        flat[:] = list(values)
        return flat
    if dtype in _AS_BITS:
        return np.array(values, np.int32).astype(_AS_BITS[dtype]).view(dtype.numpy)
    if dtype in (DType.COMPLEX64, DType.COMPLEX128):
        return np.array(values, np.float32 if dtype is DType.COMPLEX64 else np.float64).view(dtype.numpy)
    if dtype in (DType.UINT32, DType.UINT64):
        return np.array(values, np.uint64).astype(dtype.numpy)
    return np.array(values, np.int64 if _FIELD_OF.get(dtype, "int32_data").startswith("int") else dtype.numpy).astype(
        dtype.numpy
    )


class _Writer:
    """One model to write: its graph, and the message that the rest of it is kept in."""

    def __init__(self, graph: Graph, model: Any, location: str = "") -> None:
        self._graph = graph
        self._location = location
        self._offsets = {node.name: offset for node, offset in _placed(graph)} if location else {}
        self._model = model
        self._infos = {info.name: info for info in (*model.graph.value_info, *model.graph.output)}
        if not model.ir_version:
            model.ir_version = IR_VERSION
        model.ir_version = max(model.ir_version, 4)  # before, every initializer had to be an input as well
        if not model.opset_import:
            model.opset_import.add(domain="", version=OPSET)
        self._ports = _ports(graph)

    def parts(self) -> list[wire.Buffer | Tensor]:
        """The fields of the graph's message, with large tensors in place of their contents."""
        graph, parts = self._graph, list[wire.Buffer | Tensor]()
        names: set[str] = set()
        for node in _sorted(graph):
            if node.name == ABSENT.name:
                continue
            for name in filter(None, self._outputs(node)):
                if name in names:
                    raise GraphError(f"two values would be named {name!r}", hint="rename one of the nodes")
                names.add(name)
            if node.op == "Placeholder":
                continue
            if node.name in self._offsets:
                parts.append(_outside(node, self._location, self._offsets[node.name]))
            elif _is_initializer(node):
                parts += _tensor_parts(INITIALIZER, node.name, node.value)
            else:
                parts += self._node_parts(node)
        return [*parts, *self._rest(names)]

    def _outputs(self, node: Node) -> list[str]:
        named = node.attrs.get(OUTPUTS)
        count = max(self._ports.get(node.name, 0) + 1, len(named) if isinstance(named, tuple) else 0)
        return [value_name(node, port) for port in range(count)]

    def _name(self, edge: Edge) -> str:
        return value_name(self._graph[edge.node], edge.port)

    def _node_parts(self, node: Node) -> Iterator[wire.Buffer | Tensor]:
        domain, _, op = node.op.rpartition(".")
        message = message_class("NodeProto")(op_type=op)
        if domain:
            message.domain = domain
        message.input.extend(map(self._name, node.inputs))
        message.output.extend(self._outputs(node))
        large: list[list[wire.Buffer | Tensor]] = []
        for key, value in node.attrs.items():
            if key == OUTPUTS:
                continue
            if isinstance(value, Tensor) and value.num_bytes > SMALL:
                attribute = message_class("AttributeProto")(name=key, type=TENSOR)
                known = attribute.SerializeToString(deterministic=True)
                large.append(_nested(NODE_ATTRIBUTE, known, _tensor_parts(ATTRIBUTE_TENSOR, "", value)))
            else:
                _write_attribute(message.attribute.add(name=key), value, node)
        head = message.SerializeToString(deterministic=True) + node.extra
        yield from _nested(NODE, head, [part for parts in large for part in parts])

    def _rest(self, names: set[str]) -> Iterator[bytes]:
        """Inputs, outputs, and what else the graph's message said, as far as it still holds."""
        for node in self._graph.nodes.values():
            if node.op == "Placeholder" or (_is_initializer(node) and node.extra):
                yield _field(INPUT, self._input(node))
        for edge in self._graph.outputs:
            name = self._name(edge)
            info = message_class("ValueInfoProto")()
            info.CopyFrom(self._infos.get(name, info))
            node = self._graph[edge.node]
            if name not in self._infos and node.op == "Placeholder":
                info = self._input(node)
            info.name = name
            yield _field(OUTPUT, info)
        rest = self._model.graph
        kept = [info for info in rest.value_info if info.name in names]
        for field in ("value_info", "output"):
            rest.ClearField(field)
        rest.value_info.extend(kept)
        if not rest.name:
            rest.name = "quantkit"  # the checker wants one
        yield rest.SerializeToString(deterministic=True)

    def _input(self, node: Node) -> Any:
        info = _parse("ValueInfoProto", node.extra)
        info.name = node.name
        dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
        if node.op == "Placeholder" and (dtype, shape or Shape(None)) != _read_info(info):
            info.ClearField("type")
            _fill_info(
                info,
                dtype if isinstance(dtype, DType) else None,
                shape if isinstance(shape, Shape) else Shape(None),
            )
        return info


def _ports(graph: Graph) -> dict[str, int]:
    """The highest port of each node that somebody reads."""
    found: dict[str, int] = {}
    for edge in (*graph.uses, *graph.outputs):
        found[edge.node] = max(found.get(edge.node, 0), edge.port)
    return found


def _sorted(graph: Graph) -> Iterable[Node]:
    """Nodes in file order where each comes behind what it reads, else in execution order."""
    seen: set[str] = {node.name for node in graph.nodes.values() if node.is_constant or node.op == "Placeholder"}
    for node in graph.nodes.values():
        if not all(edge.node in seen or not edge.node for edge in node.inputs) or not seen.issuperset(node.controls):
            return [graph[name] for name in graph.order]
        seen.add(node.name)
    return graph.nodes.values()


def _is_initializer(node: Node) -> bool:
    return node.op == "Constant" and isinstance(node.attrs.get("value"), Tensor)


def _placed(graph: Graph) -> Iterator[tuple[Node, int]]:
    """The weights that may lie in a file of their own, and where each begins in it."""
    offset = 0
    for node in graph.nodes.values():
        if _is_initializer(node) and node.value.num_bytes > SMALL:
            yield node, offset
            offset += -(-node.value.num_bytes // PAGE) * PAGE


def _outside(node: Node, location: str, offset: int) -> bytes:
    """An initializer whose content lies in another file."""
    tensor = node.value
    if tensor.dtype not in NUMBERS:
        raise GraphError(f"ONNX has no tensors of {tensor.dtype.value} (constant {node.name!r})")
    message = message_class("TensorProto")(name=node.name, dims=tensor.shape, data_type=NUMBERS[tensor.dtype])
    message.data_location = 1
    for key, value in (("location", location), ("offset", offset), ("length", tensor.num_bytes)):
        message.external_data.add(key=key, value=str(value))
    return _field(INITIALIZER, message)


def _field(number: int, message: Any) -> bytes:
    data = message.SerializeToString(deterministic=True)
    return wire.header(number, len(data)) + bytes(data)


def _nested(number: int, head: bytes, parts: list[wire.Buffer | Tensor]) -> list[wire.Buffer | Tensor]:
    """A field of a message that begins with ``head`` and goes on with ``parts``."""
    length = len(head) + sum(part.num_bytes if isinstance(part, Tensor) else len(part) for part in parts)
    return [wire.header(number, length) + head, *parts]


def _tensor_parts(number: int, name: str, tensor: Tensor) -> list[wire.Buffer | Tensor]:
    """A field that holds a tensor; the content, its last field, stays apart if it is large."""
    if tensor.dtype not in NUMBERS:
        raise GraphError(f"ONNX has no tensors of {tensor.dtype.value} (constant {name!r})")
    message = message_class("TensorProto")(dims=tensor.shape, data_type=NUMBERS[tensor.dtype])
    if name:
        message.name = name
    if tensor.dtype is DType.STRING:
        message.string_data.extend(
            item if isinstance(item, bytes) else str(item).encode() for item in tensor.array.flat
        )
        return _nested(number, message.SerializeToString(deterministic=True), [])
    head = message.SerializeToString(deterministic=True) + wire.header(RAW_DATA, tensor.num_bytes)
    return _nested(number, head, [tensor if tensor.num_bytes > SMALL else bytes(_content(tensor))])


def _content(tensor: Tensor) -> wire.Buffer:
    if isinstance(tensor.stored, memoryview) and len(tensor.stored) == tensor.num_bytes:
        return tensor.stored
    array = np.asarray(tensor.array, order="C")
    if array.shape != tensor.shape or array.dtype != tensor.dtype.numpy:
        raise GraphError(f"a tensor said {tensor} and its values are {array.dtype}{array.shape}")
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _write_attribute(message: Any, value: Attr, node: Node) -> None:
    if isinstance(value, Opaque):
        message.MergeFromString(value.data)
        return
    kind = type(value[0]) if isinstance(value, tuple) and value else int if isinstance(value, tuple) else type(value)
    single, several, field = _ATTRIBUTES.get(kind, (0, 0, ""))
    if not single:
        raise GraphError(f"node {node.name!r} ({node.op}) has an attribute of type {kind.__name__}")
    message.type = several if isinstance(value, tuple) else single
    if kind is Tensor:
        for tensor in value if isinstance(value, tuple) else (value,):
            parts = _tensor_parts(TENSORS + 1 if isinstance(value, tuple) else ATTRIBUTE_TENSOR, "", tensor)
            message.MergeFromString(b"".join(_content(one) if isinstance(one, Tensor) else one for one in parts))
    elif isinstance(value, tuple):
        getattr(message, {"f": "floats", "i": "ints", "s": "strings"}[field]).extend(value)
    else:
        setattr(message, field, value)


# Number of one value, number of several, and the field of one.
_ATTRIBUTES: dict[type, tuple[int, int, str]] = {
    float: (FLOAT, FLOATS, "f"),
    int: (INT, INTS, "i"),
    bool: (INT, INTS, "i"),
    bytes: (STRING, STRINGS, "s"),
    Tensor: (TENSOR, TENSORS, "t"),
}
