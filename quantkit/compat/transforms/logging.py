"""The original's way to print what flows through a graph, and to freeze the ranges that such prints tell."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from quantkit.compat.transforms.defaults import op_of
from quantkit.compat.transforms.matching import rename_inputs
from quantkit.compat.transforms.nodes import NodeDef, by_name, canonical, constant, node_of, split
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.graph import Node
from quantkit.ops.tensorflow.signatures import output_dtypes

PRINTED = "__print__"
MARK = "__requant_min_max:"
F32 = np.float32


@classic_transform
def insert_logging(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """A Print declares the types of all outputs of its node, and shows those that are read."""
    ops, prefixes = set(context.values("op")), context.values("prefix")
    message = context.value("message", "")
    show_name, show_op = context.boolean("show_name", False), context.boolean("show_op", False)
    first_n, summarize = context.int32("first_n", -1), context.int32("summarize", 1024)
    read: dict[str, set[str]] = {}
    for node in nodes:
        for text in node.inputs:
            read.setdefault(node_of(text), set()).add(canonical(text))
    result: list[NodeDef] = []
    names: dict[str, str] = {}
    for node in nodes:
        result.append(node)
        is_wanted = (not ops or node.op in ops) and (not prefixes or node.name.startswith(prefixes))
        if not is_wanted or node.name not in read:
            continue
        _require_types(node)
        types = output_dtypes(Node(node.name, node.op, attrs=node.attrs))
        text = f";{node.op};" * show_op + f";{node.name}{PRINTED};" * show_name + message
        attrs = {
            "T": types[0],
            "U": types,
            "message": text.encode(),
            "first_n": first_n,
            "summarize": summarize,
        }
        inputs = (f"{node.name}:0", *_ports(node.name, read[node.name]))
        result.append(NodeDef(f"{node.name}{PRINTED}", "Print", inputs, attrs))  # type: ignore[arg-type]
        names[f"{node.name}:0"] = f"{node.name}{PRINTED}:0"
    return rename_inputs(result, names, ignored=frozenset(node_of(name) for name in names.values()))


def _require_types(node: NodeDef) -> None:
    """Refuse a node that leaves out how many tensors of which types it reads and makes, even where there are defaults.

    Raises:
        GraphError: the op is not known, or an attribute is missing.
    """
    op = op_of(node)
    for arg in (*op.inputs, *op.outputs):
        for key in (arg.number_attr, arg.type_attr, arg.type_list_attr):
            if key and key not in node.attrs:
                raise GraphError(
                    f"No attr named '{key}' in NodeDef:\n\t [[{{{{node {node.name}}}}}]]"
                )


def _ports(name: str, read: set[str]) -> list[str]:
    """The tensors of a node that are read, by port."""
    ports = set()
    for text in read:
        suffix = split(text).suffix.removeprefix(":")
        if not suffix.isdecimal():
            raise GraphError(f"Couldn't understand output number in {text}")
        ports.add(int(suffix))
    return [f"{name}:{port}" for port in sorted(ports)]


@classic_transform(exact=False)
def freeze_requantization_ranges(
    nodes: Sequence[NodeDef], context: ClassicContext
) -> list[NodeDef]:
    """A lower end above zero stays there, and Requantize refuses it."""
    file = context.value("min_max_log_file", "")
    parts = [context.float32(f"{end}_percentile", 5.0) / 100 for end in ("min", "max")]
    if not file:
        raise GraphError("You must pass a file name to min_max_log_file")
    ranges = {
        name: (
            _ranked([low for low, _ in pairs], parts[0]),
            _ranked([high for _, high in pairs], 1 - parts[1]),
        )
        for name, pairs in _read(file).items()
    }
    if not ranges:
        raise GraphError("No min/max range logs were found in the log file")
    named = by_name(nodes)
    if not ranges.keys() <= named.keys():
        raise GraphError("Nodes were found in the log file that aren't present in the graph")
    for node in nodes:
        if node.name in ranges and node.op != "RequantizationRange":
            raise GraphError(
                f"Node is expected to be a RequantizationRange op: {node.name}, but is: {node.op}"
            )
    result: list[NodeDef] = []
    names: dict[str, str] = {}
    for node in nodes:
        if node.name not in ranges:
            result.append(node)
            continue
        for port, (end, value) in enumerate(zip(("min", "max"), ranges[node.name], strict=True)):
            result.append(constant(f"{node.name}/frozen_{end}", np.asarray(value, F32)))
            names[f"{node.name}:{port}"] = f"{node.name}/frozen_{end}:0"
    return rename_inputs(result, names)


def _read(file: str) -> Mapping[str, list[tuple[float, float]]]:
    try:
        lines = Path(file).read_bytes().decode(errors="replace").split("\n")
    except OSError as error:
        raise GraphError(f"{file}; {error.strerror}") from None
    found: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        parts = line.split(";") if f"{PRINTED};{MARK}" in line else []
        place = max(
            (number for number, part in enumerate(parts) if number and part.startswith(MARK)),
            default=0,
        )
        numbers = parts[place].split("[") if place else []
        if len(numbers) != 3 or not parts[place - 1].endswith(PRINTED):
            continue
        ends = [_number(number) for number in numbers[1:]]
        if None not in ends:
            found.setdefault(parts[place - 1].removesuffix(PRINTED), []).append(
                (float(ends[0]), float(ends[1]))
            )  # type: ignore[arg-type]
    return found


def _number(text: str) -> np.float32 | None:
    pieces = text.split("]")
    try:
        return F32(pieces[0]) if len(pieces) == 2 else None
    except ValueError:
        return None


def _ranked(values: Sequence[float], part: float) -> float:
    place = math.floor(len(values) * part + 0.5)
    return sorted(values)[min(max(place, 0), len(values) - 1)]
