"""Pool of workers: each task is run until it succeeds, or has failed too often.

A task that failed goes back to the front of the queue. A worker whose process ended is replaced. The callbacks may
add tasks, so that a caller can split a task that keeps failing.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from quantkit.errors import QuantkitError, UnavailableError
from quantkit.workers.cluster import Cluster, Worker, WorkerLostError
from quantkit.workers.service import Response, ServiceSpec, ignore_part
from quantkit.workers.usage import WorkerUsage

# Seconds between two reports without a response.
REPORT_SECONDS = 1.0


@dataclass(eq=False)
class Task:
    """Task of a pool.

    Attributes:
        payload: argument of `Service.run`.
        failures: number of failed attempts.
    """

    payload: Any
    failures: int = 0


class Callbacks:
    """Reactions of the caller of `run_tasks`."""

    def on_open(self, facts: Any) -> None:
        """Check the facts of an opened service."""

    def on_result(self, task: Task, value: Any) -> Iterable[Task]:
        """Take the result of a task; return further tasks."""
        return ()

    def on_failure(self, task: Task, error: QuantkitError) -> Iterable[Task]:
        """Return tasks in place of a task that failed too often, or raise the error."""
        raise error

    def on_report(self, usage: Sequence[WorkerUsage]) -> None:
        """Report the progress."""


def run_tasks(
    cluster: Cluster,
    spec: ServiceSpec,
    tasks: Iterable[Task],
    callbacks: Callbacks,
    *,
    workers: int,
    retries: int,
    on_part: Callable[[Any], object] = ignore_part,
) -> tuple[WorkerUsage, ...]:
    """Run tasks until all are finished.

    Args:
        cluster: cluster that runs the workers.
        spec: service of the workers.
        tasks: first tasks.
        callbacks: reactions of the caller.
        workers: number of workers; never more than tasks.
        retries: number of attempts after the first one, for each task and for the start of a worker.
        on_part: receives the values of `WorkerResources.report`.

    Raises:
        UnavailableError: workers end while they open the service.
        QuantkitError: the service cannot be opened, or a callback raised an error.
    """
    pool = _Pool(cluster, spec, tasks, callbacks, retries, on_part)
    try:
        pool.start(workers)
        while pool.has_work:
            pool.step()
    finally:
        pool.close()
    return pool.usage


class _Slot:
    """Worker with its present task.

    Attributes:
        worker: process; replaced after its end.
        usage: work of all its processes.
        task: present task; None while the worker is free.
        is_open: True after the service was opened.
        start: start of the first process.
        since: start of the present task, or of the process.
        failed_starts: number of processes in sequence that ended while they opened the service.
    """

    def __init__(self, worker: Worker, index: int) -> None:
        self.worker = worker
        self.usage = WorkerUsage(index)
        self.task: Task | None = None
        self.is_open = False
        self.start = self.since = perf_counter()
        self.failed_starts = 0


class _Pool:
    """State of `run_tasks`."""

    def __init__(
        self,
        cluster: Cluster,
        spec: ServiceSpec,
        tasks: Iterable[Task],
        callbacks: Callbacks,
        retries: int,
        on_part: Callable[[Any], object],
    ) -> None:
        self.cluster = cluster
        self.spec = spec
        self.queue = deque(tasks)
        self.callbacks = callbacks
        self.retries = retries
        self.on_part = on_part
        self.slots: list[_Slot] = []

    @property
    def has_work(self) -> bool:
        return bool(self.queue) or any(slot.task for slot in self.slots)

    @property
    def usage(self) -> tuple[WorkerUsage, ...]:
        return tuple(slot.usage for slot in self.slots)

    def start(self, workers: int) -> None:
        for index in range(min(workers, len(self.queue))):
            self.slots.append(_Slot(self.cluster.start(self.spec, index), index))

    def step(self) -> None:
        """Take the responses of the workers, and give tasks to the free ones before the report."""
        active = {slot.worker: slot for slot in self.slots if slot.task or not slot.is_open}
        for worker in self.cluster.wait(list(active), REPORT_SECONDS):
            self._receive(active[worker])
        for slot in self.slots:
            if slot.is_open and slot.task is None and self.queue:
                slot.task, slot.since = self.queue.popleft(), perf_counter()
                slot.worker.send(slot.task.payload)
        for slot in self.slots:
            slot.usage.alive_seconds = perf_counter() - slot.start
        self.callbacks.on_report(self.usage)

    def close(self) -> None:
        for slot in self.slots:
            slot.worker.close()

    def _receive(self, slot: _Slot) -> None:
        try:
            response = slot.worker.receive()
        except WorkerLostError as error:
            self._replace(slot, error)
            return
        if response.is_part:
            self.on_part(response.value)
            return
        seconds = perf_counter() - slot.since
        slot.usage.host, slot.usage.pid = response.process
        if slot.task is None:
            self._take_facts(slot, response, seconds)
            return
        task, slot.task = slot.task, None
        slot.usage.busy_seconds += seconds
        if response.error is not None:
            self._fail(task, response.error, is_final=response.is_final)
            return
        slot.usage.tasks += 1
        self.queue.extendleft(reversed(list(self.callbacks.on_result(task, response.value))))

    def _take_facts(self, slot: _Slot, response: Response, seconds: float) -> None:
        if response.error is not None:
            raise response.error
        self.callbacks.on_open(response.value)
        slot.is_open = True
        slot.usage.open_seconds += seconds
        slot.failed_starts = 0

    def _replace(self, slot: _Slot, error: WorkerLostError) -> None:
        """Start another process in place of one that ended."""
        seconds = perf_counter() - slot.since
        slot.worker.close()
        slot.usage.restarts += 1
        if slot.task is None:
            slot.usage.open_seconds += seconds
            slot.failed_starts += 1
            if slot.failed_starts > self.retries:
                raise UnavailableError(f"worker {slot.usage.index} does not start: {error.message}", error.hint)
        else:
            slot.usage.busy_seconds += seconds
            task, slot.task = slot.task, None
            self._fail(task, error, is_final=False)
        slot.worker, slot.is_open = self.cluster.start(self.spec, slot.usage.index), False
        slot.since = perf_counter()

    def _fail(self, task: Task, error: QuantkitError, *, is_final: bool) -> None:
        task.failures += 1
        if is_final or task.failures > self.retries:
            self.queue.extendleft(reversed(list(self.callbacks.on_failure(task, error))))
        else:
            self.queue.appendleft(task)
