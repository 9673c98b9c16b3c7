"""Keras files, ``.keras`` and ``.h5``, as frozen graphs.

Both say in JSON which layers to make. Before Keras makes them, it is seen to that the file names no code but Keras'
own, and takes nothing from other files: Keras of today refuses much of that as well, that of a year ago did not.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quantkit.errors import InputError, one_line
from quantkit.formats import graphdef
from quantkit.ir.graph import Graph
from quantkit.model.importers import keras_contents
from quantkit.model.importers.freeze import freeze_object, tensorflow_for_models
from quantkit.model.importers.keras_contents import Contents
from quantkit.runtimes.tensorflow_library import suppress_log, translate_read_errors

# Layers that run code which is in the file, or a model which another file holds.
_CARRIERS = frozenset({"FlaxLayer", "JaxLayer", "Lambda", "TFSMLayer", "TorchModuleWrapper", "__lambda__"})
# Of Keras and its sisters. What is in `builtins` here, Keras finds by its name among its own functions.
_PACKAGES = frozenset({"builtins", "keras", "keras_cv", "keras_hub", "keras_nlp"})
# Of Keras, but nothing that layers are made of: these fetch, read, write and switch.
_TOOLS = frozenset({"backend", "callbacks", "config", "datasets", "export", "saving", "utils", "visualization"})
# A processor's time to look through a file: some, and some for its bytes. That is twenty times what it takes.
_SECONDS, _BYTES_PER_SECOND = 5, 20_000_000
_TRUSTED = "load it in Python, if you trust it, and give the model to quantkit.load"


def freeze_keras(path: Path) -> Graph:
    """The frozen graph of a Keras file.

    Raises:
        InputError: Keras can not read it, it holds code, or it takes something from another file.
        UnavailableError: TensorFlow is not installed.
    """
    tf = tensorflow_for_models()
    found = look_through(path)
    _check(path, found)
    with translate_read_errors(str(path)), _naming_what_is_missing(path), suppress_log():
        _check_config(path, json.loads(found.config or ""), tf.keras)
        return freeze_object(tf.keras.models.load_model(path, compile=False, safe_mode=True))


def look_through(path: Path) -> Contents:
    """What a Keras file holds, told by another process.

    Raises:
        InputError: it brings that process to its end, or never to one.
    """
    seconds = _SECONDS + path.stat().st_size // _BYTES_PER_SECOND
    asked = json.dumps([str(path), seconds, graphdef.MAX_BYTES]).encode()
    # Without -P its neighbours here, which are called as what they open, would be found first.
    done = subprocess.run(
        [sys.executable, "-P", keras_contents.__file__],
        input=asked,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise InputError(
            f"{path} can not be read: a process that read it to try ended with {done.returncode}",
            hint="it is broken: copy it again, or save it again",
        )
    return Contents(**json.loads(done.stdout))


def _check(path: Path, found: Contents) -> None:
    """See that all of a file may be read.

    Raises:
        InputError: naming what may not.
    """
    if found.error:
        raise InputError(f"{path} can not be read: {one_line(found.error)}", hint="copy it again, or save it again")
    if found.escaping:
        raise InputError(
            f"{path}: its member {found.escaping!r} would lie outside of it", hint="no model needs such a member"
        )
    if found.elsewhere:
        raise InputError(f"{path}: its weights {found.elsewhere!r} would be read from another file", hint=_TRUSTED)
    if found.config is None:
        raise InputError(f"{path} holds weights and no layers", hint="save the whole model: model.save(FILE)")
    graphdef.check_num_bytes(f"the weights of {path}", found.num_bytes)


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
