"""Cluster whose workers run in this process, with scripted losses of workers."""

import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from quantkit.workers.child import describe_exit
from quantkit.workers.cluster import Cluster, Worker, WorkerLostError
from quantkit.workers.service import Response, Service, ServiceSpec, WorkerResources, respond


class InlineWorker(Worker):
    """Worker that runs its task when its response is received."""

    def __init__(self, cluster: "InlineCluster", spec: ServiceSpec, placement: WorkerResources) -> None:
        self.cluster = cluster
        self.service: Service | None = None
        self.request: Callable[[], Any] = lambda: self.open(spec, placement)
        self.message: Any = None

    def open(self, spec: ServiceSpec, placement: WorkerResources) -> Any:
        self.service = spec.open(placement)
        return self.service.facts

    def send(self, message: Any) -> None:
        service = self.service
        assert service is not None
        self.message = message
        self.request = lambda: service.run(message)

    def receive(self) -> Response:
        self.cluster.messages.append(self.message)
        if self.cluster.is_lost(self.message):
            raise WorkerLostError(*describe_exit(-signal.SIGKILL, ""))
        return respond(self.request)

    def close(self) -> None:
        if self.service is not None:
            self.service.close()
        self.cluster.closed.add(self)


class InlineCluster(Cluster):
    """Cluster in this process.

    Args:
        is_lost: function from a message to True if its worker is lost; a start has no message.

    Attributes:
        messages: messages in the order in which they were run.
    """

    name = "inline"

    def __init__(self, is_lost: Callable[[Any], bool] = lambda message: False) -> None:
        self.is_lost = is_lost
        self.messages: list[Any] = []
        self.num_started = 0
        self.closed: set[Worker] = set()

    def placement(self, index: int) -> WorkerResources:
        return WorkerResources(index, 1)

    def start(self, spec: ServiceSpec, index: int) -> InlineWorker:
        self.num_started += 1
        return InlineWorker(self, pickle.loads(pickle.dumps(spec)), self.placement(index))

    def wait(self, workers: Sequence[Worker], timeout: float) -> list[Worker]:
        return list(workers)

    def close(self) -> None:
        """Do nothing."""


def use_inline_workers(
    monkeypatch: pytest.MonkeyPatch,
    is_lost: Callable[[Any], bool] = lambda message: False,
    module: str = "batch_inference.workflow",
) -> InlineCluster:
    """Run the workers of a verb in this process: the start of a process takes most of the time of a run."""
    cluster = InlineCluster(is_lost)

    @contextmanager
    def open_inline(options: object) -> Iterator[InlineCluster]:
        yield cluster

    monkeypatch.setattr(f"quantkit.{module}.open_cluster", open_inline)
    return cluster
