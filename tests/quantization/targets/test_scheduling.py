import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.quantization.targets.tensorflow.scheduling import Schedule, TaskGraph, schedule


def task_graph(costs: dict[str, float], *dependencies: str) -> TaskGraph:
    """Return tasks with dependencies like ``a>b``: b depends on a."""
    successors: dict[str, set[str]] = {name: set() for name in costs}
    for dependency in dependencies:
        source, _, target = dependency.partition(">")
        successors[source].add(target)
    return TaskGraph(costs, {name: frozenset(names) for name, names in successors.items()})


@st.composite
def task_graphs(draw: st.DrawFn) -> TaskGraph:
    """Draw up to ten tasks, each of which depends on some of the tasks before it."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 10)))]
    costs = {name: float(draw(st.integers(1, 9))) for name in names}
    dependencies = [
        f"{source}>{name}" for at, name in enumerate(names) for source in names[:at] if draw(st.integers(0, 2)) == 0
    ]
    return task_graph(costs, *dependencies)


def simulate(tasks: TaskGraph, order: Schedule) -> float:
    """Return the end of the last task if each starts after its dependencies."""
    ends: dict[str, float] = {}
    open_tasks = list(tasks.costs)
    while open_tasks:
        ready = [name for name in open_tasks if all(other in ends for other in _dependencies(tasks, order, name))]
        assert ready, "the dependencies form a cycle"
        for name in ready:
            start = max((ends[other] for other in _dependencies(tasks, order, name)), default=0.0)
            ends[name] = start + tasks.costs[name]
            open_tasks.remove(name)
    return max(ends.values())


def _dependencies(tasks: TaskGraph, order: Schedule, name: str) -> list[str]:
    return [*tasks.predecessors[name], *([order.dependencies[name]] if name in order.dependencies else [])]


def test_the_large_task_starts_first() -> None:
    assert schedule(task_graph({"a": 5, "b": 2, "c": 2, "end": 1}, "a>end", "b>c", "c>end"), 2).end == 6


def test_parts_are_cut_at_tasks_that_order_all_others() -> None:
    tasks = task_graph({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, "a>b", "a>c", "b>d", "c>d", "d>e")
    assert [list(part.costs) for part in tasks.split()] == [["a"], ["b", "c"], ["d"], ["e"]]


def test_a_task_without_predecessors_is_not_cut_off() -> None:
    tasks = task_graph({"a": 1, "b": 1, "c": 1}, "a>b", "b>c")
    late = task_graph({"a": 1, "b": 1, "late": 1, "c": 1}, "a>b", "b>c", "late>c")
    assert [list(part.costs) for part in tasks.split()] == [["a"], ["b"], ["c"]]
    assert [list(part.costs) for part in late.split()] == [["a", "b", "late"], ["c"]]


def test_a_task_without_successors_is_not_cut_off() -> None:
    tasks = task_graph({"a": 1, "aside": 4, "b": 1, "c": 1}, "a>aside", "a>b", "b>c")
    assert [list(part.costs) for part in tasks.split()] == [["a"], ["aside", "b", "c"]]


@pytest.mark.parametrize(("join", "end"), [(0.0, 4.0), (1.0, 5.0)])
def test_halves_run_in_parallel(join: float, end: float) -> None:
    tasks = task_graph({"a": 1, "b": 4, "c": 1}, "a>b", "b>c").halve("b", join)
    assert schedule(tasks, 2).end == end


@given(task_graphs())
def test_a_schedule_has_no_cycle_and_ends_in_time(tasks: TaskGraph) -> None:
    order = schedule(tasks, 2)
    assert simulate(tasks, order) <= order.end
    assert order.end <= sum(tasks.costs.values())


@given(task_graphs())
def test_one_thread_takes_the_sum(tasks: TaskGraph) -> None:
    assert schedule(tasks, 1).end == sum(tasks.costs.values())


@given(task_graphs())
def test_parts_contain_every_task_once(tasks: TaskGraph) -> None:
    assert [name for part in tasks.split() for name in part.costs] == list(tasks.costs)
