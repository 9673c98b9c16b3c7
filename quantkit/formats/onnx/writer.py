"""Writer of ONNX models, tensor by tensor, with external data for large models."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from quantkit.errors import GraphError
from quantkit.formats import wire
from quantkit.formats.onnx.schema import (
    ATTRIBUTE_TENSOR,
    FLOAT,
    FLOATS,
    GRAPH,
    INITIALIZER,
    INPUT,
    INT,
    INTS,
    MODEL_GRAPH,
    NODE,
    NODE_ATTRIBUTE,
    OUTPUT,
    STRING,
    STRINGS,
    TENSOR,
    TENSORS,
    message_class,
    parse_message,
)
from quantkit.formats.onnx.tensors import SMALL_BYTES, content_of, encode_tensor, nested_field, num_bytes, stored_bytes
from quantkit.formats.onnx.values import (
    ABSENT,
    DIALECT,
    INITIALIZER_BYTES,
    IR_VERSION,
    OPSET,
    OUTPUTS,
    fill_info,
    input_info,
    value_name,
)
from quantkit.formats.wire import MAX_BYTES
from quantkit.ir.graph import Attr, Edge, Graph, Node, Opaque
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.onnx.types import NUMBERS

# Alignment of tensors in an external data file, which runtimes map page by page.
PAGE = 4096


def encode(graph: Graph) -> bytes:
    """Serialize a graph as an ONNX model.

    Raises:
        GraphError: the model exceeds 2 GiB, or two values have the same name.
    """
    return b"".join(chunks(graph))


def encode_subgraph(
    key: str, graph: Graph, name: str, *, scalars: Mapping[str, DType] | None = None, num_inputs: int = 0
) -> Opaque:
    """Encode a graph as an attribute of a node, such as the ``body`` of a Loop.

    Args:
        key: name of the attribute.
        graph: graph; its inputs are inputs of the subgraph, then values of the enclosing graph, to which the subgraph
            refers by name.
        name: name of the subgraph.
        scalars: element types of further inputs, which come first.
        num_inputs: number of inputs of the graph that are inputs of the subgraph.

    Raises:
        GraphError: the graph exceeds 2 GiB, or two values have the same name.
    """
    attribute = message_class("AttributeProto")(name=key, type=GRAPH)
    attribute.g.CopyFrom(parse_message("ModelProto", encode(graph)).graph)
    inputs = list(attribute.g.input)[:num_inputs]
    attribute.g.ClearField("input")
    for scalar, dtype in (scalars or {}).items():
        fill_info(attribute.g.input.add(name=scalar), dtype, Shape(()))
    attribute.g.input.extend(inputs)
    attribute.g.name = name
    return Opaque(attribute.SerializeToString(deterministic=True))


def write(graph: Graph, file: BinaryIO) -> None:
    """Write the serialized model, tensor by tensor.

    Raises:
        GraphError: the model exceeds 2 GiB, or two values have the same name.
    """
    for chunk in chunks(graph):
        file.write(chunk)


def needs_data_file(graph: Graph) -> bool:
    """Return True if the weights of a graph exceed the size limit of a model file."""
    return sum(stored_bytes(node.value) for node in graph.nodes.values() if _is_initializer(node)) > MAX_BYTES


def write_data(graph: Graph, file: BinaryIO) -> None:
    """Write the external data of `chunks` with a location, tensor by tensor."""
    for node, offset in _external_offsets(graph):
        file.write(bytes(offset - file.tell()))
        file.write(content_of(node.value))


def chunks(graph: Graph, location: str = "") -> Iterator[wire.Buffer]:
    """Yield the serialized model in pieces; the content of each large tensor is one piece.

    Args:
        graph: graph of dialect ``onnx``.
        location: name of the external data file, see `write_data`; empty if the model file has the weights.

    Raises:
        GraphError: the model exceeds 2 GiB, or two values have the same name.
    """
    if graph.dialect != DIALECT:
        raise GraphError(
            f"cannot write a graph of dialect {graph.dialect} as an ONNX model", hint="convert the graph to ONNX first"
        )
    model = parse_message("ModelProto", graph.extra)
    parts = _ModelWriter(graph, model, location).parts()
    length = num_bytes(parts)
    if length > MAX_BYTES:
        raise GraphError(
            f"the model has {length / 1e9:.2f} GB; the limit of an ONNX file is 2.15 GB",
            hint="save the model with external data: qk.save(graph, 'model.onnx')",
        )
    model.ClearField("graph")
    data = model.SerializeToString(deterministic=True)
    # OpenVINO accepts files with several operator sets only if the graph is before them, in the order of the fields.
    fields = wire.fields(memoryview(data), 0, len(data))
    position = next((begin for number, _, begin, _, _ in fields if number > MODEL_GRAPH), len(data))
    yield data[:position]
    yield wire.header(MODEL_GRAPH, length)
    for part in parts:
        yield content_of(part) if isinstance(part, Tensor) else part
    yield data[position:]


class _ModelWriter:
    """Writer of one model.

    Args:
        graph: graph of dialect ``onnx``.
        model: ModelProto with all fields that are not part of the graph.
        location: name of the external data file; empty if the model file has the weights.
    """

    def __init__(self, graph: Graph, model: Any, location: str = "") -> None:
        self._graph = graph
        self._location = location
        self._offsets = {node.name: offset for node, offset in _external_offsets(graph)} if location else {}
        self._model = model
        self._infos = {info.name: info for info in (*model.graph.value_info, *model.graph.output)}
        if not model.ir_version:
            model.ir_version = IR_VERSION
        self._version = model.ir_version
        if any(_is_initializer(node) and not node.extra for node in graph.nodes.values()):
            model.ir_version = max(model.ir_version, 4)  # earlier versions require every initializer to be an input
        if not model.opset_import:
            model.opset_import.add(domain="", version=OPSET)
        self._ports = _last_ports(graph)

    def parts(self) -> list[wire.Buffer | Tensor]:
        """Return the fields of the graph message; a large tensor is a part of its own."""
        graph, parts = self._graph, list[wire.Buffer | Tensor]()
        names: set[str] = set()
        for node in _topological_nodes(graph):
            if node.name == ABSENT.name:
                continue
            for name in filter(None, self._outputs(node)):
                if name in names:
                    raise GraphError(f"two values have the name {name!r}", hint="rename one of the nodes")
                names.add(name)
            if node.op == "Placeholder":
                continue
            if node.name in self._offsets:
                parts.append(_external_initializer(node, self._location, self._offsets[node.name]))
            elif _is_initializer(node):
                parts += encode_tensor(INITIALIZER, node.name, node.value)
            elif isinstance(tensor := node.attrs.get(INITIALIZER_BYTES), Opaque):
                parts += [wire.header(INITIALIZER, len(tensor.data)), tensor.data]
            else:
                parts += self._node_parts(node)
        return [*parts, *self._rest(names)]

    def _outputs(self, node: Node) -> list[str]:
        names = node.attrs.get(OUTPUTS)
        count = max(self._ports.get(node.name, 0) + 1, len(names) if isinstance(names, tuple) else 0)
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
            if isinstance(value, Tensor) and value.num_bytes > SMALL_BYTES:
                attribute = message_class("AttributeProto")(name=key, type=TENSOR)
                attribute_head = attribute.SerializeToString(deterministic=True)
                large.append(nested_field(NODE_ATTRIBUTE, attribute_head, encode_tensor(ATTRIBUTE_TENSOR, "", value)))
            else:
                _write_attribute(message.attribute.add(name=key), value, node)
        head = message.SerializeToString(deterministic=True) + node.extra
        yield from nested_field(NODE, head, [part for parts in large for part in parts])

    def _rest(self, names: set[str]) -> Iterator[bytes]:
        """Yield inputs, outputs, and all other fields of the graph message that are still valid."""
        for node in self._inputs():
            yield _field(INPUT, input_info(node))
        for edge in self._graph.outputs:
            name = self._name(edge)
            info = message_class("ValueInfoProto")()
            info.CopyFrom(self._infos.get(name, info))
            node = self._graph[edge.node]
            if name not in self._infos and node.op == "Placeholder":
                info = input_info(node)
            info.name = name
            yield _field(OUTPUT, info)
        rest = self._model.graph
        value_infos = [info for info in rest.value_info if info.name in names]
        for field in ("value_info", "output"):
            rest.ClearField(field)
        rest.value_info.extend(value_infos)
        if not rest.name:
            rest.name = "quantkit"  # the ONNX checker requires a name
        yield rest.SerializeToString(deterministic=True)

    def _inputs(self) -> Iterable[Node]:
        """Return the inputs in the order of the graph's inputs, then initializers that are also inputs."""
        nodes = self._graph.nodes
        placeholders = [node for node in nodes.values() if node.op == "Placeholder"]
        ordered = [nodes[edge.node] for edge in self._graph.inputs if nodes[edge.node].op == "Placeholder"]
        defaults = [node for node in nodes.values() if _is_initializer(node) and node.extra]
        # Before version 4 of the format every initializer had to be an input. Later it would no longer be constant.
        has_defaults = self._version >= 4 or not any(
            _is_initializer(node) and not node.extra for node in nodes.values()
        )
        return {node.name: node for node in (*ordered, *placeholders, *(defaults if has_defaults else ()))}.values()


def _last_ports(graph: Graph) -> dict[str, int]:
    """Return the highest used port of each node."""
    ports: dict[str, int] = {}
    for edge in (*graph.uses, *graph.outputs):
        ports[edge.node] = max(ports.get(edge.node, 0), edge.port)
    return ports


def _topological_nodes(graph: Graph) -> Iterable[Node]:
    """Return the nodes in file order if that is a topological order, else in `Graph.order`."""
    visited: set[str] = {node.name for node in graph.nodes.values() if node.is_constant or node.op == "Placeholder"}
    for node in graph.nodes.values():
        has_inputs = all(edge.node in visited or not edge.node for edge in node.inputs)
        if not has_inputs or not visited.issuperset(node.controls):
            return [graph[name] for name in graph.order]
        visited.add(node.name)
    return graph.nodes.values()


def _is_initializer(node: Node) -> bool:
    return node.op == "Constant" and isinstance(node.attrs.get("value"), Tensor)


def _external_offsets(graph: Graph) -> Iterator[tuple[Node, int]]:
    """Yield the constants that can be external data, with their offsets in bytes."""
    offset = 0
    for node in graph.nodes.values():
        if _is_initializer(node) and stored_bytes(node.value) > SMALL_BYTES:
            yield node, offset
            offset += -(-stored_bytes(node.value) // PAGE) * PAGE


def _external_initializer(node: Node, location: str, offset: int) -> bytes:
    """Encode an initializer whose content is external data."""
    tensor = node.value
    if tensor.dtype not in NUMBERS:
        raise GraphError(f"ONNX has no element type {tensor.dtype.value} (constant {node.name!r})")
    message = message_class("TensorProto")(name=node.name, dims=tensor.shape, data_type=NUMBERS[tensor.dtype])
    message.data_location = 1
    for key, value in (("location", location), ("offset", offset), ("length", stored_bytes(tensor))):
        message.external_data.add(key=key, value=str(value))
    return _field(INITIALIZER, message)


def _field(number: int, message: Any) -> bytes:
    data = message.SerializeToString(deterministic=True)
    return wire.header(number, len(data)) + bytes(data)


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
            parts = encode_tensor(TENSORS + 1 if isinstance(value, tuple) else ATTRIBUTE_TENSOR, "", tensor)
            message.MergeFromString(b"".join(content_of(part) if isinstance(part, Tensor) else part for part in parts))
    elif isinstance(value, tuple):
        getattr(message, {"f": "floats", "i": "ints", "s": "strings"}[field]).extend(value)
    else:
        setattr(message, field, value)


# Attribute type of one value, attribute type of a list, and field of one value.
_ATTRIBUTES: dict[type, tuple[int, int, str]] = {
    float: (FLOAT, FLOATS, "f"),
    int: (INT, INTS, "i"),
    bool: (INT, INTS, "i"),
    bytes: (STRING, STRINGS, "s"),
    Tensor: (TENSOR, TENSORS, "t"),
}
