"""Options of `monitor`."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from quantkit.arguments import require_duration, require_natural
from quantkit.options import option


@dataclass(frozen=True)
class MonitorOptions:
    """The arguments of `monitor`."""

    command: Sequence[str] = option((), doc="program and arguments. Its outputs go to standard error")
    _: KW_ONLY
    pid: int | None = option(
        None,
        require_natural,
        help="process that already runs, instead of COMMAND",
        doc="process that already runs, instead of a command",
    )
    duration: float | str | None = option(
        None,
        require_duration,
        help="time limit of --pid, for example 30s (default: until the process ends)",
    )
    interval: float | str = option(
        0.5,
        require_duration,
        help="time between two samples in seconds (default: 0.5)",
        doc="time between two samples, in seconds or as text such as ``2s``",
    )
    prove: bool = option(
        False,
        help="repeat the job with one repeated batch and with an empty model, and report the gain of each fix",
        doc="run the command again with one repeated batch and with an empty model, which needs `batches` in the job "
        "or ``pipeline``",
    )
    pipeline: str | None = option(
        None,
        metavar="FILE.py:FUNCTION",
        help="function of the job that returns its input pipeline",
        doc="``FILE.py:FUNCTION`` of the job's input pipeline: a function that returns a ``tf.data.Dataset`` or an "
        "iterable of batches",
    )
    on_snapshot: Callable[[Any], None] | None = option(None, doc="receives the present values after each sample")
    on_output: Callable[[bytes], None] | None = option(
        None, doc="receives the outputs of the command, instead of standard error"
    )
