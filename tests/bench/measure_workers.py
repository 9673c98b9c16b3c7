"""Measure batch inference with workers, its behavior when processes are killed, and the overlap of input and runtime.

    python tests/bench/measure_workers.py MODEL IMAGES [--samples 2000] [--rounds 3] [--kills 20] [--no-ray]

MODEL is a classifier with one thread per worker, IMAGES a folder. Writes `workers.json`:

    rounds      images per second after the start with 1 and 2 workers, processes and Ray, in alternation
    loop        time per image of a plain loop and of a worker, in alternation
    kills       random kills of workers and of the command; the result files are compared with those of a quiet run
    evaluate    images per second of evaluate without and with overlap, in alternation
    prediction  duration with 2 workers: simulated from the shards of 1 worker, and measured
    all_reduce  duration of a ring all-reduce between processes, and the prediction of the formula
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np

import quantkit as qk
from quantkit.batch_inference import BatchInference, MeasuredParts, simulate_run
from quantkit.batch_inference.simulation import ring_all_reduce_seconds
from quantkit.benchmark.host.machine import this_machine
from quantkit.data import InputPipeline, as_dataset, preparation, prepare_batches
from quantkit.evaluation.opened_model import open_model
from quantkit.runtimes.session import SessionOptions

HERE = Path(__file__).parent
BATCH = 8


def list_images(folder: Path, samples: int, target: Path) -> Path:
    """Write a list with a number of images; images of a small folder repeat as links with other names."""
    images = sorted(folder.glob("*.jpg"))
    links = target / "images"
    links.mkdir()
    for number in range(samples):
        (links / f"{number:05}.jpg").symlink_to(images[number % len(images)].resolve())
    return links


def run(model: str, data: Path, folder: Path, cluster: str, workers: int, shard_size: int) -> BatchInference:
    """Run with one thread per worker."""
    shutil.rmtree(folder, ignore_errors=True)
    return qk.run(model, data, folder, cluster=cluster, workers=workers, threads=1, shard_size=shard_size, batch=BATCH)


def rate_after_start(result: BatchInference) -> float:
    """Return samples per second between the first opened model and the end."""
    opened = min(worker.open_seconds for worker in result.workers)
    return result.samples / (max(worker.alive_seconds for worker in result.workers) - opened)


def describe(result: BatchInference) -> dict[str, Any]:
    """Return the rate, the parts and the shards of a run."""
    document = result.to_json()
    keys = ("seconds", "parts", "input", "workers", "cluster", "threads")
    shards = list(result.shard_seconds)
    return {**{key: document[key] for key in keys}, "rate": rate_after_start(result), "shard_seconds": shards}


def plain_loop(model: str, data: Path) -> float:
    """Return the seconds per image of a loop without workers, shards and files, in a process with one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    dataset = as_dataset(data, keep_order=True)
    opened = open_model(qk.load(model), options=SessionOptions(intra_op=1))
    pipeline = InputPipeline.of(opened.session.inputs, dataset, opened.card or opened.basis)
    size, count = pipeline.batch_size or BATCH, 0
    start = time.perf_counter()
    for chunk in prepare_batches(dataset.read(), [pipeline], size, {}, threads=1):
        opened.predict(pipeline, [values[0] for _, values in chunk], BATCH).argmax(axis=1)
        count += len(chunk)
    seconds = (time.perf_counter() - start) / count
    opened.session.close()
    return seconds


def in_child(function: Any, *arguments: Any) -> Any:
    """Run a function in its own process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def children(pid: int) -> list[int]:
    """Return the processes below a process."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kind_of(pid: int) -> str:
    """Return ``worker``, ``node`` for the main process of a Ray node, or an empty string."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    if b"quantkit.workers.child" in command or b"ray::RayService" in command:
        return "worker"
    return "node" if b"raylet/raylet" in command else ""


def kill_at_random(command: list[str], folder: Path, kills: int, seed: int) -> Iterator[dict[str, Any]]:
    """Start the command until the results are complete, and kill it or one of its workers at random moments."""
    generator = random.Random(seed)
    victims = 0
    while not (folder / "report.json").exists():
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            if victims >= kills:
                process.wait()
                break
            time.sleep(generator.uniform(0.5, 6.0))
            candidates = {pid: kind for pid in children(process.pid) if (kind := kind_of(pid))}
            candidates[process.pid] = "command"
            kind = generator.choice(["worker", "worker", "command", "node"])
            pids = [pid for pid in candidates if candidates[pid] == kind]
            if not pids or process.poll() is not None:
                continue
            pid = generator.choice(pids)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            victims += 1
            finished = len(list(folder.glob("results-*")))
            yield {"victim": kind, "finished_shards": finished}
            if kind != "worker":
                process.wait()


def measure_kills(model: str, data: Path, folder: Path, cluster: str, kills: int, shard_size: int) -> dict[str, Any]:
    """Return the kills, and True if the result files equal those of a quiet run."""
    quiet, killed = folder / f"quiet_{cluster}", folder / f"killed_{cluster}"
    run(model, data, quiet, cluster, 2, shard_size)
    command = [sys.executable, "-m", "quantkit", "run", model, "--data", str(data), "-o", str(killed), "-q"]
    command += ["--workers=2", "--threads=1", f"--shard-size={shard_size}", f"--batch={BATCH}", f"--cluster={cluster}"]
    command += ["--retries=5"]
    events = list(kill_at_random(command, killed, kills, seed=1))
    names = sorted(path.name for path in quiet.glob("results-*"))
    equal = names == sorted(path.name for path in killed.glob("results-*")) and all(
        (quiet / name).read_bytes() == (killed / name).read_bytes() for name in names
    )
    remaining = [path.name for path in killed.glob(".results-*")]
    return {"cluster": cluster, "kills": events, "files": len(names), "equal": equal, "remaining": remaining}


def measure_overlap(model: str, data: Path, threads: int) -> dict[str, float]:
    """Return the rates of evaluate with a number of input threads."""
    preparation.default_threads = lambda: threads
    evaluation = qk.evaluate(model, data)
    return {"threads": threads, "seconds": evaluation.seconds, **evaluation.input_rates}


def ring_member(index: int, count: int, values: int, right: socket.socket, left: socket.socket, times: Any) -> None:
    """Sum an array over all members: each sends one piece to the right and receives one from the left."""
    array = np.full(values, index + 1, np.float32)
    pieces = np.array_split(array, count)
    for repetition in range(6):
        start = time.perf_counter()
        for step in range(2 * (count - 1)):
            send = pieces[(index - step) % count]
            target = pieces[(index - step - 1) % count]
            sender = Thread(target=right.sendall, args=(send.tobytes(),))
            sender.start()
            received = bytearray()
            while len(received) < target.nbytes:
                received += left.recv(min(1 << 20, target.nbytes - len(received)))
            sender.join()
            incoming = np.frombuffer(received, np.float32)
            target[...] = target + incoming if step < count - 1 else incoming
        if index == 0 and repetition:
            times.append(time.perf_counter() - start)
        if repetition == 0:
            assert (array == count * (count + 1) / 2).all(), "the sum is wrong"


def ring_seconds(count: int, num_bytes: int) -> float:
    """Return the median duration of an all-reduce between processes."""
    context = multiprocessing.get_context("fork")
    links = [socket.socketpair() for _ in range(count)]
    with context.Manager() as manager:
        times = manager.list()
        members = [
            context.Process(
                target=ring_member,
                args=(index, count, num_bytes // 4, links[index][0], links[(index - 1) % count][1], times),
            )
            for index in range(count)
        ]
        for member in members:
            member.start()
        for member in members:
            member.join()
        return median(times)


def measure_all_reduce() -> list[dict[str, float]]:
    """Return durations for several sizes and members; bandwidth and latency come from two members."""
    sizes = (1 << 12, 8 << 20, 32 << 20)
    pair = {size: ring_seconds(2, size) for size in sizes}
    latency = pair[sizes[0]] / 2
    bandwidth = sizes[-1] / (pair[sizes[-1]] - 2 * latency)
    rows = []
    for count in (2, 3, 4):
        for size in sizes:
            seconds = pair[size] if count == 2 else ring_seconds(count, size)
            predicted = ring_all_reduce_seconds(size, count, bandwidth=bandwidth, latency=latency)
            rows.append({"members": count, "bytes": size, "seconds": seconds, "predicted_seconds": predicted})
    return rows


def main() -> None:
    """Measure, and write the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("images", type=Path)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--shard-size", type=int, default=64)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--target", type=Path, default=HERE / "workers.json")
    options = parser.parse_args()
    model, clusters = options.model, ("local",) if options.no_ray else ("local", "ray")
    document: dict[str, Any] = {
        "schema": "quantkit.workers/1",
        "machine": this_machine().to_json(),
        "model": Path(model).name,
        "samples": options.samples,
        "shard_size": options.shard_size,
        "rounds": [],
        "loop": [],
        "kills": [],
        "evaluate": [],
    }

    def save(step: str) -> None:
        document["load"] = os.getloadavg()[0]
        options.target.write_text(json.dumps(document, indent=1) + "\n")
        print(f"{time.strftime('%H:%M:%S')} {step}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = list_images(options.images, options.samples, folder)
        document["all_reduce"] = measure_all_reduce()
        save("all-reduce")
        for cluster in clusters:
            # A quarter of the kills in Ray, whose start takes longer.
            in_ray = 0 if options.no_ray else options.kills // 4
            kills = in_ray if cluster == "ray" else options.kills - in_ray
            document["kills"].append(measure_kills(model, data, folder, cluster, kills, options.shard_size))
            save(f"kills in {cluster}")
        for _ in range(options.rounds):
            document["evaluate"].append([in_child(measure_overlap, model, data, threads) for threads in (0, 2)])
            save("evaluate")
        for _ in range(options.rounds):
            results = {
                (cluster, workers): run(model, data, folder / "out", cluster, workers, options.shard_size)
                for cluster in clusters
                for workers in (1, 2)
            }
            rows = {f"{cluster} {workers}": describe(result) for (cluster, workers), result in results.items()}
            document["rounds"].append(rows)
            single, double = results["local", 1], results["local", 2]
            loop = in_child(plain_loop, model, data)
            own = sum(single.shard_seconds) / single.samples
            document["loop"].append({"loop_seconds": loop, "worker_seconds": own, "overhead": own / loop - 1})
            parts = MeasuredParts(0.0, single.shard_seconds, single.parts["overhead"] / len(single.shard_seconds))
            slowdown = sum(double.shard_seconds) / sum(single.shard_seconds)
            measured = double.samples / rate_after_start(double)
            document.setdefault("prediction", []).append(
                {
                    "own_cores_seconds": simulate_run(parts, 2),
                    "with_measured_slowdown_seconds": simulate_run(parts, 2, slowdown=slowdown),
                    "slowdown": slowdown,
                    "measured_seconds": measured,
                }
            )
            document["efficiency"] = {
                cluster: median(
                    row[f"{cluster} 2"]["rate"] / row[f"{cluster} 1"]["rate"] / 2 for row in document["rounds"]
                )
                for cluster in clusters
            }
            save("round")


if __name__ == "__main__":
    main()
