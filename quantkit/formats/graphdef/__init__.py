"""Conversion between GraphDef messages and graphs.

The reader parses node by node; the contents of large tensors stay views of the file. The writer streams node by node,
so that a weight that a transform computes is in memory only while it is written.
"""

from collections.abc import Iterable, Iterator
from mmap import mmap
from typing import Any, BinaryIO

from google.protobuf.message import DecodeError

from quantkit.errors import GraphError, InputError, one_line
from quantkit.formats import wire
from quantkit.formats.graphdef.function_library import check_inlined_size, decode_library, encode_library
from quantkit.formats.graphdef.nodes import NAME_HINT, decode_node, decode_node_message, encode_node
from quantkit.formats.graphdef.schema import message_class, parse, parse_text
from quantkit.ir.graph import Graph, Versions
from quantkit.ir.names import is_tensorflow_name
from quantkit.ir.tensor import Tensor

MAX_BYTES = wire.MAX_BYTES
NODE, LIBRARY, VERSIONS = 1, 2, 4


def decode(data: wire.Buffer | mmap) -> Graph:
    """Decode a serialized GraphDef; large tensors stay views of ``data``.

    Raises:
        InputError: the bytes are not a GraphDef.
        GraphError: two nodes have the same name, or the calls of functions expand to too many nodes.
    """
    view = memoryview(data)
    values, rest = wire.split(view, 0, len(view), NODE, LIBRARY, VERSIONS)
    nodes = [decode_node(view, *value) for value in values[NODE]]
    library = [bytes(view[slice(*value)]) for value in values[LIBRARY]]
    versions = [_decode_versions(parse("VersionDef", view[slice(*value)])) for value in values[VERSIONS]]
    graph = Graph.of(
        nodes, versions=(versions or [Versions()])[-1], library=decode_library(b"".join(library)), extra=rest
    )
    _check_inputs(graph)
    check_inlined_size(graph)
    return graph


def decode_text(text: str) -> Graph:
    """Decode a GraphDef in protobuf's text form.

    Raises:
        InputError: the text is not a GraphDef; the message has line and column.
    """
    message = parse_text("GraphDef", text)
    nodes = [decode_node_message(node) for node in message.node]
    versions = _decode_versions(message.versions)
    library = decode_library(message.library.SerializeToString(deterministic=True))
    for field in ("node", "versions", "library"):
        message.ClearField(field)
    graph = Graph.of(nodes, versions=versions, library=library, extra=message.SerializeToString(deterministic=True))
    _check_inputs(graph)
    check_inlined_size(graph)
    return graph


def _check_inputs(graph: Graph) -> None:
    """Check that each input without a producer, which a part of a larger graph has, is the name of a node.

    Raises:
        GraphError: TensorFlow cannot read the input.
    """
    for node in graph.nodes.values():
        for name in node.sources:
            if name not in graph.nodes and not is_tensorflow_name(name):
                raise GraphError(f"TensorFlow rejects the input {name!r} of node {node.name!r}", hint=NAME_HINT)


def encode(graph: Graph) -> bytes:
    """Serialize a graph as a GraphDef.

    Raises:
        GraphError: the message exceeds the limit of protobuf (2 GiB).
    """
    check_size(graph)
    return b"".join(chunks(graph))


def write(graph: Graph, file: BinaryIO) -> None:
    """Write the serialized GraphDef, node by node.

    Raises:
        GraphError: the message exceeds the limit of protobuf (2 GiB).
    """
    check_size(graph)
    for chunk in chunks(graph):
        file.write(chunk)


def check_size(graph: Graph, names: Iterable[str] | None = None) -> None:
    """Check before writing that a graph fits into a protobuf message.

    Args:
        graph: graph to write.
        names: nodes to count (default: all nodes).

    Raises:
        GraphError: the tensors alone exceed 2 GiB; the message names the largest.
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
            f"the graph has {total / 1e9:.2f} GB of tensors; the limit of a GraphDef is 2.15 GB (largest: {largest})",
            hint="write a .onnx file with external data, or reduce the size to a quarter with quantize_weights",
        )


def check_num_bytes(title: str, size: int) -> None:
    """Check that values fit into a frozen graph as constants.

    Args:
        title: name of the values for the message: ``the variables of model.ckpt``.
        size: size of the values in bytes.

    Raises:
        InputError: the values exceed the limit of 2 GiB.
    """
    if size > MAX_BYTES:
        raise InputError(
            f"{title} take {size / 1e9:.2f} GB; the limit of a frozen graph is 2.15 GB",
            hint="convert the model to ONNX with external data: tf2onnx --large_model",
        )


def chunks(graph: Graph) -> Iterator[wire.Buffer]:
    """Yield the serialized GraphDef in pieces; the content of each large tensor is one piece."""
    for node in graph.nodes.values():
        yield from encode_node(node, NODE)
    library = encode_library(graph.library)
    if library:
        yield wire.header(LIBRARY, len(library))
        yield library
    versions = _encode_versions(graph.versions).SerializeToString(deterministic=True)
    if versions:
        yield wire.header(VERSIONS, len(versions)) + versions
    yield graph.extra


def as_message(graph: Graph, kind: Any) -> Any:
    """Return the graph as a GraphDef message of another package; the encoded bytes are freed.

    Args:
        graph: graph to convert.
        kind: message class of that package.

    Raises:
        GraphError: a part of the file that quantkit keeps unchanged is not a message.
    """
    data = encode(graph)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise GraphError(f"TensorFlow cannot read the graph: {one_line(str(error))}", "export it again") from None


def encode_text(graph: Graph) -> str:
    """Return the GraphDef in protobuf's text form.

    Raises:
        GraphError: the message exceeds the limit of protobuf (2 GiB).
    """
    from google.protobuf import text_format

    message = message_class("GraphDef").FromString(encode(graph))
    return str(text_format.MessageToString(message))


def _decode_versions(message: Any) -> Versions:
    return Versions(message.producer, message.min_consumer, tuple(message.bad_consumers))


def _encode_versions(versions: Versions) -> Any:
    return message_class("VersionDef")(
        producer=versions.producer, min_consumer=versions.min_consumer, bad_consumers=versions.bad_consumers
    )
