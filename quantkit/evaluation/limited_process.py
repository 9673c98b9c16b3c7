"""Calls in a process of their own, whose kernels of oneDNN are limited to an instruction set.

oneDNN reads its limit once, before its first kernel: the environment variable is set when the process starts.
"""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from inspect import signature
from pickle import PicklingError
from typing import Any, TypeVar, cast

from quantkit.errors import UsageError, one_line
from quantkit.formats.temporary import temporary_folder
from quantkit.model import as_model
from quantkit.model.transfer import ModelFile, write_model_file
from quantkit.runtimes.runtime import is_limited, isa_environment
from quantkit.workers.local import call_in_process

Function = TypeVar("Function", bound=Callable[..., Any])


def limits_isa(*models: str) -> Callable[[Function], Function]:
    """Return a decorator of a function with a parameter ``isa``, which then runs in a process of its own.

    Args:
        models: parameters of the function with models.
    """

    def decorate(function: Function) -> Function:
        parameters = signature(function)

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            values = parameters.bind(*arguments, **keywords).arguments
            isa = values.get("isa")
            if isa is None or is_limited(isa):
                return function(*arguments, **keywords)
            environment = isa_environment(isa)
            on_message = values.pop("on_message", None)
            values.pop("on_progress", None)  # a function cannot report from another process
            offline = values.get("offline", False)
            with temporary_folder() as folder:
                for name in models:
                    if values.get(name) is not None:
                        values[name] = write_model_file(as_model(values[name], offline=offline), folder / name)
                task = (function.__module__, function.__name__, values)
                try:
                    result, messages = call_in_process(_call, task, environment)
                except (PicklingError, TypeError, AttributeError) as error:
                    message = f"isa needs another process, which cannot receive an argument: {one_line(str(error))}"
                    raise UsageError(message, "pass files or arrays as data, and the name of a task") from None
            for message in messages if on_message is not None else ():
                on_message(message)
            return result

        return cast(Function, call)

    return decorate


def _call(module: str, name: str, arguments: dict[str, Any]) -> tuple[Any, list[str]]:
    """Call a function of a module with models from files; return the result and the messages."""
    messages: list[str] = []
    loaded = {key: value.load() if isinstance(value, ModelFile) else value for key, value in arguments.items()}
    return getattr(import_module(module), name)(**loaded, on_message=messages.append), messages
