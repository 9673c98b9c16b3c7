"""Detection of the kind of a file, by its content first and its suffix second."""

import contextlib
import errno
import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from quantkit.errors import InputError, did_you_mean

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
# Kinds that runtimes open, and quantkit does not read.
UNREADABLE = ("tflite", "openvino")
# Magic number at the end of a LevelDB table, the file format of checkpoints.
TABLE_MAGIC = bytes.fromhex("57fb808b247547db")
# Number of bytes that are read to detect the kind of a file.
HEAD_BYTES = 512
SUFFIXES = {
    ".pb": "graphdef",
    ".pbtxt": "graphdef_text",
    ".onnx": "onnx",
    ".keras": "keras",
    ".h5": "keras",
    ".hdf5": "keras",
    ".tflite": "tflite",
    ".xml": "openvino",
}
PYTORCH_SUFFIXES = (".pt", ".pth", ".pt2")
# Suffixes of files that TensorRT compiles for one GPU and version.
TENSORRT_SUFFIXES = (".engine", ".plan", ".trt")
PYTORCH_HINT = "export the model in PyTorch: torch.onnx.export(model, (example_input,), 'model.onnx')"


def kind_of(path: Path) -> str:
    """Return the kind of a file (a key of `KINDS`), by its content first and its suffix second.

    Raises:
        InputError: the file does not exist, is empty, or has an unsupported kind, which the message names.
    """
    if path.is_dir():
        if (path / "saved_model.pb").exists() or (path / "saved_model.pbtxt").exists():
            return "saved_model"
        checkpoints = sorted(path.glob("*.index"))
        hint = f"name the checkpoint in the folder: {checkpoints[-1].with_suffix('')}" if checkpoints else ""
        raise InputError(f"{path} is a folder without saved_model.pb", hint=hint or "name the model file in the folder")
    if checkpoint_prefix(path) is not None:
        return "checkpoint"
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"{path} does not exist", hint=did_you_mean(path.name, siblings) or _missing_file_hint(path))
    with open_file(path) as file:
        head = file.read(HEAD_BYTES)
    if not head:
        raise InputError(f"{path} is empty", hint="the download, or the program that wrote the file, was interrupted")
    start = head.lstrip().lower()
    if path.suffix == ".xml" and start.startswith((b"<?xml", b"<net")):
        return "openvino"
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise InputError(f"{path} is a web page, not a model", hint="download again: the server sent an error page")
    if start.startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is a Git LFS pointer, not a model", hint="run git lfs pull")
    if head.startswith(b"\x93NUMPY") or path.suffix == ".npz":
        raise InputError(
            f"{path} contains arrays, not a model", hint="pass arrays as data: --calibration, --data or --held-out"
        )
    if path.suffix in PYTORCH_SUFFIXES:
        raise InputError(f"{path} is a PyTorch file", hint=PYTORCH_HINT)
    if path.suffix in TENSORRT_SUFFIXES:
        raise InputError(f"{path} is a model that TensorRT compiled", hint="name the .onnx file of the model")
    if head[4:8] == b"TFL3":
        return "tflite"
    if head.startswith((b"\x1f\x8b", b"\x89HDF", b"PK\x03\x04")):
        if path.suffix in (".keras", ".h5", ".hdf5"):
            return "keras"
        raise InputError(f"{path} is an archive, not a model", hint="unpack it, or use quantkit models fetch --url")
    kind = SUFFIXES.get(path.suffix.lower(), "graphdef")
    if kind in ("graphdef", "graphdef_text"):
        return "graphdef_text" if is_text(head) else "graphdef"
    return kind


def model_path(path: Path) -> Path:
    """Return the path of the model: the folder, for the ``saved_model.pb`` of a SavedModel."""
    if path.name not in ("saved_model.pb", "saved_model.pbtxt") or not path.is_file():
        return path
    with open_file(path) as file:
        head = file.read(HEAD_BYTES).lstrip()
    return path.parent if head.startswith((b"\x08", b"saved_model_schema_version", b"meta_graphs")) else path


def checkpoint_prefix(path: Path) -> Path | None:
    """Return the common prefix of a checkpoint's files, given the prefix or a file; None for other files.

    A checkpoint of version 1 is one file per shard, ``model.ckpt`` or ``model.ckpt-00000-of-00002``.
    """
    name = re.sub(r"(\.(meta|index|data-\d+-of-\d+)|-\d{5}-of-\d{5})$", "", path.name)
    if not name:
        return None
    prefix = path.with_name(name)
    is_part = name != path.name or not path.exists()
    if is_part and prefix.with_name(f"{name}.index").is_file():
        return prefix
    first = shards(prefix)[:1] if is_part else []
    return prefix if any(map(_is_sorted_table, (prefix, *first))) else None


def shards(prefix: Path) -> list[Path]:
    """Return the shard files of a checkpoint of version 1; empty if it is a single file."""
    return sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}-?????-of-?????"))


def _is_sorted_table(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size < len(TABLE_MAGIC):
        return False
    with open_file(path) as file:
        file.seek(-len(TABLE_MAGIC), os.SEEK_END)
        return file.read() == TABLE_MAGIC


def check_regular(path: Path) -> None:
    """Check that a path is not a pipe, socket or device, whose data might never come.

    Raises:
        InputError: the path exists, and is neither a file nor a folder.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise InputError(f"{path} is a pipe or device, not a file", hint="write its data to a file first")


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading.

    Raises:
        InputError: the file cannot be read, or is a pipe or device.
    """
    check_regular(path)
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise InputError(f"cannot read {path}: {os.strerror(error.errno or errno.EIO).lower()}") from None


def is_text(head: bytes) -> bool:
    """Return True if the first bytes of a file are printable text, as in a text proto."""
    try:
        text = head.decode("utf-8", "strict" if len(head) < HEAD_BYTES else "ignore")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\r\t" for character in text)


def _missing_file_hint(path: Path) -> str:
    """Return a hint for a file that does not exist."""
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist either: check the path"
    return f"check the path: the folder {path.parent.absolute()} has no file of this name"
