"""Worker processes: tasks on the cores and GPUs of one machine, or of a Ray cluster."""

from quantkit.workers.options import CLUSTERS, DEVICES, ClusterOptions, open_cluster
from quantkit.workers.pool import Callbacks, Task, run_tasks
from quantkit.workers.service import Service, ServiceSpec, WorkerResources
from quantkit.workers.usage import WorkerUsage

__all__ = [
    "CLUSTERS",
    "DEVICES",
    "Callbacks",
    "ClusterOptions",
    "Service",
    "ServiceSpec",
    "Task",
    "WorkerResources",
    "WorkerUsage",
    "open_cluster",
    "run_tasks",
]
