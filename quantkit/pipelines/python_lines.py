"""A pipeline as the lines of Python that a person would write."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.pipelines.stages import AUTOTUNE, constant_of, input_stages, root_of, stages_of

_FUNCTION = re.compile(r"__inference_(?:Dataset_(?:flat_map|interleave|filter|map|scan)_)?(.*?)_\d+")
# Marks of rewritten functions, and the suffixes of their names.
_SUFFIXES = {"__batched": "_batch", "__fixed": "_fixed_part", "__random": "_random_part"}
_MAX_ITEMS, _MAX_LETTERS = 3, 200
# Functions of sources that are several stages.
_SOURCE_FUNCTIONS = {"read_one_file": "TFRecordDataset", "flat_map_fn": "from_generator"}
# Stages that tf.data removes if they have no effect.
_OPTIONAL = frozenset(
    {"OptionsDataset", "PrefetchDataset", "RepeatDataset", "ShardDataset", "SkipDataset", "TakeDataset"}
)


def python_lines(graph: Graph) -> list[str]:
    """Return the lines that build the pipeline; functions have their names in the program of the user."""
    return _lines(graph, root_of(graph))


def function_name(name: str) -> str:
    """Return the name of a function in the program of the user.

    >>> function_name("__inference_Dataset_map_parse_34__batched")
    'parse_batch'
    """
    parts = [f"{match[1]}" for match in _FUNCTION.finditer(name)]
    names = [part.removeprefix("__") or "function" for part in parts] or [name]
    names = ["function" if part == "lambda" else part for part in names]
    is_composed = len(names) > 1
    suffixes = [suffix for mark, suffix in _SUFFIXES.items() if (name.endswith(mark) if is_composed else mark in name)]
    return "".join(["_then_".join(names), *suffixes])


def stage_labels(graph: Graph, names: Sequence[str]) -> list[str]:
    """Return the stages of the program for the stages that tf.data runs.

    Args:
        graph: graph of a dataset.
        names: names of the stages in tf.data, from the last one to the sources; some combine two stages.

    Returns:
        For each name, for example ``map(parse)``; empty for a stage that the program does not have.
    """
    stages = list(stages_of(graph))
    labels = []
    for name in names:
        parts: list[str] = []
        for kind in reversed(_kind(name).split("And")):  # MapAndBatch
            index = next((index for index, stage in enumerate(stages) if _kind(stage.op) == kind), None)
            is_added = kind == "Prefetch" and not {stage.op for stage in stages[:index]} <= _OPTIONAL
            if index is not None and not is_added:
                parts.insert(0, _label(graph, stages[index]))
                del stages[: index + 1]
        labels.append(".".join(filter(None, parts)))
    return labels


def _kind(name: str) -> str:
    """Return the part of the name that a stage has in the graph and in tf.data.

    >>> _kind("ParallelMapDatasetV2"), _kind("ForeverRepeat")
    ('Map', 'Repeat')
    """
    return re.sub(r"Dataset|V\d+$|^(Parallel|Finite|Forever|Empty|Memory|File)|Impl$", "", name)


def _label(graph: Graph, stage: Node) -> str:
    consumer = next((node for node in stages_of(graph) if stage in input_stages(graph, node)), None)
    if consumer is not None and _function(consumer) in _SOURCE_FUNCTIONS:
        return ""
    if label := _SOURCE_FUNCTIONS.get(_function(stage)):
        return label
    if stage.op in _WRITERS:
        return re.sub(r", .*\)", ")", _WRITERS[stage.op](graph, stage))
    source = re.search(r"Dataset\.(\w+)", _source(graph, stage))
    return source[1] if source else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", _kind(stage.op)).lower()


def _lines(graph: Graph, stage: Node) -> list[str]:
    write = _WRITERS.get(stage.op)
    inputs = input_stages(graph, stage)
    if stage.op == "OptionsDataset" and inputs:
        return _lines(graph, inputs[0])
    below = [line for node in inputs for line in _lines(graph, node)]
    if write is None or len(inputs) > 1:
        return [*below, f"dataset = ...  # {stage.op} with {len(inputs)} inputs" if inputs else _source(graph, stage)]
    if not inputs:
        return [_source(graph, stage)]
    if _function(stage) == "read_one_file":  # TFRecordDataset of several files
        return [line.replace("tf.data.Dataset.from_tensor_slices", "tf.data.TFRecordDataset") for line in below]
    return [*below, f"dataset = dataset.{write(graph, stage)}"]


def _source(graph: Graph, stage: Node) -> str:
    if stage.op == "RangeDataset":
        values = ", ".join(_number(graph, edge) for edge in stage.inputs)
        return f"dataset = tf.data.Dataset.range({values})"
    if stage.op == "TensorSliceDataset":
        values = ", ".join(_values(graph, edge) for edge in stage.inputs)
        return f"dataset = tf.data.Dataset.from_tensor_slices({values if len(stage.inputs) == 1 else f'({values})'})"
    return f"dataset = ...  # {stage.op}"


def _values(graph: Graph, edge: Edge) -> str:
    while graph[edge.node].op == "Identity":
        edge = graph[edge.node].inputs[0]
    values = constant_of(graph, edge)
    if values is None or np.ndim(values) != 1:
        return "..."
    items = np.asarray(values)[:_MAX_ITEMS].tolist()
    items = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in items]
    if any(len(str(value)) > _MAX_LETTERS for value in items):
        return "..."
    return f"[{', '.join([*map(repr, items), *['...'] * (len(values) > _MAX_ITEMS)])}]"


def _number(graph: Graph, edge: Edge) -> str:
    value = constant_of(graph, edge)
    if value is None:
        return "..."
    return "tf.data.AUTOTUNE" if int(value) == AUTOTUNE else str(int(value))


def _function(node: Node) -> str:
    name = node.attrs.get("f", node.attrs.get("predicate"))
    return function_name(name.name) if isinstance(name, FunctionName) else "..."


def _count(method: str) -> Callable[[Graph, Node], str]:
    def write(graph: Graph, node: Node) -> str:
        text = _number(graph, node.inputs[1])
        return f"{method}({'' if method == 'repeat' and text == 'tf.data.AUTOTUNE' else text})"

    return write


def _batch(graph: Graph, node: Node) -> str:
    index = 3 if node.op == "ParallelBatchDataset" else 2
    remainder = constant_of(graph, node.inputs[index])
    return f"batch({_number(graph, node.inputs[1])}{', drop_remainder=True' if remainder else ''})"


def _shuffle(graph: Graph, node: Node) -> str:
    seed = constant_of(graph, node.inputs[2])
    return f"shuffle({_number(graph, node.inputs[1])}{f', seed={int(seed)}' if seed else ''})"


def _map(graph: Graph, node: Node) -> str:
    parallel = f", num_parallel_calls={_number(graph, node.inputs[-1])}" if node.op.startswith("Parallel") else ""
    return f"map({_function(node)}{parallel})"


def _interleave(graph: Graph, node: Node) -> str:
    is_parallel = node.op.startswith("Parallel")
    cycle, block = node.inputs[-5:-3] if is_parallel else node.inputs[-2:]
    parallel = f", num_parallel_calls={_number(graph, node.inputs[-1])}" if is_parallel else ""
    sizes = f"cycle_length={_number(graph, cycle)}, block_length={_number(graph, block)}"
    return f"interleave({_function(node)}, {sizes}{parallel})"


_WRITERS: dict[str, Callable[[Graph, Node], str]] = {
    "BatchDatasetV2": _batch,
    "ParallelBatchDataset": _batch,
    "CacheDataset": lambda graph, node: "cache()",
    "CacheDatasetV2": lambda graph, node: "cache()",
    "FilterDataset": lambda graph, node: f"filter({_function(node)})",
    "FlatMapDataset": lambda graph, node: f"flat_map({_function(node)})",
    "InterleaveDataset": _interleave,
    "MapDataset": _map,
    "ParallelInterleaveDatasetV4": _interleave,
    "ParallelMapDatasetV2": _map,
    "PrefetchDataset": _count("prefetch"),
    "RepeatDataset": _count("repeat"),
    "ShardDataset": lambda graph, node: f"shard({_number(graph, node.inputs[1])}, {_number(graph, node.inputs[2])})",
    "ShuffleDataset": _shuffle,
    "ShuffleDatasetV2": _shuffle,
    "ShuffleDatasetV3": _shuffle,
    "SkipDataset": _count("skip"),
    "TakeDataset": _count("take"),
}
