"""Distribution of mutants over the formats, and processes that run them and may crash."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from .formats import FORMATS
from .worker import MAX_SECONDS

Job = tuple[str, int]
# A process runs this number of mutants, such that a leak does not count as the memory of one mutant.
CHUNK = 400


@dataclass(frozen=True)
class Result:
    """Result of one mutant.

    Attributes:
        name, index: format and index of the mutant.
        code: exit code of the command; None if the process ended.
        violation: description of the violation of the contract; empty if the command keeps it.
        command: command line.
    """

    name: str
    index: int
    code: int | None
    violation: str
    command: str = ""


def distribute(count: int, names: Sequence[str] | None = None) -> list[Job]:
    """Return the first mutants of all formats, in proportion to their weights, sorted by format."""
    format_names = list(names or FORMATS)
    total = sum(FORMATS[name].weight for name in format_names)
    numbers = {name: max(1, round(count * FORMATS[name].weight / total)) for name in format_names}
    numbers[format_names[0]] += count - sum(numbers.values())
    return [(name, index) for name in format_names for index in range(numbers[name])]


def run(jobs: Sequence[Job], seed: int, report: Callable[[Result], None], keep: Path | None = None) -> None:
    """Run mutants in processes; a process that crashes or hangs is a violation of its mutant.

    Args:
        jobs: mutants.
        seed: seed of the mutants.
        report: receives each result.
        keep: folder for the files of the last mutant (default: a temporary one).
    """
    left = list(jobs)
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        while left:
            done = 0
            for result in _run_process(left[:CHUNK], seed, folder):
                report(result)
                done += 1
            left = left[done:]


def _run_process(jobs: Sequence[Job], seed: int, folder: Path) -> Iterator[Result]:
    with _worker(seed, folder) as (process, lines):
        assert process.stdin is not None
        process.stdin.write("".join(f"{name} {index}\n" for name, index in jobs))
        process.stdin.close()
        for name, index in jobs:
            line = _next_line(lines)
            if line is not None and line.startswith("start"):
                line = _next_line(lines)
            if line is None:
                process.kill()
                process.wait()
                yield Result(name, index, None, f"the process hung or ended with {process.returncode}")
                return
            table = json.loads(line)
            yield Result(name, index, table["code"], table["violation"], table["command"])


def _next_line(lines: "Queue[str | None]") -> str | None:
    try:
        return lines.get(timeout=10 * MAX_SECONDS)  # other processes may use the processor
    except Empty:
        return None


@contextmanager
def _worker(seed: int, folder: Path) -> Iterator[tuple["subprocess.Popen[str]", "Queue[str | None]"]]:
    command = [sys.executable, "-m", "tests.fuzz.worker", str(seed), str(folder)]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    lines: Queue[str | None] = Queue()

    def read(stream: Iterable[str]) -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    assert process.stdout is not None
    thread = Thread(target=read, args=(process.stdout,), daemon=True)
    thread.start()
    try:
        yield process, lines
    finally:
        process.kill()
        process.wait()
        thread.join()
        process.stdout.close()
