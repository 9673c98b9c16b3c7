"""Independent work on two threads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.quantization.targets.tensorflow.scheduling import Schedule, Work, schedule, search


def work(costs: dict[str, float], *reads: str) -> Work:
    """Work of costs and of words like ``a>b``: b reads a."""
    after: dict[str, set[str]] = {name: set() for name in costs}
    for word in reads:
        source, _, target = word.partition(">")
        after[source].add(target)
    return Work(costs, {name: frozenset(names) for name, names in after.items()})


@st.composite
def random_work(draw: st.DrawFn) -> Work:
    """Up to ten nodes, each of which reads some of those before it."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 10)))]
    costs = {name: float(draw(st.integers(1, 9))) for name in names}
    reads = [
        f"{source}>{name}" for at, name in enumerate(names) for source in names[:at] if draw(st.integers(0, 2)) == 0
    ]
    return work(costs, *reads)


def carried_out(one: Work, found: Schedule) -> float:
    """When the last node ends if each waits for what it reads, and for whom it is told to wait."""
    ends: dict[str, float] = {}
    left = list(one.costs)
    while left:
        ready = [name for name in left if all(other in ends for other in _awaited(one, found, name))]
        assert ready, "nodes wait for one another"
        for name in ready:
            ends[name] = one.costs[name] + max((ends[other] for other in _awaited(one, found, name)), default=0.0)
            left.remove(name)
    return max(ends.values())


def _awaited(one: Work, found: Schedule, name: str) -> list[str]:
    return [*one.before[name], *([found.waits[name]] if name in found.waits else [])]


def test_the_one_large_node_begins_first_beside_a_chain_that_is_shorter() -> None:
    # Longest way first would run both halves of the large node before the chain.
    one = work({"low": 3, "high": 3, "a": 1, "b": 2, "end": 1}, "low>end", "high>end", "a>b", "b>end")
    assert search(one, 2).end == 6
    assert schedule(work({"a": 5, "b": 2, "c": 2, "end": 1}, "a>end", "b>c", "c>end"), 2).end == 6


def test_parts_are_cut_where_everything_waits() -> None:
    one = work({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, "a>b", "a>c", "b>d", "c>d", "d>e")
    assert [list(part.costs) for part in one.parts()] == [["a"], ["b", "c"], ["d"], ["e"]]


def test_what_reads_nothing_is_not_cut_off() -> None:
    one = work({"a": 1, "b": 1, "c": 1}, "a>b", "b>c")
    late = work({"a": 1, "b": 1, "late": 1, "c": 1}, "a>b", "b>c", "late>c")
    assert [list(part.costs) for part in one.parts()] == [["a"], ["b"], ["c"]]
    assert [list(part.costs) for part in late.parts()] == [["a", "b", "late"], ["c"]]


def test_an_end_that_nobody_reads_is_not_cut_off() -> None:
    one = work({"a": 1, "aside": 4, "b": 1, "c": 1}, "a>aside", "a>b", "b>c")
    assert [list(part.costs) for part in one.parts()] == [["a"], ["aside", "b", "c"]]


@pytest.mark.parametrize(("join", "end"), [(0.0, 4.0), (1.0, 5.0)])
def test_halves_run_side_by_side(join: float, end: float) -> None:
    one = work({"a": 1, "b": 4, "c": 1}, "a>b", "b>c").halved("b", join)
    assert schedule(one, 2).end == end


@given(random_work())
def test_an_order_can_be_carried_out_and_takes_as_long_as_it_says(one: Work) -> None:
    found = schedule(one, 2)
    assert carried_out(one, found) <= found.end
    assert found.end <= sum(one.costs.values())


@given(random_work())
def test_one_thread_takes_the_sum(one: Work) -> None:
    assert schedule(one, 1).end == sum(one.costs.values())


@given(random_work())
def test_parts_hold_every_node_once(one: Work) -> None:
    assert [name for part in one.parts() for name in part.costs] == list(one.costs)
