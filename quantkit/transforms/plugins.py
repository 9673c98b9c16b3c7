"""Transforms and Keras objects of plugins: Python files that the user names, and installed distributions.

A distribution registers transforms by an entry point of the group ``quantkit.transforms``: a module whose import
registers them, or one of its transforms. No other code is imported: models and recipes cannot name a plugin.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import quantkit.runtimes.tensorflow_library as tensorflow
from quantkit.arguments import expand_user
from quantkit.errors import QuantkitError, RecipeError, did_you_mean
from quantkit.transforms.registry import PLUGIN, REGISTRY, Transform, locate

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "quantkit.transforms"
_KERAS_IMPORT = re.compile(rb"^\s*(?:import|from)\s+(?:keras|tensorflow|tf_keras)\b", re.MULTILINE)
USAGE = "put @quantkit.rewriting.transform above a function (graph, *, option=default) that returns a graph"


class UncachedLoader(SourceFileLoader):
    """Loader of a Python file of the user, without bytecode.

    Bytecode would be written next to the file, and would be taken for that of a later version with the same size and
    the same second of its last change.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source of the file."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def find_transform(name: str) -> Transform:
    """Return the transform of a name; the plugins of installed distributions are loaded if it is not built in.

    Args:
        name: name in recipes.

    Raises:
        RecipeError: the name is not registered; the hint suggests similar names.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    problems = load_installed()
    if name in REGISTRY:
        return REGISTRY[name]
    near = did_you_mean(name, REGISTRY)
    raise RecipeError(
        f"Transform '{name}' not recognized",
        hint=near or (problems[0] if problems else "quantkit transforms list shows all"),
    )


def load_file(path: Path) -> tuple[Transform, ...]:
    """Run a Python file and return the transforms that it registers; it may register objects of Keras as well.

    Args:
        path: file that the user names on the command line or in a call.

    Raises:
        RecipeError: the file cannot be read or run, or registers no transform and no Keras object; the message has
            file and line.
    """
    file = Path(os.path.realpath(expand_user(path)))
    if not file.is_file():
        raise RecipeError(f"plugin {path} does not exist", hint="name a Python file: --plugin my_transforms.py")
    if file.suffix != ".py":
        raise RecipeError(f"plugin {path} is not a Python file", hint="the file name must end in .py")
    name = f"{PLUGIN}{file}"
    spec = spec_from_file_location(name, file, loader=UncachedLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    if _KERAS_IMPORT.search(file.read_bytes()) and tensorflow.available().ok:
        tensorflow.import_tensorflow()  # with quantkit's settings, and without its log
    before, objects = dict(REGISTRY), keras_objects()
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        _restore(before)
        del sys.modules[module.__name__]
        hint = error.hint if isinstance(error, QuantkitError) else "--debug prints the whole traceback"
        raise RecipeError(f"plugin {locate(error, str(file))}", hint) from error
    transforms = tuple(transform for name, transform in REGISTRY.items() if before.get(name) is not transform)
    if not transforms and all(objects.get(key) is value for key, value in keras_objects().items()):
        hint = f"{USAGE}, or @keras.saving.register_keras_serializable() above a layer or function"
        raise RecipeError(f"plugin {path} registers no transform and no Keras object", hint)
    return transforms


def keras_objects() -> Mapping[str, Any]:
    """Return the registered objects of the imported versions of Keras."""
    modules = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
    return {f"{each.__name__} {key}": value for each in modules for key, value in _custom_objects(each).items()}


def _custom_objects(keras: Any) -> Mapping[str, Any]:
    objects: Mapping[str, Any] = keras.utils.get_custom_objects()
    return objects


def load_installed() -> tuple[str, ...]:
    """Register the transforms of installed distributions.

    Returns:
        A message for each distribution that cannot be loaded; the others stay available.
    """
    from importlib.metadata import entry_points

    return tuple(filter(None, map(_load_entry, sorted(entry_points(group=GROUP)))))


def _load_entry(entry: "EntryPoint") -> str:
    """Load an entry point; return the message of its error, or an empty string."""
    before = dict(REGISTRY)
    owner = f"plugin {entry.name!r}" + (f" of {entry.dist.name}" if entry.dist else "")
    try:
        entry.load()
    except (Exception, SystemExit) as error:
        _restore(before)
        return f"{owner} cannot be loaded: {locate(error, _file_of(entry))}"
    if not any(transform.function.__module__.startswith(entry.module) for transform in REGISTRY.values()):
        return f"{owner} registers no transform: {USAGE}"
    return ""


def _file_of(entry: "EntryPoint") -> str:
    module = sys.modules.get(entry.module)
    return getattr(module, "__file__", None) or entry.module


def _restore(transforms: dict[str, Transform]) -> None:
    REGISTRY.clear()
    REGISTRY.update(transforms)
