"""Reading of TOML and JSON files."""

import json
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from quantkit.errors import InputError
from quantkit.formats.kinds import check_regular


def read_toml(path: Path, hint: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: TOML file.
        hint: hint of error messages: an example of the content, or the command that writes such a file.

    Raises:
        InputError: the file cannot be read or is not TOML.
    """
    import tomllib

    document: dict[str, Any] = _read(path, tomllib.loads, "TOML", hint)
    return document


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """Read a JSON file that contains an object.

    Args:
        path: JSON file.
        hint: hint of error messages: an example of the content, or the command that writes such a file.

    Raises:
        InputError: the file cannot be read, or does not contain a JSON object.
    """
    document = _read(path, json.loads, "JSON", hint)
    if not isinstance(document, dict):
        raise InputError(f"{path} does not contain a JSON object", hint)
    return document


def check_structure(value: Any, structure: Any, name: str) -> None:
    """Check the types of a JSON value at every depth.

    Args:
        value: JSON value.
        structure: a type or a union of types; ``[structure]`` for a list, a tuple of structures for a list of that
            length, ``{str: structure}`` for an object, ``{"key": structure}`` for an object with these keys.
        name: name of the value, for messages.

    Raises:
        ValueError: a value has another type; the message has its path.

    >>> check_structure({"a": [1, 2], "b": [3]}, {str: [int]}, "sizes")
    >>> check_structure({"size": None}, {"size": float | None}, "image")
    >>> check_structure({"a": [1, "2"]}, {str: [int]}, "sizes")
    Traceback (most recent call last):
    ValueError: sizes['a'][1] is '2', and must be int
    """
    kind = dict if isinstance(structure, dict) else list if isinstance(structure, list | tuple) else structure
    kinds = get_args(kind) or (kind,)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if type(value) not in kinds and object not in kinds and not (is_integer and float in kinds):
        names = " or ".join("null" if each is NoneType else each.__name__ for each in kinds)
        raise ValueError(f"{name} is {str(value)[:50]!r}, and must be {names}")
    if isinstance(structure, dict):
        if missing := [key for key in structure if key is not str and key not in value]:
            raise ValueError(f"{name} has no {missing[0]!r}")
        for key, item in value.items():
            check_structure(item, structure.get(str, structure.get(key, object)), f"{name}[{key!r}]")
    elif isinstance(structure, list | tuple):
        if isinstance(structure, tuple) and len(value) != len(structure):
            raise ValueError(f"{name} has {len(value)} values, and must have {len(structure)}")
        items = structure if isinstance(structure, tuple) else structure * len(value)
        for index, (item, item_structure) in enumerate(zip(value, items, strict=True)):
            check_structure(item, item_structure, f"{name}[{index}]")


def _read(path: Path, parse: Callable[[str], Any], kind: str, hint: str) -> Any:
    check_regular(path)
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise InputError(f"cannot read {path}: {reason}", hint="name an existing file") from None
    except ValueError as error:
        raise InputError(f"{path} is not a {kind} file: {error}", hint) from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply for a {kind} file of quantkit", hint) from None
