"""The original's transforms that insert Print ops, and that read the logged ranges back."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.compat.transforms.defaults import op_of
from quantkit.compat.transforms.matching import rename_inputs
from quantkit.compat.transforms.nodes import NodeDef, by_name, canonical, constant, node_of, split
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError
from quantkit.formats.kinds import check_regular
from quantkit.ir.graph import Node
from quantkit.ops.tensorflow.signatures import output_dtypes

PRINTED = "__print__"
MARK = "__requant_min_max:"
F32 = np.float32


@classic_transform()
def insert_logging(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Insert a Print op that declares the types of all outputs and prints those with consumers."""
    ops, prefixes = set(context.values("op")), context.values("prefix")
    message = context.value("message", "")
    show_name, show_op = context.boolean("show_name", False), context.boolean("show_op", False)
    first_n, summarize = context.int32("first_n", -1), context.int32("summarize", 1024)
    consumed: dict[str, set[str]] = {}
    for node in nodes:
        for text in node.inputs:
            consumed.setdefault(node_of(text), set()).add(canonical(text))
    result: list[NodeDef] = []
    names: dict[str, str] = {}
    for node in nodes:
        result.append(node)
        has_op = not ops or node.op in ops
        has_prefix = not prefixes or node.name.startswith(prefixes)
        if not has_op or not has_prefix or node.name not in consumed:
            continue
        _require_types(node)
        types = output_dtypes(Node(node.name, node.op, attrs=node.attrs))
        text = f";{node.op};" * show_op + f";{node.name}{PRINTED};" * show_name + message
        attrs: dict[str, Any] = {
            "T": types[0],
            "U": types,
            "message": text.encode(),
            "first_n": first_n,
            "summarize": summarize,
        }
        inputs = (f"{node.name}:0", *_consumed_tensors(node.name, consumed[node.name]))
        result.append(NodeDef(f"{node.name}{PRINTED}", "Print", inputs, attrs))
        names[f"{node.name}:0"] = f"{node.name}{PRINTED}:0"
    printed = frozenset(node_of(name) for name in names.values())
    return rename_inputs(result, names, ignored=printed)


def _require_types(node: NodeDef) -> None:
    """Reject a node without the attributes for number and types of its inputs and outputs.

    Raises:
        GraphError: the op type is unknown, or an attribute is missing, with or without a default.
    """
    op = op_of(node)
    for arg in (*op.inputs, *op.outputs):
        for key in (arg.number_attr, arg.type_attr, arg.type_list_attr):
            if key and key not in node.attrs:
                raise GraphError(f"No attr named '{key}' in NodeDef:\n\t [[{{{{node {node.name}}}}}]]")


def _consumed_tensors(name: str, texts: set[str]) -> list[str]:
    """Return the consumed tensors of a node, sorted by port."""
    ports = set()
    for text in texts:
        suffix = split(text).suffix.removeprefix(":")
        if not suffix.isdecimal():
            raise GraphError(f"Couldn't understand output number in {text}")
        ports.add(int(suffix))
    return [f"{name}:{port}" for port in sorted(ports)]


@classic_transform(exact=False)
def freeze_requantization_ranges(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Replace RequantizationRange by constants from a log file.

    A minimum above zero is kept, which Requantize rejects.
    """
    file = context.value("min_max_log_file", "")
    low_fraction = context.float32("min_percentile", 5.0) / 100
    high_fraction = context.float32("max_percentile", 5.0) / 100
    if not file:
        raise GraphError("You must pass a file name to min_max_log_file")
    ranges: dict[str, tuple[float, float]] = {}
    for name, pairs in _read_log(file).items():
        low = _quantile([low for low, _ in pairs], low_fraction)
        high = _quantile([high for _, high in pairs], 1 - high_fraction)
        ranges[name] = (low, high)
    if not ranges:
        raise GraphError("No min/max range logs were found in the log file")
    if not ranges.keys() <= by_name(nodes).keys():
        raise GraphError("Nodes were found in the log file that aren't present in the graph")
    for node in nodes:
        if node.name in ranges and node.op != "RequantizationRange":
            raise GraphError(f"Node is expected to be a RequantizationRange op: {node.name}, but is: {node.op}")
    result: list[NodeDef] = []
    names: dict[str, str] = {}
    for node in nodes:
        if node.name not in ranges:
            result.append(node)
            continue
        for port, (bound, value) in enumerate(zip(("min", "max"), ranges[node.name], strict=True)):
            result.append(constant(f"{node.name}/frozen_{bound}", np.asarray(value, F32)))
            names[f"{node.name}:{port}"] = f"{node.name}/frozen_{bound}:0"
    return rename_inputs(result, names)


def _read_log(file: str) -> Mapping[str, list[tuple[float, float]]]:
    """Read the minimum and maximum of each log line, by node name."""
    check_regular(Path(file))
    try:
        lines = Path(file).read_bytes().decode(errors="replace").split("\n")
    except OSError as error:
        raise GraphError(f"{file}; {error.strerror}") from None
    ranges: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        parts = line.split(";") if f"{PRINTED};{MARK}" in line else []
        marked = [number for number, part in enumerate(parts) if number and part.startswith(MARK)]
        if not marked:
            continue
        name, pieces = parts[marked[-1] - 1], parts[marked[-1]].split("[")
        if len(pieces) != 3 or not name.endswith(PRINTED):
            continue
        low, high = (_parse_bound(piece) for piece in pieces[1:])
        if low is not None and high is not None:
            ranges.setdefault(name.removesuffix(PRINTED), []).append((float(low), float(high)))
    return ranges


def _parse_bound(text: str) -> np.float32 | None:
    pieces = text.split("]")
    try:
        return F32(pieces[0]) if len(pieces) == 2 else None
    except ValueError:
        return None


def _quantile(values: Sequence[float], fraction: float) -> float:
    index = math.floor(len(values) * fraction + 0.5)
    return sorted(values)[min(max(index, 0), len(values) - 1)]
