"""Digest of the graph and the weights of a model file, without its metadata, and the seal of a receipt.

The digest covers nodes, tensors, inputs and outputs in a canonical serialization: it does not depend on the order of
fields, which programs choose. That of a LiteRT file covers its bytes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from quantkit.errors import InputError, QuantkitError
from quantkit.formats import graphdef, metadata, onnx, saved_model, tflite, wire
from quantkit.formats.files import write_whole
from quantkit.formats.graphdef.schema import parse, parse_text
from quantkit.formats.kinds import KINDS, kind_of, open_file
from quantkit.formats.onnx.schema import INITIALIZER, MODEL_GRAPH, NODE, parse_message
from quantkit.formats.onnx.tensors import ExternalData, external_data_reader, inline_external_data

# Function that parses a message, given the name of its type and its bytes.
_Parser = Callable[[str, wire.Buffer], Any]
# Fields of a message that are parts of their own, with the function that yields their parts.
_Parts = Mapping[int, Callable[[memoryview], Iterator[bytes]]]


def content_digest(path: Path) -> str:
    """Return the digest of a model file or SavedModel folder.

    Raises:
        InputError: the file is broken, or of a kind without metadata.
    """
    kind = kind_of(path)
    if kind not in _PARTS:
        raise InputError(
            f"{path} is {KINDS[kind]}, which has no metadata", hint="name a file that quantize has written"
        )
    try:
        parts = [sha256(part).hexdigest() for part in _PARTS[kind](path)]
    except (QuantkitError, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, QuantkitError) else "the text is not UTF-8"
        raise InputError(f"{path} is truncated or broken: {reason}", hint="copy the file again") from None
    return sha256("".join(sorted(parts)).encode()).hexdigest()


def seal_receipt(path: Path) -> None:
    """Write the digests into the receipt of a file; they replace digests of equal length, so that no byte moves."""
    text = metadata.read_text(path) or b""
    sealed = metadata.encode(metadata.seal(metadata.decode(text), content_digest(path)))
    file = path / metadata.FOLDER / metadata.FILE if path.is_dir() else path
    content = file.read_bytes().replace(text, sealed)
    write_whole(file, lambda output: output.write(content))


def _message_parts(read: _Parser, name: str, data: wire.Buffer, parts: _Parts, ignored: int = 0) -> Iterator[bytes]:
    """Yield the parts of a message: each part of large fields with its number and index, and all other fields.

    Args:
        read: parser of the schema.
        name: type of the message.
        data: bytes of the message.
        parts: large fields.
        ignored: number of the field with the metadata.
    """
    view = memoryview(data)
    rest: list[memoryview] = []
    counts = Counter[int]()
    for number, kind, begin, start, end in wire.fields(view, 0, len(view)):
        if number in parts and kind == wire.LENGTH:
            for part in parts[number](view[start:end]):
                yield f"{name} {number} {counts[number]} ".encode() + part
            counts[number] += 1
        elif number != ignored:
            rest.append(view[begin:end])
    yield name.encode() + _canonical(read(name, b"".join(rest)))


def _canonical(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _onnx_parts(path: Path) -> Iterator[bytes]:
    external = external_data_reader(path.parent)
    tensors = {
        NODE: lambda data: iter([_canonical(parse_message("NodeProto", data))]),
        INITIALIZER: lambda data: iter([_tensor(data, external)]),
    }
    graph = {MODEL_GRAPH: lambda data: _message_parts(parse_message, "GraphProto", data, tensors)}
    ignored = metadata.FIELDS[onnx.DIALECT]
    return _message_parts(parse_message, "ModelProto", memoryview(wire.map_file(path)), graph, ignored)


def _tensor(data: wire.Buffer, external: ExternalData) -> bytes:
    message = parse_message("TensorProto", data)
    inline_external_data(message, external)
    return _canonical(message)


def _graphdef_parts(data: wire.Buffer) -> Iterator[bytes]:
    nodes = {graphdef.NODE: lambda node: iter([_canonical(parse("NodeDef", node))])}
    return _message_parts(parse, "GraphDef", data, nodes, metadata.FIELDS["tensorflow"])


def _graphdef_text_parts(path: Path) -> Iterator[bytes]:
    return _graphdef_parts(_canonical(parse_text("GraphDef", wire.map_file(path)[:].decode())))


def _litert_parts(path: Path) -> Iterable[bytes]:
    model = wire.map_file(path)[:]
    start, end = tflite.find_metadata(model, metadata.KEY) or (0, 0)
    return [model[:start] + model[end:]]


def _saved_model_parts(folder: Path) -> Iterator[bytes]:
    """Yield the parts of the graphs with their signatures, and the content of all other files but the metadata."""
    graph = {saved_model.META_GRAPH_GRAPH: _graphdef_parts}
    graphs = {saved_model.META_GRAPH: lambda data: _message_parts(parse, "MetaGraphDef", data, graph)}
    for file in folder.rglob("*"):
        name = file.relative_to(folder).as_posix()
        if not file.is_file() or name == f"{metadata.FOLDER}/{metadata.FILE}":
            continue
        if name == saved_model.FILE:
            yield from _message_parts(parse, "SavedModel", memoryview(wire.map_file(file)), graphs)
        else:
            with open_file(file) as content:
                yield name.encode() + b"\0" + content.read()


_PARTS: Mapping[str, Callable[[Path], Iterable[bytes]]] = {
    "onnx": _onnx_parts,
    "graphdef": lambda path: _graphdef_parts(memoryview(wire.map_file(path))),
    "graphdef_text": _graphdef_text_parts,
    "tflite": _litert_parts,
    "saved_model": _saved_model_parts,
}
