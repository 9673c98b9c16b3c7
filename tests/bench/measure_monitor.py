"""Measure ``quantkit monitor``: the cause that it finds for jobs with seeded faults, and its overhead.

    python tests/bench/measure_monitor.py [NAME ...] [--pairs 36] [--save tests/bench/monitor.json]

Each fault is a real job of a few seconds. GPUs, swap, CPU quota and hardware counters, which not every machine has, are
scripted in ``tests/monitor/test_faults.py``. The overhead is the CPU time of the monitor and of its sampler in the job,
and the ratio of the CPU time of equal work with and without the monitor, in pairs of random order: `is_below_limit`
states that the whole interval of the ratio is below 1 %. Takes 6 minutes.
"""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import quantkit as qk
from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.statistics.bootstrap import median_interval
from quantkit.runtimes import find_runtime

SECONDS = 5.0
# Largest accepted overhead.
LIMIT = 0.01
# Definitions that all jobs share. `spin` computes in C and releases the interpreter lock.
PRELUDE = f"""
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import io, queue, socket, subprocess, sys, threading, time, zlib
import numpy as np
from PIL import Image
END = time.monotonic() + {SECONDS}
BUFFER = io.BytesIO()
Image.fromarray(np.random.default_rng(0).integers(0, 255, (700, 700, 3), np.uint8)).save(BUFFER, "JPEG")
JPEG, NOISE = BUFFER.getvalue(), os.urandom(1 << 18)
WEIGHTS = np.ones((400, 400), np.float32)
def decode():
    return np.asarray(Image.open(io.BytesIO(JPEG)).resize((400, 400)), np.float32)[..., 0]
def infer(x, times=1):
    for _ in range(times):
        x = np.tanh(x @ WEIGHTS / 400)
    return x
def spin():
    zlib.compress(NOISE)
def running():
    return time.monotonic() < END
"""
# Expected verdict and causes, and the job. On a busy machine, a lack of cores can be the fault of other processes.
FAULTS = {
    "one thread decodes": ("input-bound", "one-thread input", "while running(): infer(decode())"),
    "no prefetch": (
        "input-bound",
        "no prefetch",
        """
start = time.thread_time(); x = decode(); cost = time.thread_time() - start
while running():
    x = decode()
    stop = time.thread_time() + 1.3 * cost
    while time.thread_time() < stop: infer(x)
""",
    ),
    "decoding thread is too slow": (
        "input-bound",
        "one-thread input",
        """
batches = queue.Queue(2)
def produce():
    while running(): batches.put(decode())
threading.Thread(target=produce, daemon=True).start()
while running(): infer(batches.get())
""",
    ),
    "decoding processes are too slow": (
        "input-bound",
        "one-thread input",
        """
import multiprocessing
batches = multiprocessing.Queue(2)
def produce():
    while running(): batches.put(decode())
worker = multiprocessing.get_context("fork").Process(target=produce, daemon=True)
worker.start()
while running(): infer(batches.get())
""",
    ),
    "gap before each step": (
        "input-bound",
        "one-thread input",
        """
from quantkit.monitor import step
while running():
    x = decode() + decode() + decode()
    with step(): infer(x)
""",
    ),
    "slow disk": (
        "input-bound",
        "slow disk",
        """
import mmap, random
page = mmap.mmap(-1, 4096)
file = os.open({file!r}, os.O_RDONLY | os.O_DIRECT)
while running():
    for _ in range(400): os.preadv(file, [page], 4096 * random.randrange(16384))
    infer(WEIGHTS)
""",
    ),
    "throttled reader": (
        "input-bound",
        "slow reads",
        """
def read_record():
    time.sleep(0.01)
    return WEIGHTS
while running(): infer(read_record())
""",
    ),
    "slow pipe": (
        "input-bound",
        "slow pipe",
        "stream = open({fifo!r}, 'rb')\nwhile running() and stream.read(4096): infer(WEIGHTS)",
    ),
    "one thread computes": ("compute-bound", "one thread, other processes", "while running(): spin()"),
    "all cores compute": (
        "compute-bound",
        "all cores, other processes",
        """
def work():
    while running(): spin()
threads = [threading.Thread(target=work) for _ in range(os.cpu_count())]
for thread in threads: thread.start()
""",
    ),
    "oversubscription": (
        "compute-bound",
        "oversubscription",
        """
def work():
    while running(): spin()
threads = [threading.Thread(target=work) for _ in range(4 * os.cpu_count())]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    ),
    "new buffers in each step": ("memory-bound", "page faults", "while running(): np.ones(1 << 26, np.uint8)"),
    "network": (
        "waiting",
        "network",
        """
connection = socket.create_connection(("127.0.0.1", {port}))
while running():
    connection.sendall(b"?")
    connection.recv(1)
    infer(WEIGHTS)
""",
    ),
    "lock contention": (
        "waiting",
        "lock contention",
        """
lock = threading.Lock()
def work():
    while running():
        with lock: spin()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    ),
    "interpreter lock": (
        "waiting",
        "global interpreter lock",
        """
def work():
    total = 0
    while running(): total += 1
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    ),
    "sleep": ("waiting", "sleep", "while running(): infer(WEIGHTS); time.sleep(0.02)"),
    "child process": ("waiting", "child process, sleep", "while running(): subprocess.run(['sleep', '0.5'])"),
    "disk writes": (
        "waiting",
        "disk writes",
        """
file = open({file!r} + ".out", "wb")
while running():
    file.write(NOISE); file.flush(); os.fsync(file.fileno())
""",
    ),
    "idle server": (
        "waiting",
        "events",
        "import asyncio\nasyncio.run(asyncio.sleep(END - time.monotonic()))",
    ),
    "decode and infer with a runtime": (
        "input-bound",
        "one-thread input",
        """
import quantkit as qk
session = qk.open_session("digits", {runtime!r})
while running():
    pixels = np.asarray(Image.open(io.BytesIO(JPEG)).convert("L").resize((16, 16)), np.float32)
    session.run(np.ascontiguousarray(pixels.reshape(1, 16, 16, 1)))
""",
    ),
    "infer with a runtime": (
        "compute-bound",
        None,
        """
import quantkit as qk
session = qk.open_session("digits", {runtime!r})
pixels = np.zeros((1, 16, 16, 1), np.float32)
while running(): session.run(pixels)
""",
    ),
}
PROGRAMS = {
    "compression program": (
        "compute-bound",
        "one thread, other processes",
        ["sh", "-c", "timeout 4 gzip -c /dev/zero > /dev/null"],
    ),
    "shell that sleeps": ("waiting", "sleep", ["sh", "-c", "for i in 1 2 3 4 5 6; do sleep 0.5; done"]),
}
# The same work in each run; prints its CPU time and its duration.
WORK = """
import time, zlib, os
data = os.urandom(1 << 20)
start, cpu = time.monotonic(), time.process_time()
for _ in range(36):
    zlib.compress(data)
    sum(range(20000))
print(time.process_time() - cpu, time.monotonic() - start, flush=True)
"""


@contextmanager
def surroundings(folder: Path) -> Iterator[dict[str, Any]]:
    """Provide the file, the pipe and the server that some jobs use; their processes do not belong to the jobs."""
    file, fifo = folder / "file", folder / "fifo"
    file.write_bytes(os.urandom(1 << 26))
    os.sync()
    os.mkfifo(fifo)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
                while connection.recv(1):
                    time.sleep(0.03)
                    connection.sendall(b"!")
            except OSError:
                return

    def write() -> None:
        try:
            with open(fifo, "wb", buffering=0) as stream:
                while stream.write(bytes(4096)):
                    time.sleep(0.03)
        except OSError:
            return

    threading.Thread(target=serve, daemon=True).start()
    threading.Thread(target=write, daemon=True).start()
    runtime = "onnxruntime" if find_runtime("onnxruntime").available().ok else "reference"
    yield {
        "file": str(file),
        "fifo": str(fifo),
        "port": server.getsockname()[1],
        "runtime": runtime,
    }
    server.close()


def measure_fault(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Run one job, and compare the verdict with the expected one."""
    cause: str | None
    if name in PROGRAMS:
        verdict, cause, command = PROGRAMS[name]
    else:
        verdict, cause, job = FAULTS[name]
        for key, value in values.items():
            job = job.replace(f"{{{key}!r}}", repr(value)).replace(f"{{{key}}}", str(value))
        command = [sys.executable, "-c", PRELUDE + job]
    result = qk.monitor(command)
    calls = next((thread.cpu for thread in result.facts.threads if thread.name == "quantkit-calls"), 0.0)
    is_right = verdict in result.verdict.kind.split(" or ")
    is_right &= cause is None or result.verdict.cause in cause.split(", ")
    print(f"{'right' if is_right else 'WRONG'}  {name}: {result.headline}", flush=True)
    return {
        "name": name,
        "expected": [verdict, cause],
        "verdict": [result.verdict.kind, result.verdict.cause],
        "is_right": is_right,
        "headline": result.headline,
        "evidence": list(result.evidence),
        "overhead": result.overhead,
        "sampler": calls,
        "seconds": result.seconds,
    }


def measure_overhead(pairs: int) -> dict[str, Any]:
    """Run the same work with and without the monitor, in pairs of random order."""
    order = random.Random(0)
    times: dict[bool, list[list[float]]] = {True: [], False: []}
    for _ in range(pairs):
        for is_monitored in order.sample([True, False], 2):
            times[is_monitored].append(run_work(is_monitored))
    ratios = [after[0] / before[0] for after, before in zip(times[True], times[False], strict=True)]
    low, high = median_interval([[ratio] for ratio in ratios])
    print(f"CPU time with the monitor: {median(ratios):.4f} ({low:.4f} to {high:.4f}) of that without", flush=True)
    return {
        "ratio": median(ratios),
        "low": low,
        "high": high,
        "is_below_limit": high <= 1 + LIMIT,
        "monitored": times[True],
        "plain": times[False],
    }


def run_work(is_monitored: bool) -> list[float]:
    """Return the CPU time and the duration of the work."""
    command = [sys.executable, "-c", WORK]
    if not is_monitored:
        return list(map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))
    outputs: list[bytes] = []
    qk.monitor(command, on_output=outputs.append)
    return list(map(float, b"".join(outputs).split()))


def main() -> None:
    """Measure, print and save."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="faults to measure (default: all of them)")
    parser.add_argument("--pairs", type=int, default=36, help="pairs of runs for the overhead (default: 36)")
    parser.add_argument("--save", type=Path, help="file of the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, surroundings(Path(folder)) as values:
        rows = [measure_fault(name, values) for name in args.names or [*FAULTS, *PROGRAMS]]
    right = sum(row["is_right"] for row in rows)
    overhead = measure_overhead(args.pairs) if args.pairs else None
    print(f"{right} of {len(rows)} causes are right; the monitor used {median(row['overhead'] for row in rows):.2%}")
    if args.save:
        document = {
            "schema": "quantkit.monitor_faults/1",
            "machine": this_machine().to_json(),
            "rows": rows,
            "overhead": overhead,
        }
        args.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
