"""Utilization of workers."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class WorkerUsage:
    """Work and times of one worker, with the processes that replaced it.

    Attributes:
        index: number of the worker, from 0.
        host: machine of its last process.
        pid: its last process.
        tasks: number of finished tasks.
        busy_seconds: time with a task, from the side of the pool.
        open_seconds: time to start processes and to open their services.
        alive_seconds: time since the first start.
        restarts: number of processes that ended with a task or while they opened the service.
    """

    index: int
    host: str = ""
    pid: int = 0
    tasks: int = 0
    busy_seconds: float = 0.0
    open_seconds: float = 0.0
    alive_seconds: float = 0.0
    restarts: int = 0

    @property
    def utilization(self) -> float:
        """Fraction of the time with a task, after the first service was opened."""
        return self.busy_seconds / max(self.alive_seconds - self.open_seconds, self.busy_seconds, 1e-9)

    def to_json(self) -> dict[str, Any]:
        """Return the usage as plain values."""
        return {**asdict(self), "utilization": self.utilization}
