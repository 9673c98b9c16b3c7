"""Contract of clusters: starting workers, and waiting for their responses."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from quantkit.errors import UnavailableError
from quantkit.workers.service import Response, ServiceSpec, WorkerResources


class WorkerLostError(UnavailableError):
    """The process of a worker ended."""


class Worker(ABC):
    """Process that runs one task at a time; its first response has the facts of its service."""

    @abstractmethod
    def send(self, message: object) -> None:
        """Send a task."""

    @abstractmethod
    def receive(self) -> Response:
        """Return the response of a worker that `Cluster.wait` lists.

        Raises:
            WorkerLostError: the process ended.
        """

    @abstractmethod
    def close(self) -> None:
        """End the process."""


class Cluster(ABC):
    """Machine or machines that run workers.

    Attributes:
        name: name of the kind of cluster.
    """

    name: str

    @abstractmethod
    def placement(self, index: int) -> WorkerResources:
        """Return the resources of a worker."""

    @abstractmethod
    def start(self, spec: ServiceSpec, index: int) -> Worker:
        """Start a worker, which opens its service."""

    @abstractmethod
    def wait(self, workers: Sequence[Worker], timeout: float) -> list[Worker]:
        """Return the workers that responded or ended, after at most ``timeout`` seconds.

        Raises:
            UnavailableError: the cluster ended.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the cluster after its workers are closed."""
