"""Model files: reading them, and writing ones that appear complete or not at all."""

import contextlib
import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from quantkit.errors import GraphError, InputError, QuantkitError, UsageError
from quantkit.formats import graphdef, onnx, saved_model, wire
from quantkit.formats.kinds import ENDINGS, HEAD_BYTES, KINDS, is_text, kind_of, opened
from quantkit.ir.garbage_collection import garbage_collection_paused
from quantkit.ir.graph import Edge, Graph
from quantkit.ops.tensorflow.signatures import num_outputs

Ends = Iterable[Edge | str] | None

# What a graph's unread nodes may be without being an output of it.
NOT_OUTPUTS = frozenset({"Const", "Assign", "NoOp", "Placeholder", "SaveV2", "RestoreV2", "Assert"})


class TooLargeError(InputError):
    """A file is whole, but larger than its format allows."""


def meta_graphs(path: Path) -> tuple[saved_model.MetaGraph, ...]:
    """The graphs of a SavedModel folder, or of the ``.meta`` file of a checkpoint.

    Raises:
        InputError: there is none, or it is broken.
    """
    names = (saved_model.FILE, saved_model.TEXT_FILE) if path.is_dir() else ("",)
    file = next((path / name for name in names if (path / name).exists()), path / names[0])
    try:
        data = _message(file, "SavedModel" if path.is_dir() else "MetaGraphDef")
        return saved_model.decode(data) if path.is_dir() else (saved_model.decode_meta_graph(data),)
    except TooLargeError as error:
        raise TooLargeError(f"{file}: {error.message}", error.hint) from None
    except (QuantkitError, ValueError) as error:
        reason = error.message if isinstance(error, QuantkitError) else "it is empty"
        raise InputError(f"{file} is truncated or broken: {reason}", hint="copy or download it again") from None


def _message(file: Path, name: str) -> mmap.mmap | bytes:
    """The message of a file, binary or text, in binary form."""
    mapped = _mapped(file)
    return saved_model.from_text(_text(mapped), name) if is_text(mapped[:HEAD_BYTES]) else mapped


def decode(data: bytes) -> Graph:
    """A graph of a serialized GraphDef or ONNX model: their first fields tell which it is.

    Raises:
        InputError: it is neither.
        GraphError: two nodes or values have one name.
    """
    kinds = {number: kind for number, kind, *_ in wire.fields(data, 0, len(data))}
    is_onnx = kinds.get(onnx.MODEL_GRAPH) == wire.LENGTH
    return onnx.decode(data) if is_onnx else with_guessed_ends(graphdef.decode(data))


@garbage_collection_paused()
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
    graph = with_guessed_ends(graph).with_endpoints(_found(graph, inputs), _found(graph, outputs))
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
        name for name, node in graph.nodes.items() if name not in graph.node_uses and node.op not in NOT_OUTPUTS
    ]
    return graph.with_endpoints(inputs, outputs)


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


def save_saved_model(graph: Graph, folder: Path, signature: saved_model.Signature = saved_model.Signature()) -> None:
    """Write a SavedModel folder; it appears complete or not at all.

    Args:
        graph: a frozen TensorFlow graph with inputs and outputs.
        folder: where; it does not exist, or is empty.
        signature: what callers call the inputs and outputs; the others are called as the graph calls them.

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
    if (path.is_file() or not path.exists()) and not os.access(path.resolve().parent, os.W_OK):
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
    with _explained_writing(path):
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                write(file)
        else:
            _replace(path.resolve(), write)


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


def _mapped(path: Path) -> mmap.mmap:
    size = path.stat().st_size
    if size > graphdef.MAX_BYTES:
        raise TooLargeError(
            f"it has {size / 1e9:.2f} GB, and a graph in one file can have at most 2.15 GB",
            hint="make an ONNX model whose weights lie in a file beside it: "
            "onnx.save(model, path, save_as_external_data=True)",
        )
    with opened(path) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _read_text(path: Path) -> Graph:
    return graphdef.decode_text(_text(_mapped(path)))


def _text(mapped: mmap.mmap) -> str:
    try:
        return mapped[:].decode()
    except UnicodeDecodeError as error:
        raise InputError(f"its text is not UTF-8 at byte {error.start}") from None


_READERS: dict[str, Callable[[Path], Graph]] = {
    "graphdef": lambda path: graphdef.decode(_mapped(path)),
    "graphdef_text": _read_text,
    "onnx": lambda path: onnx.decode(_mapped(path), onnx.files_beside(path.parent)),
}
