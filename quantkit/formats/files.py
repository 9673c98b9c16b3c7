"""Reading of model files, and atomic writing: an output file appears complete or not at all."""

import contextlib
import errno
import glob
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from quantkit.arguments import expand_user
from quantkit.errors import GraphError, InputError, QuantkitError, UsageError
from quantkit.formats import graphdef, metadata, onnx, saved_model, wire
from quantkit.formats.kinds import HEAD_BYTES, KINDS, SUFFIXES, is_text, kind_of
from quantkit.formats.temporary import remove_stale
from quantkit.formats.wire import TooLargeError, map_file
from quantkit.ir.garbage_collection import garbage_collection_paused
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.tensorflow.frames import ENTERS, EXITS, OUTSIDE, find_frames
from quantkit.ops.tensorflow.signatures import num_outputs

# Files that the block of `name_written_files` has written.
_WRITTEN: ContextVar[list[Path]] = ContextVar("written")
# Maximum number of characters of an output's name in the name of its temporary file, in a file system with 255 bytes.
_NAME_LENGTH = 50

Endpoints = Iterable[Edge | str] | None

# Op types of nodes without consumers that are not outputs of the graph.
NOT_OUTPUTS = frozenset({"Const", "Assign", "NoOp", "Placeholder", "SaveV2", "RestoreV2", "Assert"})


def meta_graphs(path: Path) -> tuple[saved_model.MetaGraph, ...]:
    """Read the graphs of a SavedModel folder, or of the ``.meta`` file of a checkpoint.

    Raises:
        InputError: the file is missing or broken.
    """
    names = (saved_model.FILE, saved_model.TEXT_FILE) if path.is_dir() else ("",)
    file = next((path / name for name in names if (path / name).exists()), path / names[0])
    try:
        data = _read_message(file, "SavedModel" if path.is_dir() else "MetaGraphDef")
        return saved_model.decode(data) if path.is_dir() else (saved_model.decode_meta_graph(data),)
    except TooLargeError as error:
        raise TooLargeError(f"{file}: {error.message}", error.hint) from None
    except (QuantkitError, ValueError) as error:
        reason = error.message if isinstance(error, QuantkitError) else "the file is empty"
        raise InputError(f"{file} is truncated or broken: {reason}", hint="copy or download the file again") from None


def _read_message(file: Path, name: str) -> mmap.mmap | bytes:
    """Return the message of a binary or text file in binary form."""
    data = map_file(file)
    return saved_model.from_text(_decode_utf8(data), name) if is_text(data[:HEAD_BYTES]) else data


def decode(data: bytes) -> Graph:
    """Decode a serialized GraphDef or ONNX model, distinguished by the field numbers.

    Raises:
        InputError: the bytes are neither.
        GraphError: two nodes or values have the same name.
    """
    kinds = {number: kind for number, kind, *_ in wire.fields(data, 0, len(data))}
    is_onnx = kinds.get(onnx.MODEL_GRAPH) == wire.LENGTH
    return metadata.without_receipt(onnx.decode(data) if is_onnx else infer_endpoints(graphdef.decode(data)))


@garbage_collection_paused()
def load(path: str | os.PathLike[str], inputs: Endpoints = None, outputs: Endpoints = None) -> Graph:
    """Read a GraphDef, binary or text, or an ONNX model; large tensors stay in the file until first access.

    Args:
        path: model file.
        inputs: graph inputs (default: the placeholders).
        outputs: graph outputs (default: those of the model file, else nodes without consumers).

    Raises:
        InputError: the file is missing, truncated, or not a graph.
        UsageError: an input or output is not in the graph.
    """
    path = Path(path)
    kind = kind_of(path)
    loader = _LOADERS.get(kind)
    if loader is None:
        raise InputError(f"{path} is {KINDS[kind]}; expected a frozen graph or an ONNX model")
    try:
        graph = loader(path)
        if not graph.nodes:
            raise InputError("the graph has no nodes")
    except QuantkitError as error:
        raise _add_path(error, path, kind) from None
    graph = metadata.without_receipt(infer_endpoints(graph))
    graph = graph.with_endpoints(_resolve(graph, inputs), _resolve(graph, outputs))
    _check_ports(graph)
    return graph


def _check_ports(graph: Graph) -> None:
    for edge in (*graph.inputs, *graph.outputs):
        count = num_outputs(graph[edge.node]) if edge.port and graph.dialect == "tensorflow" else None
        if count is not None and edge.port >= count:
            raise UsageError(
                f"{str(edge)!r} is not in the graph: {edge.node} ({graph[edge.node].op}) has {count} outputs",
                hint=f"use one of {', '.join(f'{edge.node}:{port}' for port in range(count))}",
            )


def _add_path(error: QuantkitError, path: Path, kind: str) -> QuantkitError:
    """Return the error with the name of the file in the message."""
    if isinstance(error, GraphError | TooLargeError):
        return type(error)(f"{path}: {error.message}", error.hint)
    if kind == "graphdef_text":
        return InputError(
            f"{path} is text, but not a GraphDef: {error.message}",
            hint=error.hint or "a frozen graph is binary, or text that begins with 'node {'",
        )
    expected = "an ONNX model" if kind == "onnx" else "a GraphDef"
    return InputError(
        f"{path} ({path.stat().st_size:,} bytes) is truncated, or not {expected}: {error.message}",
        hint=error.hint or "compare size and checksum with those of the source, and download the file again",
    )


def _resolve(graph: Graph, endpoints: Endpoints) -> Endpoints:
    """Return the edges of names; a value of an ONNX model may have a name such as ``softmax:0``."""
    if endpoints is None or graph.dialect != onnx.DIALECT:
        return endpoints
    return [onnx.edge_of(graph, endpoint) if isinstance(endpoint, str) else endpoint for endpoint in endpoints]


def infer_endpoints(graph: Graph) -> Graph:
    """Return the graph with missing inputs and outputs inferred: placeholders, and nodes without other consumers.

    Nodes inside of loops are not outputs; counters of loops are, if there are no others.
    Placeholders with a default are inputs only of a graph without other placeholders; scalars, such as the flag of
    the training mode, keep their default.

    Raises:
        GraphError: every node has a consumer, because the nodes form a cycle.
    """
    inputs = graph.inputs or [name for name, node in graph.nodes.items() if node.op == "Placeholder"]
    inputs = inputs or [name for name, node in graph.nodes.items() if _is_optional_input(node)]
    outputs = graph.outputs or _infer_outputs(graph)
    if not outputs:
        _ = graph.order  # rejects a cycle, which has no end that could be an output
    return graph.with_endpoints(inputs, outputs)


def _infer_outputs(graph: Graph) -> list[str]:
    names = [name for name, node in graph.nodes.items() if node.op not in NOT_OUTPUTS and _is_sink(graph, name)]
    if ENTERS.isdisjoint(graph.op_counts):
        return names
    try:
        frames = find_frames(graph)
    except GraphError:  # a part of a larger graph
        return names
    # Values inside of a loop cannot be fetched, and an unused integer at its end is its counter.
    outside = [name for name in names if frames[name] is OUTSIDE]
    return [name for name in outside if not _is_counter(graph[name])] or outside


def _is_counter(node: Node) -> bool:
    return node.op in EXITS and node.attrs.get("T") in (DType.INT32, DType.INT64)


def _is_optional_input(node: Node) -> bool:
    return node.op == "PlaceholderWithDefault" and node.attrs.get("shape") != Shape(())


def _is_sink(graph: Graph, name: str) -> bool:
    """Return True if no other node consumes a node."""
    return all(use.node.name == name for use in graph.node_uses.get(name, ()))


def save(graph: Graph, path: str | os.PathLike[str], *, as_text: bool | None = None) -> None:
    """Write a graph as a GraphDef or ONNX file, by its dialect; the file appears complete or not at all.

    Args:
        graph: graph to write; the weights of an ONNX model over 2 GiB go to the external data file ``PATH.data``.
        path: output file; ``.pbtxt`` selects the text form.
        as_text: write the text form or not, independent of the suffix.

    Raises:
        UsageError: the folder does not exist, or the suffix is that of another format.
        InputError: the disk is full or the file cannot be written.
        GraphError: the graph is larger than the format allows.
    """
    path = Path(path)
    check_target(path, graph)
    if graph.dialect == onnx.DIALECT:
        save_onnx(graph, path)
    else:
        save_graphdef(graph, path, as_text=path.suffix == ".pbtxt" if as_text is None else as_text)


def save_graphdef(graph: Graph, path: Path, *, as_text: bool = False) -> None:
    """Write a GraphDef to a file of any suffix; see `save`."""
    if as_text:
        text = metadata.encode_graphdef_text(graph).encode()
        write_whole(path, lambda file: file.write(text))
    else:
        write_whole(path, lambda file: graphdef.write(graph, file))


def save_saved_model(graph: Graph, folder: Path, signature: saved_model.Signature = saved_model.Signature()) -> None:
    """Write a SavedModel folder; it appears complete or not at all.

    Args:
        graph: frozen TensorFlow graph with inputs and outputs.
        folder: output folder; it does not exist or is empty.
        signature: signature with the names of inputs and outputs for callers (default: the names of the graph).

    Raises:
        UsageError: the folder is not empty, or cannot be created.
        InputError: the disk is full or the folder cannot be written.
        GraphError: the graph exceeds the size limit of a SavedModel, or an input or output has an unknown type.
    """
    with whole_folder(folder) as temporary:
        with open(temporary / saved_model.FILE, "wb") as file:
            saved_model.write(metadata.with_text(graph, None), file, signature)
        save_folder_metadata(graph, temporary)


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes ``folder`` in one step at the end of the block; an error removes it.

    Raises:
        UsageError: the folder is not empty, or cannot be created.
        InputError: the disk is full or the folder cannot be written.
    """
    check_folder(folder)
    target = folder.resolve()
    temporary = _temporary_path(target)
    try:
        with _report_write_errors(folder):
            temporary.mkdir()
            if target.exists():
                shutil.copymode(target, temporary)
            yield temporary
            os.replace(temporary, target)
        _WRITTEN.get([]).append(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save_folder_metadata(graph: Graph, folder: Path) -> None:
    """Write the metadata of a graph to the SavedModel folder that contains the graph."""
    if text := metadata.text_of(graph):
        (folder / metadata.FOLDER).mkdir(exist_ok=True)
        write_whole(folder / metadata.FOLDER / metadata.FILE, lambda file: file.write(text))


def check_folder(path: Path) -> None:
    """Check before any work that a folder of files, for example a SavedModel, can be written.

    Raises:
        UsageError: the folder is not empty or is a file, or its parent does not exist.
        InputError: no write permission.
    """
    if path.is_dir():
        entries = sorted(entry.name for entry in path.iterdir())
        if entries:
            raise UsageError(
                f"{path} is not empty: it contains {', '.join(entries[:3])}", hint="name a new or empty folder"
            )
    elif path.exists():
        raise UsageError(f"{path} is a file, and the output is a folder", hint="name a new folder")
    parent = path.resolve().parent
    if not parent.is_dir():
        raise UsageError(f"cannot create {path.name}: {parent} is not a folder", hint="create the folder first")
    if not os.access(parent, os.W_OK):
        raise InputError(f"cannot write {path}: permission denied", hint="choose another folder")


def save_onnx(graph: Graph, path: Path) -> tuple[Path, ...]:
    """Write an ONNX model to a file of any suffix; see `save`.

    Returns:
        The model file, and the file with the weights if they exceed the size limit of the model file.
    """
    location = f"{path.name}.data" if onnx.needs_data_file(graph) else ""
    data = path.with_name(location) if location else None
    if data:
        write_whole(data, lambda file: onnx.write_data(graph, file))
    write_whole(path, lambda file: file.writelines(onnx.chunks(graph, location)))
    return (path, data) if data else (path,)


def check_target(path: Path, graph: Graph | None = None) -> None:
    """Check before any work that a graph can be written to a file.

    Raises:
        UsageError: the folder does not exist, the path is a folder, or the suffix is that of another format.
        InputError: no write permission.
    """
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path.name}: {path.parent} is not a folder", hint="create the folder first")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name a file in the folder")
    if (path.is_file() or not path.exists()) and not os.access(path.resolve().parent, os.W_OK):
        raise InputError(f"cannot write {path}: permission denied", hint="choose another folder")
    # A suffix that names no format is allowed for TensorFlow graphs, as in transform_graph.
    kind = SUFFIXES.get(path.suffix.lower(), "graphdef").removesuffix("_text")
    if graph is not None and kind != ("onnx" if graph.dialect == onnx.DIALECT else "graphdef"):
        raise UsageError(
            f"cannot write a graph of dialect {graph.dialect} to {path.name}",
            hint="write an ONNX graph to a .onnx file, a TensorFlow graph to .pb or .pbtxt",
        )


@contextlib.contextmanager
def name_written_files(*outputs: str | os.PathLike[str] | None) -> Iterator[None]:
    """Add to an error of the block the names of the outputs that the block has written completely.

    Args:
        outputs: paths of all outputs as the user wrote them; None for an output that is not written.
    """
    expected = {os.path.realpath(expand_user(path)): path for path in outputs if path is not None}
    written: list[Path] = []
    token = _WRITTEN.set(written)
    try:
        yield
    except QuantkitError as error:
        names = dict.fromkeys(os.fspath(expected[path]) for path in map(os.path.realpath, written) if path in expected)
        if names:
            error.message = f"{error.message} (already written: {', '.join(names)})"
            error.args = (error.message,)
        raise
    finally:
        _WRITTEN.reset(token)


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Call ``write`` with a temporary file in the folder of ``path``, then move it to ``path`` in one step.

    The target of a symbolic link is replaced, and the mode of an existing file is kept; a device or pipe
    (``/dev/stdout``) is written directly.

    Raises:
        UsageError: the folder does not exist.
        InputError: the file cannot be written; an existing file does not change.
    """
    check_target(path)
    with _report_write_errors(path):
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                write(file)
        else:
            _replace(path.resolve(), write)
    _WRITTEN.get([]).append(path)


@contextlib.contextmanager
def _report_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else os.strerror(error.errno or errno.EIO).lower()
        raise InputError(
            f"cannot write {path}: {reason}", hint="nothing was changed; free disk space or choose another folder"
        ) from None


def _temporary_path(target: Path) -> Path:
    """Return the path of the temporary file or folder of an output, and remove stale ones."""
    name = target.name[:_NAME_LENGTH]
    remove_stale(target.parent.glob(f".{glob.escape(name)}.*.part"))
    return target.with_name(f".{name}.{os.getpid()}.part")


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    temporary = _temporary_path(path)
    try:
        with open(temporary, "wb") as file:
            if path.exists():
                shutil.copymode(path, temporary)
            write(file)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def external_data_files(path: Path) -> tuple[str, ...]:
    """Return the files with weights that belong to an ONNX file, relative to its folder.

    Raises:
        InputError: a file cannot be read, or is not an ONNX model.
    """
    locations: dict[str, None] = {}
    read = onnx.external_data_reader(path.parent)

    def record(location: str) -> wire.Buffer:
        locations[location] = None
        return read(location)

    onnx.decode(map_file(path), record)
    return tuple(locations)


def has_onnx_functions(path: Path) -> bool:
    """Return True if an ONNX file has functions, without reading its graph.

    Raises:
        InputError: the file cannot be read, is not an ONNX model, or the version of an operator set is impossible.
    """
    try:
        return onnx.has_functions(map_file(path))
    except InputError as error:
        raise InputError(f"{path} cannot be read: {error.message}", error.hint) from None


def _read_text(path: Path) -> Graph:
    return metadata.decode_graphdef_text(_decode_utf8(map_file(path)))


def _decode_utf8(data: mmap.mmap) -> str:
    try:
        return data[:].decode()
    except UnicodeDecodeError as error:
        raise InputError(f"the text is not UTF-8 at byte {error.start}") from None


_LOADERS: dict[str, Callable[[Path], Graph]] = {
    "graphdef": lambda path: graphdef.decode(map_file(path)),
    "graphdef_text": _read_text,
    "onnx": lambda path: onnx.decode(map_file(path), onnx.external_data_reader(path.parent)),
}
