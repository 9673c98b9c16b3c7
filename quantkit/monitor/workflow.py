"""Public function of the monitor.

A job imports this module for its marks, so the modules that measure are imported by the call.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quantkit.arguments import public
from quantkit.errors import UsageError
from quantkit.monitor.markers import batches, step
from quantkit.monitor.options import MonitorOptions
from quantkit.options import takes

if TYPE_CHECKING:
    from quantkit.monitor.report import Monitoring


@public
@takes(MonitorOptions)
def monitor(options: MonitorOptions) -> "Monitoring":
    """Run a command, or attach to a process, and find its bottleneck.

    Raises:
        UsageError: not exactly one of ``command`` and ``pid``, or an option that needs the other one.
        InputError: the command or the process does not exist.
        UnavailableError: psutil is not installed, or the system has no ``/proc``.
    """
    command = _check_command(options.command, options.pid)
    if options.duration is not None and options.pid is None:
        raise UsageError("duration needs pid: a command is monitored until its end", hint="omit duration")
    if options.pid is not None and (options.prove or options.pipeline):
        raise UsageError("prove and pipeline need a command, which runs again", hint="quantkit monitor -- COMMAND")
    from quantkit.monitor.session import monitor_job

    return monitor_job(replace(options, command=command, pipeline=_check_pipeline(command, options.pipeline)))


# The package has the name of the function, so `quantkit.monitor.step` is an attribute of both.
vars(monitor).update(step=step, batches=batches)


def _check_command(command: Sequence[str], pid: int | None) -> list[str]:
    if isinstance(command, str):
        raise UsageError(f"command is {command!r}, and must be a list", hint='for example ["python", "train.py"]')
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
