"""Caching in memory: at the last stage whose elements are the same in every epoch and fit.

A shuffle before a map can be applied after it, so that the results of the map are the same in every epoch:

    shuffle(k) -> map(f)   ==   map(f) -> shuffle(k)
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from quantkit.formats.sizes import format_size
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.names import unused_name
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.memory import available_memory
from quantkit.pipelines.execution import Execution
from quantkit.pipelines.stages import (
    BATCHES,
    MAPS,
    ONE_TO_ONE,
    SHUFFLES,
    constant_of,
    element_shapes,
    element_types,
    function_of,
    insert_after,
    stages_of,
)
from quantkit.pipelines.state import is_pure, randomness

# Fraction of the free memory that a cache may take.
_MEMORY_FRACTION = 0.9
_CACHES = frozenset({"CacheDataset", "CacheDatasetV2"})
# Stages with some of the elements of their input.
_SELECTIONS = frozenset({"FilterDataset", "TakeDataset", "SkipDataset", "ShardDataset"})
# Number of elements whose mean size estimates the size of all elements.
_SAMPLES = 20


@dataclass(frozen=True)
class CacheSite:
    """Stage after which a cache may be inserted.

    Attributes:
        stage: name of the stage.
        num_elements: maximum number of elements of an epoch.
        num_bytes: estimated size of these elements.
    """

    stage: str
    num_elements: int
    num_bytes: int


def find_cache_site(graph: Graph, execution: Execution, seconds: float, free_bytes: int) -> CacheSite | Skip:
    """Find the stage nearest to the end that may be cached.

    Args:
        graph: graph of a dataset.
        execution: execution of its stages.
        seconds: maximum time to count elements.
        free_bytes: free memory.
    """
    reason: Skip | None = None
    cache = next((stage for stage in stages_of(graph) if stage.op in _CACHES), None)
    if cache is not None:
        return Skip("the pipeline has a cache", cache.name)
    for stage in stages_of(graph):
        if stage.op in ("PrefetchDataset", "OptionsDataset"):
            continue
        unsuitable = randomness(graph, stage) or _unsuitable(graph, stage)
        if unsuitable:
            reason = reason or Skip(unsuitable, stage.name)
            continue
        sizes = [_size_of(element) for element in execution.take(graph, stage, _SAMPLES)]
        if not sizes:
            return Skip("the pipeline has no elements", stage.name)
        mean, limit = float(np.mean(sizes)), free_bytes * _MEMORY_FRACTION
        count = bound_elements(graph, stage, execution, seconds, max_count=int(limit / max(mean, 1)))
        if count is None:
            return Skip(f"the elements of {stage.name} cannot be counted within {seconds:.2g} s", stage.name)
        num_bytes = int(mean * count)
        if num_bytes <= limit:
            return CacheSite(stage.name, count, num_bytes)
        reason = Skip(f"the elements take {format_size(num_bytes)}, more than the free memory", stage.name)
    return reason or Skip("the pipeline has no stages")


def _unsuitable(graph: Graph, stage: Node) -> str:
    """Return the reason why a stage is not worth a cache or cannot have one; empty if the stage may be cached."""
    if DType.VARIANT in element_types(stage):
        return "elements are sparse, ragged or datasets"
    for node in stages_of(graph, stage):
        if node.op == "RepeatDataset" and (value := constant_of(graph, node.inputs[1])) is not None and int(value) < 0:
            return f"{node.name} repeats without end"
    has_work = any("f" in node.attrs or "predicate" in node.attrs for node in stages_of(graph, stage))
    return "" if has_work else f"no function computes the elements of {stage.name}"


def bound_elements(graph: Graph, stage: Node, execution: Execution, seconds: float, max_count: int) -> int | None:
    """Return an upper bound on the number of elements of an epoch; None if it cannot be found in time.

    Elements are counted only if the bound that follows from the stages is above ``max_count``: a filter then may keep
    few of them.
    """
    exact = execution.cardinality(graph, stage)
    if exact is not None:
        return exact
    bound = None
    if stage.op in BATCHES and (size := constant_of(graph, stage.inputs[1])) is not None:
        count = bound_elements(graph, graph[stage.inputs[0].node], execution, seconds, max_count * int(size))
        return None if count is None else -(-count // int(size))
    if stage.op in ONE_TO_ONE | _SELECTIONS:
        bound = bound_elements(graph, graph[stage.inputs[0].node], execution, seconds, max_count)
    if bound is not None and (bound <= max_count or stage.op in ONE_TO_ONE):
        return bound
    counted = execution.count(graph, stage, seconds)
    return bound if counted is None else counted


def delay_shuffles(graph: Graph) -> Graph:
    """Apply maps before shuffles, with the same elements in the same order.

    Before:  shuffle(k) -> map(f)
    After:   map(f) -> shuffle(k)

    The buffer of the shuffle then holds results of the map. Skips maps that are random or have state.
    """
    while (site := _find_shuffled_map(graph)) is not None:
        shuffle, stage = site
        draft = Draft(graph)
        draft.replace(stage.name, stage.with_(inputs=(shuffle.inputs[0], *stage.inputs[1:])))
        name = unused_name(graph, f"{stage.name}/{shuffle.name}")
        moved = shuffle.with_(name=name, inputs=(Edge(stage.name), *shuffle.inputs[1:])).with_attrs(
            output_types=element_types(stage), output_shapes=element_shapes(stage)
        )
        graph = insert_after(draft.graph(), stage.name, (moved,)).without_unused_nodes()
    return graph


def _find_shuffled_map(graph: Graph) -> tuple[Node, Node] | None:
    """Return a shuffle and the map after it whose function has no state."""
    for stage in stages_of(graph):
        function = function_of(graph, stage)
        if stage.op not in MAPS or function is None or not is_pure(graph, function):
            continue
        shuffle = graph[stage.inputs[0].node]
        if shuffle.op in SHUFFLES and shuffle.op != "ShuffleAndRepeatDatasetV2":
            return shuffle, stage
    return None


def _size_of(element: tuple[Any, ...]) -> int:
    """Return the size of an element in bytes, the content of strings included."""
    size = 0
    for array in element:
        values = np.asarray(array)
        size += sum(map(len, values.reshape(-1).tolist())) if values.dtype == object else values.nbytes
    return size


def insert_cache(graph: Graph, site: CacheSite) -> Outcome:
    """Cache the elements of a stage in memory, from the second epoch on.

    Before:  map(f) -> shuffle(k)
    After:   map(f) -> cache() -> shuffle(k)
    """
    stage = graph[site.stage]
    name = unused_name(graph, "quantkit/cache")
    memory = Node(f"{name}/memory", "DummyMemoryCache")
    filename = constant(f"{name}/filename", b"", DType.STRING)
    cache = Node(
        name,
        "CacheDatasetV2",
        (Edge(stage.name), Edge(filename.name), Edge(memory.name)),
        attrs={"output_types": element_types(stage), "output_shapes": element_shapes(stage), "metadata": b""},
    )
    new = insert_after(graph, stage.name, (memory, filename, cache))
    size = format_size(site.num_bytes)
    return Outcome(new, (f"at most {site.num_elements} elements of {stage.name} cached in memory ({size})",))


def free_memory() -> int:
    """Return the memory that this process can allocate in bytes, 0 if it is not known."""
    available = available_memory()
    return max(int(available), 0) if isfinite(available) else 0
