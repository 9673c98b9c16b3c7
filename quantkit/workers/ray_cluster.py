"""Workers in a Ray cluster: one actor for each group of cores or each GPU, on any of its machines.

Ray is imported when a cluster is opened, without usage statistics and without its dashboard. Ray on this machine is
started with its files in a temporary folder and its token in the environment, and stopped at the end; a running cluster
keeps running.
"""

import importlib
import logging
import os
import pickle
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from threading import current_thread
from typing import Any, TextIO, cast

from quantkit.errors import UnavailableError, one_line
from quantkit.formats.temporary import temporary_folder
from quantkit.runtimes.availability import Availability, find_package, require
from quantkit.workers.cluster import Cluster, Worker, WorkerLostError
from quantkit.workers.service import Response, Service, ServiceSpec, WorkerResources, respond

# Ray's smallest object store in bytes: tasks and results are small.
OBJECT_STORE_BYTES = 100_000_000
# Without a token in the environment, Ray writes one to ~/.ray. Ray keeps the first token of a process.
_TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TOKEN = secrets.token_hex(32)


def available() -> Availability:
    """Return the version of Ray, or the command that installs it."""
    return find_package("Ray", "ray", "ray", extra="distributed")


class RayService:
    """Actor with one service.

    Args:
        content: pickled specification and placement.
        path: import path of the driver.
    """

    def __init__(self, content: bytes, path: Sequence[str]) -> None:
        self._content = content
        self._service: Service | None = None
        sys.path += [folder for folder in path if folder not in sys.path]

    def open(self) -> Response:
        """Open the service and return its facts."""

        def open_service() -> object:
            spec, placement = pickle.loads(self._content)
            self._service = spec.open(placement)
            return self._service.facts

        return respond(open_service)

    def run(self, task: object) -> Response:
        """Run a task; the pool sends tasks to opened services only."""
        service = self._service
        assert service is not None
        return respond(lambda: service.run(task))


class RayWorker(Worker):
    """Actor from the side of the pool."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.pending = actor.open.remote()

    def send(self, message: object) -> None:
        self.pending = self._actor.run.remote(message)

    def receive(self) -> Response:
        try:
            response: Response = self._ray.get(self.pending)
        except self._ray.exceptions.RayError as error:
            reason = getattr(error, "error_msg", "") or str(error)
            raise WorkerLostError(f"the actor ended: {one_line(reason)}") from None
        return response

    def close(self) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)


class RayCluster(Cluster):
    """Workers in a Ray cluster.

    Args:
        workers: number of workers.
        threads: threads of each worker, which are its CPUs in Ray.
        device: ``cpu``, or ``gpu`` for one GPU per worker.
        address: address of a running cluster; if empty, Ray is started on this machine.

    Raises:
        UnavailableError: Ray is not installed, or does not start, or there is no cluster at the address.
    """

    name = "ray"

    def __init__(self, workers: int, threads: int, device: str, address: str) -> None:
        require(available())
        self._threads, self._device = threads, device
        self._stack = ExitStack()
        self._ray = _import_ray()
        self._is_own = not address and not self._ray.is_initialized()
        if not self._ray.is_initialized():
            self._start(workers * threads, address)

    def _start(self, num_cpus: int, address: str) -> None:
        common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if self._is_own:
            self._set_token()
            folder = self._stack.enter_context(temporary_folder())
            common |= {
                "num_cpus": num_cpus,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": str(folder),
                # Ray lowers the priority of its workers, which starve next to other programs.
                "_system_config": {"worker_niceness": 0},
            }
        self._stack.enter_context(redirect_stdout(cast("TextIO", _StandardOutput(sys.stdout))))
        self._stack.callback(self._ray.shutdown)
        try:
            with _temporary_environment(self._environment if self._is_own else {}):
                self._ray.init(address=address or "local", **common)
        except Exception as error:  # Ray raises many classes, for example ConnectionError and RuntimeError
            self._stack.close()
            where = f"no Ray cluster responds at {address}" if address else "Ray does not start"
            hint = "ray status shows the cluster" if address else "use --cluster local"
            raise UnavailableError(f"{where}: {one_line(str(error))}", hint=hint) from None

    def _set_token(self) -> None:
        """Set the token of the processes of this cluster, unless the user chose one."""
        if not any(name in os.environ for name in _TOKEN_VARIABLES):
            os.environ[_TOKEN_VARIABLES[0]] = _TOKEN
            self._stack.callback(os.environ.pop, _TOKEN_VARIABLES[0], None)

    @property
    def _environment(self) -> dict[str, str]:
        """Environment variables of the workers."""
        return {"TF_CPP_MIN_LOG_LEVEL": "1", **self.placement(0).environment}

    def placement(self, index: int) -> WorkerResources:
        return WorkerResources(index, self._threads, self._device)

    def start(self, spec: ServiceSpec, index: int) -> RayWorker:
        # Processes of this cluster inherit the environment: Ray starts them before an actor needs them.
        runtime_env = {} if self._is_own else {"runtime_env": {"env_vars": self._environment}}
        actor = self._ray.remote(RayService).options(
            num_cpus=self._threads, num_gpus=1 if self._device == "gpu" else 0, max_restarts=0, **runtime_env
        )
        return RayWorker(self._ray, actor.remote(pickle.dumps((spec, self.placement(index))), sys.path))

    def wait(self, workers: Sequence[Worker], timeout: float) -> list[Worker]:
        sources = {worker.pending: worker for worker in workers if isinstance(worker, RayWorker)}
        ready, _ = self._ray.wait(list(sources), timeout=timeout)
        # Without a node, actors that replace lost ones never start.
        if not ready and not any(node["Alive"] for node in self._ray.nodes()):
            raise UnavailableError("every node of the Ray cluster ended", hint="run the same command to resume")
        return [sources[reference] for reference in ready]

    def close(self) -> None:
        """Stop Ray, if it was started here."""
        self._stack.close()


class _StandardOutput:
    """Standard output without the messages of Ray's threads about workers that ended: the pool reports them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return len(text) if current_thread().name.startswith("ray_") else self._stream.write(text)


@contextmanager
def _temporary_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that start in a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _import_ray() -> Any:
    """Return the imported package, which sends no usage statistics and prints no warnings."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = importlib.import_module("ray")
    logging.getLogger("ray").setLevel(logging.ERROR)  # the import sets another level
    return ray
