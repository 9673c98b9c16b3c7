"""Process that runs many commands: the start of Python and of the runtimes takes most of the time of a command."""

import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


class CommandProcess:
    """Commands of quantkit and Python programs, one after another in a process of their own.

    Args:
        process: process that runs this file.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    @classmethod
    @contextmanager
    def start(cls, environment: Mapping[str, str] | None = None) -> Iterator["CommandProcess"]:
        """Start the process with the variables of an environment (default: those of this process)."""
        with subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        ) as process:
            yield cls(process)
            assert process.stdin is not None
            process.stdin.close()

    def run(
        self, arguments: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in a folder.

        Args:
            arguments: arguments of ``quantkit``, or ``-c`` and the text of a Python program.
            folder: working folder.
            variables: environment variables to set; they stay for the next commands.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([list(arguments), str(folder), dict(variables or {})]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()} in quantkit {' '.join(arguments)}"
        code, stdout, stderr = json.loads(line)
        return subprocess.CompletedProcess(arguments, code, stdout, stderr)


def serve() -> None:
    """Run the commands of the standard input, and write code and output of each to the standard output."""
    from command_line import main
    from short_measurements import shorten_measurements

    shorten_measurements()
    gc.set_threshold(50_000, 20, 20)  # the collector would scan the objects of TensorFlow too often
    requests, responses = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        # Processes below this one, and C++ code, read and write the same files.
        os.dup2(stdin.fileno(), 0)
        os.dup2(stdout.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
        for line in requests:
            arguments, folder, variables = json.loads(line)
            os.environ.update(variables)
            os.chdir(folder)
            try:
                code = run_program(arguments[1]) if arguments[0] == "-c" else main(arguments)
            except SystemExit as end:
                code = int(end.code or 0)
            texts = [_take(stream, file.fileno()) for stream, file in ((sys.stdout, stdout), (sys.stderr, stderr))]
            responses.write(json.dumps([code, *texts]) + "\n")
            responses.flush()


def run_program(text: str) -> int:
    """Run a Python program, and return its exit code."""
    try:
        exec(compile(text, "<program>", "exec"), {"__name__": "__main__"})
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _take(stream: "TextIO", descriptor: int) -> str:
    stream.flush()
    size = os.lseek(descriptor, 0, os.SEEK_CUR)
    text = os.pread(descriptor, size, 0).decode()
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return text


if __name__ == "__main__":
    serve()
