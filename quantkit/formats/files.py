"""Model files: what kind a file is, reading it, and writing one that appears complete or not at all."""

import contextlib
import errno
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from quantkit.errors import GraphError, InputError, QuantkitError, UsageError, did_you_mean
from quantkit.formats import graphdef, onnx, saved_model, wire
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.uncollected import uncollected
from quantkit.ops.tensorflow import num_outputs

Ends = Iterable[Edge | str] | None

# What a graph's unread nodes may be without being an output of it.
NOT_OUTPUTS = frozenset({"Const", "Assign", "NoOp", "Placeholder", "SaveV2", "RestoreV2", "Assert"})

KINDS = {
    "graphdef": "a frozen TensorFlow graph",
    "graphdef_text": "a frozen TensorFlow graph in text form",
    "onnx": "an ONNX model",
    "saved_model": "a SavedModel folder",
    "checkpoint": "a TensorFlow checkpoint",
    "keras": "a Keras model",
    "tflite": "a LiteRT model",
    "openvino": "an OpenVINO model",
}
ENDINGS = {
    ".pb": "graphdef",
    ".pbtxt": "graphdef_text",
    ".onnx": "onnx",
    ".keras": "keras",
    ".h5": "keras",
    ".hdf5": "keras",
    ".tflite": "tflite",
    ".xml": "openvino",
}


class TooLargeError(InputError):
    """A file is whole, but larger than its format allows."""


def kind_of(path: Path) -> str:
    """What a file is (a key of `KINDS`), by its content first and its ending second.

    Raises:
        InputError: it does not exist, is empty, or is nothing quantkit reads; the sentence says what it is.
    """
    if path.is_dir():
        if (path / "saved_model.pb").exists() or (path / "saved_model.pbtxt").exists():
            return "saved_model"
        raise InputError(f"{path} is a folder without saved_model.pb", hint="name the model file in it")
    if checkpoint_prefix(path) is not None:
        return "checkpoint"
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(
            f"{path} does not exist",
            hint=did_you_mean(path.name, siblings) or "quantkit models list names the models that can be fetched",
        )
    with _opened(path) as file:
        head = file.read(512)
    if not head:
        raise InputError(f"{path} is empty", hint="the download or the program that wrote it was interrupted")
    start = head.lstrip().lower()
    if path.suffix == ".xml" and start.startswith((b"<?xml", b"<net")):
        return "openvino"
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise InputError(f"{path} is a web page, not a model", hint="download it again: the server sent an error page")
    if start.startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is a Git LFS pointer, not the model itself", hint="run git lfs pull")
    if head[4:8] == b"TFL3":
        return "tflite"
    if head.startswith((b"\x1f\x8b", b"\x89HDF", b"PK\x03\x04")):
        if path.suffix in (".keras", ".h5", ".hdf5"):
            return "keras"
        raise InputError(f"{path} is an archive, not a model", hint="unpack it, or use quantkit models fetch --url")
    kind = ENDINGS.get(path.suffix.lower(), "graphdef")
    if kind in ("graphdef", "graphdef_text"):
        return "graphdef_text" if _is_text(head) else "graphdef"
    return kind


def checkpoint_prefix(path: Path) -> Path | None:
    """What a checkpoint's files begin with, of that or of one of them; None where the path names no checkpoint."""
    name = re.sub(r"\.(meta|index|data-\d+-of-\d+)$", "", path.name)
    is_part = name != path.name or not path.exists()
    return path.with_name(name) if is_part and name and path.with_name(f"{name}.index").is_file() else None


def meta_graphs(path: Path) -> tuple[saved_model.MetaGraph, ...]:
    """The graphs of a SavedModel folder, or of the ``.meta`` file of a checkpoint.

    Raises:
        InputError: there is none, or it is broken.
    """
    if path.is_dir() and not (path / saved_model.FILE).exists():
        raise InputError(f"{path} holds saved_model.pbtxt only, which TensorFlow reads no longer", hint="save it again")
    file = path / saved_model.FILE if path.is_dir() else path
    try:
        data = _mapped(file)
        return saved_model.decode(data) if path.is_dir() else (saved_model.decode_meta_graph(data),)
    except (QuantkitError, ValueError) as error:
        reason = error.message if isinstance(error, QuantkitError) else "it is empty"
        raise InputError(f"{file} is truncated or broken: {reason}", hint="copy or download it again") from None


def decode(data: bytes) -> Graph:
    """A graph of a serialized GraphDef or ONNX model: their first fields tell which it is.

    Raises:
        InputError: it is neither.
        GraphError: two nodes or values have one name.
    """
    kinds = {number: kind for number, kind, *_ in wire.fields(data, 0, len(data))}
    is_onnx = kinds.get(onnx.MODEL_GRAPH) == wire.LENGTH
    return onnx.decode(data) if is_onnx else with_guessed_ends(graphdef.decode(data))


@uncollected()
def load(path: str | os.PathLike[str], inputs: Ends = None, outputs: Ends = None) -> Graph:
    """Read a GraphDef, binary or text, or an ONNX model; large tensors stay in the file until they are used.

    Args:
        path: the file.
        inputs: what is fed; None: the placeholders.
        outputs: what is asked for; None: what the model says, or what nobody reads.

    Raises:
        InputError: the file is missing, truncated, or no graph.
        UsageError: an input or output is not in the graph.
    """
    path = Path(path)
    kind = kind_of(path)
    reader = _READERS.get(kind)
    if reader is None:
        raise InputError(f"{path} is {KINDS[kind]}, and a frozen graph or an ONNX model is needed here")
    try:
        graph = reader(path)
        if not graph.nodes:
            raise InputError("it holds no nodes")
    except QuantkitError as error:
        raise _explained(error, path, kind) from None
    graph = with_guessed_ends(graph).with_ends(_found(graph, inputs), _found(graph, outputs))
    _check_ports(graph)
    return graph


def _check_ports(graph: Graph) -> None:
    for edge in (*graph.inputs, *graph.outputs):
        count = num_outputs(graph[edge.node]) if edge.port and graph.dialect == "tensorflow" else None
        if count is not None and edge.port >= count:
            raise UsageError(
                f"{str(edge)!r} is not in the graph: {edge.node} ({graph[edge.node].op}) has {count} outputs",
                hint=f"its first one is {edge.node}:0, and its name alone means that one",
            )


def _explained(error: QuantkitError, path: Path, kind: str) -> QuantkitError:
    """What is wrong with a file, in a sentence that names it."""
    if isinstance(error, GraphError | TooLargeError):
        return type(error)(f"{path}: {error.message}", error.hint)
    if kind == "graphdef_text":
        return InputError(
            f"{path} is text, but not a GraphDef: {error.message}",
            hint=error.hint or "a frozen graph is binary, or text that begins with 'node {'",
        )
    whole = f"{path.stat().st_size:,} bytes"
    wanted = "an ONNX model" if kind == "onnx" else "a GraphDef"
    return InputError(
        f"{path} ({whole}) is truncated, or not {wanted}: {error.message}",
        hint=error.hint or "compare its size and checksum with the source's, and fetch it again",
    )


def _found(graph: Graph, ends: Ends) -> Ends:
    """Ends by name: values of an ONNX model may be called ``softmax:0``."""
    if ends is None or graph.dialect != onnx.DIALECT:
        return ends
    return [onnx.edge_of(graph, end) if isinstance(end, str) else end for end in ends]


def with_guessed_ends(graph: Graph) -> Graph:
    """The graph with inputs and outputs where it has none: placeholders, and what nobody reads."""
    inputs = graph.inputs or [name for name, node in graph.nodes.items() if node.op == "Placeholder"]
    outputs = graph.outputs or [
        name for name, node in graph.nodes.items() if name not in graph.readers and node.op not in NOT_OUTPUTS
    ]
    return graph.with_ends(inputs, outputs)


def save(graph: Graph, path: str | os.PathLike[str], *, as_text: bool | None = None) -> None:
    """Write a GraphDef, or the ONNX model that the graph is; the file appears complete or not at all.

    Args:
        graph: what to write; the weights of an ONNX model over 2 GiB go to ``PATH.data`` beside it.
        path: where; ``.pbtxt`` chooses the text form.
        as_text: choose the form whatever the ending is.

    Raises:
        UsageError: the folder does not exist, or the ending is that of another format.
        InputError: the disk is full or the file can not be written.
        GraphError: the graph is larger than the format allows.
    """
    path = Path(path)
    check_target(path, graph)
    if graph.dialect == onnx.DIALECT:
        save_onnx(graph, path)
    else:
        save_graphdef(graph, path, as_text=path.suffix == ".pbtxt" if as_text is None else as_text)


def save_graphdef(graph: Graph, path: Path, *, as_text: bool = False) -> None:
    """Write a GraphDef, whatever the path's ending is; see `save`."""
    if as_text:
        text = graphdef.encode_text(graph).encode()
        write_whole(path, lambda file: file.write(text))
    else:
        write_whole(path, lambda file: graphdef.write(graph, file))


def save_saved_model(graph: Graph, folder: Path, signature: str = saved_model.DEFAULT_SIGNATURE) -> None:
    """Write a SavedModel folder; it appears complete or not at all.

    Args:
        graph: a frozen TensorFlow graph with inputs and outputs.
        folder: where; it does not exist, or is empty.
        signature: the name of what the graph computes.

    Raises:
        UsageError: the folder is not empty, or can not be made there.
        InputError: the disk is full or the folder can not be written.
        GraphError: the graph is larger than a SavedModel may be, or the type of an input or output is not known.
    """
    check_folder(folder)
    target = folder.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with _explained_writing(folder):
            temporary.mkdir()
            with open(temporary / saved_model.FILE, "wb") as file:
                saved_model.write(graph, file, signature)
            os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_folder(path: Path) -> None:
    """Refuse early a folder that can not become a SavedModel.

    Raises:
        UsageError: it is not empty, or a file, or the folder it would be in does not exist.
        InputError: it may not be written to.
    """
    if path.is_dir():
        entries = sorted(entry.name for entry in path.iterdir())
        if entries:
            raise UsageError(
                f"{path} is not empty: it holds {', '.join(entries[:3])}", hint="name a new folder, or an empty one"
            )
    elif path.exists():
        raise UsageError(f"{path} is a file, and a SavedModel is a folder", hint="name a new folder")
    parent = path.resolve().parent
    if not parent.is_dir():
        raise UsageError(f"{parent} is not a folder, so {path.name} can not be made there", hint="create it first")
    if not os.access(parent, os.W_OK):
        raise InputError(f"{path} can not be written: permission denied", hint="choose another folder")


def save_onnx(graph: Graph, path: Path) -> tuple[Path, ...]:
    """Write an ONNX model, whatever the path's ending is; see `save`.

    Returns:
        The files: the model, and the one with its weights where they are more than it can hold.
    """
    location = f"{path.name}.data" if onnx.needs_data_file(graph) else ""
    data = path.with_name(location) if location else None
    if data:
        write_whole(data, lambda file: onnx.write_data(graph, file))
    write_whole(path, lambda file: file.writelines(onnx.chunks(graph, location)))
    return (path, data) if data else (path,)


def check_target(path: Path, graph: Graph | None = None) -> None:
    """Refuse early what no file can be written to, and a graph that is not of the file's format.

    Raises:
        UsageError: the folder does not exist, the path is a folder, or the ending is that of another format.
        InputError: the folder may not be written to.
    """
    if not path.absolute().parent.is_dir():
        raise UsageError(
            f"{path.parent} is not a folder, so {path.name} can not be written there", hint="create it first"
        )
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name a file in it")
    target = path.resolve()
    if (target.is_file() or not target.exists()) and not os.access(target.parent, os.W_OK):
        raise InputError(f"{path} can not be written: permission denied", hint="choose another folder")
    # An ending that names no format is free for TensorFlow graphs, as it was in the classic tool.
    kind = ENDINGS.get(path.suffix.lower(), "graphdef").removesuffix("_text")
    if graph is not None and kind != ("onnx" if graph.dialect == onnx.DIALECT else "graphdef"):
        raise UsageError(
            f"{path.name} can not hold a graph of dialect {graph.dialect}",
            hint="an ONNX graph is written to a file that ends in .onnx, a TensorFlow graph to .pb or .pbtxt",
        )


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in its place in one step.

    A link stays, and what it names is replaced; a device or pipe (``/dev/stdout``) is written to as it is.

    Raises:
        UsageError: the folder does not exist.
        InputError: the file can not be written; what was there before is untouched.
    """
    check_target(path)
    target = path.resolve()
    with _explained_writing(path):
        if target.exists() and not target.is_file():
            with open(target, "wb") as file:
                write(file)
        else:
            _replace(target, write)


@contextlib.contextmanager
def _explained_writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else os.strerror(error.errno or errno.EIO).lower()
        raise InputError(
            f"{path} can not be written: {reason}", hint="nothing was changed; make room or choose another place"
        ) from None


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            write(file)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise InputError(f"{path} can not be read: {os.strerror(error.errno or errno.EIO).lower()}") from None


def _mapped(path: Path) -> mmap.mmap:
    size = path.stat().st_size
    if size > graphdef.MAX_BYTES:
        raise TooLargeError(
            f"it has {size / 1e9:.2f} GB, and a graph in one file can have at most 2.15 GB",
            hint="make an ONNX model whose weights lie in a file beside it: "
            "onnx.save(model, path, save_as_external_data=True)",
        )
    with _opened(path) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _is_text(head: bytes) -> bool:
    """Whether the beginning of a file reads like a text proto."""
    try:
        text = head.decode("utf-8", "strict" if len(head) < 512 else "ignore")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\r\t" for character in text)


def _read_text(path: Path) -> Graph:
    with _opened(path) as file:
        data = file.read()
    try:
        return graphdef.decode_text(data.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"its text is not UTF-8 at byte {error.start}") from None


_READERS: dict[str, Callable[[Path], Graph]] = {
    "graphdef": lambda path: graphdef.decode(_mapped(path)),
    "graphdef_text": _read_text,
    "onnx": lambda path: onnx.decode(_mapped(path), onnx.files_beside(path.parent)),
}
