"""Contract between a pool and the code in its worker processes.

A worker opens one service, for example a model in a runtime, and runs tasks one after the other. Specification, tasks
and results are pickled.
"""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

from quantkit.errors import QuantkitError, UnavailableError, one_line


def ignore_part(value: Any) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class WorkerResources:
    """Resources of one worker.

    Attributes:
        index: number of the worker, from 0.
        threads: threads of the runtime in this worker.
        device: device of the runtime: ``cpu`` or ``gpu``.
        cpus: hardware threads that the process may use; empty for all.
        gpu: value of ``CUDA_VISIBLE_DEVICES``; None to inherit it.
        variables: further environment variables, which runtimes read when they are loaded.
        report: function that sends a value to the pool while a task runs; without effect in a Ray cluster.
    """

    index: int
    threads: int
    device: str = "cpu"
    cpus: tuple[int, ...] = ()
    gpu: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[Any], object] = ignore_part

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the process."""
        gpu = {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": self.gpu}
        return {"OMP_NUM_THREADS": str(self.threads), **gpu, **self.variables}


class Service:
    """Work of one worker.

    Attributes:
        facts: description of the opened service, for the pool.
    """

    facts: Any = None

    def run(self, task: Any) -> Any:
        """Return the result of a task (default: none).

        Raises:
            QuantkitError: the task fails in every worker; it is not repeated.
            Exception: the task failed, and may succeed in another worker.
        """

    def close(self) -> None:
        """Release the resources of the service (default: none)."""


@dataclass(frozen=True)
class ServiceSpec:
    """Constructor of a service with its arguments; the placement of the worker is the last argument."""

    factory: Callable[..., Service]
    arguments: tuple[Any, ...] = ()

    def open(self, placement: WorkerResources) -> Service:
        return self.factory(*self.arguments, placement)


class Response(NamedTuple):
    """Response of a worker.

    Attributes:
        value: result of the task, or facts of the opened service; None after an error.
        error: error of the task or of the service.
        is_final: True if the error would occur in every worker.
        seconds: duration in the worker.
        process: host and process id of the worker.
        is_part: True for a value of `WorkerResources.report`; the response to the task follows.
    """

    value: Any
    error: QuantkitError | None
    is_final: bool
    seconds: float
    process: tuple[str, int]
    is_part: bool = False


def respond(function: Callable[[], Any]) -> Response:
    """Return the result or the error of a function."""
    start = perf_counter()
    value, error, is_final = None, None, False
    try:
        value = function()
    except QuantkitError as failure:
        error, is_final = failure, True
    except Exception as failure:  # a runtime may raise any class
        error = UnavailableError(f"{type(failure).__name__}: {one_line(str(failure))}")
    return Response(value, error, is_final, perf_counter() - start, (socket.gethostname(), os.getpid()))
