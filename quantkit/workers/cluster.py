"""Contract of clusters: starting workers, and waiting for their responses."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from quantkit.arguments import require_choice, require_positive, require_text, without_none
from quantkit.errors import UnavailableError, UsageError
from quantkit.workers.service import Response, ServiceSpec, WorkerResources

# Kinds of clusters: processes on this machine, and Ray.
CLUSTERS = ("local", "ray")
DEVICES = ("cpu", "gpu")


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


@dataclass(frozen=True)
class ClusterOptions:
    """Cluster as the caller chooses it.

    Attributes:
        workers: number of workers.
        threads: threads of each worker (default: the cores of this machine, divided among the workers).
        device: ``cpu``, or ``gpu`` for one GPU per worker.
        kind: one of `CLUSTERS`.
        address: address of a running Ray cluster; if empty, Ray is started on this machine.

    Raises:
        UsageError: a value is not allowed.
    """

    workers: int = 1
    threads: int | None = None
    device: str = "cpu"
    kind: str = "local"
    address: str = ""

    def __post_init__(self) -> None:
        require_positive(workers=self.workers, **without_none(threads=self.threads))
        require_choice(DEVICES, device=self.device)
        require_choice(CLUSTERS, cluster=self.kind)
        require_text(address=self.address)
        if self.address and self.kind == "local":
            raise UsageError("address applies to a Ray cluster", hint="add --cluster ray, or omit --address")


@contextmanager
def open_cluster(options: ClusterOptions) -> Iterator[Cluster]:
    """Open a cluster, and release it at the end.

    Raises:
        UnavailableError: Ray is not installed, or there is no GPU.
    """
    from quantkit.workers.local import LocalCluster, available_cpus
    from quantkit.workers.ray_cluster import RayCluster

    cluster: Cluster
    if options.kind == "local":
        cluster = LocalCluster(options.workers, options.threads, options.device)
    else:
        threads = options.threads or max(len(available_cpus()) // options.workers, 1)
        cluster = RayCluster(options.workers, threads, options.device, options.address)
    try:
        yield cluster
    finally:
        cluster.close()
