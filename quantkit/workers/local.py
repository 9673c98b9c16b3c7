"""Workers on this machine: one process for each group of cores or each GPU."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from quantkit.cores import available_cores, available_cpus
from quantkit.errors import UnavailableError
from quantkit.workers.child import describe_exit, read_log, start_process
from quantkit.workers.cluster import Cluster, Worker, WorkerLostError
from quantkit.workers.service import Response, Service, ServiceSpec, WorkerResources


class LocalWorker(Worker):
    """Child process with one service."""

    def __init__(self, spec: ServiceSpec, placement: WorkerResources) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._process = start_process("quantkit.workers.child", placement.cpus, placement.environment, self._log)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = Connection(os.dup(self._process.stdin.fileno()), readable=False)
        self.responses = Connection(os.dup(self._process.stdout.fileno()), writable=False)
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self.send((spec, placement))
        except BaseException:  # an argument cannot be pickled
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        with suppress(BrokenPipeError):  # `receive` reports the end of the process
            self._requests.send(message)

    def receive(self) -> Response:
        try:
            response: Response = self.responses.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerLostError(*describe_exit(self._process.wait(), read_log(self._log))) from None
        return response

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._requests, self.responses, self._log):
            stream.close()


def call_in_process(function: Callable[..., Any], arguments: tuple[Any, ...], variables: Mapping[str, str]) -> Any:
    """Return the result of a function in a process of its own.

    Args:
        function: function of a module.
        arguments: its arguments, which are pickled.
        variables: environment variables of the process, in addition to those of this one.

    Raises:
        UnavailableError: the process ended.
        QuantkitError: error of the function.
    """
    resources = WorkerResources(0, available_cores(), variables=variables)
    worker = LocalWorker(ServiceSpec(_CallService, (function, arguments)), resources)
    try:
        response = worker.receive()
    finally:
        worker.close()
    if response.error is not None:
        raise response.error
    return response.value


class _CallService(Service):
    """Service whose facts are the result of a function, and which has no tasks."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], resources: WorkerResources) -> None:
        self.facts = function(*arguments)


class LocalCluster(Cluster):
    """Workers on this machine.

    Args:
        workers: number of workers.
        threads: threads of each worker (default: the cores, divided among the workers).
        device: ``cpu``, or ``gpu`` for one GPU per worker; more workers than GPUs share them.
    """

    name = "local"

    def __init__(self, workers: int, threads: int | None, device: str) -> None:
        self._placements = divide_resources(workers, threads, device, available_cpus(), available_gpus())

    def placement(self, index: int) -> WorkerResources:
        return self._placements[index]

    def start(self, spec: ServiceSpec, index: int) -> LocalWorker:
        return LocalWorker(spec, self.placement(index))

    def wait(self, workers: Sequence[Worker], timeout: float) -> list[Worker]:
        sources = {worker.responses: worker for worker in workers if isinstance(worker, LocalWorker)}
        return [sources[ready] for ready in wait(list(sources), timeout) if isinstance(ready, Connection)]

    def close(self) -> None:
        """Do nothing; each worker ends its own process."""


def divide_resources(
    workers: int, threads: int | None, device: str, cpus: Sequence[int], gpus: Sequence[str]
) -> tuple[WorkerResources, ...]:
    """Divide cores and GPUs among workers: each worker gets neighboring cores.

    Args:
        workers: number of workers.
        threads: threads of each worker (default: the number of its cores).
        device: ``cpu`` or ``gpu``.
        cpus: hardware threads of this process; empty if the system has no affinity.
        gpus: identifiers of the GPUs.

    Raises:
        UnavailableError: there is no GPU.

    >>> [placement.cpus for placement in divide_resources(2, None, "cpu", range(6), ())]
    [(0, 1, 2), (3, 4, 5)]
    """
    if device != "cpu" and not gpus:
        raise UnavailableError("this machine has no GPU that quantkit finds", hint="omit --device gpu")
    placements = []
    for index in range(workers):
        # With more workers than cores, several workers share a core.
        first = index * len(cpus) // workers
        group = tuple(cpus[first : max((index + 1) * len(cpus) // workers, first + 1)])
        gpu = gpus[index % len(gpus)] if device != "cpu" else None
        # Threads that do not fit the group of cores may use all cores.
        own = group if threads is None or threads <= len(group) else ()
        placements.append(WorkerResources(index, threads or max(len(group), 1), device, own, gpu))
    return tuple(placements)


def available_gpus() -> tuple[str, ...]:
    """Return the identifiers of the NVIDIA GPUs of this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip())
    return tuple(str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*")))))
