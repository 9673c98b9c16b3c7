"""Transforms of plugins: Python files that the user names, and installed distributions.

A distribution registers transforms by an entry point of the group ``quantkit.transforms``: a module whose import
registers them, or one of its transforms. No other code is imported: models and recipes cannot name a plugin.
"""

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.errors import QuantkitError, RecipeError
from quantkit.transforms.registry import PLUGIN, REGISTRY, Transform

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "quantkit.transforms"
USAGE = "put @quantkit.rewriting.transform above a function (graph, *, option=default) that returns a graph"


def load_file(path: Path) -> tuple[Transform, ...]:
    """Run a Python file and return the transforms that it registers.

    Args:
        path: file that the user names on the command line or in a call.

    Raises:
        RecipeError: the file cannot be read or run, or registers no transform; the message has file and line.
    """
    file = path.expanduser().resolve()
    if not file.is_file():
        raise RecipeError(f"plugin {path} does not exist", hint="name a Python file: --plugin my_transforms.py")
    spec = spec_from_file_location(f"{PLUGIN}{file}", file)
    if spec is None or spec.loader is None:
        raise RecipeError(f"plugin {path} is not a Python file", hint="the file name must end in .py")
    module = module_from_spec(spec)
    before = dict(REGISTRY)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        _restore(before)
        del sys.modules[module.__name__]
        hint = error.hint if isinstance(error, QuantkitError) else "--debug prints the whole traceback"
        raise RecipeError(f"plugin {locate(error, str(file))}", hint) from error
    transforms = tuple(transform for name, transform in REGISTRY.items() if before.get(name) is not transform)
    if not transforms:
        raise RecipeError(f"plugin {path} registers no transform", hint=USAGE)
    return transforms


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


def locate(error: BaseException, file: str) -> str:
    """Return the message of an error, with the line of a plugin's file that raised it."""
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, QuantkitError):
        message = error.message
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    if lines:
        return f"{file}, line {lines[-1]}: {message}"
    own = [frame for frame in frames if not any(part in frame.filename for part in ("importlib", "<", __file__))]
    return f"{own[-1].filename}, line {own[-1].lineno}: {message}" if own else f"{file}: {message}"
