"""Worker processes from the parent's side: start, request, halt while others are measured, end.

A worker without a request is halted by a signal, with all its threads: an OpenMP pool that spins while it is idle
(``KMP_BLOCKTIME``) would otherwise occupy the cores on which another runtime is measured.

The import of a runtime takes up to seconds. A `ProcessReserve` does it on a second core while the caller prepares the
models.
"""

import json
import os
import random
import select
import signal
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import ContextVar
from time import monotonic
from typing import Any, Self

from quantkit.benchmark.sampling.candidate import Settings
from quantkit.cores import available_cores
from quantkit.errors import UnavailableError
from quantkit.workers.child import describe_exit, read_log, start_process

Document = dict[str, Any]

CAN_HALT = hasattr(signal, "SIGSTOP")
# Maximum number of further bytes in the environment of a process: its size shifts the stack, and with it the latency.
MAX_PADDING = 4096
# Time limit in seconds of the import of a runtime.
IMPORT_TIMEOUT = 300.0


class WorkerError(UnavailableError):
    """The worker process ended, or did not respond in time."""


class WorkerProcess:
    """Child process that opens one model in one runtime; a context manager that ends it.

    Args:
        environment: environment variables of the process, in addition to those of the parent.
        cpus: hardware threads of the process; empty for all.
    """

    def __init__(self, environment: Mapping[str, str] = {}, cpus: tuple[int, ...] = ()) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._buffer = b""
        self._process = start_process("quantkit.benchmark.sampling.worker", cpus, environment, self._log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if the process has not ended."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """Standard output and error of the runtime so far, without TensorFlow's log lines."""
        return read_log(self._log)

    def ask(self, request: Document, timeout: float) -> Document:
        """Send a request and return the response; the worker runs only in between.

        Args:
            request: JSON object with the key ``do``.
            timeout: seconds.

        Raises:
            WorkerError: the process ended, or did not respond in time.
        """
        assert self._process.stdin is not None
        self._signal("SIGCONT")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._exit_error() from None
        response: Document = json.loads(self._read_line(monotonic() + timeout, timeout))
        self._signal("SIGSTOP")
        return response

    def kill(self) -> None:
        """End the process; a request of another thread raises a `WorkerError`."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, and close its pipes."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            # Closing flushes input that the ended process did not read.
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read_line(self, deadline: float, timeout: float) -> bytes:
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([source], [], [], max(0.0, deadline - monotonic()))
            if not ready:
                self._process.kill()
                hint = "close other programs or use smaller inputs; benchmark also has --time-budget"
                raise WorkerError(f"the process did not respond within {timeout:.0f} s and was ended", hint)
            data = os.read(source, 1 << 16)
            if not data:
                raise self._exit_error()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _exit_error(self) -> WorkerError:
        return WorkerError(*describe_exit(self._process.wait(), self.log))

    def _signal(self, name: str) -> None:
        if CAN_HALT:
            with suppress(ProcessLookupError):
                self._process.send_signal(getattr(signal, name))


class ProcessReserve:
    """Processes that import runtimes before their models are known; a context manager that ends the unused ones.

    Inside of the block, `start_worker` takes them. They start one after the other, so that the caller keeps a core, and
    none starts between the first that is taken and the next `start`: no import runs while a model is measured.
    """

    def __init__(self) -> None:
        self._processes: list[tuple[str, WorkerProcess]] = []
        self._imports: list[Future[None]] = []
        # Linux ends a process with the thread that started it: this one runs to the end of the block.
        self._pool = ThreadPoolExecutor(1)
        self._random = random.Random(0)

    def start(self, runtimes: Iterable[str]) -> None:
        """Start a process for each runtime, unless there is only one core."""
        if available_cores() > 1:
            self._imports += [self._pool.submit(self._import, name) for name in runtimes]

    def take(self, runtime: str) -> WorkerProcess | None:
        """Return a process that has imported a runtime, which the caller closes; None without such a process."""
        wait(self._cancel())
        for entry in [entry for entry in self._processes if entry[0] == runtime]:
            self._processes.remove(entry)
            if entry[1].is_running:
                return entry[1]
            entry[1].close()
        return None

    def _cancel(self) -> list[Future[None]]:
        """Cancel the imports that have not begun, and return the others."""
        self._imports = [each for each in self._imports if not each.cancel()]
        return self._imports

    def _import(self, runtime: str) -> None:
        worker = WorkerProcess(pad_environment({}, self._random.randrange(MAX_PADDING)))
        self._processes.append((runtime, worker))
        with suppress(WorkerError):  # the process has ended, and is not used
            worker.ask({"do": "load", "runtime": runtime}, IMPORT_TIMEOUT)

    def __enter__(self) -> Self:
        self._token = _RESERVE.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _RESERVE.reset(self._token)
        self._cancel()
        for _, worker in self._processes:
            worker.kill()
        self._pool.shutdown()
        for _, worker in self._processes:
            worker.close()


_RESERVE: ContextVar[ProcessReserve | None] = ContextVar("reserve", default=None)


def pad_environment(environment: Mapping[str, str], padding: int) -> dict[str, str]:
    """Return environment variables with a number of further bytes."""
    return {**environment, "QUANTKIT_PADDING": "x" * padding}


def start_worker(settings: Settings, padding: int = 0) -> WorkerProcess:
    """Return a process of the enclosing `ProcessReserve`, or a new one.

    Args:
        settings: settings of the process.
        padding: number of further bytes in the environment of a new process.
    """
    reserve, is_default = _RESERVE.get(), not settings.environment and not settings.cpus
    worker = reserve.take(settings.runtime) if reserve is not None and is_default else None
    return worker or WorkerProcess(pad_environment(settings.environment, padding), settings.cpus)
