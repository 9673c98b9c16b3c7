"""Caching in memory: at the last stage whose elements are the same in every epoch and fit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.formats.sizes import format_size
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.pipelines.execution import Execution
from quantkit.pipelines.stages import ONE_TO_ONE, constant_of, element_shapes, element_types, stages_of, unique_name
from quantkit.pipelines.state import randomness

# Fraction of the free memory that a cache may take.
_MEMORY_FRACTION = 0.9
_CACHES = frozenset({"CacheDataset", "CacheDatasetV2"})
# Number of elements whose mean size estimates the size of all elements.
_SAMPLES = 20


@dataclass(frozen=True)
class CacheSite:
    """Stage after which a cache may be inserted.

    Attributes:
        stage: name of the stage.
        num_elements: number of elements of an epoch.
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
        count = count_elements(graph, stage, execution, seconds)
        if count is None:
            return Skip(f"the elements of {stage.name} cannot be counted within {seconds:.0f} s", stage.name)
        sizes = [_size_of(element) for element in execution.take(graph, stage, _SAMPLES)]
        num_bytes = int(np.mean(sizes) * count) if sizes else 0
        if sizes and num_bytes <= free_bytes * _MEMORY_FRACTION:
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


def count_elements(graph: Graph, stage: Node, execution: Execution, seconds: float) -> int | None:
    """Return the number of elements of an epoch; None if they cannot be counted in time.

    Stages with one element for each element of their input are not run.
    """
    count = execution.cardinality(graph, stage)
    if count is not None:
        return count
    while stage.op in ONE_TO_ONE:
        stage = graph[stage.inputs[0].node]
    return execution.count(graph, stage, seconds)


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
    name = unique_name(graph, "quantkit/cache")
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
    return Outcome(new, (f"{site.num_elements} elements of {stage.name} cached in memory ({size})",))


def insert_after(graph: Graph, name: str, nodes: tuple[Node, ...]) -> Graph:
    """Insert nodes after a stage; its consumers use the last one instead."""
    old, new = Edge(name), Edge(nodes[-1].name)
    redirected = [
        node.with_(inputs=tuple(new if edge == old else edge for edge in node.inputs)) for node in graph.nodes.values()
    ]
    outputs = [new if edge == old else edge for edge in graph.outputs]
    return graph.with_nodes([*redirected, *nodes]).with_endpoints([], outputs)


def free_memory() -> int:
    """Return the free memory of the machine in bytes, 0 if it is not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
