"""Verification of a rewritten pipeline: its elements are those of the original, one by one and in the same order.

Both pipelines run without their randomness: shuffles get one seed, and random ops without a seed are replaced by a
constant. A rewrite that keeps the elements for fixed random values keeps them for all random values.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.ir.functions import Function
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.pipelines.execution import Execution, describe
from quantkit.pipelines.stages import (
    BATCHES,
    SHUFFLES,
    constant_of,
    input_stages,
    stages_of,
    take_first,
)

_SEED = 7
# Value of random tensors in the verification.
_RANDOM_VALUE = 0.37
_FLOAT_RANDOM_OPS = frozenset({"RandomUniform", "RandomStandardNormal", "TruncatedNormal"})
_SOURCES = frozenset(
    {
        *("TensorSliceDataset", "TensorDataset", "RangeDataset", "TFRecordDataset", "TFRecordDatasetV2"),
        *("TextLineDataset", "FixedLengthRecordDataset", "FixedLengthRecordDatasetV2", "GeneratorDataset"),
        *("FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDatasetV4", "ConcatenateDataset"),
    }
)
# Number of elements of a complete short epoch, unless the pipeline has a batch.
_SHORT_EPOCH = 50


@dataclass(frozen=True)
class Comparison:
    """Comparison of the elements of two pipelines.

    Attributes:
        num_elements: number of compared elements.
        difference: description of the first difference; empty if all elements are equal.
        is_complete: True if the whole epoch was compared.
    """

    num_elements: int
    difference: str = ""
    is_complete: bool = False


def compare_elements(original: Graph, rewritten: Graph, execution: Execution, seconds: float) -> Comparison:
    """Compare the elements of two pipelines: as many as the time allows, and a complete short epoch.

    Args:
        original: graph of the original dataset.
        rewritten: graph of the rewritten dataset.
        execution: execution of both.
        seconds: maximum time of the first part.
    """
    left, right = fix_randomness(original), fix_randomness(rewritten)
    count = 0
    for first, second in ((shorten(left), shorten(right)), (left, right)):
        if first is None or second is None:
            continue
        result = _compare(first, second, execution, seconds)
        count += result.num_elements
        if result.difference or first is left:
            return replace(result, num_elements=count)
    return Comparison(count)


def _compare(first: Graph, second: Graph, execution: Execution, seconds: float) -> Comparison:
    end = perf_counter() + seconds
    count = 0
    left, right = _outcomes(execution, first), _outcomes(execution, second)
    while True:
        expected, actual = next(left), next(right)
        if isinstance(expected, str) or isinstance(actual, str):
            same_end = isinstance(expected, str) and isinstance(actual, str) and bool(expected) == bool(actual)
            difference = "" if same_end else f"after element {count}: {_end_text(expected)}, not {_end_text(actual)}"
            return Comparison(count, difference, is_complete=not difference)
        difference = describe_difference(expected, actual)
        if difference:
            return Comparison(count, f"element {count}: {difference}")
        count += 1
        if perf_counter() > end:
            return Comparison(count)


def _outcomes(execution: Execution, graph: Graph) -> Iterator[tuple[Any, ...] | str]:
    """Yield the elements, and then the message of the error that ends the pipeline, or an empty string."""
    try:
        yield from execution.elements(graph)
    except QuantkitError as error:
        yield error.message
    except Exception as error:  # TensorFlow raises errors of many types
        yield describe(error)
    yield ""


def _end_text(outcome: tuple[Any, ...] | str) -> str:
    if isinstance(outcome, tuple):
        return "another element"
    return f"the error {outcome!r}" if outcome else "the end"


def describe_difference(expected: tuple[Any, ...], actual: tuple[Any, ...]) -> str:
    """Return the first difference between two elements; empty if their bytes are equal."""
    for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
        first, second = np.asarray(left), np.asarray(right)
        if first.dtype != second.dtype or first.shape != second.shape:
            return f"component {index} is {second.dtype}{list(second.shape)}, not {first.dtype}{list(first.shape)}"
        is_object = first.dtype == object
        if not (np.array_equal(first, second) if is_object else first.tobytes() == second.tobytes()):
            return f"component {index} has other values"
    return ""


def fix_randomness(graph: Graph) -> Graph:
    """Return the pipeline with fixed seeds and random values, and with the order of sequential calls."""
    seed = constant("quantkit/seed", _SEED, DType.INT64)
    # The generator of the original shuffle would go on from its last seed.
    generator = Node("quantkit/seed_generator", "DummySeedGenerator")
    nodes = []
    for node in graph.nodes.values():
        if node.op in SHUFFLES and _is_unseeded(graph, node):
            rest = [Edge(generator.name), *node.inputs[5:]] if node.op == "ShuffleDatasetV3" else node.inputs[4:]
            inputs = (*node.inputs[:2], Edge(seed.name), Edge(seed.name), *rest)
            node = node.with_(inputs=inputs).with_attrs(reshuffle_each_iteration=False)
        if "deterministic" in node.attrs:
            node = node.with_attrs(deterministic=b"true")
        nodes.append(node)
    functions = [
        fixed for name in graph.library if (fixed := _fix_function(graph.library[name])) is not graph.library[name]
    ]
    return graph.with_nodes([*nodes, seed, generator]).with_(library=graph.library.with_(*functions))


def _is_unseeded(graph: Graph, node: Node) -> bool:
    values = [constant_of(graph, edge) for edge in node.inputs[2:4]]
    return all(value is not None and int(value) == 0 for value in values)


def _fix_function(function: Function[Graph]) -> Function[Graph]:
    body = function.graph
    replaced: dict[str, list[Node]] = {}
    for node in body.nodes.values():
        if not node.attrs.get("seed") and not node.attrs.get("seed2"):
            fixed = _fixed_value(node)
            if fixed:
                replaced[node.name] = fixed
    if not replaced:
        return function
    nodes = [new for node in body.nodes.values() for new in replaced.get(node.name, [node])]
    controls = {key: name for key, name in function.controls.items() if name not in replaced}
    return replace(function, graph=body.with_nodes(nodes), controls=controls)


def _fixed_value(node: Node) -> list[Node]:
    """Return the nodes that compute a fixed value in place of a random op; empty for other ops."""
    if node.op == "RandomShuffle":
        return [Node(node.name, "Identity", node.inputs, node.controls, {"T": node.attrs["T"]})]
    if node.op == "RandomUniformInt":
        dtype, kind = node.attrs["Tout"], node.attrs["T"]
        return [Node(node.name, "Fill", node.inputs[:2], node.controls, {"T": dtype, "index_type": kind})]
    if node.op not in _FLOAT_RANDOM_OPS:
        return []
    dtype, kind = node.attrs["dtype"], node.attrs["T"]
    assert isinstance(dtype, DType)
    value = constant(f"{node.name}/fixed", np.asarray(_RANDOM_VALUE, dtype.numpy), dtype)
    fill = Node(node.name, "Fill", (node.inputs[0], Edge(value.name)), node.controls, {"T": dtype, "index_type": kind})
    return [value, fill]


def shorten(graph: Graph) -> Graph | None:
    """Return the pipeline with the first elements of its source only; None if it has several sources.

    A short epoch has its end, with a partial batch, in reach of the verification.
    """
    source = source_of(graph)
    if source is None:
        return None
    batch = next((node for node in stages_of(graph) if node.op in BATCHES), None)
    size = constant_of(graph, batch.inputs[1]) if batch else None
    count = _SHORT_EPOCH if size is None else int(size) * 2 + max(int(size) // 2, 1)
    return take_first(graph, source.name, count)


def source_of(graph: Graph) -> Node | None:
    """Return the last stage of the source: files, records, or interleaved files."""
    for node in stages_of(graph):
        if node.op in _SOURCES:
            return node
        if len(input_stages(graph, node)) > 1:
            return None
    return None
