"""Conversion of NodeDef and AttrValue messages, in graphs and in functions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from quantkit.errors import GraphError, InputError
from quantkit.formats import wire
from quantkit.formats.graphdef.schema import message_class, parse
from quantkit.formats.graphdef.tensors import (
    content_of,
    decode_shape,
    decode_tensor,
    element_type,
    fill_shape,
    fill_tensor,
    type_number,
)
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Attr, Node, Opaque
from quantkit.ir.names import is_tensorflow_name
from quantkit.ir.tensor import DType, Shape, Tensor

# Nodes up to this size in bytes are parsed as one message; the content of larger tensors stays in the file.
SMALL_NODE = 2048

NAME_HINT = "names consist of letters, digits and the characters _ . - / \\ >: rename the node"

NODE_ATTR, ENTRY_KEY, ENTRY_VALUE, ATTR_TENSOR, TENSOR_CONTENT = 5, 1, 2, 8, 4

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


def decode_node(view: memoryview, start: int, end: int) -> Node:
    """Decode a serialized NodeDef; large tensors stay views of the bytes.

    Raises:
        InputError: the bytes are not a NodeDef.
    """
    if end - start <= SMALL_NODE:
        return decode_node_message(parse("NodeDef", view[start:end]))
    small: list[wire.Buffer] = []
    tensors: dict[str, Tensor] = {}
    for number, _, begin, value, stop in wire.fields(view, start, end):
        if number == NODE_ATTR and stop - value > SMALL_NODE // 2:
            key, tensor = _large_tensor(view, value, stop)
            if tensor is not None:
                tensors[key] = tensor
                continue
        small.append(view[begin:stop])
    return decode_node_message(parse("NodeDef", b"".join(small)), tensors)


def _large_tensor(view: memoryview, start: int, end: int) -> tuple[str, Tensor | None]:
    """Return key and tensor of an attribute entry without copying the content; None for other attribute kinds."""
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
    return key, decode_tensor(parse("TensorProto", b"".join(small)), content)


def decode_name(data: memoryview) -> str:
    """Decode a name.

    Raises:
        InputError: the bytes are not UTF-8.
    """
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise InputError("a name is not UTF-8") from None


_NODE_FIELDS = ("name", "op", "input", "device", "attr")


def decode_node_message(message: Any, tensors: Mapping[str, Tensor] | None = None) -> Node:
    """Convert a NodeDef message.

    Args:
        message: NodeDef; all known fields are cleared.
        tensors: attributes with large tensors, which are not in the message.

    Raises:
        GraphError: the node has no name, or one that TensorFlow rejects.
    """
    if not message.name:
        raise GraphError(
            f"a node ({message.op or 'without an op'}) has no name",
            hint="copy the file again, or export the model again",
        )
    if not is_tensorflow_name(message.name):
        raise GraphError(f"TensorFlow rejects the node name {message.name!r}", hint=NAME_HINT)
    inputs = tuple(message.input)
    attrs: dict[str, Attr] = {}
    for key, value in message.attr.items():
        attrs[key] = decode_attr(value)
    if tensors:
        attrs.update(tensors)
    name, op, device = message.name, message.op, message.device
    for field in _NODE_FIELDS:
        message.ClearField(field)
    extra = message.SerializeToString(deterministic=True)
    return Node.of_written(name, op, inputs, attrs, device, extra)


def decode_attr(value: Any) -> Attr:
    """Convert an AttrValue message; an unsupported kind becomes `Opaque`."""
    kind = value.WhichOneof("value")
    if kind in ("i", "f", "b", "s"):
        plain: Attr = getattr(value, kind)
        return plain
    if kind == "type" and (dtype := element_type(value.type)):
        return dtype
    if kind == "shape" and not any(dim.name for dim in value.shape.dim):
        return decode_shape(value.shape)
    if kind == "tensor":
        return decode_tensor(value.tensor, None) if element_type(value.tensor.dtype) else _opaque(value)
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
    if field.name == "type" and all(map(element_type, items)):
        return tuple(map(element_type, items))
    if field.name == "shape" and not any(dim.name for item in items for dim in item.dim):
        return tuple(decode_shape(item) for item in items)
    if field.name == "tensor" and all(element_type(item.dtype) for item in items):
        return tuple(decode_tensor(item, None) for item in items)
    return _opaque(value)


def encode_node(node: Node, field: int, inputs: Iterable[str] | None = None) -> Iterator[wire.Buffer]:
    """Yield the serialized NodeDef in pieces, as a field of the enclosing message.

    Args:
        node: node to write.
        field: number of the field.
        inputs: inputs in the notation of functions (default: in the notation of graphs).
    """
    message = message_class("NodeDef")(name=node.name, op=node.op, device=node.device)
    message.input.extend(node.written_inputs if inputs is None else inputs)
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
        yield content_of(tensor)


def _tensor_entry(key: str, tensor: Tensor) -> bytes:
    """Return the bytes of an attribute entry before the content of its tensor, which is its last field."""
    proto = message_class("TensorProto")(dtype=type_number(tensor.dtype))
    for size in tensor.shape:
        proto.tensor_shape.dim.add(size=size)
    head: bytes = proto.SerializeToString(deterministic=True)
    inner = head + wire.header(TENSOR_CONTENT, tensor.num_bytes)
    attr = wire.header(ATTR_TENSOR, len(inner) + tensor.num_bytes) + inner
    name = key.encode()
    entry = wire.header(ENTRY_KEY, len(name)) + name
    entry += wire.header(ENTRY_VALUE, len(attr) + tensor.num_bytes) + attr
    return wire.header(NODE_ATTR, len(entry) + tensor.num_bytes) + entry


def encode_attr(message: Any, value: Attr, node: Node) -> None:
    """Write a value into an AttrValue.

    Raises:
        GraphError: a GraphDef cannot store this kind of value; the message names ``node``.
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
        items.extend(map(type_number, values))
    elif kind is Shape:
        for value in values:
            fill_shape(items.add(), value)
    elif kind is Tensor:
        for value in values:
            fill_tensor(items.add(), value)
    elif kind is FunctionName:
        for value in values:
            _fill_function_name(items.add(), value)
    else:
        items.extend(values)


def _fill_function_name(message: Any, value: FunctionName) -> None:
    message.MergeFromString(value.extra)
    message.name = value.name


def _setter(field: str) -> Callable[[Any, Any], None]:
    return lambda message, value: setattr(message, field, value)


_WRITERS: dict[type, Callable[[Any, Any], Any]] = {
    bytes: _setter("s"),
    int: _setter("i"),
    float: _setter("f"),
    bool: _setter("b"),
    DType: lambda message, value: setattr(message, "type", type_number(value)),
    Shape: lambda message, value: fill_shape(message.shape, value),
    Tensor: lambda message, value: fill_tensor(message.tensor, value),
    FunctionName: lambda message, value: _fill_function_name(message.func, value),
    Opaque: lambda message, value: message.MergeFromString(value.data),
    tuple: _write_list,
}
