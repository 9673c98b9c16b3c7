"""The pool of workers: order, retries, replaced workers, errors."""

import os
import signal
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from inline_clusters import InlineCluster
from squares import Squares

from quantkit.errors import QuantkitError, UnavailableError, UsageError
from quantkit.runtimes.availability import Availability
from quantkit.workers import ClusterOptions, ServiceSpec, Task, WorkerUsage, open_cluster, ray_cluster, run_tasks
from quantkit.workers.local import LocalCluster, divide_resources


class Collector:
    """Callbacks that collect results and failures."""

    def __init__(self) -> None:
        self.results: list[int] = []
        self.failures: list[tuple[int, str]] = []
        self.facts: list[Any] = []
        self.num_reports = 0

    def on_open(self, facts: Any) -> None:
        self.facts.append(facts)

    def on_result(self, task: Task, value: int) -> Iterable[Task]:
        self.results.append(value)
        return ()

    def on_failure(self, task: Task, error: QuantkitError) -> Iterable[Task]:
        self.failures.append((task.payload, error.message))
        return [Task(100)] if task.payload == 13 else ()

    def on_report(self, usage: Sequence[WorkerUsage]) -> None:
        self.num_reports += 1


SPEC = ServiceSpec(Squares, ("squares",))


def run_inline(cluster: InlineCluster, numbers: Iterable[int], workers: int = 2) -> tuple[Collector, Any]:
    collector = Collector()
    usage = run_tasks(cluster, SPEC, map(Task, numbers), collector, workers=workers, retries=2)
    return collector, usage


def test_tasks_run_once_in_their_order() -> None:
    cluster = InlineCluster()
    collector, usage = run_inline(cluster, range(5))
    assert collector.results == [0, 1, 4, 9, 16]
    assert [worker.tasks for worker in usage] == [3, 2]
    assert cluster.num_started == len(cluster.closed) == 2
    assert collector.num_reports > 0


def test_no_more_workers_than_tasks() -> None:
    cluster = InlineCluster()
    run_inline(cluster, [3], workers=8)
    assert cluster.num_started == 1


def test_task_is_repeated_when_its_worker_ends() -> None:
    ends = iter([False, False, True, True, False, False, False, False])
    cluster = InlineCluster(lambda message: next(ends, False))
    collector, usage = run_inline(cluster, [1, 2, 3])
    assert sorted(collector.results) == [1, 4, 9]
    assert sum(worker.restarts for worker in usage) == 2
    assert cluster.num_started == len(cluster.closed) == 4


def test_task_that_ends_every_worker_is_reported() -> None:
    cluster = InlineCluster(lambda message: message == 2)
    collector, usage = run_inline(cluster, [1, 2, 3])
    assert sorted(collector.results) == [1, 9]
    assert collector.failures == [(2, "the process was ended by SIGKILL")]
    assert cluster.messages.count(2) == 3
    assert sum(worker.restarts for worker in usage) == 3


def test_known_errors_are_not_repeated_and_others_are() -> None:
    cluster = InlineCluster()
    collector, _ = run_inline(cluster, [-1, 13, 2])
    assert sorted(collector.results) == [4, 10000]
    assert collector.failures == [(-1, "-1 is negative"), (13, "RuntimeError: no luck")]
    assert (cluster.messages.count(-1), cluster.messages.count(13)) == (1, 3)


def test_service_that_does_not_open_stops_the_pool() -> None:
    with pytest.raises(UsageError, match="the service is broken"):
        run_tasks(InlineCluster(), ServiceSpec(Squares, ("broken",)), [Task(1)], Collector(), workers=1, retries=2)
    cluster = InlineCluster(lambda message: message is None)
    with pytest.raises(UnavailableError, match="worker 0 does not start: the process was ended by SIGKILL"):
        run_inline(cluster, [1], workers=1)
    assert cluster.num_started == len(cluster.closed) == 3


class Killer(Collector):
    """Callbacks that kill the first worker while it is open."""

    def on_open(self, facts: Any) -> None:
        if not self.facts:
            os.kill(facts["pid"], signal.SIGKILL)
        super().on_open(facts)


def test_killed_process_is_replaced() -> None:
    killer = Killer()
    with open_cluster(ClusterOptions(workers=1, threads=1)) as cluster:
        assert isinstance(cluster, LocalCluster)
        usage = run_tasks(cluster, SPEC, map(Task, (-4, 5)), killer, workers=1, retries=2)
    assert killer.results == [25]
    assert killer.failures == [(-4, "-4 is negative")]
    assert [facts["threads"] for facts in killer.facts] == [1, 1]
    assert killer.facts[0]["pid"] != killer.facts[1]["pid"] == usage[0].pid
    with pytest.raises(ProcessLookupError):
        os.kill(usage[0].pid, 0)


def test_cores_and_gpus_are_divided() -> None:
    placements = divide_resources(3, None, "cpu", range(7), ())
    assert [placement.cpus for placement in placements] == [(0, 1), (2, 3), (4, 5, 6)]
    assert [placement.threads for placement in placements] == [2, 2, 3]
    shared = divide_resources(3, None, "cpu", (4, 5), ())
    assert [placement.cpus for placement in shared] == [(4,), (4,), (5,)]
    assert [placement.threads for placement in shared] == [1, 1, 1]
    assert divide_resources(2, 4, "cpu", range(4), ())[0].cpus == ()
    gpus = divide_resources(3, 2, "gpu", range(8), ("0", "GPU-7"))
    assert [placement.environment["CUDA_VISIBLE_DEVICES"] for placement in gpus] == ["0", "GPU-7", "0"]
    with pytest.raises(UnavailableError, match="no GPU"):
        divide_resources(1, None, "gpu", range(2), ())


@pytest.mark.parametrize(
    "options",
    [{"workers": 0}, {"threads": 0}, {"device": "tpu"}, {"kind": "mesos"}, {"address": "auto"}, {"address": 7}],
)
def test_wrong_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ClusterOptions(**options)


def test_utilization_does_not_count_the_start() -> None:
    usage = WorkerUsage(0, busy_seconds=6.0, open_seconds=2.0, alive_seconds=10.0)
    assert usage.utilization == 0.75
    assert usage.to_json()["utilization"] == 0.75


def test_ray_cluster_without_nodes_stops_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": False}, {"Alive": True}]
    ray = SimpleNamespace(is_initialized=lambda: True, wait=lambda sources, timeout: ([], sources), nodes=lambda: nodes)
    monkeypatch.setattr(ray_cluster, "available", lambda: Availability.yes("2.60"))
    monkeypatch.setattr(ray_cluster, "_import_ray", lambda: ray)
    cluster = ray_cluster.RayCluster(1, 1, "cpu", "")
    assert not cluster.wait([], 0.0)
    nodes[1]["Alive"] = False
    with pytest.raises(UnavailableError, match="every node of the Ray cluster ended"):
        cluster.wait([], 0.0)


@pytest.mark.parametrize("address", ["", "auto"])
def test_ray_workers_have_the_environment_of_their_placement(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    started: dict[str, Any] = {}
    actor = SimpleNamespace(open=SimpleNamespace(remote=lambda: None))

    def options(**values: Any) -> SimpleNamespace:
        started["options"] = values
        return SimpleNamespace(remote=lambda *arguments: actor)

    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **values: started.update(environment=dict(os.environ)),
        shutdown=lambda: None,
        remote=lambda service: SimpleNamespace(options=options),
    )
    monkeypatch.setattr(ray_cluster, "available", lambda: Availability.yes("2.60"))
    monkeypatch.setattr(ray_cluster, "_import_ray", lambda: ray)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    cluster = ray_cluster.RayCluster(2, 3, "cpu", address)
    cluster.start(SPEC, 0)
    cluster.close()
    if address:  # its processes run already
        assert started["options"]["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "3"
    else:
        assert started["environment"]["OMP_NUM_THREADS"] == "3"
        assert "runtime_env" not in started["options"]
    assert os.environ["OMP_NUM_THREADS"] == "5"
