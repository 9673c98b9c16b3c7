"""Independent work on a few threads: what runs beside what, and in which order.

The work is cut where everything before has to be done before anything after can begin. Each part is small, and its
order is found by list scheduling, the longest way to the end first, and then by moving single nodes to the front or to
the back as long as that makes it shorter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

# Parts with more nodes than this are scheduled once and not searched.
SEARCHED = 40


@dataclass(frozen=True)
class Work:
    """What takes time, and what reads it.

    Attributes:
        costs: of each node, in any unit; nothing stands before what it reads.
        after: the nodes that can not begin before it ends.
    """

    costs: Mapping[str, float]
    after: Mapping[str, frozenset[str]]

    @cached_property
    def before(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {name: [] for name in self.costs}
        for name in self.costs:
            for one in self.after[name]:
                found[one].append(name)
        return {name: tuple(names) for name, names in found.items()}

    def parts(self) -> Iterator["Work"]:
        """The work in pieces that follow one another: each begins when the one before has ended."""
        names = list(self.costs)
        place = {name: at for at, name in enumerate(names)}
        last_start = max((at for at, name in enumerate(names) if not self.before[name]), default=0)
        part: list[str] = []
        reach = 0  # where what comes before is read last; an end is never read
        for at, name in enumerate(names):
            if reach <= at and at >= last_start:
                if part:
                    yield self._of(part)
                yield self._of([name])
                part = []
            else:
                part.append(name)
            reach = max(reach, *(place[one] for one in self.after[name])) if self.after[name] else len(names)
        if part:
            yield self._of(part)

    def halved(self, name: str, join: float = 0.0, start: float = 0.0) -> "Work":
        """The work with a node as two that do half each.

        Args:
            name: the node.
            join: cost of putting both results together; 0: whoever reads them reads both.
            start: the part of its cost that does not halve.
        """
        half, twin, both = (self.costs[name] + start) / 2, f"{name} twin", f"{name} joined"
        costs: dict[str, float] = {}
        for one, cost in self.costs.items():
            costs |= {one: half, twin: half} if one == name else {one: cost}
            if one == name and join:
                costs[both] = join
        after = {one: later | {twin} if name in later else later for one, later in self.after.items()}
        readers = frozenset({both}) if join else after[name]
        return Work(costs, {**after, name: readers, twin: readers, **({both: self.after[name]} if join else {})})

    def _of(self, names: list[str]) -> "Work":
        kept = frozenset(names)
        return Work({name: self.costs[name] for name in names}, {name: self.after[name] & kept for name in names})


class Schedule(NamedTuple):
    """An order of work.

    Attributes:
        waits: what a node waits for beside what it reads: the node before it on its thread.
        end: when the last node ends.
    """

    waits: Mapping[str, str]
    end: float


def schedule(work: Work, threads: int) -> Schedule:
    """The order of all work."""
    found = [search(part, threads) for part in work.parts()]
    waits = {name: before for one in found for name, before in one.waits.items()}
    return Schedule(waits, sum(one.end for one in found))


def search(part: Work, threads: int) -> Schedule:
    """The order of one part: no longer than list scheduling finds it."""
    ways = _ways(part)
    best = _listed(part, ways, threads)
    if not 2 < len(part.costs) <= SEARCHED:
        return best
    bound = max(sum(part.costs.values()) / threads, max(ways.values()))
    for name in sorted(ways, key=ways.__getitem__, reverse=True):
        for place in (inf, -inf):
            if best.end <= bound:
                return best
            tried = {**ways, name: place}
            found = _listed(part, tried, threads)
            if found.end < best.end:
                best, ways = found, tried
    return best


def _ways(work: Work) -> dict[str, float]:
    """Cost of the dearest way from each node to an end, itself included."""
    ways: dict[str, float] = {}
    for name in reversed(list(work.costs)):
        ways[name] = work.costs[name] + max((ways[one] for one in work.after[name]), default=0.0)
    return ways


def _listed(work: Work, ranks: Mapping[str, float], threads: int) -> Schedule:
    """Whoever is free takes the highest rank of what is ready."""
    costs, before = work.costs, work.before
    ends: dict[str, float] = {}
    free = [0.0] * threads
    last = [""] * threads
    waits: dict[str, str] = {}
    waiting = {name: len(names) for name, names in before.items()}
    starts = {name: 0.0 for name in costs if not waiting[name]}
    while starts:
        thread = min(range(threads), key=free.__getitem__)
        now = max(free[thread], min(starts.values()))
        name = max((one for one in starts if starts[one] <= now), key=ranks.__getitem__)
        # Where what it reads was computed, the thread goes on without a hand-over.
        thread = next((at for at in range(threads) if last[at] in before[name] and free[at] <= now), thread)
        del starts[name]
        ends[name] = now + costs[name]
        if last[thread] and last[thread] not in before[name]:
            waits[name] = last[thread]
        free[thread], last[thread] = ends[name], name
        for one in sorted(work.after[name]):
            waiting[one] -= 1
            if not waiting[one]:
                starts[one] = max(ends[other] for other in before[one])
    return Schedule(waits, max(free, default=0.0))
