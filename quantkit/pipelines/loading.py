"""Datasets of functions in Python files: ``FILE.py:FUNCTION``."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from quantkit.arguments import expand_user, require_text
from quantkit.errors import InputError, QuantkitError, UsageError, did_you_mean
from quantkit.runtimes.tensorflow_library import import_tensorflow
from quantkit.transforms.plugins import UncachedLoader
from quantkit.transforms.registry import locate


def run_function(reference: str) -> Any:
    """Run a Python file, and return the result of one of its functions, which is called without arguments.

    Args:
        reference: ``FILE.py:FUNCTION``.

    Raises:
        UsageError: the text has another form, or the file has no such function.
        InputError: the file cannot be read or run, or the function fails.
        UnavailableError: TensorFlow is not installed.
    """
    require_text(reference=reference)
    text, colon, name = reference.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(f"{reference!r} names no function", hint="write FILE.py:FUNCTION")
    path = Path(os.path.realpath(expand_user(text)))
    if not os.path.lexists(path):  # True for a loop of links, which is not a Python file
        raise InputError(f"{text} does not exist", hint="write FILE.py:FUNCTION")
    if not path.is_file() or path.suffix != ".py":
        raise InputError(f"{text} is not a Python file", hint="write FILE.py:FUNCTION")
    import_tensorflow()  # its log would appear if the file imported it first
    module_name = f"quantkit_pipeline_{path.stem}"
    spec = spec_from_file_location(module_name, path, loader=UncachedLoader(module_name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(path.parent))  # the file may import its neighbors
    function: Any = None
    try:
        spec.loader.exec_module(module)
        function = getattr(module, name, None)
        if not callable(function):
            functions = [key for key, value in vars(module).items() if callable(value)]
            raise UsageError(f"{text} has no function {name!r}", hint=did_you_mean(name, functions) or "check the name")
        return function()
    except QuantkitError:
        raise
    except (Exception, SystemExit) as error:
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", None)
        hint = "--debug prints the whole traceback"
        raise InputError(f"{reference} fails: {locate(error, str(path), line)}", hint) from error
    finally:
        sys.path.remove(str(path.parent))
