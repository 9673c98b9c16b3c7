"""Replace ranges that are computed at run time by ranges from a log of calibration runs."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from quantkit.arguments import expand_user
from quantkit.errors import GraphError, InputError, RecipeError
from quantkit.formats.kinds import check_regular
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms.registry import transform

MARK = "__requant_min_max:"
PRINTED = "__print__"

# Logged (minimum, maximum) pairs by node name.
Ranges = Mapping[str, list[tuple[float, float]]]


@transform(exact=False)
def freeze_requantization_ranges(
    graph: Graph, *, min_max_log_file: str = "", min_percentile: float = 5.0, max_percentile: float = 5.0
) -> Outcome:
    """Replace RequantizationRange nodes by constants from a log of calibration runs.

    The log is the output of runs after insert_logging(op=RequantizationRange, show_name=true,
    message="__requant_min_max:"): one line ``;<node>__print__;__requant_min_max:[min][max]`` per
    node and run. Other lines are ignored. The most extreme minima and maxima are dropped as
    outliers.

    Before:  Requantize(y, RequantizationRange(y))
    After:   Requantize(y, min, max)

    Options:
        min_max_log_file: log file, for example
            ``freeze_requantization_ranges(min_max_log_file="/tmp/min_max_log.txt")``, or a line of
            a log.
        min_percentile: percentage of the lowest minima to drop (default: 5).
        max_percentile: percentage of the highest maxima to drop (default: 5).

    A minimum above zero becomes zero, which Requantize requires.

    Skips graph inputs and outputs, and nodes that are not in the log: their ranges stay dynamic.

    Raises:
        RecipeError: no log file is given, or a percentile is not in [0, 100].
        InputError: the log cannot be read, or contains no ranges.
        GraphError: the log contains nodes that are not in the graph, or not RequantizationRange.

    Example:
        freeze_requantization_ranges(min_max_log_file=";range__print__;__requant_min_max:[-1.5][12]")
        inputs: x
        outputs: y
        x = Placeholder[qint32 4]()
        low = Const(-2e+09)
        high = Const(2e+09)
        range = RequantizationRange(x, low, high, Tinput=qint32)
        narrow = Requantize(x, low, high, range, range:1, Tinput=qint32, out_type=quint8)
        y = Dequantize(narrow, narrow:1, narrow:2, T=quint8, mode=MIN_FIRST)
    """
    if not min_max_log_file:
        raise RecipeError(
            "freeze_requantization_ranges: You must pass a file name to min_max_log_file",
            hint="run the graph on data after insert_logging to get the log",
        )
    for name, percentage in (("min_percentile", min_percentile), ("max_percentile", max_percentile)):
        if not 0 <= percentage <= 100:
            raise RecipeError(
                f"freeze_requantization_ranges: {name} must be between 0 and 100, not {percentage:g}",
                hint="5 drops one of twenty values",
            )
    ranges = read_log(min_max_log_file)
    _check_nodes(graph, ranges)
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for name, pairs in ranges.items():
        if name in graph.endpoint_names:
            skips.append(Skip("the node is a graph input or output", name))
            continue
        low = _quantile((pair[0] for pair in pairs), min_percentile / 100)
        high = _quantile((pair[1] for pair in pairs), 1 - max_percentile / 100)
        bounds = [(f"{name}/frozen_min", min(low, 0.0)), (f"{name}/frozen_max", high)]
        draft.replace(name, *(constant(frozen, np.float32(value)) for frozen, value in bounds))
        for port, (frozen, _) in enumerate(bounds):
            draft.redirect(Edge(name, port), frozen)
        draft.redirect_controls(name, *(source for source in graph[name].sources if not graph[source].is_constant))
        changes.append(f"{name}: {min(low, 0.0):g} .. {high:g}, from {len(pairs)} values")
    skips += [
        Skip("no range in the log", node.name)
        for node in graph.nodes.values()
        if node.op == "RequantizationRange" and node.name not in ranges
    ]
    return Outcome(draft.graph() if changes else graph, tuple(changes), tuple(skips))


def _read_text(path: Path) -> str:
    check_regular(path)
    return path.read_text(errors="replace")


def read_log(name: str) -> Ranges:
    """Return the ranges by node of a log file, or of a line of a log.

    Raises:
        InputError: the log cannot be read, or contains no ranges.
    """
    try:
        text = name if f"{PRINTED};{MARK}" in name else _read_text(expand_user(name))
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}", hint="pass the log of a run") from None
    ranges: dict[str, list[tuple[float, float]]] = {}
    for line in text.splitlines():
        entry = _parse_line(line)
        if entry:
            ranges.setdefault(entry[0], []).append(entry[1])
    if not ranges:
        raise InputError(
            "No min/max range logs were found in the log file",
            hint=f'run the graph after insert_logging(op=RequantizationRange, show_name=true, message="{MARK}")',
        )
    return ranges


def _parse_line(line: str) -> tuple[str, tuple[float, float]] | None:
    """Return the node name and the range of a line of a log; None for other lines."""
    if f"{PRINTED};{MARK}" not in line:
        return None
    parts = line.split(";")
    index = max(number for number, part in enumerate(parts) if number and part.startswith(MARK))
    numbers = parts[index].split("[")
    name = parts[index - 1]
    if len(numbers) != 3 or not name.endswith(PRINTED):
        return None
    try:
        low, high = (float(np.float32(number.split("]")[0])) for number in numbers[1:])
    except ValueError:
        return None
    return (name.removesuffix(PRINTED), (low, high)) if math.isfinite(low) and math.isfinite(high) else None


def _quantile(values: Iterable[float], fraction: float) -> float:
    """Return the value that is larger than a fraction in [0, 1] of all values."""
    ordered = sorted(values)
    return ordered[min(math.floor(len(ordered) * fraction + 0.5), len(ordered) - 1)]


def _check_nodes(graph: Graph, ranges: Ranges) -> None:
    missing = [name for name in ranges if name not in graph]
    if missing:
        raise GraphError(
            "Nodes were found in the log file that aren't present in the graph",
            hint=f"use a log of this graph: it has no node {', '.join(missing[:3])}",
        )
    for name in ranges:
        if graph[name].op != "RequantizationRange":
            raise GraphError(
                f"Node is expected to be a RequantizationRange op: {name}, but is: {graph[name].op}",
                hint="use insert_logging with op=RequantizationRange",
            )
