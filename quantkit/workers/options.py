"""Cluster as the caller chooses it, and its opening."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from quantkit.arguments import require_choice, require_positive, require_text, without_none
from quantkit.cores import available_cpus
from quantkit.errors import UsageError
from quantkit.workers.cluster import Cluster
from quantkit.workers.local import LocalCluster
from quantkit.workers.ray_cluster import RayCluster

# Kinds of clusters: processes on this machine, and Ray.
CLUSTERS = ("local", "ray")
DEVICES = ("cpu", "gpu")


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
