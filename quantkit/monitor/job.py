"""Command that the monitor runs: its streams, its signals, its exit code, and its end.

The command has the standard input of the monitor. Both of its outputs go to standard error, so that standard output
has the report only. A signal to the monitor is forwarded to the command, and the command ends with the monitor.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread, current_thread, main_thread
from time import monotonic
from types import FrameType

from quantkit.cores import end_with_parent
from quantkit.errors import InputError, UnavailableError, UsageError
from quantkit.monitor import markers
from quantkit.monitor.agent import PIPELINE_VARIABLE
from quantkit.monitor.processes import ProcessReader

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
# Time of a job to end after it got a signal, before it is killed.
GRACE_SECONDS = 10.0
# Files of this package that Python jobs import, by the name of the module there.
_HOOKS = {"agent.py": "sitecustomize", "markers.py": "quantkit_markers", "pipeline.py": "quantkit_pipeline"}

OnOutput = Callable[[bytes], None]


class Job:
    """Running command; a context manager that ends it.

    Args:
        command: program and arguments.
        environment: environment variables in addition to those of this process.
        on_output: receives the outputs of the command; None if they go to standard error.

    Attributes:
        signal: last signal that the monitor got, or None.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] = {}, on_output: OnOutput | None = None
    ) -> None:
        self.signal: int | None = None
        self._deadline: float | None = None
        self._relay: Thread | None = None
        sys.stderr.flush()
        try:
            self._process = subprocess.Popen(
                list(command),
                stdout=subprocess.PIPE if on_output else 2,
                stderr=subprocess.STDOUT if on_output else None,
                env={**os.environ, **environment},
                preexec_fn=partial(end_with_parent, "SIGTERM"),
            )
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise InputError(
                f"cannot run {command[0]!r}: {reason}", hint="check the command after --, and its path"
            ) from None
        if on_output:
            self._relay = Thread(target=self._forward_output, args=(on_output,), daemon=True)
            self._relay.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code as a shell reports it: 128 plus the signal for a killed process; None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def _forward_output(self, on_output: OnOutput) -> None:
        stream = self._process.stdout
        assert stream is not None
        with suppress(ValueError):  # closed while another process of the job still holds the pipe
            while data := os.read(stream.fileno(), 1 << 16):
                on_output(data)

    @contextmanager
    def forward_signals(self) -> Iterator[None]:
        """Forward the signals that this process gets to the processes of the job."""

        def forward(number: int, frame: FrameType | None) -> None:
            self.signal = number
            if number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", None)):
                self._deadline = self._deadline or monotonic() + GRACE_SECONDS
            if number != signal.SIGINT or not _is_foreground():  # the terminal sends Ctrl-C to the job as well
                self._send(number)

        is_main = current_thread() is main_thread()
        numbers = [getattr(signal, name) for name in FORWARDED if hasattr(signal, name)] if is_main else []
        # nohup ignores SIGHUP, and so does the job.
        handlers = {number: signal.getsignal(number) for number in numbers}
        for number in [number for number, handler in handlers.items() if handler is not signal.SIG_IGN]:
            signal.signal(number, forward)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @property
    def is_overdue(self) -> bool:
        """True if the job still runs some time after a signal that ends it."""
        return self._deadline is not None and monotonic() > self._deadline

    def close(self) -> None:
        """End the processes of the job that still run, and read the last of its output."""
        if self._process.poll() is None:
            self._send(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS / 2)
        if self._process.poll() is None:
            self._send(signal.SIGKILL)
            self._process.wait()
        if self._relay and self._process.stdout:
            self._relay.join(1.0)
            self._process.stdout.close()

    def _send(self, number: int) -> None:
        """Send a signal to the command and its descendants."""
        for pid in ProcessReader(self.pid).pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


class Watch:
    """End of a process, of this process's children or any other one.

    Args:
        pid: process.

    Raises:
        InputError: no process has this number.
        UnavailableError: this system has no ``/proc``.
    """

    def __init__(self, pid: int) -> None:
        if not Path("/proc/self/task").exists():
            raise UnavailableError("monitor needs the /proc of Linux", hint="run it on Linux, or in a Linux container")
        try:
            self._descriptor = os.pidfd_open(pid)
        except (ProcessLookupError, OverflowError):
            raise InputError(f"no process has the number {pid}", hint="ps lists the running processes") from None
        except OSError as error:
            raise UsageError(
                f"cannot monitor process {pid}: {error.strerror}", hint="pass the number of a process, not of a thread"
            ) from None

    def has_ended(self, seconds: float) -> bool:
        """Return True as soon as the process has ended, and False after a number of seconds."""
        ready, _, _ = select.select([self._descriptor], [], [], max(seconds, 0.0))
        return bool(ready)

    def close(self) -> None:
        os.close(self._descriptor)


def job_environment(folder: Path, pipeline: str = "", mode: str = "") -> dict[str, str]:
    """Return the environment variables with which a job marks its steps and samples its calls.

    Args:
        folder: folder of the marks and the samples.
        pipeline: ``FILE.py:FUNCTION`` of the input pipeline.
        mode: intervention of `markers.batches`.
    """
    hooks = folder / "python"
    hooks.mkdir(parents=True)
    for name, module in _HOOKS.items():
        (hooks / f"{module}.py").write_bytes(Path(__file__).with_name(name).read_bytes())
    paths = [str(hooks), *filter(None, [os.environ.get("PYTHONPATH")])]
    values = {markers.MODE_VARIABLE: mode, PIPELINE_VARIABLE: pipeline}
    return {
        markers.FOLDER_VARIABLE: str(folder),
        "PYTHONPATH": os.pathsep.join(paths),
        **{name: value for name, value in values.items() if value},
    }


def _is_foreground() -> bool:
    """Return True if Ctrl-C at the terminal reaches this process and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
