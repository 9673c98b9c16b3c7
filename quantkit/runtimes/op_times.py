"""Facts about traced ops that are common to the runtimes: shared time, and the nodes that a fused op computes."""

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from quantkit import formats
from quantkit.formats import onnx
from quantkit.ir.graph import Graph

Key = TypeVar("Key", bound=Hashable)


class Span(NamedTuple):
    """Run of one op: start and end in seconds on one clock."""

    start: float
    end: float


def exclusive_seconds(spans: Sequence[Span]) -> list[float]:
    """Divide the time of overlapping spans equally among them.

    Args:
        spans: spans of one run; a span without length gets no time.

    Returns:
        Seconds of each span; their sum is the time in which at least one op ran.

    >>> exclusive_seconds([Span(0.0, 4.0), Span(2.0, 4.0)])
    [3.0, 1.0]
    """
    limits = sorted(limit for index, span in enumerate(spans) for limit in _limits(index, span))
    seconds = [0.0] * len(spans)
    running: set[int] = set()
    last = 0.0
    for time, is_start, index in limits:
        for other in running:
            seconds[other] += (time - last) / len(running)
        last = time
        if is_start:
            running.add(index)
        else:
            running.discard(index)
    return seconds


def seconds_by_run(runs: Iterable[Iterable[tuple[Key, float]]]) -> Mapping[Key, tuple[float, ...]]:
    """Return the seconds of each key in each run; 0 in runs without it.

    >>> dict(seconds_by_run([[("a", 1.0), ("a", 2.0)], [("b", 4.0)]]))
    {'a': (3.0, 0.0), 'b': (0.0, 4.0)}
    """
    totals = [_sum_by_key(run) for run in runs]
    keys = dict.fromkeys(key for total in totals for key in total)
    return {key: tuple(total.get(key, 0.0) for total in totals) for key in keys}


def named_onnx_graph(model: Graph | Path) -> Graph:
    """Return a graph or an ONNX file as an ONNX graph whose nodes have the names of their first outputs.

    Raises:
        InputError: the file is missing or broken.
        UnavailableError: an op cannot be converted to ONNX.
    """
    graph = formats.load(model) if isinstance(model, Path) else model
    from quantkit.convert.to_onnx import to_onnx_graph  # it imports the runtimes

    return onnx.with_node_names(graph if graph.dialect == onnx.DIALECT else to_onnx_graph(graph))


def fused_nodes(graph: Graph, name: str, boundary: Container[str]) -> tuple[str, ...]:
    """Return the nodes that a fused op computes: those between its output and the outputs of other ops.

    Args:
        graph: graph before the rewrites of the runtime.
        name: node with the output of the op; not in the graph if the runtime added the op.
        boundary: nodes whose outputs other ops compute.
    """
    if name not in graph:
        return ()
    nodes = {name: None}
    pending = [name]
    while pending:
        for edge in graph[pending.pop()].inputs:
            is_computed = edge.node in graph and not graph[edge.node].is_constant
            if is_computed and edge.node not in boundary and edge.node not in graph.input_names | nodes.keys():
                nodes[edge.node] = None
                pending.append(edge.node)
    return tuple(nodes)


def _limits(index: int, span: Span) -> tuple[tuple[float, bool, int], ...]:
    """Return start and end of a span as sortable values; an end comes before the start of the next span."""
    return ((span.start, True, index), (span.end, False, index)) if span.end > span.start else ()


def _sum_by_key(items: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    total: dict[Key, float] = {}
    for key, seconds in items:
        total[key] = total.get(key, 0.0) + seconds
    return total
