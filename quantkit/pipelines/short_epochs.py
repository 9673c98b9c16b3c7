"""Short epochs: pipelines with the first elements of their source, whose caches are filled in a short time."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from quantkit.ir.graph import Edge, Graph
from quantkit.pipelines.execution import Execution
from quantkit.pipelines.stages import take_first

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

    Args:
        graph: graph of a dataset.
        end: stage that computes the elements.
        stage: stage whose first elements are taken; `end` or a stage before it.
        execution: execution of the pipeline.
        seconds: duration of the epoch.
    """
    part = graph.with_endpoints([], [Edge(end)])
    count, before = _FIRST_COUNT, -1
    while True:
        started, number = perf_counter(), 0
        for _ in execution.elements(take_first(part, stage, count)):
            number += 1
            if perf_counter() - started > seconds:
                break
        passed = perf_counter() - started
        if number == before or passed > seconds:  # a complete epoch, or a sufficient one
            return ShortEpoch(stage, count, seconds)
        before = number
        count *= max(_MIN_FACTOR, min(_MAX_FACTOR, int(seconds / passed)))
