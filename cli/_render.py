"""Results to stdout; progress and messages to stderr; control characters of names escaped."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import IO, TYPE_CHECKING, Any, Protocol

from quantkit.errors import printable
from quantkit.progress import OnProgress, Progress, ignore_progress

if TYPE_CHECKING:
    from rich import progress as bars
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

# Expected duration in seconds from which a pipe gets a line about a stage.
LONG_STAGE = 5.0


class Result(Protocol):
    """Result of a command, with its JSON document; ``str`` returns its text."""

    def to_json(self) -> dict[str, Any]: ...


def emit(args: Namespace, result: Result | dict[str, Any], text: str | None = None) -> None:
    """Print a result.

    Args:
        args: arguments of the command; ``args.json`` selects the form.
        result: the result, or its JSON document with the key ``schema``.
        text: the result as text (default: ``str(result)``).
    """
    if args.json:
        write_document(result if isinstance(result, dict) else result.to_json())
    else:
        write_line(str(result) if text is None else text)


def write_document(document: dict[str, Any]) -> None:
    """Print a JSON document to stdout; control characters are written as escapes, which keep the values exact."""
    is_unicode = "utf" in (sys.stdout.encoding or "").lower()
    text = json.dumps(document, indent=2, ensure_ascii=not is_unicode)
    if not text.replace("\n", "").isprintable():
        text = "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
    sys.stdout.write(f"{text}\n")


def write_line(text: str, stream: IO[str] | None = None) -> None:
    """Print one text, with control characters escaped.

    Args:
        text: one or more lines.
        stream: destination; None if stdout.
    """
    print(printable(text), file=stream)


def console(*, stderr: bool = False) -> "Console":
    """Return a rich console that escapes control characters; in a pipe it prints plain text of any width."""
    from rich.console import Console
    from rich.segment import Segment

    class Terminal(Console):
        def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    # The terminal wraps long lines, so that a copied path or command is complete.
    return Terminal(stderr=stderr, highlight=False, width=width, soft_wrap=not stderr)


@contextmanager
def show_progress(args: Namespace) -> Iterator[OnProgress]:
    """Render progress reports as bars on stderr, one per stage; in a pipe, print the time of each long stage.

    With ``--quiet``, nothing is printed.
    """
    announced = set[str]()

    def announce(progress: Progress) -> None:
        if (progress.seconds or 0) >= LONG_STAGE and progress.stage not in announced:
            announced.add(progress.stage)
            write_line(f"{progress.stage}{_time_text(progress)}", sys.stderr)

    with ExitStack() as stack:

        @cache  # rich is imported with the first report: most calls report no progress
        def stages() -> "tuple[bars.Progress, dict[str, bars.TaskID]]":
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            return stack.enter_context(Progress(*columns, console=console(stderr=True), transient=True)), {}

        def show(progress: Progress) -> None:
            bar, tasks = stages()
            if progress.stage not in tasks:
                tasks[progress.stage] = bar.add_task(progress.stage, total=None)
            description = f"{progress.stage}{_time_text(progress)} {progress.step}".rstrip()
            bar.update(tasks[progress.stage], description=description, completed=progress.done, total=progress.total)

        yield ignore_progress if args.quiet else show if sys.stderr.isatty() else announce


def _time_text(progress: Progress) -> str:
    """Return the expected duration of a stage as a clause; empty if it is not known."""
    return "" if progress.seconds is None else f", about {progress.seconds:.0f} s"


@contextmanager
def show_download(args: Namespace, name: str) -> Iterator[OnProgress]:
    """Render the bytes of a download as a bar on stderr; silent in a pipe and with ``--quiet``."""
    with ExitStack() as stack:

        @cache
        def bar() -> "bars.Progress":
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            opened = stack.enter_context(Progress(*columns, console=console(stderr=True), transient=True))
            opened.add_task(name, total=None)
            return opened

        def show(progress: Progress) -> None:
            bar().update(bar().task_ids[0], completed=progress.done, total=progress.total)

        yield ignore_progress if args.quiet or not sys.stderr.isatty() else show


def log(args: Namespace, message: str) -> None:
    """Print a message to stderr, unless ``--quiet``."""
    if not args.quiet:
        write_line(message, sys.stderr)
