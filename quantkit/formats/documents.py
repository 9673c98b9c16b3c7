"""Reading of TOML and JSON files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantkit.errors import InputError


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


def _read(path: Path, parse: Callable[[str], Any], kind: str, hint: str) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise InputError(f"cannot read {path}: {reason}", hint="name an existing file") from None
    except ValueError as error:
        raise InputError(f"{path} is not a {kind} file: {error}", hint) from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply for a {kind} file of quantkit", hint) from None
