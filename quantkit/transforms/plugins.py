"""Transforms from elsewhere: a file that the user names, and what installed distributions offer.

A distribution offers transforms by an entry point of the group ``quantkit.transforms``: a module, whose import
registers them, or one of its transforms. Nothing else is ever imported: no model and no recipe names a plugin.
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
FORM = "put @quantkit.transform_function above a function (graph, *, option=default) that returns a graph"


def load_file(path: Path) -> tuple[Transform, ...]:
    """Run a file of Python and keep the transforms that it registers.

    Args:
        path: which the user names on the command line.

    Raises:
        RecipeError: it can not be read or run, or registers nothing; the sentence names file and line.
    """
    place = path.expanduser().resolve()
    if not place.is_file():
        raise RecipeError(f"plugin {path} does not exist", hint="name a file of Python: --plugin my_transforms.py")
    spec = spec_from_file_location(f"{PLUGIN}{place}", place)
    if spec is None or spec.loader is None:
        raise RecipeError(f"plugin {path} is no file of Python", hint="its name ends in .py")
    module = module_from_spec(spec)
    before = dict(REGISTRY)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        _restore(before)
        del sys.modules[module.__name__]
        hint = error.hint if isinstance(error, QuantkitError) else "--debug shows the whole traceback"
        raise RecipeError(f"plugin {where(error, str(place))}", hint) from error
    made = tuple(one for name, one in REGISTRY.items() if before.get(name) is not one)
    if not made:
        raise RecipeError(f"plugin {path} registers no transform", hint=FORM)
    return made


def load_installed() -> tuple[str, ...]:
    """Register the transforms of installed distributions.

    Returns:
        A sentence for each that could not be loaded: one broken plugin keeps nobody from using the others.
    """
    from importlib.metadata import entry_points

    return tuple(filter(None, map(_load_entry, sorted(entry_points(group=GROUP)))))


def _load_entry(entry: "EntryPoint") -> str:
    """Load one; the value is what went wrong."""
    before = dict(REGISTRY)
    owner = f"plugin {entry.name!r}" + (f" of {entry.dist.name}" if entry.dist else "")
    try:
        entry.load()
    except (Exception, SystemExit) as error:
        _restore(before)
        return f"{owner} can not be loaded: {where(error, _file_of(entry))}"
    module = entry.module
    if not any(one.function.__module__.startswith(module) for one in REGISTRY.values()):
        return f"{owner} registers no transform: {FORM}"
    return ""


def _file_of(entry: "EntryPoint") -> str:
    module = sys.modules.get(entry.module)
    return getattr(module, "__file__", None) or entry.module


def _restore(before: dict[str, Transform]) -> None:
    REGISTRY.clear()
    REGISTRY.update(before)


def where(error: BaseException, file: str) -> str:
    """What happened, with the line of the plugin's file that it happened in."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, QuantkitError):
        what = error.message
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    if lines:
        return f"{file}, line {lines[-1]}: {what}"
    own = [frame for frame in frames if not any(word in frame.filename for word in ("importlib", "<", __file__))]
    return f"{own[-1].filename}, line {own[-1].lineno}: {what}" if own else f"{file}: {what}"
