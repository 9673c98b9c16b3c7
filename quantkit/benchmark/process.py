"""A worker seen from the process that asks: started, asked, stopped while others are timed, ended.

A worker that is not being asked is halted by a signal, threads and all: an OpenMP pool that spins while
it waits (``KMP_BLOCKTIME``) would otherwise run on the cores that another engine is measured on.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any, Self

from quantkit.errors import UnavailableError

Document = dict[str, Any]

# The affinity must be set before any library starts a thread: threads inherit it where they are made.
BOOTSTRAP = """
import json, os, sys
start = json.loads(sys.argv[1])
sys.path[:] = start["path"]
if start["cpus"]:
    os.sched_setaffinity(0, start["cpus"])
from quantkit.benchmark.worker import main
main()
"""

CAN_HALT = hasattr(signal, "SIGSTOP")


class WorkerGone(UnavailableError):  # noqa: N818  an event of the worker, told as the reason of its row
    """The worker ended, was ended, or did not answer in time."""


class WorkerProcess:
    """A child process that opens one model in one engine; a context manager that ends it.

    Args:
        environment: variables set for it only.
        cpus: hardware threads it is bound to; empty: all.
    """

    def __init__(self, environment: Mapping[str, str] = {}, cpus: tuple[int, ...] = ()) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._buffer = b""
        start = json.dumps({"path": sys.path, "cpus": list(cpus)})
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOTSTRAP, start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            # Nobody is disturbed here by what TensorFlow warns of, and it may explain an end.
            env={"TF_CPP_MIN_LOG_LEVEL": "1", **os.environ, **environment},
            # A Ctrl-C at the terminal is for the parent, which ends its workers itself.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        """What the engine wrote on its standard output and error so far."""
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    def ask(self, request: Document, timeout: float) -> Document:
        """Send a request and wait for the answer; the worker runs in between only.

        Args:
            request: a JSON object with the key ``do``.
            timeout: seconds.

        Raises:
            WorkerGone: no answer will come.
        """
        assert self._process.stdin is not None
        self._signal("SIGCONT")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None
        answer: Document = json.loads(self._line(monotonic() + timeout, timeout))
        self._signal("SIGSTOP")
        return answer

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            # Closing flushes what a dead worker did not read.
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(self, deadline: float, timeout: float) -> bytes:
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([source], [], [], max(0.0, deadline - monotonic()))
            if not ready:
                self._process.kill()
                raise WorkerGone(f"no answer within {timeout:.0f} s, so its process was ended")
            data = os.read(source, 1 << 16)
            if not data:
                raise self._gone()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _gone(self) -> WorkerGone:
        code = self._process.wait()
        last = next((line.strip() for line in reversed(self.said.splitlines()) if line.strip()), "")
        after = f"; its last words: {last[:200]}" if last else ""
        if code < 0:
            name = signal.Signals(-code).name
            hint = "the system ends the largest process when memory runs out" if name == "SIGKILL" else ""
            return WorkerGone(f"its process was ended by {name}{after}", hint)
        return WorkerGone(f"its process ended with exit code {code}{after}")

    def _signal(self, name: str) -> None:
        if CAN_HALT:
            with suppress(ProcessLookupError):
                self._process.send_signal(getattr(signal, name))
