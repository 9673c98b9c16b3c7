"""Paths before any work: output folders, two outputs on one path, and outputs that would overwrite an input."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantkit.arguments import expand_user
from quantkit.errors import InputError, UsageError
from quantkit.formats.files import check_target


def check_distinct(outputs: Mapping[str, Any], inputs: Mapping[str, Any] = {}) -> None:
    """Check that every output has a path of its own, and that no output overwrites an input.

    Links are followed. A file in an input folder counts as an input. Devices and pipes, for example
    ``/dev/null``, may be named several times.

    Args:
        outputs: path of each output by its name in messages; None for an output that is not written.
        inputs: path of each input by its name in messages; other values than paths are ignored.

    Raises:
        UsageError: two paths are the same file.
    """
    written: list[tuple[str, Path]] = []
    for name, value in outputs.items():
        if not isinstance(value, str | os.PathLike):
            continue
        path = expand_user(value)
        if path.exists() and not path.is_file() and not path.is_dir():
            continue
        for other_name, other in written:
            if _is_same(path, other):
                raise UsageError(f"{other_name} and {name} name one file, {path}", hint="name two files")
        written.append((name, path))
        for input_name, source in inputs.items():
            if isinstance(source, str | os.PathLike) and _overwrites(path, expand_user(source)):
                raise UsageError(
                    f"{name} would overwrite {path}, a file of {input_name}", hint=f"name another file for {name}"
                )


def check_outputs(outputs: Mapping[str, Any], inputs: Mapping[str, Any] = {}) -> None:
    """Check before any work that every output can be written, and `check_distinct`.

    Raises:
        UsageError: a folder does not exist, a path is a folder, or two paths are the same file.
        InputError: no write permission.
    """
    for path in outputs.values():
        if path is not None:
            check_target(expand_user(path))
    check_distinct(outputs, inputs)


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents, unless it exists.

    Raises:
        InputError: the folder cannot be created, or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise InputError(f"{folder} cannot be created: {reason}", hint="choose another folder") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write to {folder}: permission denied", hint="choose another folder")
    return folder


def _is_same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return os.path.realpath(path) == os.path.realpath(other)


def _overwrites(path: Path, source: Path) -> bool:
    if not path.is_file() or not source.exists():
        return False
    return path.samefile(source) or (source.is_dir() and Path(os.path.realpath(path)).is_relative_to(source.resolve()))
