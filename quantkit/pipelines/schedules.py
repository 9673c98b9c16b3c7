"""Schedules of a pipeline: parallel calls and a prefetch, chosen together.

Each of the two changes the gain of the other one: parallel calls may gain only with a prefetch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.pipelines.gain import Gain
from quantkit.pipelines.optimization_report import PipelineStep
from quantkit.pipelines.parallelism import add_prefetch, parallelize
from quantkit.pipelines.verification import Comparison


@dataclass(frozen=True)
class PipelineSchedule:
    """Parallel calls and prefetch of a pipeline.

    Attributes:
        calls: number of parallel calls; None for the calls of the original.
        has_prefetch: True for an additional prefetch at the end.
    """

    calls: int | None = None
    has_prefetch: bool = False


class PipelineSchedules:
    """Pipelines with all schedules.

    Args:
        graph: graph of a dataset.
        calls: values of ``num_parallel_calls``.
        reason: reason against parallel calls; empty if they are tried.

    Attributes:
        graphs: graph of each schedule, those with fewer rewrites first.
    """

    def __init__(self, graph: Graph, calls: Sequence[int], reason: str) -> None:
        unchanged = Outcome(graph, skips=(Skip(reason),))
        self._parallel = {number: unchanged if reason else parallelize(graph, number) for number in calls}
        self._prefetch = add_prefetch(graph)
        changed = {number: outcome.graph for number, outcome in self._parallel.items() if outcome.changes}
        self.graphs: dict[PipelineSchedule, Graph] = {PipelineSchedule(): graph}
        prefetched: dict[PipelineSchedule, Graph] = {PipelineSchedule(None, True): self._prefetch.graph}
        for number, parallel in changed.items():
            self.graphs[PipelineSchedule(number)] = parallel
            prefetched[PipelineSchedule(number, True)] = add_prefetch(parallel).graph
        self.graphs |= prefetched if self._prefetch.changes else {}

    def steps(
        self, winner: PipelineSchedule, rates: Mapping[PipelineSchedule, Sequence[float]], comparison: Comparison | None
    ) -> list[PipelineStep]:
        """Return both rewrites, each with its gain over the winner without it.

        Args:
            winner: schedule of the optimized pipeline.
            rates: rates of each schedule by round.
            comparison: verification of the winner; None if it has no rewrite.
        """
        tried = [replace(winner, calls=number) for number in self._parallel]
        parallel = winner if winner.calls else max(tried, key=lambda schedule: median(rates.get(schedule, [0.0])))
        prefetched = replace(winner, has_prefetch=True)
        steps = []
        for name, outcome, before, after in (
            ("parallelize", self._parallel[parallel.calls or 0], replace(winner, calls=None), parallel),
            ("add_prefetch", self._prefetch, replace(winner, has_prefetch=False), prefetched),
        ):
            gain = Gain.of(rates[before], rates[after]) if outcome.changes else None
            step = PipelineStep(name, outcome.changes, outcome.skips, comparison, gain, applied=after == winner)
            steps.append(step if step.applied or gain is None else step.undone(gain.objection))
        return steps
