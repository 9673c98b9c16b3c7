"""Transforms of plugins: Python files that the user names, and installed distributions.

A distribution registers transforms by an entry point of the group ``quantkit.transforms``: a module whose import
registers them, or one of its transforms. No other code is imported: models and recipes cannot name a plugin.
"""

import os
import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from quantkit.arguments import expand_user
from quantkit.errors import QuantkitError, RecipeError, did_you_mean
from quantkit.transforms.registry import PLUGIN, REGISTRY, Transform, locate

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "quantkit.transforms"
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


def find_transform(name: str, names: Iterable[str] | None = None) -> Transform:
    """Return the transform of a name; the plugins of installed distributions are loaded if it is not built in.

    Args:
        name: name in recipes.
        names: names that the hint may suggest; None if all.

    Raises:
        RecipeError: the name is not registered; the hint suggests similar names.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    problems = load_installed()
    if name in REGISTRY:
        return REGISTRY[name]
    near = did_you_mean(name, names or REGISTRY)
    raise RecipeError(
        f"Transform '{name}' not recognized",
        hint=near or (problems[0] if problems else "quantkit transforms list shows all"),
    )


def load_file(path: Path) -> tuple[Transform, ...]:
    """Run a Python file and return the transforms that it registers.

    Args:
        path: file that the user names on the command line or in a call.

    Raises:
        RecipeError: the file cannot be read or run, or registers no transform; the message has file and line.
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
