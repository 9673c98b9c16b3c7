"""Reader of ONNX models.

The file is split into fields; the contents of large tensors stay views of the file.
"""

import mmap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from quantkit.errors import GraphError, InputError
from quantkit.formats import wire
from quantkit.formats.onnx.functions import Functions, NodeMessage
from quantkit.formats.onnx.schema import (
    ATTRIBUTE_GRAPH,
    ATTRIBUTE_TENSOR,
    FLOAT,
    FLOATS,
    INITIALIZER,
    INPUT,
    INT,
    INTS,
    MODEL_GRAPH,
    NODE,
    NODE_ATTRIBUTE,
    OUTPUT,
    RAW_DATA,
    SPARSE,
    SPARSE_TENSOR,
    STRING,
    STRINGS,
    TENSOR,
    TENSORS,
    message_class,
    parse_message,
)
from quantkit.formats.onnx.tensors import SMALL_BYTES, ExternalData, decode_tensor, inline_external_data
from quantkit.formats.onnx.values import (
    ABSENT,
    DIALECT,
    INITIALIZER_BYTES,
    OUTPUTS,
    STANDARD_DOMAINS,
    edges_by_name,
    read_info,
)
from quantkit.ir.graph import Attr, Edge, Graph, Node, Opaque
from quantkit.ir.tensor import Tensor
from quantkit.ops.onnx.inputs import missing_input
from quantkit.ops.onnx.types import DTYPES

# Larger versions of an operator set are damage: OpenVINO tries every version up to the stated one.
MAX_VERSION = 10_000


def decode(data: wire.Buffer | mmap.mmap, external: ExternalData | None = None) -> Graph:
    """Decode a serialized ONNX model; large tensors stay views of ``data``.

    Args:
        data: bytes of the model.
        external: reader of external data files.

    Raises:
        InputError: the bytes are not an ONNX model, or the model needs a reader of external data.
        GraphError: two values have the same name, or a node lacks an input that its op requires.
    """
    view = memoryview(data)
    graph_parts, model = _split_model(view)
    if not graph_parts:
        raise InputError("the file has no graph")
    try:
        return _ModelReader(view, external).graph(graph_parts, model)
    except (DecodeError, UnicodeDecodeError):
        raise InputError("a message is broken") from None
    except RecursionError:
        raise InputError("the subgraphs of its functions are nested too deeply") from None


def has_functions(data: wire.Buffer | mmap.mmap) -> bool:
    """Return True if a serialized ONNX model has functions, without reading its graph.

    Raises:
        InputError: the bytes are not an ONNX model, or the version of an operator set is impossible.
    """
    return bool(_split_model(memoryview(data))[1].functions)


def _split_model(view: memoryview) -> tuple[list[tuple[int, int]], Any]:
    """Return the positions of the graph's message, and the message with all other fields of the model.

    Raises:
        InputError: the other fields are broken, or the version of an operator set is impossible.
    """
    values, rest = wire.split(view, 0, len(view), MODEL_GRAPH)
    model = parse_message("ModelProto", rest)
    for opset in model.opset_import:
        if not 0 <= opset.version <= MAX_VERSION:
            raise InputError(
                f"the version {opset.version} of the operator set {opset.domain or 'ai.onnx'!r} is impossible",
                hint="the file is damaged: export the model again",
            )
    return values[MODEL_GRAPH], model


def decode_subgraph(attribute: Opaque, outer: Graph) -> Graph:
    """Decode the subgraph of an attribute; its references to outer values are edges of the enclosing graph.

    Args:
        attribute: attribute of a node, such as ``then_branch``.
        outer: enclosing graph.

    Raises:
        InputError: the attribute is not a subgraph, or its tensors are external data.
        GraphError: two values have the same name, or a value has no producer.
    """
    view = memoryview(attribute.data)
    parts = wire.split(view, 0, len(view), ATTRIBUTE_GRAPH)[0][ATTRIBUTE_GRAPH]
    if not parts:
        raise InputError("the attribute is not a subgraph")
    try:
        node = message_class("NodeProto")()
        node.attribute.add().MergeFromString(attribute.data)
        captured = set(_captured_values(node))
        edges = {name: edge for name, edge in edges_by_name(outer).items() if name in captured}
        return _ModelReader(view, None, edges).graph(parts, parse_message("ModelProto", b""))
    except (DecodeError, UnicodeDecodeError):
        raise InputError("a message is broken") from None


# Attributes of a Constant with one number; those with several end in "s".
NUMBERS: Mapping[str, npt.DTypeLike] = {"value_float": np.float32, "value_int": np.int64}


class _ModelReader:
    """Reader of one model.

    Args:
        view: bytes of the model.
        external: reader of external data files.
        edges: edges of the enclosing graph by value name.
    """

    def __init__(
        self, view: memoryview, external: ExternalData | None, edges: Mapping[str, Edge] | None = None
    ) -> None:
        self._view = view
        self._external = external
        self._edges: dict[str, Edge] = dict(edges or {})

    def graph(self, parts: list[tuple[int, int]], model: Any) -> Graph:
        """Decode the graph from the positions of its message and the message with all other fields of the model."""
        inputs: dict[str, Node] = {}
        constants: dict[str, Node] = {}
        messages: list[NodeMessage] = []
        outputs, rest = [], []
        functions = Functions(model)
        for number, kind, begin, start, end in (
            field for part in parts for field in wire.fields(self._view, part[0], part[1])
        ):
            if kind != wire.LENGTH or number not in (NODE, INITIALIZER, INPUT, OUTPUT, SPARSE):
                rest.append(self._view[begin:end])
            elif number == NODE:
                messages.append(self._node_message(start, end, functions))
            elif number == INITIALIZER:
                node = self._initializer(start, end)
                constants[node.name] = node
            elif number == SPARSE:
                node = _sparse_constant(self._view[start:end])
                constants[node.name] = node
            else:
                info = parse_message("ValueInfoProto", self._view[start:end])
                if number == INPUT:
                    inputs[info.name] = _placeholder(info)
                else:
                    outputs.append(info)
        model.graph.MergeFromString(b"".join(rest))
        model.graph.output.extend(outputs)
        for name in [name for name in inputs if name in constants]:
            constants[name] = constants[name].with_(extra=inputs.pop(name).extra)
        self._edges |= {name: Edge(name) for name in (*inputs, *constants)}
        self._edges[""] = Edge("")
        nodes = self._nodes(functions.inline(messages, self._edges))
        output_edges = [self._edge(info.name, "the list of outputs") for info in outputs]
        if any(edge.node == "" for node in nodes for edge in node.inputs):
            nodes.insert(0, ABSENT)
        return Graph.of(
            [*inputs.values(), *constants.values(), *nodes],
            list(map(Edge, inputs)),
            output_edges,
            dialect=DIALECT,
            extra=model.SerializeToString(deterministic=True),
        )

    def _nodes(self, messages: list[NodeMessage]) -> list[Node]:
        names = [_output_names(message) for message, _ in messages]
        for outputs in names:
            name = next(filter(None, outputs))
            for port, output in enumerate(outputs):
                if output in self._edges and output:
                    raise GraphError(f"two values are named {output!r}", hint="the file is invalid: export it again")
                self._edges.setdefault(output, Edge(name, port))
        return [
            self._node(message, tensors, outputs) for (message, tensors), outputs in zip(messages, names, strict=True)
        ]

    def _edge(self, name: str, consumer: str) -> Edge:
        if name not in self._edges:
            raise GraphError(
                f"{consumer} has {name!r}, which has no producer", hint="export the model again: the file is incomplete"
            )
        return self._edges[name]

    def _node(self, message: Any, tensors: Mapping[str, Tensor], outputs: list[str]) -> Node:
        name = next(filter(None, outputs))
        if not message.op_type.isidentifier():
            raise InputError(f"the producer of {name!r} has the invalid op type {message.op_type!r}")
        op = message.op_type if message.domain in STANDARD_DOMAINS else f"{message.domain}.{message.op_type}"
        for attribute in message.attribute:
            self._inline_external_data(attribute)
        attrs: dict[str, Attr] = {attr.name: _decode_attribute(attr) for attr in message.attribute}
        attrs.update(tensors)
        if op == "Constant":
            attrs = _constant_attrs(attrs)
        if len(outputs) > 1 or not outputs[0]:
            attrs[OUTPUTS] = tuple(output.encode() for output in outputs)
        captured = [self._edges[value] for value in _captured_values(message) if value in self._edges]
        inputs = tuple(self._edge(value, f"node {name!r} ({op})") for value in message.input)
        if (index := missing_input(op, inputs)) is not None:
            hint = "the file is damaged: export the model again"
            raise GraphError(f"node {name!r} ({op}) has no input {index}, which the op requires", hint=hint)
        for field in ("input", "output", "op_type", "domain", "attribute"):
            message.ClearField(field)
        # A constant is written as an initializer, whose extra field describes an input.
        is_initializer = op == "Constant" and isinstance(attrs.get("value"), Tensor)
        return Node(
            name,
            op,
            inputs,
            tuple(dict.fromkeys(edge.node for edge in captured if edge.node)),
            attrs,
            extra=b"" if is_initializer else message.SerializeToString(deterministic=True),
        )

    def _inline_external_data(self, attribute: Any) -> None:
        """Load the external data of an attribute's tensors, those of its subgraphs included.

        The data of a model written elsewhere would not be found.
        """
        tensors = [*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])]
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            tensors += graph.initializer
            for node in graph.node:
                for inner in node.attribute:
                    self._inline_external_data(inner)
        for tensor in tensors:
            inline_external_data(tensor, self._external)

    def _node_message(self, start: int, end: int, functions: Functions) -> NodeMessage:
        """Return the message of a node without its large tensors, and these tensors by attribute name.

        A node that calls a function keeps them in its message.
        """
        if end - start <= SMALL_BYTES:
            return parse_message("NodeProto", self._view[start:end]), {}
        small: list[wire.Buffer] = []
        tensors: dict[str, Tensor] = {}
        for number, kind, begin, value, stop in wire.fields(self._view, start, end):
            if number == NODE_ATTRIBUTE and kind == wire.LENGTH and stop - value > SMALL_BYTES // 2:
                key, tensor = self._large_attribute(value, stop)
                if tensor is not None:
                    tensors[key] = tensor
                    continue
            small.append(self._view[begin:stop])
        message = parse_message("NodeProto", b"".join(small))
        if tensors and functions.find(message) is not None:
            return parse_message("NodeProto", self._view[start:end]), {}
        return message, tensors

    def _large_attribute(self, start: int, end: int) -> tuple[str, Tensor | None]:
        values, small = wire.split(self._view, start, end, ATTRIBUTE_TENSOR)
        message = parse_message("AttributeProto", small)
        if message.type != TENSOR or len(values[ATTRIBUTE_TENSOR]) != 1:
            return message.name, None
        proto, content = self._tensor_message(*values[ATTRIBUTE_TENSOR][0])
        return message.name, decode_tensor(proto, content, self._external) if proto.data_type in DTYPES else None

    def _tensor_message(self, start: int, end: int) -> tuple[Any, memoryview | None]:
        """Return the message of a tensor without its content, and the content as a view of the file."""
        values, small = wire.split(self._view, start, end, RAW_DATA)
        contents = [self._view[slice(*value)] for value in values[RAW_DATA]]
        return parse_message("TensorProto", small), contents[-1] if contents else None

    def _initializer(self, start: int, end: int) -> Node:
        proto, content = self._tensor_message(start, end)
        name = proto.name
        if proto.data_type not in DTYPES:
            if not proto.external_data:
                return Node(name, "Constant", attrs={INITIALIZER_BYTES: Opaque(bytes(self._view[start:end]))})
            inline_external_data(proto, self._external)
            return Node(name, "Constant", attrs={INITIALIZER_BYTES: _opaque(proto)})
        return Node(name, "Constant", attrs={"value": decode_tensor(proto, content, self._external)})


def _output_names(message: Any) -> list[str]:
    """Return the names of a node's outputs without omitted ones at the end."""
    outputs = list(message.output)
    while outputs and not outputs[-1]:
        outputs.pop()
    if not outputs:
        raise InputError(f"node {message.name!r} ({message.op_type}) has no output")
    return outputs


def _captured_values(message: Any) -> Iterator[str]:
    """Yield the values that a node's subgraphs use from the enclosing graph."""
    for attribute in message.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            inner = {value for node in graph.node for value in node.output}
            inner.update(info.name for info in graph.input)
            inner.update(tensor.name for tensor in graph.initializer)
            for node in graph.node:
                yield from (value for value in (*node.input, *_captured_values(node)) if value and value not in inner)
            yield from (info.name for info in graph.output if info.name not in inner)


def _sparse_constant(data: wire.Buffer) -> Node:
    sparse = parse_message("SparseTensorProto", data)
    attribute = message_class("AttributeProto")(name="sparse_value", type=SPARSE_TENSOR, sparse_tensor=sparse)
    value = Opaque(attribute.SerializeToString(deterministic=True))
    return Node(sparse.values.name, "Constant", attrs={"sparse_value": value})


def _placeholder(info: Any) -> Node:
    dtype, shape = read_info(info)
    attrs: dict[str, Attr] = {"shape": shape}
    if dtype is not None:
        attrs["dtype"] = dtype
    return Node(info.name, "Placeholder", attrs=attrs, extra=info.SerializeToString(deterministic=True))


def _decode_attribute(message: Any) -> Attr:
    kind = message.type
    if message.ref_attr_name:
        return _opaque(message)
    if kind == FLOAT:
        return float(message.f)
    if kind == INT:
        return int(message.i)
    if kind == STRING:
        return bytes(message.s)
    if kind == TENSOR and message.t.data_type in DTYPES:
        return decode_tensor(message.t, None, None)
    if kind == INTS:
        return tuple(message.ints)
    if kind == FLOATS and message.floats:
        return tuple(message.floats)
    if kind == STRINGS and message.strings:
        return tuple(message.strings)
    if kind == TENSORS and message.tensors and all(tensor.data_type in DTYPES for tensor in message.tensors):
        return tuple(decode_tensor(tensor, None, None) for tensor in message.tensors)
    return _opaque(message)


def _constant_attrs(attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Return the attributes of a constant with its values as a tensor."""
    for name, value in attrs.items():
        dtype = NUMBERS.get(name.removesuffix("s"))
        if dtype is not None and not isinstance(value, Opaque):
            return {"value": Tensor.of(np.array(value, dtype))}
    return attrs


def _opaque(message: Any) -> Opaque:
    return Opaque(message.SerializeToString(deterministic=True))
