"""Worker processes from the parent's side: start, request, halt while others are measured, end.

A worker without a request is halted by a signal, with all its threads: an OpenMP pool that spins while it is idle
(``KMP_BLOCKTIME``) would otherwise occupy the cores on which another runtime is measured.
"""

import json
import os
import select
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Self

from quantkit.errors import UnavailableError
from quantkit.workers.child import describe_exit, read_log, start_process

Document = dict[str, Any]

CAN_HALT = hasattr(signal, "SIGSTOP")


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

    def close(self) -> None:
        """End the process."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
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
