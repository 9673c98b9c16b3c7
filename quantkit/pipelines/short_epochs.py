"""Short epochs: pipelines with the first elements of their source, whose caches are filled in a short time."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from quantkit.ir.graph import Edge, Graph
from quantkit.pipelines.execution import Execution
from quantkit.pipelines.stages import root_of, take_first

# Number of elements of the first trial, and limits of the factor between two trials.
_FIRST_COUNT, _MIN_FACTOR, _MAX_FACTOR = 32, 2, 8


@dataclass(frozen=True)
class ShortEpoch:
    """Short epoch.

    Attributes:
        stage: stage of which only the first elements are taken.
        count: number of these elements.
        seconds: approximate duration of the epoch.
    """

    stage: str
    count: int
    seconds: float

    def open(self, graph: Graph, execution: Execution) -> Any:
        """Return the repeated dataset of a pipeline with short epochs and filled caches.

        Raises:
            InputError: the pipeline fails.
        """
        return execution.open(take_first(graph, self.stage, self.count), fill_seconds=3 * self.seconds)


def find_short_epoch(graph: Graph, end: str, stage: str, execution: Execution, seconds: float) -> ShortEpoch:
    """Find the number of elements of a stage with which the elements of another one take about a time.

    The pipeline has at least one element: a batch may drop a smaller number of elements.

    Args:
        graph: graph of a dataset.
        end: stage that computes the elements.
        stage: stage whose first elements are taken; `end` or a stage before it.
        execution: execution of the pipeline.
        seconds: duration of the epoch.
    """
    part = graph.with_endpoints([], [Edge(end)])
    count = _FIRST_COUNT
    while True:
        started = perf_counter()
        for _ in execution.elements(take_first(part, stage, count)):
            if perf_counter() - started > seconds:
                break
        passed = perf_counter() - started
        whole = take_first(graph, stage, count)
        is_sufficient = passed > seconds and bool(execution.take(whole, root_of(whole), 1))
        if is_sufficient or _is_complete(graph, stage, count, execution, seconds):
            return ShortEpoch(stage, count, seconds)
        count *= max(_MIN_FACTOR, min(_MAX_FACTOR, int(seconds / passed)))


def _is_complete(graph: Graph, stage: str, count: int, execution: Execution, seconds: float) -> bool:
    """Return True if a stage has fewer elements than a number; False if they cannot be counted within the time."""
    first = take_first(graph.with_endpoints([], [Edge(stage)]), stage, count)
    number = execution.count(first, root_of(first), seconds)
    return number is not None and number < count
