"""GraphDef <-> Graph.

Reading cuts the file into nodes and parses each with our own descriptors; the contents of large tensors
stay views of the file. Writing streams node by node, so that a weight which a transform computes exists
only while it is written.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from mmap import mmap
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError

from quantkit.errors import GraphError, InputError
from quantkit.formats import wire
from quantkit.formats.schema import DATA_TYPES, message_class
from quantkit.ir.functions import FunctionName, Library
from quantkit.ir.graph import Attr, Graph, Node, Opaque, Versions
from quantkit.ir.tensor import Array, DType, Shape, Tensor

# A protobuf message can not be larger: TensorFlow could not read the graph.
MAX_BYTES = (1 << 31) - 1
# Nodes up to this size are parsed whole; in larger ones the tensor's content is left in the file.
SMALL_NODE = 2048

NODE, LIBRARY, VERSIONS = 1, 2, 4
NODE_ATTR, ENTRY_KEY, ENTRY_VALUE, ATTR_TENSOR, TENSOR_CONTENT = 5, 1, 2, 8, 4

_NUMBERS = {dtype: DATA_TYPES[dtype.value.upper()] for dtype in DType}
_DTYPES = {number: dtype for dtype, number in _NUMBERS.items()}

_LIST_FIELDS: dict[type, str] = {
    bytes: "s",
    int: "i",
    float: "f",
    bool: "b",
    DType: "type",
    Shape: "shape",
    Tensor: "tensor",
    FunctionName: "func",
}
_FIELD_OF = {
    DType.FLOAT: "float_val",
    DType.DOUBLE: "double_val",
    DType.INT64: "int64_val",
    DType.BOOL: "bool_val",
    DType.HALF: "half_val",
    DType.BFLOAT16: "half_val",
    DType.UINT32: "uint32_val",
    DType.UINT64: "uint64_val",
    DType.COMPLEX64: "scomplex_val",
    DType.COMPLEX128: "dcomplex_val",
    DType.FLOAT8_E5M2: "float8_val",
    DType.FLOAT8_E4M3FN: "float8_val",
}


def decode(data: wire.Buffer | mmap) -> Graph:
    """A graph of a serialized GraphDef; large tensors stay views of ``data``.

    Raises:
        InputError: the bytes are no GraphDef.
        GraphError: two nodes have one name.
    """
    view = memoryview(data)
    nodes: list[Node] = []
    library, rest = [], []
    versions = Versions()
    for number, kind, begin, start, end in wire.fields(view, 0, len(view)):
        if number == NODE and kind == wire.LENGTH:
            nodes.append(decode_node(view, start, end))
        elif number == LIBRARY and kind == wire.LENGTH:
            library.append(bytes(view[start:end]))
        elif number == VERSIONS and kind == wire.LENGTH:
            versions = _decode_versions(parse("VersionDef", view[start:end]))
        else:
            rest.append(bytes(view[begin:end]))
    return Graph.of(nodes, versions=versions, library=_decode_library(b"".join(library)), extra=b"".join(rest))


def decode_text(text: str) -> Graph:
    """A graph of a GraphDef in protobuf's text form.

    Raises:
        InputError: the text is no GraphDef; the message gives line and column.
    """
    from google.protobuf import text_format

    message = message_class("GraphDef")()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        where = f"line {error.GetLine()}, column {error.GetColumn()}: " if error.GetLine() else ""
        raise InputError(where + re.sub(r"^\d+:\d+ : ", "", str(error)).rstrip(".")) from None
    except RecursionError:
        raise InputError("its messages nest deeper than those of any graph") from None
    nodes = [_decode_node(node) for node in message.node]
    versions = _decode_versions(message.versions)
    library = _decode_library(message.library.SerializeToString(deterministic=True))
    for field in ("node", "versions", "library"):
        message.ClearField(field)
    return Graph.of(nodes, versions=versions, library=library, extra=message.SerializeToString(deterministic=True))


def encode(graph: Graph) -> bytes:
    """The serialized GraphDef.

    Raises:
        GraphError: it would be larger than a protobuf message may be (2 GiB).
    """
    check_size(graph)
    return b"".join(chunks(graph))


def write(graph: Graph, file: BinaryIO) -> None:
    """Write the serialized GraphDef, node by node.

    Raises:
        GraphError: it would be larger than a protobuf message may be (2 GiB).
    """
    check_size(graph)
    for chunk in chunks(graph):
        file.write(chunk)


def check_size(graph: Graph, names: Iterable[str] | None = None) -> None:
    """Refuse early what no reader could open.

    Args:
        graph: what is to be written.
        names: which of its nodes count; None: all.

    Raises:
        GraphError: the tensors alone exceed 2 GiB; the largest are named.
    """
    sizes = {
        name: value.num_bytes
        for name in (graph.nodes if names is None else names)
        for value in graph[name].attrs.values()
        if isinstance(value, Tensor)
    }
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = ", ".join(sorted(sizes, key=lambda name: (-sizes[name], name))[:3])
        raise GraphError(
            f"the graph holds {total / 1e9:.2f} GB of tensors, a GraphDef can hold 2.15 GB (largest: {largest})",
            hint="write a .onnx file, whose weights may lie beside it, or run quantize_weights, which leaves a quarter",
        )


def chunks(graph: Graph) -> Iterator[wire.Buffer]:
    """The serialized GraphDef in pieces; content of large tensors is one piece each."""
    for node in graph.nodes.values():
        yield from encode_node(node)
    library = _encode_library(graph.library)
    if library:
        yield wire.header(LIBRARY, len(library))
        yield library
    versions = _encode_versions(graph.versions).SerializeToString(deterministic=True)
    if versions:
        yield wire.header(VERSIONS, len(versions)) + versions
    yield graph.extra


def encode_text(graph: Graph) -> str:
    """The GraphDef in protobuf's text form.

    Raises:
        GraphError: it would be larger than a protobuf message may be.
    """
    from google.protobuf import text_format

    message = message_class("GraphDef").FromString(encode(graph))
    return str(text_format.MessageToString(message))


def _decode_library(data: bytes) -> Library:
    from quantkit.formats.function_library import decode_library  # few graphs have functions

    return decode_library(data) if data else Library()


def _encode_library(library: Library) -> bytes:
    from quantkit.formats.function_library import encode_library

    return encode_library(library)


def parse(name: str, data: wire.Buffer) -> Any:
    """A message of the schema.

    Raises:
        InputError: the bytes are no such message.
    """
    try:
        return message_class(name).FromString(bytes(data))
    except DecodeError:
        raise InputError(f"a {name} in it is broken") from None


def decode_node(view: memoryview, start: int, end: int) -> Node:
    """The node of a serialized NodeDef; large tensors stay views of the bytes.

    Raises:
        InputError: the bytes are no NodeDef.
    """
    if end - start <= SMALL_NODE:
        return _decode_node(parse("NodeDef", view[start:end]))
    small: list[wire.Buffer] = []
    tensors: dict[str, Tensor] = {}
    for number, _, begin, value, stop in wire.fields(view, start, end):
        if number == NODE_ATTR and stop - value > SMALL_NODE // 2:
            key, tensor = _large_tensor(view, value, stop)
            if tensor is not None:
                tensors[key] = tensor
                continue
        small.append(view[begin:stop])
    return _decode_node(parse("NodeDef", b"".join(small)), tensors)


def _large_tensor(view: memoryview, start: int, end: int) -> tuple[str, Tensor | None]:
    """Key and tensor of an attribute entry, its content left in the file; no tensor where it is something else."""
    key, value = "", (0, 0)
    for number, _, _, begin, stop in wire.fields(view, start, end):
        if number == ENTRY_KEY:
            key = decode_name(view[begin:stop])
        elif number == ENTRY_VALUE:
            value = (begin, stop)
    parts = list(wire.fields(view, *value))
    if [part[0] for part in parts] != [ATTR_TENSOR]:
        return key, None
    small: list[wire.Buffer] = []
    content = None
    for number, kind, begin, first, stop in wire.fields(view, parts[0][3], parts[0][4]):
        if number == TENSOR_CONTENT and kind == wire.LENGTH:
            content = view[first:stop]
        else:
            small.append(view[begin:stop])
    if content is None:
        return key, None
    return key, _decode_tensor(parse("TensorProto", b"".join(small)), content)


def decode_name(data: memoryview) -> str:
    """A name, from its bytes.

    Raises:
        InputError: they are no text.
    """
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise InputError("a name in it is not UTF-8") from None


_KNOWN_NODE_FIELDS = ("name", "op", "input", "device", "attr")


def _decode_node(message: Any, tensors: Mapping[str, Tensor] | None = None) -> Node:
    written = tuple(message.input)
    attrs: dict[str, Attr] = {}
    for key, value in message.attr.items():
        attrs[key] = decode_attr(value)
    if tensors:
        attrs.update(tensors)
    name, op, device = message.name, message.op, message.device
    for field in _KNOWN_NODE_FIELDS:
        message.ClearField(field)
    extra = message.SerializeToString(deterministic=True)
    return Node.of_written(name, op, written, attrs, device, extra)


def decode_attr(value: Any) -> Attr:
    """The value of an AttrValue; what has no form of its own stays bytes."""
    kind = value.WhichOneof("value")
    if kind in ("i", "f", "b", "s"):
        plain: Attr = getattr(value, kind)
        return plain
    if kind == "type" and value.type in _DTYPES:
        return _DTYPES[value.type]
    if kind == "shape" and not any(dim.name for dim in value.shape.dim):
        return _decode_shape(value.shape)
    if kind == "tensor":
        return _decode_tensor(value.tensor, None) if value.tensor.dtype in _DTYPES else _opaque(value)
    if kind == "list":
        return _decode_list(value)
    if kind == "func":
        return _function_name(value.func)
    return _opaque(value)


def _opaque(value: Any) -> Opaque:
    return Opaque(value.SerializeToString(deterministic=True))


def _function_name(message: Any) -> FunctionName:
    name = message.name
    message.ClearField("name")
    return FunctionName(name, message.SerializeToString(deterministic=True))


def _decode_list(value: Any) -> Attr:
    filled = value.list.ListFields()
    if not filled:
        return () if value.list.ByteSize() == 0 else _opaque(value)
    if len(filled) > 1:
        return _opaque(value)
    field, items = filled[0]
    if field.name in ("s", "i", "f", "b"):
        return tuple(items)
    if field.name == "func":
        return tuple(_function_name(item) for item in items)
    if field.name == "type" and all(item in _DTYPES for item in items):
        return tuple(_DTYPES[item] for item in items)
    if field.name == "shape" and not any(dim.name for item in items for dim in item.dim):
        return tuple(_decode_shape(item) for item in items)
    if field.name == "tensor" and all(item.dtype in _DTYPES for item in items):
        return tuple(_decode_tensor(item, None) for item in items)
    return _opaque(value)


def _decode_shape(message: Any) -> Shape:
    if message.unknown_rank:
        return Shape(None)
    return Shape(tuple(None if dim.size < 0 else dim.size for dim in message.dim))


def element_type(number: int) -> DType | None:
    """The element type of a DataType; None: one that has no `DType`."""
    return _DTYPES.get(number)


def type_number(dtype: DType) -> int:
    """The DataType of an element type."""
    return _NUMBERS[dtype]


def _decode_versions(message: Any) -> Versions:
    return Versions(message.producer, message.min_consumer, tuple(message.bad_consumers))


def _decode_tensor(message: Any, content: memoryview | None) -> Tensor:
    """A tensor of a TensorProto whose content, if it was cut out, is given."""
    dtype = _DTYPES.get(message.dtype)
    sizes = tuple(dim.size for dim in message.tensor_shape.dim)
    if dtype is None or message.tensor_shape.unknown_rank or any(size < 0 for size in sizes):
        raise InputError(f"a tensor has type {message.dtype} and shape {sizes}, which no constant can have")
    shape = tuple(int(size) for size in sizes)
    tensor = Tensor(dtype, shape, partial(_no_values, dtype))
    if content is None and message.tensor_content:
        content = memoryview(message.tensor_content)
    if content is not None and dtype is not DType.STRING:
        if len(content) != tensor.num_bytes:
            raise InputError(
                f"a {dtype.value} tensor of shape {Shape(shape)} needs {tensor.num_bytes} bytes and has {len(content)}"
            )
        return Tensor(dtype, shape, partial(_from_content, content, dtype, shape), stored=content)
    stored = message.SerializeToString(deterministic=True)
    return Tensor(dtype, shape, partial(_from_stored, stored, dtype, shape), stored=stored)


def listed(tensor: Tensor) -> Tensor:
    """The tensor as a file may also hold it: its numbers in a field of their type, rather than packed."""
    message = message_class("TensorProto")(dtype=_NUMBERS[tensor.dtype])
    message.tensor_shape.SetInParent()
    for size in tensor.shape:
        message.tensor_shape.dim.add(size=size)
    field = _FIELD_OF.get(tensor.dtype, "int_val")
    if tensor.dtype is DType.STRING:
        message.string_val.extend(tensor.array.flat)
    elif field in ("scomplex_val", "dcomplex_val", "float8_val"):
        return tensor
    else:
        array = tensor.array.view(np.uint16) if field == "half_val" else tensor.array
        getattr(message, field).extend(array.reshape(-1).tolist())
    stored = message.SerializeToString(deterministic=True)
    return Tensor(tensor.dtype, tensor.shape, lambda: tensor.array, stored=stored)


def _no_values(dtype: DType) -> Array:
    raise GraphError(f"a {dtype.value} tensor has no values")


def _from_content(content: memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
    return np.frombuffer(content, dtype.numpy.newbyteorder("<") if dtype.numpy.kind != "V" else dtype.numpy).reshape(
        shape
    )


def _from_stored(stored: bytes, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Values of a TensorProto's typed fields; the last one stands for all that are missing."""
    message = message_class("TensorProto").FromString(stored)
    field = _FIELD_OF.get(dtype, "string_val" if dtype is DType.STRING else "int_val")
    if dtype in (DType.RESOURCE, DType.VARIANT):
        return _no_values(dtype)
    values = getattr(message, field)
    if dtype is DType.STRING:
        flat = np.empty(len(values), object)
        flat[:] = list(values)
        empty: Any = b""
    elif field == "half_val":
        flat, empty = np.array(values, np.uint16).view(dtype.numpy), 0
    elif field == "float8_val":
        flat, empty = np.frombuffer(values, np.uint8).view(dtype.numpy), 0
    elif field in ("scomplex_val", "dcomplex_val"):
        flat, empty = np.array(values, np.float32 if field[0] == "s" else np.float64).view(dtype.numpy), 0
    else:
        flat, empty = np.array(values, np.int64 if field == "int_val" else dtype.numpy).astype(dtype.numpy), 0
    count = int(np.prod(shape, dtype=np.int64))
    if len(flat) > count:
        raise GraphError(f"a {dtype.value} tensor of shape {Shape(shape)} lists {len(flat)} values")
    array = np.empty(count, dtype.numpy)
    array[: len(flat)] = flat
    array[len(flat) :] = flat[-1] if len(flat) else empty
    return array.reshape(shape)


def _encode_versions(versions: Versions) -> Any:
    return message_class("VersionDef")(
        producer=versions.producer, min_consumer=versions.min_consumer, bad_consumers=versions.bad_consumers
    )


def encode_node(node: Node, field: int = NODE, written: Iterable[str] | None = None) -> Iterator[wire.Buffer]:
    """The serialized NodeDef in pieces, as a field of the message around it.

    Args:
        node: what to write.
        field: number of the field.
        written: its inputs, where they are not written as in a graph.
    """
    message = message_class("NodeDef")(name=node.name, op=node.op, device=node.device)
    message.input.extend(node.written_inputs if written is None else written)
    large: list[tuple[str, Tensor]] = []
    for key in sorted(node.attrs):
        value = node.attrs[key]
        if isinstance(value, Tensor) and value.num_bytes > SMALL_NODE and not isinstance(value.stored, bytes):
            large.append((key, value))
        else:
            encode_attr(message.attr[key], value, node)
    head = message.SerializeToString(deterministic=True) + node.extra
    entries = [_tensor_entry(key, tensor) for key, tensor in large]
    length = len(head) + sum(len(entry) + tensor.num_bytes for entry, (_, tensor) in zip(entries, large, strict=True))
    yield wire.header(field, length) + head
    for entry, (_, tensor) in zip(entries, large, strict=True):
        yield entry
        yield _content(tensor)


def _tensor_entry(key: str, tensor: Tensor) -> bytes:
    """Everything of an attribute entry up to the content of its tensor, which ends it."""
    proto = message_class("TensorProto")(dtype=_NUMBERS[tensor.dtype])
    for size in tensor.shape:
        proto.tensor_shape.dim.add(size=size)
    known: bytes = proto.SerializeToString(deterministic=True)
    inner = known + wire.header(TENSOR_CONTENT, tensor.num_bytes)
    attr = wire.header(ATTR_TENSOR, len(inner) + tensor.num_bytes) + inner
    name = key.encode()
    entry = wire.header(ENTRY_KEY, len(name)) + name
    entry += wire.header(ENTRY_VALUE, len(attr) + tensor.num_bytes) + attr
    return wire.header(NODE_ATTR, len(entry) + tensor.num_bytes) + entry


def _content(tensor: Tensor) -> wire.Buffer:
    if isinstance(tensor.stored, memoryview):
        return tensor.stored
    array = np.asarray(tensor.array, order="C")
    if array.shape != tensor.shape or array.dtype != tensor.dtype.numpy:
        raise GraphError(f"a tensor said {tensor} and its values are {array.dtype}{array.shape}")
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def encode_attr(message: Any, value: Attr, node: Node) -> None:
    """Write a value into an AttrValue.

    Raises:
        GraphError: it is of a kind that GraphDefs do not know; ``node`` has it.
    """
    write = _WRITERS.get(type(value))
    if write is None:
        raise GraphError(f"node {node.name!r} ({node.op}) has an attribute of type {type(value).__name__}")
    write(message, value)


def _write_list(message: Any, values: tuple[Any, ...]) -> None:
    message.list.SetInParent()
    if not values:
        return
    kind = type(values[0])
    items = getattr(message.list, _LIST_FIELDS[kind])
    if kind is DType:
        items.extend([_NUMBERS[value] for value in values])
    elif kind is Shape:
        for value in values:
            _fill_shape(items.add(), value)
    elif kind is Tensor:
        for value in values:
            _fill_tensor(items.add(), value)
    elif kind is FunctionName:
        for value in values:
            _fill_function_name(items.add(), value)
    else:
        items.extend(values)


def _fill_shape(message: Any, shape: Shape) -> None:
    if shape.dims is None:
        message.unknown_rank = True
    else:
        message.SetInParent()
        for size in shape.dims:
            message.dim.add(size=-1 if size is None else size)


def _fill_function_name(message: Any, value: FunctionName) -> None:
    message.MergeFromString(value.extra)
    message.name = value.name


def _fill_tensor(message: Any, tensor: Tensor) -> None:
    if isinstance(tensor.stored, bytes):
        message.MergeFromString(tensor.stored)
        return
    message.dtype = _NUMBERS[tensor.dtype]
    message.tensor_shape.SetInParent()
    for size in tensor.shape:
        message.tensor_shape.dim.add(size=size)
    if tensor.dtype is DType.STRING:
        message.string_val.extend(item if isinstance(item, bytes) else str(item).encode() for item in tensor.array.flat)
    else:
        message.tensor_content = bytes(_content(tensor))


def _setter(field: str) -> Callable[[Any, Any], None]:
    return lambda message, value: setattr(message, field, value)


_WRITERS: dict[type, Callable[[Any, Any], Any]] = {
    bytes: _setter("s"),
    int: _setter("i"),
    float: _setter("f"),
    bool: _setter("b"),
    DType: lambda message, value: setattr(message, "type", _NUMBERS[value]),
    Shape: lambda message, value: _fill_shape(message.shape, value),
    Tensor: lambda message, value: _fill_tensor(message.tensor, value),
    FunctionName: lambda message, value: _fill_function_name(message.func, value),
    Opaque: lambda message, value: message.MergeFromString(value.data),
    tuple: _write_list,
}
