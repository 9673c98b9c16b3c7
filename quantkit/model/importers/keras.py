"""Importer of Keras files, ``.keras`` and ``.h5``.

Both describe their layers in JSON. Before Keras builds the layers, quantkit checks that the file
references only functions and classes of Keras and no other files: older versions of Keras do not
check this.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from quantkit.errors import InputError, UnavailableError, one_line
from quantkit.formats import graphdef
from quantkit.formats.temporary import temporary_folder
from quantkit.ir.graph import Graph
from quantkit.model.importers import keras2, keras_contents
from quantkit.model.importers.freeze import freeze_object, tensorflow_for_models
from quantkit.model.importers.keras_contents import Contents
from quantkit.runtimes.tensorflow_library import suppress_log, translate_read_errors

# Layers that run code of the file, or a model in another file.
_CARRIERS = frozenset({"FlaxLayer", "JaxLayer", "Lambda", "TFSMLayer", "TorchModuleWrapper", "__lambda__"})
# Packages of Keras. Keras resolves names of `builtins` among its own functions.
_PACKAGES = frozenset({"builtins", "keras", "keras_cv", "keras_hub", "keras_nlp", "tf_keras"})
# Parts of a dotted path that only depend on the package of Keras.
_PREFIXES = frozenset({"_tf_keras", "api", "keras", "legacy", "src"})
# Modules of Keras with the objects that a model consists of. The others download, read and write
# files, and change global settings.
_MODULES = frozenset(
    {
        "activations",
        "constraints",
        "dtype_policies",
        "initializers",
        "layers",
        "losses",
        "metrics",
        "mixed_precision",
        "models",
        "ops",
        "optimizers",
        "quantizers",
        "random",
        "regularizers",
    }
)
# Functions in these modules that load or save models.
_TOOLS = frozenset({"load_model", "model_from_json", "save_model"})
# The oldest Keras without a known way around `safe_mode`: CVE-2025-9905, CVE-2026-1462,
# CVE-2026-1669.
_MIN_VERSION = (3, 13, 2)
# CPU time limit of the inspection: a constant, plus time for each byte; both are 20 times the usual
# time.
_SECONDS, _BYTES_PER_SECOND = 5, 20_000_000
_REGISTERED = (
    "register the function with keras.saving.register_keras_serializable in a module, build the model with it, pass "
    "--plugin MODULE.py"
)
_TRUSTED = "load it in Python, if you trust it, and give the model to quantkit.load"


def freeze_keras(path: Path) -> Graph:
    """Read a Keras file as a frozen graph.

    Keras loads a private copy, the one that is checked: its suffix is the format that the check
    found, and no other process can change it in between.

    Raises:
        InputError: Keras cannot read the file, or the file contains code or references another
            file.
        UnavailableError: TensorFlow is not installed, or its Keras is too old.
    """
    tensorflow_for_models()
    _check_version(_keras3())
    with temporary_folder() as folder:
        copy = folder / "model"
        shutil.copyfile(path, copy)
        contents = inspect_file(copy, str(path))
        _check_contents(path, contents)
        copy = copy.rename(copy.with_suffix(".keras" if contents.is_archive else ".h5"))
        with translate_read_errors(str(path)), suppress_log():
            return freeze_object(_load(path, copy, contents))


def _keras3() -> Any:
    """Return the Keras of ``tf.keras``, also after an import of TF-MOT, which replaces it by Keras 2."""
    try:
        return import_module("keras._tf_keras.keras")
    except ImportError:  # Keras 2 is installed as keras
        return import_module("tensorflow").keras


def _load(path: Path, copy: Path, contents: Contents) -> Any:
    """Load a checked file with the Keras that wrote it.

    Args:
        path: the file, for messages.
        copy: private copy of the file.
        contents: contents of the file.

    Raises:
        InputError: the file references other code, or Keras cannot read it.
        UnavailableError: a package is not installed.
    """
    config = json.loads(contents.config or "")
    is_keras2 = contents.version.startswith("2.")
    if is_keras2 and (keras2.is_available() or contents.is_archive):
        return _load_keras2(path, copy, config, is_archive=contents.is_archive)
    keras = _keras3()
    with _named_errors(path):
        _check_config(path, config, keras, lambda _, modules, name: _holds_objects_of_models(modules))
        try:
            return keras.models.load_model(copy, compile=False, safe_mode=True)
        except (TypeError, ValueError):
            if is_keras2:  # without tf-keras, Keras 3 reads the files whose layers did not change
                keras2.import_tf_keras(f"{path} (Keras {contents.version})")
            raise


def _load_keras2(path: Path, copy: Path, config: Any, *, is_archive: bool) -> Any:
    keras = keras2.import_tf_keras(f"{path} (Keras 2)")
    names = {str(description["class_name"]) for description in _descriptions(config)}
    uses_tfmot = not names.isdisjoint(keras2.TFMOT_LAYERS)
    tfmot = keras2.import_tfmot(str(path)) if uses_tfmot else None
    modules = keras2.tfmot_classes(tfmot) if uses_tfmot else {}

    def is_known(description: Mapping[str, Any], modules_of_name: list[str], name: str) -> bool:
        if name in keras2.FUNCTION_LAYERS:
            return keras2.is_harmless_function(str(description["config"].get("function")))
        if name in modules:
            return description.get("module") in (None, modules[name])
        is_model = name in ("Functional", "Sequential")
        return is_model or (keras2.is_of_keras2(keras, name) and _holds_objects_of_models(modules_of_name))

    with _named_errors(path):
        _check_config(path, config, keras, is_known)
        if uses_tfmot and is_archive:
            keras2.remove_build_configs(copy)
        with ExitStack() as stack:
            if uses_tfmot:
                stack.enter_context(keras2.tfmot_scopes(tfmot))
                stack.enter_context(keras2.repeated_variables())
            return keras.models.load_model(copy, compile=False, safe_mode=True)


def _check_version(keras: Any) -> None:
    """Check that this Keras refuses code in model files.

    Raises:
        UnavailableError: this Keras is older than the first version that does.
    """
    version = tuple(int(number) for number in re.findall(r"\d+", keras.__version__)[:3])
    if version < _MIN_VERSION:
        minimum = ".".join(map(str, _MIN_VERSION))
        raise UnavailableError(
            f"Keras {keras.__version__} may execute code from a model file: {minimum} is the oldest safe version",
            hint=f"pip install 'keras>={minimum}', and unset TF_USE_LEGACY_KERAS",
        )


def inspect_file(path: Path, name: str) -> Contents:
    """Inspect a Keras file in another process.

    Args:
        path: the file.
        name: name of the file in messages.

    Raises:
        InputError: the process crashes or exceeds its time limit.
    """
    seconds = _SECONDS + path.stat().st_size // _BYTES_PER_SECOND
    request = json.dumps([str(path), seconds, graphdef.MAX_BYTES]).encode()
    # Without -P, modules of this folder, for example keras.py, would hide the packages of the same
    # name.
    process = subprocess.run(
        [sys.executable, "-P", keras_contents.__file__],
        input=request,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if process.returncode:
        raise InputError(
            f"{name} cannot be read: its inspection process ended with exit code {process.returncode}",
            hint="the file is broken: copy it again, or save it again",
        )
    return Contents(**json.loads(process.stdout))


def _check_contents(path: Path, contents: Contents) -> None:
    """Check that reading a file is safe.

    Raises:
        InputError: the file is broken, references other files, or is too large.
    """
    if contents.error:
        raise InputError(f"{path} cannot be read: {one_line(contents.error)}", hint="copy it again, or save it again")
    if contents.escaping:
        raise InputError(
            f"{path}: its member {contents.escaping!r} has a path outside the archive",
            hint="save the model again: no model needs such a member",
        )
    if contents.external:
        raise InputError(f"{path}: its weights {contents.external!r} are in another file", hint=_TRUSTED)
    if contents.config is None:
        raise InputError(f"{path} has weights but no layers", hint="save the whole model: model.save(FILE)")
    graphdef.check_num_bytes(f"the weights of {path}", contents.num_bytes)


def _check_config(
    path: Path, config: Any, keras: Any, is_known: Callable[[Mapping[str, Any], list[str], str], bool]
) -> None:
    """Check that the configuration references only classes of Keras and registered classes.

    Args:
        path: the file, for messages.
        config: description of the model.
        keras: the Keras that will load the file.
        is_known: function of a description, the parts of its module and its name: True for an object of Keras.

    Raises:
        InputError: another class or a function of the file is referenced.
    """
    for description in _descriptions(config):
        class_name = str(description["class_name"])
        name = str(description["config"]) if class_name == "function" else class_name
        dotted_path = f"{description.get('module') or 'keras'}.{name}"
        *modules, last_name = dotted_path.split(".")
        if last_name == "Lambda" and _calls_registered_function(description["config"], keras):
            continue
        if last_name in _CARRIERS:
            inner = description["config"]
            layer = inner.get("name", "") if isinstance(inner, dict) else ""
            kind = last_name.strip("_")
            raise InputError(
                f"{path} has a {kind} {layer!r}: quantkit does not run code from a model file",
                hint=_TRUSTED if kind.lower() != "lambda" else f"{_REGISTERED}; or {_TRUSTED}",
            )
        # Keras looks functions up by their name, and classes by their registered name.
        key = name if class_name == "function" else str(description.get("registered_name") or name)
        if keras.utils.get_registered_object(key):
            continue
        if last_name in _TOOLS or not is_known(description, modules, last_name):
            raise _unknown_class(path, dotted_path)


def _calls_registered_function(config: Any, keras: Any) -> bool:
    """Return True if a Lambda layer calls a registered function by its name, and contains no code.

    Args:
        config: configuration of the layer; that of Keras 2 contains the name, that of Keras 3 a description.
        keras: the Keras that will load the file.
    """
    if not isinstance(config, dict):
        return False
    function = config.get("function")
    if isinstance(function, dict):
        name = function.get("config") if function.get("class_name") == "function" else None
    else:
        kinds = config.get("function_type"), config.get("output_shape_type", "raw"), config.get("mask_type")
        name = function if kinds == ("function", "raw", None) else None
    return isinstance(name, str) and keras.utils.get_registered_object(name) is not None


def _holds_objects_of_models(modules: list[str]) -> bool:
    """Return True if a module of Keras, split at the dots, has layers and other objects of models."""
    inner = [module for module in modules[1:] if module not in _PREFIXES]
    return modules[0] in _PACKAGES and (not inner or inner[0] in _MODULES)


def _descriptions(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the descriptions of all objects in a configuration, at any depth."""
    stack = [config]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if "class_name" in value:
                yield {"config": {}, **value}
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _unknown_class(path: Path, name: str) -> InputError:
    return InputError(
        f"{path} needs {name!r}, which is not a layer or function of Keras",
        hint="register it with keras.saving.register_keras_serializable in a module, and pass --plugin MODULE.py, or "
        "import the module before quantkit.load",
    )


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Replace Keras' errors about unknown classes by errors that name the file."""
    try:
        yield
    except (TypeError, ValueError) as error:
        module = re.search(
            r"Could not deserialize class '[^']+' because its parent module ([\w.]+) cannot be imported", str(error)
        )
        if module is not None:
            package = module[1].partition(".")[0].replace("_", "-")
            raise UnavailableError(
                f"{path} needs the package {package!r}, which is not installed", hint=f"pip install {package}"
            ) from None
        missing = re.search(r"(?:Unknown \w+|Could not locate \w+):? '([^']+)'", str(error))
        if missing is None:
            raise
        raise _unknown_class(path, missing[1]) from None
