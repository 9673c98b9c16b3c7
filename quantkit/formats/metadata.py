"""Metadata of a model file: one JSON document in the file, which other programs ignore.

    kind         location of the document
    ONNX         entry ``quantkit`` of metadata_props
    GraphDef     field 7100 of the message; a comment at the end of the text form
    SavedModel   file assets.extra/quantkit.json
    LiteRT       metadata ``quantkit`` with its buffer

    {"labels": {...}, "preprocessing": {...}, "receipt": {...}, "schema": "quantkit.metadata/1"}

`Graph.extra` contains the document as its file does, so that transforms do not lose it. The text has sorted keys and no
date, host or path: equal models are equal files.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from quantkit.errors import InputError
from quantkit.formats import graphdef, onnx, tflite, wire
from quantkit.formats.kinds import kind_of, open_file
from quantkit.ir.graph import Graph

SCHEMA = "quantkit.metadata/1"
# Key of ONNX and LiteRT metadata, and beginning of the comment in the text form of a GraphDef.
KEY = "quantkit"
COMMENT = f"\n# {KEY}: "
# File of a SavedModel: TensorFlow copies the folder of further assets, and does not read it.
FOLDER, FILE = "assets.extra", f"{KEY}.json"
# Field of the metadata in the message of a model: metadata_props of a ModelProto, and a field that no GraphDef defines.
FIELDS = {"onnx": 14, "tensorflow": 7100}
HINT = "write the file again with quantkit, or state preprocessing and labels by flags"


def encode(metadata: Mapping[str, Any]) -> bytes:
    """Return the text of metadata; equal metadata have equal texts.

    >>> encode({"labels": {"names": ["a"]}})
    b'{"labels":{"names":["a"]},"schema":"quantkit.metadata/1"}'
    """
    document = {**metadata, "schema": SCHEMA}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def decode(data: wire.Buffer | None) -> dict[str, Any]:
    """Return the metadata of a text; empty without a text.

    Raises:
        InputError: the text is damaged, or of another version.
    """
    if data is None:
        return {}
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError):
        raise InputError("the metadata of quantkit in the file is damaged", HINT) from None
    schema = document.pop("schema", None) if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise InputError(f"the metadata in the file has the schema {schema!r} instead of {SCHEMA!r}", HINT)
    return dict(document)


def seal(metadata: Mapping[str, Any], content: str = "0" * 64) -> dict[str, Any]:
    """Return metadata whose receipt has the digest of the graph and weights, and that of all metadata.

    Args:
        metadata: metadata with a receipt.
        content: digest of the graph and weights, see `quantkit.formats.content_digest` (default: not known yet).
    """
    receipt = {**metadata["receipt"], "content": content, "digest": ""}
    digest = sha256(encode({**metadata, "receipt": receipt})).hexdigest()
    return {**metadata, "receipt": {**receipt, "digest": digest}}


def is_sealed(metadata: Mapping[str, Any]) -> bool:
    """Return True if metadata are those that `seal` returned."""
    receipt = metadata.get("receipt")
    if not isinstance(receipt, dict) or not isinstance(receipt.get("content"), str):
        return False
    return seal(metadata, receipt["content"]) == metadata


def without_receipt(graph: Graph) -> Graph:
    """Return the graph of a file with its metadata, but without the receipt: it belongs to the file."""
    text = text_of(graph)
    if text is None or b'"receipt"' not in text:
        return graph
    with suppress(InputError):  # damaged metadata are rejected on use
        return with_metadata(graph, {key: value for key, value in decode(text).items() if key != "receipt"})
    return graph


def with_metadata(graph: Graph, metadata: Mapping[str, Any]) -> Graph:
    """Return the graph with other metadata; empty metadata remove them."""
    return with_text(graph, encode(metadata) if metadata else None)


def text_of(graph: Graph) -> bytes | None:
    """Return the text of the metadata of a graph; None without metadata."""
    texts = _find_texts(graph.extra, graph.dialect)
    return texts[0] if texts else None


def with_text(graph: Graph, text: bytes | None) -> Graph:
    """Return the graph with other metadata, as the text of a file; None removes them."""
    fields = [field for field, part in _fields(graph.extra, graph.dialect) if part is None]
    if text is not None:
        if graph.dialect == onnx.DIALECT:
            text = b"".join(wire.header(number, len(part)) + part for number, part in ((1, KEY.encode()), (2, text)))
        fields.append(wire.header(FIELDS[graph.dialect], len(text)) + text)
    extra = b"".join(fields)
    return graph if extra == graph.extra else graph.with_(extra=extra)


def read_text(path: Path) -> bytes | None:
    """Return the text of the metadata in a file or folder; None for files of other kinds and without metadata.

    Raises:
        InputError: the file is broken, or contains metadata twice.
    """
    kind = kind_of(path)
    try:
        if kind in ("onnx", "graphdef"):
            texts = _find_texts(memoryview(wire.map_file(path)), onnx.DIALECT if kind == "onnx" else "tensorflow")
            if len(texts) > 1:
                raise InputError("the file contains the metadata of quantkit twice", HINT)
            return texts[0] if texts else None
        if kind == "graphdef_text":
            return _split_comment(wire.map_file(path)[:].decode(errors="replace"))
        if kind == "tflite":
            return tflite.read_metadata(wire.map_file(path), KEY)
        if kind == "saved_model" and (file := path / FOLDER / FILE).is_file():
            with open_file(file) as content:
                return content.read()
    except InputError as error:
        raise InputError(f"{path}: {error.message}", error.hint) from None
    return None


def encode_graphdef_text(graph: Graph) -> str:
    """Return a GraphDef in protobuf's text form, with the metadata in a comment.

    Raises:
        GraphError: the message exceeds the limit of protobuf (2 GiB).
    """
    text = text_of(graph)
    return graphdef.encode_text(graph) + ("" if text is None else f"{COMMENT}{text.decode()}\n")


def decode_graphdef_text(text: str) -> Graph:
    """Decode a GraphDef in protobuf's text form, with the metadata in a comment.

    Raises:
        InputError: the text is not a GraphDef; the message has line and column.
    """
    return with_text(graphdef.decode_text(text), _split_comment(text))


def _split_comment(text: str) -> bytes | None:
    """Return the metadata in a comment at the end of a text."""
    _, comment, metadata = text.rpartition(COMMENT)
    return metadata.strip().encode() if comment else None


def _find_texts(data: wire.Buffer, dialect: str) -> list[bytes]:
    return [bytes(text) for _, text in _fields(data, dialect) if text is not None]


def _fields(data: wire.Buffer, dialect: str) -> Iterator[tuple[wire.Buffer, wire.Buffer | None]]:
    """Yield the fields of a serialized model, each with the text of the metadata if it holds them."""
    for number, kind, begin, start, end in wire.fields(data, 0, len(data)):
        text = None
        if number == FIELDS[dialect] and kind == wire.LENGTH:
            text = data[start:end]
            if dialect == onnx.DIALECT:
                parts = {part: data[first:last] for part, _, _, first, last in wire.fields(data, start, end)}
                text = parts.get(2, b"") if parts.get(1) == KEY.encode() else None
        yield data[begin:end], text
