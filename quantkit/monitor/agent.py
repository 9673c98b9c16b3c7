"""Sampler of the calls of a Python job; runs inside the job, in a thread of its own.

The monitor starts a Python job with this module as ``sitecustomize``. It has no imports from quantkit, because the job
may have another Python version and other packages. Every `INTERVAL` it records the stack of each thread; once per
second it appends the counts to a file that the monitor reads.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sys
import threading
import time
from importlib import import_module
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

FOLDER_VARIABLE = "QUANTKIT_MONITOR_FOLDER"
PIPELINE_VARIABLE = "QUANTKIT_MONITOR_PIPELINE"
INTERVAL = 0.05
FLUSH_SECONDS = 0.5
MAX_DEPTH = 40
MAX_STACKS = 2000
# Maximum fraction of one core that the sampler uses.
BUDGET = 0.002
# Weight of the cost before the last period.
FORGET = 0.8
# Files that are not the job's own code: Python's library, installed packages, and the marks of the monitor.
LIBRARY_FILES = re.compile(
    r"/lib(64)?/python\d[.\d]*/|/(site|dist)-packages/|^<frozen|/quantkit_(markers|pipeline)\.py$|/quantkit/monitor/"
)
if TYPE_CHECKING:
    # Thread, is the main thread, line of the innermost frame, depth and line of the innermost frame of own code (depth
    # -1: none), and the identities of the code objects: their hash would read all their instructions.
    Key = tuple[int, bool, int, int, int, tuple[int, ...]]


class CallSampler:
    """Thread that counts the stacks of the other threads.

    Args:
        folder: folder of the counts.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.numbers: dict[Key, int] = {}
        self.counts: dict[int, int] = {}
        self.new: list[Key] = []
        self.objects: dict[int, CodeType] = {}  # holds each code object, so that its identity stays unique
        self.own: dict[str, bool] = {}
        self.start()

    def start(self) -> None:
        """Start the thread, after a fork too."""
        self.path = os.path.join(self.folder, f"calls-{os.getpid()}")
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(self.stop,), name="quantkit-calls", daemon=True)
        self.thread.start()

    def start_in_child(self) -> None:
        """Forget the counts of the parent process, and start the thread."""
        self.numbers, self.counts, self.new = {}, {}, []
        self.start()

    def halt(self) -> None:
        """End the thread before a fork: a forked process may have one thread only."""
        self.stop.set()
        self.thread.join(1)

    def run(self, stop: threading.Event) -> None:
        """Count stacks until the job ends; the interval follows the cost of the last seconds."""
        start, cost, samples = time.monotonic(), 0.0, 0.0
        interval, next_flush, used = INTERVAL, start + FLUSH_SECONDS, time.thread_time()
        while not stop.wait(interval):
            self.sample()
            samples += 1
            if time.monotonic() >= next_flush:
                self.flush()
                next_flush, before, used = time.monotonic() + FLUSH_SECONDS, used, time.thread_time()
                interval = max(INTERVAL, (cost + used - before) / samples / BUDGET)
                cost, samples = FORGET * (cost + used - before), FORGET * samples
        self.flush()

    def sample(self) -> None:
        """Count the present stack of each thread."""
        own = threading.get_ident()
        main = threading.main_thread().ident
        native = {thread.ident: getattr(thread, "native_id", 0) for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own:
                key, stack = self.key(native.get(ident) or 0, ident == main, frame)
                if key not in self.numbers and len(self.numbers) < MAX_STACKS:
                    self.objects |= {id(code): code for code in stack}
                    self.numbers[key] = len(self.numbers)
                    self.new.append(key)
                number = self.numbers.get(key, -1)
                self.counts[number] = self.counts.get(number, 0) + 1

    def key(self, thread: int, is_main: bool, frame: FrameType) -> tuple[Key, list[CodeType]]:
        """Return the key of a stack and its code; the frame of own code is searched below all frames of libraries."""
        stack: list[CodeType] = []
        own, own_line = -1, 0
        caller: FrameType | None = frame
        while caller is not None and (len(stack) < MAX_DEPTH or own < 0):
            code = caller.f_code
            stack.append(code)
            if own < 0 and self.is_own(code.co_filename):
                own, own_line = len(stack) - 1, caller.f_lineno or 0
            caller = caller.f_back
        return (thread, is_main, frame.f_lineno or 0, own, own_line, tuple(map(id, stack))), stack

    def is_own(self, file: str) -> bool:
        """Return True for a file of the job that is not part of a library."""
        if file not in self.own:
            self.own[file] = LIBRARY_FILES.search(file) is None
        return self.own[file]

    def flush(self) -> None:
        """Append the counts since the last flush to the file."""
        stacks = {self.numbers[key]: describe(key, self.objects) for key in self.new}
        record = {"seconds": time.monotonic(), "stacks": stacks, "counts": self.counts}
        self.new, self.counts = [], {}
        try:
            with open(self.path, "a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError:  # the monitor ended before the job
            self.stop.set()


def describe(key: Key, objects: dict[int, CodeType]) -> dict[str, Any]:
    """Return a stack as JSON values: thread, frames from the innermost one, text of its line, location in own code."""
    thread, is_main, line, own, own_line, identities = key
    frames = [objects[each] for each in identities]
    location = None
    if own >= 0:
        file = frames[own].co_filename
        location = [shorten_path(file), frames[own].co_name, own_line, source_line(file, own_line)]
    return {
        "thread": thread,
        "is_main": is_main,
        "frames": [[code.co_filename, code.co_name] for code in frames],
        "text": source_line(frames[0].co_filename, line),
        "own": location,
    }


def shorten_path(file: str) -> str:
    """Return a file relative to the working folder, if it is inside."""
    folder = os.path.join(os.getcwd(), "")
    return file[len(folder) :] if file.startswith(folder) else file


def source_line(file: str, number: int) -> str:
    """Return a line of source code; an empty text if the file is not available."""
    if file == "<string>":  # python -c
        arguments = getattr(sys, "orig_argv", [])
        lines = arguments[arguments.index("-c") + 1].splitlines() if "-c" in arguments[:-1] else []
        return lines[number - 1].strip()[:200] if 0 < (number) <= len(lines) else ""
    return linecache.getline(file, number).strip()[:200]


def start() -> None:
    """Start the sampler if the monitor runs this process."""
    folder = os.environ.get(FOLDER_VARIABLE, "")
    if not os.path.isdir(folder):
        return
    if os.environ.get(PIPELINE_VARIABLE):
        markers, pipeline = import_module("quantkit_markers"), import_module("quantkit_pipeline")
        pipeline.install(markers, os.environ[PIPELINE_VARIABLE])
    sampler = CallSampler(folder)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=sampler.halt, after_in_parent=sampler.start, after_in_child=sampler.start_in_child)


def run_other_sitecustomize(folder: str) -> None:
    """Remove this module's folder from the search path, and import the module that it hides."""
    sys.path[:] = [path for path in sys.path if path != folder]
    hidden = sys.modules.pop("sitecustomize", None)
    try:
        import_module("sitecustomize")
    except ImportError:
        if hidden is not None:
            sys.modules["sitecustomize"] = hidden


if __name__ == "sitecustomize":
    try:
        start()
    except Exception as error:  # the job runs without call samples
        sys.stderr.write(f"quantkit monitor: no call samples: {error!r}\n")
    run_other_sitecustomize(os.path.dirname(os.path.abspath(__file__)))
