"""Service of a worker in a module of its own, which child processes can import."""

import os

from quantkit.errors import InputError, UsageError
from quantkit.workers import WorkerResources


class Squares:
    """Service with the square of each number; negative numbers fail in every worker, 13 fails in one."""

    def __init__(self, name: str, placement: WorkerResources) -> None:
        if name == "broken":
            raise UsageError("the service is broken")
        self.facts = {"name": name, "threads": placement.threads, "pid": os.getpid()}

    def run(self, task: int) -> int:
        if task < 0:
            raise InputError(f"{task} is negative")
        if task == 13:
            raise RuntimeError("no luck")
        return task * task

    def close(self) -> None:
        """Do nothing."""
