"""Child processes: their end with the parent, their log, and the reason of their end."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import IO

from quantkit.cores import end_with_parent
from quantkit.workers.service import ServiceSpec, WorkerResources, respond

# The affinity is set before any library starts a thread, because threads inherit it. Imports create many objects that
# remain, which the garbage collector would visit repeatedly.
BOOTSTRAP = """
import gc, json, os, sys
gc.disable()
start = json.loads(sys.argv[1])
sys.path[:] = start["path"]
if start["cpus"]:
    os.sched_setaffinity(0, start["cpus"])
from importlib import import_module
import_module(start["module"]).main()
"""

# Log lines of TensorFlow's C++ code below the severity of fatal errors.
CPP_LOG = re.compile(
    r"^(?:WARNING: All log messages before absl::.*|[IWE]\d{4} \d\d:\d\d:[\d.]+ .*|[IWE]\d{4} 00:00:\d+\.\d+ .*"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: [IWE] .*|INFO: Created TensorFlow Lite .*"
    r"|To enable the following instructions: .*rebuild TensorFlow.*)\n?",
    re.MULTILINE,
)


def main() -> None:
    """Open the service that standard input names, and run its tasks until the end of the input.

    The output of the runtime goes to standard error, apart from the responses.
    """
    end_with_parent()
    gc.enable()
    requests, responses = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    spec: ServiceSpec
    placement: WorkerResources
    spec, placement = requests.recv()
    placement = replace(placement, report=lambda value: responses.send(respond(lambda: value)._replace(is_part=True)))
    service = None

    def open_service() -> object:
        nonlocal service
        service = spec.open(placement)
        return service.facts

    responses.send(respond(open_service))
    with suppress(EOFError, BrokenPipeError):
        while service is not None:
            task = requests.recv()
            run = service.run
            responses.send(respond(lambda: run(task)))  # noqa: B023  called at once
    if service is not None:
        service.close()


def start_process(
    module: str, cpus: Sequence[int], environment: Mapping[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a child process, with pipes for requests and responses.

    Args:
        module: module whose function ``main`` runs.
        cpus: hardware threads of the process; empty for all.
        environment: environment variables of the process, in addition to those of this one.
        log: file for its standard error.
    """
    start = json.dumps({"path": sys.path, "cpus": list(cpus), "module": module})
    return subprocess.Popen(
        [sys.executable, "-c", BOOTSTRAP, start],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        # Fatal errors of TensorFlow go to the log, where they explain an exit.
        env={"TF_CPP_MIN_LOG_LEVEL": "1", **os.environ, **environment},
        # Ctrl-C at the terminal interrupts the parent only, which ends its workers.
        start_new_session=True,
    )


def read_log(log: IO[bytes]) -> str:
    """Return the log of a process, without TensorFlow's log lines below the severity of fatal errors."""
    log.seek(0)
    return CPP_LOG.sub("", log.read().decode(errors="replace"))


def describe_exit(code: int, log: str) -> tuple[str, str]:
    """Return the reason why a process ended, and a hint.

    Args:
        code: exit code; negative for a signal.
        log: standard error of the process.
    """
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
    suffix = f"; last line of its log: {last[:200]}" if last else ""
    if code < 0:
        name = signal.Signals(-code).name
        hint = "the system ends the largest process when memory runs out" if name == "SIGKILL" else ""
        return f"the process was ended by {name}{suffix}", hint
    return f"the process ended with exit code {code}{suffix}", ""
