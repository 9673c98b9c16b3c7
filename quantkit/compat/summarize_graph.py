"""What the classic ``summarize_graph`` prints of a graph, to the letter.

Where the original is odd, so is this: devices end in no line break, a variable has no parameters unless it holds a
value, and what comes after an input that names nothing is not printed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from quantkit.formats.graphdef.tensors import type_number
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import Array, DType, Shape, Tensor

VARIABLES = ("Variable", "VariableV2")
UNLIKELY_OUTPUTS = frozenset({"Const", "Assign", "NoOp", "Placeholder"})
UNITS = "kMBT"
# Values of a constant that --print_structure shows.
SHOWN = 3


def classic_summary(graph: Graph, path: str, *, print_structure: bool = False) -> tuple[str, bool]:
    """The text, and whether every input names a node.

    Args:
        graph: as it was read.
        path: what the line for benchmark_model calls it.
        print_structure: list the nodes, too.
    """
    invalid = [(name, node.name) for node in graph.nodes.values() for name in node.sources if name not in graph]
    text = "".join(_counts(graph))
    if invalid:
        return text + "".join(f"Invalid input {name} for node {node}\n" for name, node in invalid), False
    text += "".join(_ops(graph)) + "".join(_benchmark(graph, path))
    return text + ("".join(_structure(graph)) if print_structure else ""), True


def _counts(graph: Graph) -> Iterator[str]:
    nodes = graph.nodes.values()
    inputs, variables, outputs = _placeholders(graph), _variables(graph), _outputs(graph)
    yield from _found(inputs, "possible inputs", "inputs", _info)
    yield from _found(variables, "variables", "variables", _info)
    yield from _found(outputs, "possible outputs", "outputs", lambda node: f"(name={node.name}, op={node.op}) ")
    constants, kept = (
        sum(value.num_elements for node in some if isinstance(value := node.attrs.get("value"), Tensor))
        for some in ([node for node in nodes if node.op == "Const"], variables)
    )
    yield f"Found {constants} ({human(constants)}) const parameters, {kept} ({human(kept)}) variable parameters, "
    yield f"and {sum(len(node.controls) for node in nodes)} control_edges\n"
    devices = Counter(node.device for node in nodes if node.device)
    yield from (f"{devices[device]} nodes assigned to device '{device}'" for device in sorted(devices))


def _found(nodes: list[Node], plural: str, none: str, tell: Callable[[Node], str]) -> Iterator[str]:
    if nodes:
        yield f"Found {len(nodes)} {plural}: {''.join(tell(node) for node in nodes)}\n"
    else:
        yield f"No {none} spotted.\n"


def _placeholders(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes.values() if node.op == "Placeholder"]


def _variables(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes.values() if node.op in VARIABLES]


def _outputs(graph: Graph) -> list[Node]:
    return [
        node for node in graph.nodes.values() if node.name not in graph.node_uses and node.op not in UNLIKELY_OUTPUTS
    ]


def _info(node: Node) -> str:
    shape = node.attrs.get("shape")
    return f"(name={node.name}, type={_type(node)}({_number(node)}), shape={_brackets(shape)}) "


def _brackets(shape: object) -> str:
    if not isinstance(shape, Shape):
        return "None"
    if shape.dims is None:
        return "<unknown>"
    return f"[{','.join('?' if size is None else str(size) for size in shape.dims)}]"


def _type(node: Node) -> str:
    dtype = node.attrs.get("dtype")
    return dtype.value if isinstance(dtype, DType) else "INVALID"


def _number(node: Node) -> int:
    dtype = node.attrs.get("dtype")
    return type_number(dtype) if isinstance(dtype, DType) else 0


def _ops(graph: Graph) -> Iterator[str]:
    counts = Counter(node.op for node in graph.nodes.values())
    for name in graph.library:
        counts.update(node.op for node in graph.library[name].graph.nodes.values() if node.op != "_Arg")
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    yield f"Op types used: {', '.join(f'{count} {op}' for op, count in ordered)}\n"


def _benchmark(graph: Graph, path: str) -> Iterator[str]:
    fed = [*_placeholders(graph), *_variables(graph)]
    yield "To use with tensorflow/tools/benchmark:benchmark_model try these arguments:\n"
    yield f"bazel run tensorflow/tools/benchmark:benchmark_model -- --graph={path} --show_flops"
    yield f" --input_layer={','.join(node.name for node in fed)}"
    yield f" --input_layer_type={','.join(map(_type, fed))}"
    yield f" --input_layer_shape={':'.join(map(_sizes, fed))}"
    yield f" --output_layer={','.join(node.name for node in _outputs(graph))}\n"


def _sizes(node: Node) -> str:
    shape = node.attrs.get("shape")
    dims = shape.dims if isinstance(shape, Shape) else None
    return "" if dims is None else ",".join(str(-1 if size is None else size) for size in dims)


def _structure(graph: Graph) -> Iterator[str]:
    for name in graph.order:
        node = graph[name]
        value = node.attrs.get("value")
        shown = f", value={debug_string(value)}" if node.op == "Const" and isinstance(value, Tensor) else ""
        yield f"{name} ({node.op}): [{', '.join(_inputs(node))}]{shown}\n"


def _inputs(node: Node) -> Iterable[str]:
    return (*map(str, node.inputs), *(f"^{name}" for name in node.controls))


def human(count: int) -> str:
    """A count in thousands, millions and so on.

    >>> human(999), human(23885411), human(1234)
    ('999', '23.89M', '1.23k')
    """
    if count < 1000:
        return str(count)
    if count >= 10**15:
        return f"{float(count):.3G}"
    unit = 0
    while count >= 10**6:
        count //= 1000
        unit += 1
    return f"{count / 1000:.2f}{UNITS[unit]}"


def debug_string(value: Tensor) -> str:
    """A tensor with its first values.

    >>> debug_string(Tensor.of(np.float32([[1, 2, 3, 4], [5, 6, 7, 8]])))
    'Tensor<type: float shape: [2,4] values: [1 2 3...]...>'
    """
    sizes = ",".join(map(str, value.shape))
    return f"Tensor<type: {value.dtype.value} shape: [{sizes}] values: {_values(value)}>"


def _values(value: Tensor) -> str:
    shown = [_one(item, value.dtype) for item in _first(value.array)]
    if not value.shape:
        return shown[0]
    text = _nested(value.shape, iter(shown), 0, [len(shown)])
    return text + ("..." if value.num_elements > SHOWN else "")


def _nested(shape: tuple[int, ...], values: Iterator[str], depth: int, left: list[int]) -> str:
    """The values in brackets, the outermost left out; a row that is cut ends in dots."""
    parts: list[str] = []
    if len(shape) == 1:
        for place in range(shape[0]):
            if not left[0]:
                return "".join(parts) + ("..." if depth else "")
            parts.append((" " if place else "") + next(values))
            left[0] -= 1
        return "".join(parts)
    for _ in range(shape[0]):
        if not left[0]:
            break
        parts.append(f"[{_nested(shape[1:], values, depth + 1, left)}]")
    return "".join(parts)


def _first(array: Array) -> list[object]:
    return list(array.reshape(-1)[:SHOWN])


def _one(item: object, dtype: DType) -> str:
    if dtype is DType.STRING:
        data = item if isinstance(item, bytes) else str(item).encode()
        return "".join(_escaped(code) for code in data)
    if dtype is DType.BOOL:
        return "1" if item else "0"
    if dtype.is_float:
        return _float(float(item), dtype)  # type: ignore[arg-type]
    return str(item)


def _escaped(code: int) -> str:
    named = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return named.get(code) or (chr(code) if 32 <= code < 127 else f"\\{code:03o}")


def _float(number: float, dtype: DType) -> str:
    """The fewest digits that give the same number back, of two choices."""
    is_double = dtype is DType.DOUBLE
    short, long = ("%.15g", "%.17g") if is_double else ("%.6g", "%.9g")
    text = short % number
    is_same = float(text) == number if is_double else np.float32(text) == np.float32(number)
    return text if is_same or number != number else long % number
