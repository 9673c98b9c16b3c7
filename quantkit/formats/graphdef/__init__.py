"""GraphDef <-> Graph.

Reading cuts the file into nodes and parses each with our own descriptors; the contents of large tensors
stay views of the file. Writing streams node by node, so that a weight which a transform computes exists
only while it is written.
"""

from collections.abc import Iterable, Iterator
from mmap import mmap
from typing import Any, BinaryIO

from quantkit.errors import GraphError, InputError
from quantkit.formats import wire
from quantkit.formats.graphdef.function_library import decode_library, encode_library
from quantkit.formats.graphdef.nodes import decode_node, decode_node_message, encode_node
from quantkit.formats.graphdef.schema import message_class, parse, parse_text
from quantkit.ir.graph import Graph, Node, Versions
from quantkit.ir.tensor import Tensor

# A protobuf message can not be larger: TensorFlow could not read the graph.
MAX_BYTES = (1 << 31) - 1

NODE, LIBRARY, VERSIONS = 1, 2, 4


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
    return Graph.of(nodes, versions=versions, library=decode_library(b"".join(library)), extra=b"".join(rest))


def decode_text(text: str) -> Graph:
    """A graph of a GraphDef in protobuf's text form.

    Raises:
        InputError: the text is no GraphDef; the message gives line and column.
    """
    message = parse_text("GraphDef", text)
    nodes = [decode_node_message(node) for node in message.node]
    versions = _decode_versions(message.versions)
    library = decode_library(message.library.SerializeToString(deterministic=True))
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


def check_num_bytes(what: str, size: int) -> None:
    """Refuse early what would be too large as a graph.

    Args:
        what: values that would become constants: ``the variables of model.ckpt``.
        size: of them, in bytes.

    Raises:
        InputError: no graph can hold them.
    """
    if size > MAX_BYTES:
        raise InputError(
            f"{what} take {size / 1e9:.2f} GB, and a frozen graph can hold 2.15 GB",
            hint="convert it to ONNX with its weights in a file beside it: tf2onnx has --large_model",
        )


def chunks(graph: Graph) -> Iterator[wire.Buffer]:
    """The serialized GraphDef in pieces; content of large tensors is one piece each."""
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


def encode_text(graph: Graph) -> str:
    """The GraphDef in protobuf's text form.

    Raises:
        GraphError: it would be larger than a protobuf message may be.
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
