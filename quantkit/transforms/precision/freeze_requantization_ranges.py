"""Ranges that were measured on data, in the place of nodes that measure them at each run."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from quantkit.errors import GraphError, InputError, RecipeError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms.registry import transform

MARK = "__requant_min_max:"
PRINTED = "__print__"

# For each node the pairs of numbers that the log tells of it.
Ranges = Mapping[str, list[tuple[float, float]]]


@transform(exact=False)
def freeze_requantization_ranges(
    graph: Graph, *, min_max_log_file: str = "", min_percentile: float = 5.0, max_percentile: float = 5.0
) -> Outcome:
    """Replace the ranges that 8-bit layers measure at each run by constants, which a log tells.

    The log is what a run on data prints after insert_logging(op=RequantizationRange, show_name=true,
    message="__requant_min_max:"): a line ``;<node>__print__;__requant_min_max:[lowest][highest]`` for each run of each
    node. Other lines do not matter. A part of the most extreme measurements is left out, at either end.

    Before:  Requantize(y, RequantizationRange(y))
    After:   Requantize(y, lowest, highest)

    Options:
        min_max_log_file: the log, e.g. ``freeze_requantization_ranges(min_max_log_file="/tmp/min_max_log.txt")``, or
            a line of one.
        min_percentile: percentage of the lowest measurements that is left out (5).
        max_percentile: percentage of the highest measurements that is left out (5).

    A lower end above zero becomes zero, without which Requantize refuses to run.

    Skips when a node is an input or output of the graph; one that the log does not tell of goes on measuring.

    Raises:
        RecipeError: no log file is given, or a percentage is none.
        InputError: the log can not be read, or tells of no ranges.
        GraphError: the log tells of nodes that the graph does not have, or that are no RequantizationRange.

    Example:
        freeze_requantization_ranges(min_max_log_file=";range__print__;__requant_min_max:[-1.5][12]")
        inputs: x
        outputs: y
        x = Placeholder[qint32 4]()
        low = Const(-2e+09)
        high = Const(2e+09)
        range = RequantizationRange(x, low, high, Tinput=qint32)
        codes = Requantize(x, low, high, range, range:1, Tinput=qint32, out_type=quint8)
        y = Dequantize(codes, codes:1, codes:2, T=quint8, mode=MIN_FIRST)
    """
    if not min_max_log_file:
        raise RecipeError(
            "freeze_requantization_ranges: You must pass a file name to min_max_log_file",
            hint="insert_logging and a run on data make one",
        )
    for name, percentage in (("min_percentile", min_percentile), ("max_percentile", max_percentile)):
        if not 0 <= percentage <= 100:
            raise RecipeError(
                f"freeze_requantization_ranges: {name} must be between 0 and 100, not {percentage:g}",
                hint="5 leaves out one measurement of twenty",
            )
    ranges = read_log(min_max_log_file)
    _check_nodes(graph, ranges)
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for name, pairs in ranges.items():
        if name in graph.endpoint_names:
            skips.append(Skip("it is an input or output of the graph", name))
            continue
        low = _ranked((pair[0] for pair in pairs), min_percentile / 100)
        high = _ranked((pair[1] for pair in pairs), 1 - max_percentile / 100)
        ends = [(f"{name}/frozen_min", min(low, 0.0)), (f"{name}/frozen_max", high)]
        draft.replace(name, *(constant(frozen, np.float32(value)) for frozen, value in ends))
        for port, (frozen, _) in enumerate(ends):
            draft.redirect(Edge(name, port), frozen)
        draft.redirect_controls(name, *(one for one in graph[name].sources if not graph[one].is_constant))
        changes.append(f"{name}: {min(low, 0.0):g} .. {high:g}, of {len(pairs)} measurements")
    skips += [
        Skip("the log does not tell of it", node.name)
        for node in graph.nodes.values()
        if node.op == "RequantizationRange" and node.name not in ranges
    ]
    return Outcome(draft.graph() if changes else graph, tuple(changes), tuple(skips))


def read_log(name: str) -> Ranges:
    """The ranges that a log, or a line of one, tells, by node.

    Raises:
        InputError: it can not be read, or tells of none.
    """
    try:
        text = name if f"{PRINTED};{MARK}" in name else Path(name).expanduser().read_text(errors="replace")
    except OSError as error:
        raise InputError(f"{name} can not be read: {error.strerror}", hint="give the file that a run printed") from None
    found: dict[str, list[tuple[float, float]]] = {}
    for line in text.splitlines():
        entry = _entry(line)
        if entry:
            found.setdefault(entry[0], []).append(entry[1])
    if not found:
        raise InputError(
            "No min/max range logs were found in the log file",
            hint=f'run the graph after insert_logging(op=RequantizationRange, show_name=true, message="{MARK}")',
        )
    return found


def _entry(line: str) -> tuple[str, tuple[float, float]] | None:
    """The node and the range of a line of a log; None: it is about something else."""
    if f"{PRINTED};{MARK}" not in line:
        return None
    parts = line.split(";")
    place = max(number for number, part in enumerate(parts) if number and part.startswith(MARK))
    numbers = parts[place].split("[")
    name = parts[place - 1]
    if len(numbers) != 3 or not name.endswith(PRINTED):
        return None
    try:
        low, high = (float(np.float32(number.split("]")[0])) for number in numbers[1:])
    except ValueError:
        return None
    return (name.removesuffix(PRINTED), (low, high)) if math.isfinite(low) and math.isfinite(high) else None


def _ranked(values: Iterable[float], part: float) -> float:
    """The value that so large a part of all values, from 0 to 1, is below."""
    ordered = sorted(values)
    return ordered[min(math.floor(len(ordered) * part + 0.5), len(ordered) - 1)]


def _check_nodes(graph: Graph, ranges: Ranges) -> None:
    missing = [name for name in ranges if name not in graph]
    if missing:
        raise GraphError(
            "Nodes were found in the log file that aren't present in the graph",
            hint=f"{', '.join(missing[:3])}: the log must come from a copy of this graph",
        )
    for name in ranges:
        if graph[name].op != "RequantizationRange":
            raise GraphError(
                f"Node is expected to be a RequantizationRange op: {name}, but is: {graph[name].op}",
                hint="let insert_logging mark RequantizationRange nodes only: op=RequantizationRange",
            )
