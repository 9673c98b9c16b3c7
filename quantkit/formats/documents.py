"""Files that people write and read: TOML and JSON."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantkit.errors import InputError


def read_toml(path: Path, hint: str) -> dict[str, Any]:
    """The table of a TOML file.

    Args:
        path: of the file.
        hint: what such a file looks like, or what writes it.

    Raises:
        InputError: the file can not be read or is no TOML.
    """
    document: dict[str, Any] = _read(path, tomllib.loads, "TOML", hint)
    return document


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """The object of a JSON file.

    Args:
        path: of the file.
        hint: what such a file looks like, or what writes it.

    Raises:
        InputError: the file can not be read, or holds no JSON object.
    """
    document = _read(path, json.loads, "JSON", hint)
    if not isinstance(document, dict):
        raise InputError(f"{path} holds no JSON object", hint)
    return document


def _read(path: Path, parse: Callable[[str], Any], kind: str, hint: str) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise InputError(f"{path} can not be read: {reason}", hint="name a file that is there") from None
    except ValueError as error:
        raise InputError(f"{path} is no {kind} file: {error}", hint) from None
    except RecursionError:
        raise InputError(f"{path} nests deeper than any {kind} file of quantkit", hint) from None
