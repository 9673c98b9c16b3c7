"""List scheduling of tasks with dependencies on a few threads.

The tasks are cut into parts at every task that depends on all tasks before it and that all tasks
after it depend on. The order of each part is found by list scheduling, longest path first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


@dataclass(frozen=True)
class TaskGraph:
    """Tasks with their costs and dependencies, in topological order.

    Attributes:
        costs: cost of each task, in one time unit.
        successors: tasks that depend directly on each task.
    """

    costs: Mapping[str, float]
    successors: Mapping[str, frozenset[str]]

    @cached_property
    def predecessors(self) -> Mapping[str, tuple[str, ...]]:
        """Tasks that each task depends on directly."""
        table: dict[str, list[str]] = {name: [] for name in self.costs}
        for name in self.costs:
            for successor in self.successors[name]:
                table[successor].append(name)
        return {name: tuple(names) for name, names in table.items()}

    def split(self) -> Iterator["TaskGraph"]:
        """Yield parts that run one after the other: each starts when the part before has ended."""
        names = list(self.costs)
        position = {name: index for index, name in enumerate(names)}
        last_start = max((index for index, name in enumerate(names) if not self.predecessors[name]), default=0)
        part: list[str] = []
        last_use = 0  # position of the last successor of the tasks seen; the end for a task without successors
        for index, name in enumerate(names):
            if last_use <= index and index >= last_start:
                if part:
                    yield self._subgraph(part)
                yield self._subgraph([name])
                part = []
            else:
                part.append(name)
            successors = self.successors[name]
            last_use = max(last_use, *(position[other] for other in successors)) if successors else len(names)
        if part:
            yield self._subgraph(part)

    def halve(self, name: str, join_cost: float = 0.0, start_cost: float = 0.0) -> "TaskGraph":
        """Return the graph with one task replaced by two halves.

        Args:
            name: task to halve.
            join_cost: cost of joining the results; 0 if the successors take both results.
            start_cost: part of the task's cost that each half has in full.
        """
        half, twin, join = (self.costs[name] + start_cost) / 2, f"{name} twin", f"{name} joined"
        costs: dict[str, float] = {}
        for task, cost in self.costs.items():
            costs |= {task: half, twin: half} if task == name else {task: cost}
            if task == name and join_cost:
                costs[join] = join_cost
        successors = {task: others | {twin} if name in others else others for task, others in self.successors.items()}
        after_half = frozenset({join}) if join_cost else successors[name]
        joined = {join: self.successors[name]} if join_cost else {}
        return TaskGraph(costs, {**successors, name: after_half, twin: after_half, **joined})

    def _subgraph(self, names: list[str]) -> "TaskGraph":
        members = frozenset(names)
        return TaskGraph(
            {name: self.costs[name] for name in names}, {name: self.successors[name] & members for name in names}
        )


class Schedule(NamedTuple):
    """Order of tasks on threads.

    Attributes:
        dependencies: additional dependency of a task: the task before it on its thread.
        end: end of the last task.
    """

    dependencies: Mapping[str, str]
    end: float


def schedule(tasks: TaskGraph, threads: int) -> Schedule:
    """Return a schedule of all tasks."""
    schedules = [schedule_part(part, threads) for part in tasks.split()]
    dependencies = {name: before for part in schedules for name, before in part.dependencies.items()}
    return Schedule(dependencies, sum(part.end for part in schedules))


def _longest_paths(tasks: TaskGraph) -> dict[str, float]:
    """Return the cost of the most expensive path from each task to an end, the task included."""
    paths: dict[str, float] = {}
    for name in reversed(list(tasks.costs)):
        paths[name] = tasks.costs[name] + max((paths[other] for other in tasks.successors[name]), default=0.0)
    return paths


def schedule_part(tasks: TaskGraph, threads: int) -> Schedule:
    """Give each free thread the ready task with the longest path to an end."""
    costs, predecessors, ranks = tasks.costs, tasks.predecessors, _longest_paths(tasks)
    ends: dict[str, float] = {}
    free = [0.0] * threads
    last = [""] * threads
    dependencies: dict[str, str] = {}
    num_open = {name: len(names) for name, names in predecessors.items()}
    ready = {name: 0.0 for name in costs if not num_open[name]}
    while ready:
        thread = min(range(threads), key=free.__getitem__)
        now = max(free[thread], min(ready.values()))
        name = max((task for task in ready if ready[task] <= now), key=ranks.__getitem__)
        # A thread that computed an input of the task runs it without a hand-over.
        thread = next((at for at in range(threads) if last[at] in predecessors[name] and free[at] <= now), thread)
        del ready[name]
        ends[name] = now + costs[name]
        if last[thread] and last[thread] not in predecessors[name]:
            dependencies[name] = last[thread]
        free[thread], last[thread] = ends[name], name
        for successor in sorted(tasks.successors[name]):
            num_open[successor] -= 1
            if not num_open[successor]:
                ready[successor] = max(ends[other] for other in predecessors[successor])
    return Schedule(dependencies, max(free, default=0.0))
