"""``quantkit monitor``: bottleneck of a running job."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.formats import check_outputs
from quantkit.monitor import monitor
from quantkit.monitor.options import MonitorOptions

from ._app import INTERRUPTED
from ._arguments import add_options, options_of
from ._render import console, emit, log

if TYPE_CHECKING:
    from quantkit.monitor.snapshot import Snapshot

EXAMPLES = (
    "quantkit monitor -- python train.py --epochs 1",
    "quantkit monitor --html report.html --json -- python serve.py",
    "quantkit monitor --pid 4711 --duration 30s",
    "quantkit monitor --prove --pipeline train.py:make_dataset -- python train.py",
)
DETAILS = """The verdict is input-bound, compute-bound, memory-bound or waiting, or two of them that only --prove
separates. The report goes to standard output, and both outputs of COMMAND to standard error. The exit code is that of
COMMAND, or 128 plus its signal."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="program and arguments, after --")
    add_options(parser, MonitorOptions, until="prove")
    parser.add_argument("--html", type=Path, metavar="FILE.html", help="write a page with time series to this file")
    add_options(parser, MonitorOptions, since="prove")


def run(args: Namespace) -> int:
    """Monitor the job, print and save the report, and return the exit code of the command."""
    if args.html is not None:
        pipeline = (args.pipeline or "").rpartition(":")[0]
        inputs = {"--pipeline": pipeline} | {f"the command's {path}": path for path in args.command}
        check_outputs({"--html": args.html}, {name: path for name, path in inputs.items() if path})
    with _live_view(args) as (on_snapshot, on_output):
        result = monitor(
            **options_of(monitor, args), on_snapshot=on_snapshot, on_output=on_output if args.command else None
        )
    emit(args, result)  # first: a page that cannot be written does not lose the report of a finished job
    if args.html is not None:
        result.save_html(args.html)
        log(args, f"report: {args.html}")
    if result.exit_code is not None:
        return result.exit_code
    return INTERRUPTED if result.is_interrupted else 0


@contextmanager
def _live_view(
    args: Namespace,
) -> Iterator[tuple["Callable[[Snapshot], None] | None", Callable[[bytes], None] | None]]:
    """Show the present values on stderr, with the outputs of the command above; only on a terminal."""
    if args.quiet or not sys.stderr.isatty():
        yield None, None
        return
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    def show(snapshot: "Snapshot") -> None:
        table = Table.grid(padding=(0, 2))
        table.add_row(f"{snapshot.seconds:.0f} s", Text(snapshot.verdict, style="bold"))
        for name, values in snapshot.rows:
            table.add_row(name, Text(values))
        live.update(table)

    with Live(console=console(stderr=True), transient=True, auto_refresh=True) as live:
        yield show, lambda data: live.console.print(Text.from_ansi(data.decode(errors="replace").rstrip("\n")))
