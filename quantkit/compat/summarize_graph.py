"""Output of the original ``summarize_graph``, character for character.

Its irregularities are kept: the device lines have no line break, a variable has no parameters
unless it holds a value, and the text ends after a dangling input.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantkit.errors import GraphError
from quantkit.formats.graphdef.tensors import type_number
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import DType, Shape, Tensor

VARIABLES = ("Variable", "VariableV2")
UNLIKELY_OUTPUTS = frozenset({"Const", "Assign", "NoOp", "Placeholder"})
SUFFIXES = "kMBT"
# Number of a constant's values that --print_structure prints.
NUM_VALUES = 3


@dataclass(frozen=True)
class ClassicSummary:
    """Output of the tool for one graph.

    Attributes:
        model: name of the graph file.
        output: characters that the tool prints.
        is_valid: True if no node has a dangling input.
    """

    model: str
    output: str
    is_valid: bool

    def __str__(self) -> str:
        return self.output.removesuffix("\n")

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``quantkit summarize_graph --json``."""
        return {"schema": "quantkit.summarize/2", "model": self.model, "classic": self.output}

    def check(self) -> None:
        """Check that all inputs exist.

        Raises:
            GraphError: an input of a node does not exist.
        """
        if not self.is_valid:
            raise GraphError(
                "Invalid graph with inputs referring to nonexistent nodes",
                hint="restore the nodes that are named above, or name outputs that do not need them",
            )


def classic_summary(graph: Graph, path: str, *, print_structure: bool = False) -> ClassicSummary:
    """Summarize a graph as the tool does.

    Args:
        graph: graph in file order.
        path: name of the graph file in the printed benchmark_model command.
        print_structure: list all nodes in topological order.
    """
    nodes = graph.nodes.values()
    dangling = [(name, node.name) for node in nodes for name in node.sources if name not in graph]
    text = "".join(_count_lines(graph))
    if dangling:
        lines = (f"Invalid input {name} for node {node}\n" for name, node in dangling)
        return ClassicSummary(path, text + "".join(lines), is_valid=False)
    text += "".join(_op_lines(graph)) + "".join(_benchmark_lines(graph, path))
    text += "".join(_structure_lines(graph)) if print_structure else ""
    return ClassicSummary(path, text, is_valid=True)


def _count_lines(graph: Graph) -> Iterator[str]:
    nodes = graph.nodes.values()
    variables = _variables(graph)
    yield from _list_nodes(_placeholders(graph), "possible inputs", "inputs", _describe)
    yield from _list_nodes(variables, "variables", "variables", _describe)
    yield from _list_nodes(
        _outputs(graph),
        "possible outputs",
        "outputs",
        lambda node: f"(name={node.name}, op={node.op}) ",
    )
    constant = _num_parameters([node for node in nodes if node.op == "Const"])
    variable = _num_parameters(variables)
    yield f"Found {constant} ({human(constant)}) const parameters, "
    yield f"{variable} ({human(variable)}) variable parameters, "
    yield f"and {sum(len(node.controls) for node in nodes)} control_edges\n"
    devices = Counter(node.device for node in nodes if node.device)
    for device in sorted(devices):
        yield f"{devices[device]} nodes assigned to device '{device}'"


def _num_parameters(nodes: Sequence[Node]) -> int:
    values = (node.attrs.get("value") for node in nodes)
    return sum(value.num_elements for value in values if isinstance(value, Tensor))


def _list_nodes(nodes: list[Node], plural: str, empty: str, describe: Callable[[Node], str]) -> Iterator[str]:
    if nodes:
        yield f"Found {len(nodes)} {plural}: {''.join(describe(node) for node in nodes)}\n"
    else:
        yield f"No {empty} spotted.\n"


def _placeholders(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes.values() if node.op == "Placeholder"]


def _variables(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes.values() if node.op in VARIABLES]


def _outputs(graph: Graph) -> list[Node]:
    nodes = (node for node in graph.nodes.values() if node.op not in UNLIKELY_OUTPUTS)
    return [node for node in nodes if node.name not in graph.node_uses]


def _describe(node: Node) -> str:
    dtype = node.attrs.get("dtype")
    number = type_number(dtype) if isinstance(dtype, DType) else 0
    shape = _format_shape(node.attrs.get("shape"))
    return f"(name={node.name}, type={_type_name(node)}({number}), shape={shape}) "


def _format_shape(shape: object) -> str:
    if not isinstance(shape, Shape):
        return "None"
    if shape.dims is None:
        return "<unknown>"
    return f"[{','.join('?' if size is None else str(size) for size in shape.dims)}]"


def _type_name(node: Node) -> str:
    dtype = node.attrs.get("dtype")
    return dtype.value if isinstance(dtype, DType) else "INVALID"


def _op_lines(graph: Graph) -> Iterator[str]:
    counts = Counter(node.op for node in graph.nodes.values())
    for name in graph.library:
        body = graph.library[name].graph.nodes.values()
        counts.update(node.op for node in body if node.op != "_Arg")
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    yield f"Op types used: {', '.join(f'{count} {op}' for op, count in ordered)}\n"


def _benchmark_lines(graph: Graph, path: str) -> Iterator[str]:
    inputs = [*_placeholders(graph), *_variables(graph)]
    yield "To use with tensorflow/tools/benchmark:benchmark_model try these arguments:\n"
    yield "bazel run tensorflow/tools/benchmark:benchmark_model --"
    yield f" --graph={path} --show_flops"
    yield f" --input_layer={','.join(node.name for node in inputs)}"
    yield f" --input_layer_type={','.join(map(_type_name, inputs))}"
    yield f" --input_layer_shape={':'.join(map(_format_sizes, inputs))}"
    yield f" --output_layer={','.join(node.name for node in _outputs(graph))}\n"


def _format_sizes(node: Node) -> str:
    shape = node.attrs.get("shape")
    dims = shape.dims if isinstance(shape, Shape) else None
    return "" if dims is None else ",".join(str(-1 if size is None else size) for size in dims)


def _structure_lines(graph: Graph) -> Iterator[str]:
    for name in graph.order:
        node = graph[name]
        value = node.attrs.get("value")
        text = ""
        if node.op == "Const" and isinstance(value, Tensor):
            text = f", value={debug_string(value)}"
        inputs = (*map(str, node.inputs), *(f"^{control}" for control in node.controls))
        yield f"{name} ({node.op}): [{', '.join(inputs)}]{text}\n"


def human(count: int) -> str:
    """Format a count in thousands, millions and so on.

    >>> human(999), human(23885411), human(1234)
    ('999', '23.89M', '1.23k')
    """
    if count < 1000:
        return str(count)
    if count >= 10**15:
        return f"{float(count):.3G}"
    exponent = 0
    while count >= 10**6:
        count //= 1000
        exponent += 1
    return f"{count / 1000:.2f}{SUFFIXES[exponent]}"


def debug_string(value: Tensor) -> str:
    """Format a tensor with its first values.

    >>> debug_string(Tensor.of(np.float32([[1, 2, 3, 4], [5, 6, 7, 8]])))
    'Tensor<type: float shape: [2,4] values: [1 2 3...]...>'
    """
    sizes = ",".join(map(str, value.shape))
    return f"Tensor<type: {value.dtype.value} shape: [{sizes}] values: {_format_values(value)}>"


def _format_values(value: Tensor) -> str:
    items = value.array.reshape(-1)[:NUM_VALUES]
    texts = [_format_item(item, value.dtype) for item in items]
    if not value.shape:
        return texts[0]
    text = _format_nested(value.shape, iter(texts), 0, [len(texts)])
    return text + ("..." if value.num_elements > NUM_VALUES else "")


def _format_nested(shape: tuple[int, ...], texts: Iterator[str], depth: int, remaining: list[int]) -> str:
    """Format values in brackets, except the outermost; an incomplete row ends in dots."""
    parts: list[str] = []
    if len(shape) == 1:
        for index in range(shape[0]):
            if not remaining[0]:
                return "".join(parts) + ("..." if depth else "")
            parts.append((" " if index else "") + next(texts))
            remaining[0] -= 1
        return "".join(parts)
    for _ in range(shape[0]):
        if not remaining[0]:
            break
        parts.append(f"[{_format_nested(shape[1:], texts, depth + 1, remaining)}]")
    return "".join(parts)


def _format_item(item: object, dtype: DType) -> str:
    if dtype is DType.STRING:
        data = item if isinstance(item, bytes) else str(item).encode()
        return "".join(_escape(byte) for byte in data)
    if dtype is DType.BOOL:
        return "1" if item else "0"
    if dtype.is_float:
        return _format_float(float(item), dtype)  # type: ignore[arg-type]
    return str(item)


def _escape(byte: int) -> str:
    escapes = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return escapes.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")


def _format_float(number: float, dtype: DType) -> str:
    """Format with the shorter of two precisions if it is exact, else with the longer."""
    is_double = dtype is DType.DOUBLE
    short, long = ("%.15g", "%.17g") if is_double else ("%.6g", "%.9g")
    text = short % number
    is_same = float(text) == number if is_double else np.float32(text) == np.float32(number)
    return text if is_same or number != number else long % number
