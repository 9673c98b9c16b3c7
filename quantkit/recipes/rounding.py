"""Rounding of a model, measured on the model itself.

Two graphs that are equal in exact arithmetic have different outputs, because their operations round differently. How
much depends on the model: many layers amplify a rounding error, a saturated sigmoid hides it. The measure is the change
of the outputs of one graph if its inputs and its constants move by one unit in the last place:

    sigma = root mean square of the changes of an output element over several such runs
    ratio = root mean square of |new - old| / sigma over all elements, or a fraction of its maximum

Rounding gives ratios around 1, a wrong rewrite 1e3 to 1e9. In double precision only the constants that a transform has
computed are rounded to float32, so that smaller errors are found, for example a lost epsilon.
"""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.table import Fact, find_ops

# A single element may differ by this factor more than all elements together.
MAX_FACTOR = 20.0
# Change of an output, as a multiple of the distance of neighbouring numbers, that is rounding in any case.
FLOOR = 4.0
# Distance of neighbouring numbers as a fraction of their value.
ULP: Mapping[DType, float] = {
    DType.HALF: 2.0**-10,
    DType.BFLOAT16: 2.0**-7,
    DType.FLOAT: 2.0**-23,
    DType.DOUBLE: 2.0**-52,
}
MAX_LAST_OPS = 16
# Element types of ONNX attributes.
_ONNX_FLOATS, _ONNX_DOUBLE = (1, 10, 16), 11


def last_inputs(before: Graph, after: Graph) -> dict[str, tuple[Edge, Edge]]:
    """Return the input edges of the last ops that hide changes in two versions of a graph, by a description.

    Between such an op and an output are only copies, sums and products. Ops that only one version has end the search.
    """
    edges: dict[str, tuple[Edge, Edge]] = {}
    pairs, visited = list(zip(before.outputs, after.outputs, strict=False)), set()
    visible, hiding = find_ops(Fact.MOVEMENT | Fact.ARITHMETIC), find_ops(Fact.HIDING)
    while pairs and len(edges) < MAX_LAST_OPS:
        pair = pairs.pop()
        first, second = before.nodes.get(pair[0].node), after.nodes.get(pair[1].node)
        if pair in visited or first is None or second is None or first.op != second.op:
            continue
        visited.add(pair)
        if first.name in before.input_names or not first.inputs or not second.inputs:
            continue
        source = first.inputs[0].node
        if first.op not in hiding:
            pairs += zip(first.inputs, second.inputs, strict=False) if first.op in visible else ()
        elif source not in before.input_names and not before[source].is_constant:
            edges[f"the input of {first.op} {first.name!r}"] = first.inputs[0], second.inputs[0]
    return edges


def new_constants(graph: Graph, other: Graph) -> frozenset[str]:
    """Return the names of the float constants that the other graph does not have."""
    nodes = (node for node in graph.nodes.values() if _is_float_constant(node))
    return frozenset(node.name for node in nodes if node.name not in other or other[node.name] != node)


def move_arrays(arrays: Mapping[str, Array], seed: int, step: float = 0.0) -> dict[str, Array]:
    """Return arrays whose floats and pixels have moved by one unit in the last place, in random directions.

    Args:
        arrays: arrays by name.
        seed: seed of the directions.
        step: distance of neighbouring numbers as a fraction of their value, if it is larger than that of the type.
    """
    random = np.random.default_rng(seed)
    return {name: _move(random, values, DType.of(values.dtype), step) for name, values in arrays.items()}


def move_constants(graph: Graph, seed: int, names: frozenset[str] | None = None, step: float = 0.0) -> Graph:
    """Return a graph whose weights have moved by one unit in the last place, in random directions.

    Args:
        graph: graph of either dialect.
        seed: seed of the directions.
        names: names of the constants that move; None for all.
        step: see `move_arrays`.
    """
    random = np.random.default_rng(seed)
    is_smooth: dict[str, bool] = {}
    smooth, movement = find_ops(Fact.SMOOTH), find_ops(Fact.MOVEMENT)
    for name in reversed(graph.order):
        consumers = [use.node for use in graph.node_uses.get(name, ()) if use.slot >= 0]
        is_smooth[name] = bool(consumers) and all(
            node.op in smooth or (node.op in movement and is_smooth[node.name]) for node in consumers
        )
    nodes = dict(graph.nodes)
    for name in sorted(graph.nodes if names is None else names):
        if not is_smooth[name] or not _is_float_constant(graph[name]):
            continue
        value = graph[name].value
        nodes[name] = graph[name].with_attrs(
            value=Tensor.of(_move(random, value.array, value.dtype, step), value.dtype)
        )
    return graph.with_nodes(nodes.values())


def in_double(graph: Graph) -> Graph:
    """Return a graph of the same ops with double precision in place of the other float types."""
    return graph.with_nodes(
        node.with_attrs(**{key: _double(value, key, graph.dialect) for key, value in node.attrs.items()})
        for node in graph.nodes.values()
    )


def rounding_ratio(expected: Array, actual: Array, moved: Sequence[Array], ulp: float) -> float:
    """Return the change of an output as a multiple of its rounding; 0 for equal outputs.

    Args:
        expected: output of the graph before a transform.
        actual: output of the graph after it, of the same shape.
        moved: outputs of the graph before the transform with moved inputs and constants.
        ulp: distance of neighbouring numbers as a fraction of their value.
    """
    arrays = [array.astype(np.complex128 if array.dtype.kind == "c" else np.float64) for array in (expected, actual)]
    changes = [np.abs(array.astype(arrays[0].dtype) - arrays[0]) for array in moved if array.shape == expected.shape]
    change = np.abs(arrays[1] - arrays[0])
    usable = np.isfinite([change, *changes]).all(0)
    change, changes, size = change[usable], [array[usable] for array in changes], np.abs(arrays[0][usable])
    if not change.any():
        return 0.0
    square = np.mean(np.square(changes), 0) if changes else np.zeros_like(change)
    # The median: elements that no run has changed, and those whose few changes were small by chance.
    typical = np.median(square[square > 0]) if square.any() else 0.0
    sigma = np.sqrt(square + typical + (FLOOR * ulp * np.maximum(size, 1e-3 * size.max())) ** 2)
    ratio = np.divide(change, sigma, out=np.full_like(change, inf), where=sigma > 0)
    ratio[change == 0] = 0
    return max(float(np.sqrt(np.mean(ratio**2))), float(ratio.max()) / MAX_FACTOR)


def _is_float_constant(node: Node) -> bool:
    value = node.attrs.get("value")
    return node.is_constant and isinstance(value, Tensor) and value.dtype in ULP


def _move(random: np.random.Generator, values: Array, dtype: DType, step: float = 0.0) -> Array:
    """Return values that have moved, each one and each index of each axis in its own direction.

    The errors of a scale are common to the weights of a channel: their effects add up.
    """
    if dtype is DType.UINT8:
        size = round(255 * step)
        return (values + random.integers(-size, size, values.shape, endpoint=True)).clip(0, 255).astype(np.uint8)
    if dtype not in ULP:
        return values
    half = max(ULP[dtype], step) / 2
    factor = 1 + half * random.choice((-1.0, 1.0), values.shape)
    for axis, size in enumerate(values.shape if values.ndim > 1 else ()):
        shape = [size if index == axis else 1 for index in range(values.ndim)]
        factor *= 1 + half * random.choice((-1.0, 1.0), size).reshape(shape)
    return np.asarray(values * factor).astype(values.dtype)


def _double(value: Attr, key: str, dialect: str) -> Attr:
    """Return an attribute of a node that computes in double precision."""
    if isinstance(value, Tensor) and value.dtype in ULP:
        return Tensor(DType.DOUBLE, value.shape, lambda: value.array.astype(np.float64))
    if isinstance(value, DType) and value in ULP:
        return DType.DOUBLE
    is_type = dialect == onnx.DIALECT and key in ("to", "dtype") and value in _ONNX_FLOATS
    return _ONNX_DOUBLE if is_type else value
