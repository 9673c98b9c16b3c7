"""Run commands on mutants in this process, which may crash, with limits of time and memory.

    python -m tests.fuzz.worker SEED FOLDER < JOBS

Each line of stdin is a format and the index of a mutant. Prints ``start FORMAT INDEX`` before each mutant, and one
JSON document after it.
"""

import json
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import traceback
import warnings
import zlib
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib.metadata import entry_points
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import FrameType

import numpy as np

from .formats import FORMATS, write_valid_files

# CPU time of one command; TensorFlow is imported by some.
MAX_SECONDS = 60
# Address space of the process, and increase of its resident memory by one mutant.
MAX_BYTES = 12 << 30
MAX_EXTRA_BYTES = 800 << 20

main = next(entry for entry in entry_points(group="console_scripts") if entry.name == "quantkit").load()


@cache
def valid_files(name: str) -> list[bytes]:
    return list(FORMATS[name].make())


def make_mutant(name: str, index: int, seed: int) -> tuple[bytes, str]:
    """Return the content of a mutant and its command line; equal arguments give equal mutants."""
    form = FORMATS[name]
    random = np.random.default_rng([seed, zlib.crc32(name.encode()), index])
    files = valid_files(name)
    data = files[int(random.integers(0, len(files)))]
    for _ in range(int(random.integers(1, 4))):
        data = form.mutations[int(random.integers(0, len(form.mutations)))](data, random) or b"\0"
    return data, form.commands[int(random.integers(0, len(form.commands)))]


def command_line(name: str, index: int, seed: int, folder: Path) -> list[str]:
    """Write a mutant and its companions, and return the arguments of its command."""
    data, command = make_mutant(name, index, seed)
    form = FORMATS[name]
    for part in ("in", "out"):
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir(parents=True)
    if not (folder / "valid").exists():
        (folder / "valid").mkdir()
        write_valid_files(folder / "valid")
    for file, content in form.companions().items():
        (folder / "in" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / file).write_bytes(content)
    (folder / "in" / form.file).write_bytes(data)
    path = folder / "in" / (form.argument or form.file)
    text = command.format(file=path, out=folder / "out", valid=folder / "valid")
    return shlex.split(text)


def find_violation(code: int, stderr: str, stdout: str, files: list[str]) -> str:
    """Return a description of the first violation of the contract of commands; empty if the command keeps it."""
    lines = stderr.splitlines()
    if code not in range(5):
        return f"exit code {code}: {stderr[-600:]}"
    for text in (stderr, stdout):
        if "Traceback" in text or re.search(r"\b\w*Warning:", text):
            return f"traceback or warning: {text[-600:]}"
        if not all(char.isprintable() or char in "\n\t" for char in text):
            return f"control characters: {text[-600:]!r}"
    errors = [number for number, line in enumerate(lines) if line.startswith("quantkit: ")]
    if code in (2, 3, 4) and len(errors) != 1:
        return f"exit code {code} with {len(errors)} messages: {stderr[-600:]}"
    if code in (2, 3, 4):
        last = lines[errors[0] + 1 :]
        if len(last) > 1 or (last and not last[0].startswith("hint: ")):
            return f"more than one line after the message: {stderr[-600:]}"
    if code == 0 and errors:
        return f"exit code 0 with an error: {stderr[-600:]}"
    if any(name.endswith(".part") for name in files):
        return f"files left: {files}"
    return ""


def run_mutant(name: str, index: int, seed: int, folder: Path) -> dict[str, object]:
    """Run the command of a mutant; return its exit code and the violation of the contract, if any."""
    arguments = command_line(name, index, seed, folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("".join(traceback.format_stack(frame)[-3:]))

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    streams = [TextIOWrapper(BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2)]
    try:
        with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            code = int(main(arguments))
    except BaseException as error:  # any exception is a violation
        code = -1
        streams[1].write("".join(traceback.format_exception(error))[-1500:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    texts = []
    for stream in streams:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(errors="replace"))  # type: ignore[attr-defined]
    violation = find_violation(code, texts[1], texts[0], os.listdir(folder / "out"))
    extra_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if not violation and extra_bytes > MAX_EXTRA_BYTES:
        violation = f"{extra_bytes:,} bytes of memory"
    return {"code": code, "violation": violation, "command": shlex.join(arguments)}


def work(seed: int, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    for category in (RuntimeWarning, UserWarning):
        warnings.simplefilter("always", category)  # not only the first one of each line
    for line in sys.stdin:
        name, index = line.split()
        print(f"start {name} {index}", flush=True)
        print(json.dumps(run_mutant(name, int(index), seed, folder)), flush=True)


if __name__ == "__main__":
    work(int(sys.argv[1]), Path(sys.argv[2]))
