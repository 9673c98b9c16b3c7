"""Graphs in an engine's own format, kept on disk, because making one takes seconds.

A conversion is stored under a digest of all that decides it: the nodes, the inputs and outputs, and the converter. A
refusal is stored as well.
"""

import contextlib
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from quantkit.errors import QuantkitError, UnavailableError
from quantkit.formats import graphdef
from quantkit.formats.files import write_whole
from quantkit.ir.graph import Graph
from quantkit.zoo import cache_folder

# What all stored conversions may take; the ones unused for longest go first.
KEPT_BYTES = 2 << 30


def kept(
    graph: Graph, ending: str, converter: tuple[object, ...], convert: Callable[[Graph], tuple[bytes, str]], hint: str
) -> bytes:
    """A conversion from the disk, or made now and stored.

    Args:
        graph: what to convert.
        ending: of the file: ``.onnx``.
        converter: all but the graph that decides the result: versions, options.
        convert: makes the file's content, or says why it can not.
        hint: what helps where it can not.

    Raises:
        UnavailableError: the converter refuses, now or at an earlier time.
    """
    place = cache_folder() / "converted" / f"{digest(graph, converter)}{ending}"
    refusal = place.with_suffix(".txt")
    known = _read(place)
    if known is not None:
        return known
    refused = (_read(refusal) or b"").decode()
    if not refused:
        data, refused = convert(graph)
        _store(refusal if refused else place, refused.encode() or data)
        if not refused:
            return data
    raise UnavailableError(refused, hint=hint)


def digest(graph: Graph, converter: tuple[object, ...]) -> str:
    """Equal for conversions that give the same."""
    ends = (list(map(str, graph.inputs)), list(map(str, graph.outputs)))
    found = blake2b(repr((ends, *converter)).encode(), digest_size=20)
    for chunk in graphdef.chunks(graph):
        found.update(chunk)
    return found.hexdigest()


def needed(graph: Graph) -> Graph:
    """Without the nodes that neither inputs nor outputs need; what is behind a fed tensor tells its shape."""
    ends = graph.with_(outputs=(*graph.outputs, *graph.inputs))
    names = ends.reachable(stop_at_inputs=False)
    return graph.with_nodes(node for node in graph.nodes.values() if node.name in names)


def _read(path: Path) -> bytes | None:
    """A stored result, marked as used now; None where there is none."""
    try:
        os.utime(path)
        return path.read_bytes()
    except OSError:
        return None


def _store(path: Path, data: bytes) -> None:
    """Keep a result for the next time; a full or read-only disk is no reason to fail."""
    with contextlib.suppress(OSError, QuantkitError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(data))
        _drop_oldest(path.parent, KEPT_BYTES)


def _drop_oldest(folder: Path, limit: int) -> None:
    """Remove what was not used for longest until the rest takes at most ``limit`` bytes."""
    facts = sorted(((file.stat().st_mtime_ns, file.stat().st_size, file) for file in folder.iterdir()), reverse=True)
    total = 0
    for _, size, file in facts:
        total += size
        if total > limit:
            file.unlink(missing_ok=True)
