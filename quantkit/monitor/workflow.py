"""Public function of the monitor.

A job imports this module for its marks, so the modules that measure are imported by the call.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from quantkit.arguments import parse_duration, public, require_flag, require_natural
from quantkit.errors import UsageError
from quantkit.monitor.markers import batches, step

if TYPE_CHECKING:
    from quantkit.monitor.report import Monitoring
    from quantkit.monitor.snapshot import Snapshot


@public
def monitor(
    command: Sequence[str] = (),
    *,
    pid: int | None = None,
    interval: float | str = 0.5,
    duration: float | str | None = None,
    prove: bool = False,
    pipeline: str | None = None,
    on_snapshot: "Callable[[Snapshot], None] | None" = None,
    on_output: Callable[[bytes], None] | None = None,
) -> "Monitoring":
    """Run a command, or attach to a process, and find its bottleneck.

    Args:
        command: program and arguments. Its outputs go to standard error.
        pid: process that already runs, instead of a command.
        interval: time between two samples, in seconds or as text such as ``2s``.
        duration: time after which the monitoring of ``pid`` ends (default: when the process ends).
        prove: run the command again with one repeated batch and with an empty model, which needs
            `batches` in the job or ``pipeline``.
        pipeline: ``FILE.py:FUNCTION`` of the job's input pipeline: a function that returns a
            ``tf.data.Dataset`` or an iterable of batches.
        on_snapshot: receives the present values after each sample.
        on_output: receives the outputs of the command, instead of standard error.

    Raises:
        UsageError: not exactly one of ``command`` and ``pid``, or an option that needs the other one.
        InputError: the command or the process does not exist.
        UnavailableError: psutil is not installed, or the system has no ``/proc``.
    """
    command = _check_command(command, pid)
    interval = parse_duration(interval, "interval")
    limit = None if duration is None else parse_duration(duration, "duration")
    require_flag(prove=prove)
    if limit is not None and pid is None:
        raise UsageError("duration needs pid: a command is monitored until its end", hint="omit duration")
    if pid is not None and (prove or pipeline):
        raise UsageError("prove and pipeline need a command, which runs again", hint="quantkit monitor -- COMMAND")
    from quantkit.monitor.session import monitor_job

    return monitor_job(
        command,
        pid=pid,
        interval=interval,
        limit=limit,
        prove=prove,
        pipeline=_check_pipeline(command, pipeline),
        on_snapshot=on_snapshot,
        on_output=on_output,
    )


# The package has the name of the function, so `quantkit.monitor.step` is an attribute of both.
vars(monitor).update(step=step, batches=batches)


def _check_command(command: Sequence[str], pid: int | None) -> list[str]:
    if isinstance(command, str):
        raise UsageError(f"command is {command!r}, and must be a list", hint='for example ["python", "train.py"]')
    if pid is not None:
        require_natural(pid=pid)
    if bool(command) == (pid is not None):
        message = "command and pid exclude each other" if command else "no command and no pid"
        raise UsageError(message, hint="quantkit monitor -- COMMAND, or quantkit monitor --pid PID")
    return list(map(str, command))


def _check_pipeline(command: Sequence[str], pipeline: str | None) -> str:
    """Return the absolute form of ``FILE.py:FUNCTION``, or an empty string."""
    if pipeline is None:
        return ""
    from quantkit.monitor.prove import launch_with_pipeline, parse_pipeline

    path, function = parse_pipeline(pipeline)
    launch_with_pipeline(command)
    return f"{path.resolve()}:{function}"
