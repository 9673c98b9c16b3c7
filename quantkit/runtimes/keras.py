"""Keras files, ``.keras`` and ``.h5``, as frozen graphs.

Both say in JSON which layers to make. Before Keras makes them, it is seen to that the file names no code but Keras'
own, and takes nothing from other files: Keras of today refuses much of that as well, that of a year ago did not.
"""

import io
import json
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from quantkit.errors import InputError
from quantkit.formats import graphdef
from quantkit.ir.graph import Graph
from quantkit.runtimes.freeze import freeze_object, tensorflow_for_models
from quantkit.runtimes.tensorflow import quiet, reading

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
# Layers that run code which is in the file, or a model which another file holds.
_CARRIERS = frozenset({"FlaxLayer", "JaxLayer", "Lambda", "TFSMLayer", "TorchModuleWrapper", "__lambda__"})
# Of Keras and its sisters. What is in `builtins` here, Keras finds by its name among its own functions.
_PACKAGES = frozenset({"builtins", "keras", "keras_cv", "keras_hub", "keras_nlp"})
# Of Keras, but nothing that layers are made of: these fetch, read, write and switch.
_TOOLS = frozenset({"backend", "callbacks", "config", "datasets", "export", "saving", "utils", "visualization"})
_OPTIMIZERS = ("optimizer", "optimizer_weights")
# Fixed part of what precedes each member of an archive; it ends with the lengths of a name and of what follows that.
_MEMBER_HEADER = struct.Struct("<26xHH")
_TRUSTED = "load it in Python, if you trust it, and give the model to quantkit.load"


def freeze_keras(path: Path) -> Graph:
    """The frozen graph of a Keras file.

    Raises:
        InputError: Keras can not read it, it holds code, or it takes something from another file.
        UnavailableError: TensorFlow is not installed.
    """
    tf = tensorflow_for_models()
    with reading(str(path)), quiet():
        _check(path, tf.keras)
    with reading(str(path)), _naming_what_is_missing(path), quiet():
        return freeze_object(tf.keras.models.load_model(path, compile=False, safe_mode=True))


def _check(path: Path, keras: Any) -> None:
    """Look through all of a file that is read.

    Raises:
        InputError: something in it is not to be read.
    """
    import h5py

    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            with h5py.File(file, "r") as weights:
                _check_weights(path, weights)
                config = weights.attrs.get("model_config")
        else:
            with zipfile.ZipFile(file) as archive:
                _check_members(path, archive)
                with _member(archive, WEIGHTS, file) as content, h5py.File(content, "r") as weights:
                    _check_weights(path, weights)
                config = archive.read(CONFIG)
    if config is None:
        raise InputError(f"{path} holds weights and no layers", hint="save the whole model: model.save(FILE)")
    _check_config(path, json.loads(config), keras)


def _check_members(path: Path, archive: zipfile.ZipFile) -> None:
    for info in archive.infolist():
        place = PurePosixPath(info.filename.replace("\\", "/"))
        is_link = stat.S_ISLNK(info.external_attr >> 16)
        if is_link or place.is_absolute() or ".." in place.parts or ":" in info.filename:
            raise InputError(
                f"{path}: its member {info.filename!r} would lie outside of it", hint="no model needs such a member"
            )


def _check_weights(path: Path, weights: Any) -> None:
    """See that the values are in the file, and fit into a graph."""
    import h5py

    total = 0

    def visit(name: str, link: Any) -> str | None:
        """Count values; the name of what is elsewhere ends the visit."""
        nonlocal total
        found: Any = weights[name] if isinstance(link, h5py.HardLink) else None
        values = found if isinstance(found, h5py.Dataset) else None
        if isinstance(link, h5py.ExternalLink) or (values and (values.external or values.is_virtual)):
            return name
        if values and not name.startswith(_OPTIMIZERS):
            total += values.nbytes
        return None

    if elsewhere := weights.visititems_links(visit):
        raise InputError(f"{path}: its weights {elsewhere!r} would be read from another file", hint=_TRUSTED)
    graphdef.check_num_bytes(f"the weights of {path}", total)


def _check_config(path: Path, config: Any, keras: Any) -> None:
    """See that all that is to be made is Keras' own, or registered by whoever runs this."""
    for one in _objects(config):
        word = str(one["class_name"])
        name = str(one["config"]) if word == "function" else word
        if word in _CARRIERS:
            inner = one["config"]
            which = inner.get("name", "") if isinstance(inner, dict) else ""
            kind = word.strip("_")
            raise InputError(f"{path} holds a {kind} {which!r}, and code of a file is not run", hint=_TRUSTED)
        module = str(one.get("module") or "keras").replace("keras.src", "keras", 1).split(".")
        registered = (str(one.get("registered_name") or name), name)
        if any(keras.utils.get_registered_object(key) for key in registered):
            continue
        if module[0] not in _PACKAGES or (module[0] == "keras" and _TOOLS & set(module[1:2])):
            raise _not_of_keras(path, f"{'.'.join(module)}.{name}")


def _objects(config: Any) -> Iterator[Mapping[str, Any]]:
    """All that a configuration says to make, however deep."""
    waiting = [config]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if "class_name" in one:
                yield {"config": {}, **one}
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _not_of_keras(path: Path, name: str) -> InputError:
    return InputError(
        f"{path} needs {name!r}, which is none of Keras' own layers and functions",
        hint="register it in Python, keras.saving.register_keras_serializable, and give it to quantkit.load there; "
        "or freeze the model to a .pb where it was made",
    )


@contextmanager
def _naming_what_is_missing(path: Path) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        missing = re.match(r"(?:Unknown \w+|Could not locate \w+):? '([^']+)'", str(error))
        if missing is None:
            raise
        raise _not_of_keras(path, missing[1]) from None


@contextmanager
def _member(archive: zipfile.ZipFile, name: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """A member of an archive to seek in: it stays where it is unless it is compressed.

    Raises:
        InputError: it is compressed, and larger than any weights that fit into a graph.
    """
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        if info.file_size > graphdef.MAX_BYTES:
            raise InputError(f"{info.filename} in it would take {info.file_size / 1e9:.2f} GB")
        yield io.BytesIO(archive.read(info))
        return
    file.seek(info.header_offset)
    header = file.read(_MEMBER_HEADER.size)
    start = info.header_offset + len(header) + sum(_MEMBER_HEADER.unpack(header))
    with io.BufferedReader(_Part(file, start, info.file_size)) as part:
        yield part


class _Part(io.RawIOBase):
    """Bytes of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._place = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._start + self._place)
        data = self._file.read(max(0, min(len(buffer), self._size - self._place)))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)
