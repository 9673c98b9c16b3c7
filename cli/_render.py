"""Results to stdout, progress and remarks to stderr."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def emit(args: Namespace, schema: str, document: dict[str, Any], text: "Callable[[Console], None]") -> None:
    """Print a result.

    Args:
        args: of the command; ``args.json`` chooses the form.
        schema: ``quantkit.<command>/1``.
        document: the result as JSON values.
        text: prints the same for people.
    """
    if args.json:
        is_unicode = "utf" in (sys.stdout.encoding or "").lower()
        json.dump({"schema": schema, **document}, sys.stdout, indent=2, ensure_ascii=not is_unicode)
        print()
    else:
        text(console())


def console(*, stderr: bool = False) -> "Console":
    """A rich console; in a pipe it prints plain text of any width."""
    from rich.console import Console

    class Page(Console):
        def on_broken_pipe(self) -> None:
            """A reader that has gone is no failed check, which rich's own exit code 1 would say."""
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    # The terminal breaks long lines, so that a path or a command copied from it is whole.
    return Page(stderr=stderr, highlight=False, width=width, soft_wrap=not stderr)


def progress(args: Namespace) -> "Progress":
    """A progress bar on stderr; silent where stderr is no terminal, and with ``--quiet``."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        disable=args.quiet or not sys.stderr.isatty(),
    )


@contextmanager
def counting(args: Namespace, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr for things that are counted; silent where stderr is no terminal, and with ``--quiet``."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    is_silent = args.quiet or not sys.stderr.isatty()
    with Progress(*columns, console=console(stderr=True), transient=True, disable=is_silent) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def size_text(num_bytes: int) -> str:
    """A file's size for people."""
    if num_bytes < 1e6:
        return f"{num_bytes} bytes" if num_bytes < 1e4 else f"{num_bytes / 1e3:.0f} kB"
    return f"{num_bytes / 1e6:.1f} MB"


def log(args: Namespace, message: str) -> None:
    """A remark on stderr, unless ``--quiet``."""
    if not args.quiet:
        print(message, file=sys.stderr)
