"""Cache of converted models on disk, because a conversion takes seconds.

The key is a digest of everything that determines the result: nodes, inputs, outputs, and the converter with its
options. The message of a failed conversion is stored as well.
"""

import contextlib
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from quantkit.errors import QuantkitError, UnavailableError
from quantkit.formats import graphdef
from quantkit.formats.files import write_whole
from quantkit.formats.metadata import with_text
from quantkit.ir.graph import Graph
from quantkit.zoo.cache import cache_folder

# Maximum size of all stored conversions; the least recently used ones are removed first.
MAX_BYTES = 2 << 30


def convert_cached(
    graph: Graph,
    suffix: str,
    converter: tuple[object, ...],
    convert: Callable[[Graph], tuple[bytes, str]],
    choose_hint: Callable[[str], str],
) -> bytes:
    """Return a stored conversion, or convert the graph and store the result.

    Args:
        graph: graph to convert.
        suffix: suffix of the file: ``.onnx``.
        converter: name, version and options of the converter.
        convert: function that returns the content of the file, and the reason if the conversion fails.
        choose_hint: function that returns the hint for the reason.

    Raises:
        UnavailableError: the conversion fails, now or in an earlier call.
    """
    graph = with_text(graph, None)
    path = cache_folder() / "converted" / f"{digest(graph, converter)}{suffix}"
    reason_path = path.with_suffix(".txt")
    stored = _read(path)
    if stored is not None:
        return stored
    reason = (_read(reason_path) or b"").decode()
    if not reason:
        data, reason = convert(graph)
        _store(reason_path if reason else path, reason.encode() or data)
        if not reason:
            return data
    raise UnavailableError(reason, hint=choose_hint(reason))


def digest(graph: Graph, converter: tuple[object, ...]) -> str:
    """Return the key of a conversion."""
    endpoints = (list(map(str, graph.inputs)), list(map(str, graph.outputs)))
    state = blake2b(repr((endpoints, *converter)).encode(), digest_size=20)
    for chunk in graphdef.chunks(graph):
        state.update(chunk)
    return state.hexdigest()


def _read(path: Path) -> bytes | None:
    """Return the content of a file and mark it as used now; None if there is no such file."""
    try:
        os.utime(path)
        return path.read_bytes()
    except OSError:
        return None


def _store(path: Path, data: bytes) -> None:
    """Write a file; a full or read-only disk is ignored."""
    with contextlib.suppress(OSError, QuantkitError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(data))
        _remove_oldest(path.parent, MAX_BYTES)


def _remove_oldest(folder: Path, limit: int) -> None:
    """Remove the least recently used files until the others have at most ``limit`` bytes."""
    files = sorted(((file.stat().st_mtime_ns, file.stat().st_size, file) for file in folder.iterdir()), reverse=True)
    total = 0
    for _, size, file in files:
        total += size
        if total > limit:
            file.unlink(missing_ok=True)
