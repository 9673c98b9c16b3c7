"""Measure batch inference with workers: speed, efficiency, overhead, and the overlap of input and runtime.

    python tests/bench/measure_workers.py MODEL IMAGES [--samples 2000] [--rounds 2] [--no-ray]

Takes about 13 minutes with an int8 Inception v3. MODEL is a classifier, IMAGES a folder of JPEG files. Writes
`workers.json`:

    rounds      runs of all samples with 1 worker on 1 core and 2 workers on 2 cores, processes and Ray, in alternation
    overhead    time of a worker per image, and of a plain loop over the same images, shard by shard in alternation
    evaluate    images per second of evaluate without and with overlap, in alternation
    prediction  duration with 2 workers: simulated from the shards of 1 worker, and measured
    all_reduce  duration of a ring all-reduce between processes, and the prediction of the formula

Each worker has one thread. `measure_worker_kills.py` measures the behavior when processes are killed.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np

import quantkit as qk
from quantkit.batch_inference import BatchInference, MeasuredParts, simulate_run, workflow
from quantkit.batch_inference.service import InferenceService, InferenceTask, ShardResult
from quantkit.batch_inference.simulation import ring_all_reduce_seconds
from quantkit.benchmark.host.machine import this_machine
from quantkit.data import Dataset, InputPipeline, as_dataset, preparation, prepare_batches
from quantkit.evaluation.opened_model import open_model
from quantkit.runtimes.session import SessionOptions
from quantkit.workers import ServiceSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from inline_clusters import InlineCluster
from linked_images import link_images

HERE = Path(__file__).parent
BATCH = 8
SHARD_SIZE = 40
# Images of the comparison with a plain loop, and of each evaluation.
OVERHEAD_SAMPLES = 400
EVALUATIONS = 4


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Limit this process and its children to a number of cores."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(own)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def run(model: str, data: Path, folder: Path, cluster: str, workers: int) -> BatchInference:
    """Run with one thread and one core for each worker."""
    shutil.rmtree(folder, ignore_errors=True)
    with cores(workers):
        return qk.run(
            model, data, folder, cluster=cluster, workers=workers, threads=1, shard_size=SHARD_SIZE, batch=BATCH
        )


def rate_after_start(result: BatchInference) -> float:
    """Return samples per second between the first opened model and the end."""
    opened = min(worker.open_seconds for worker in result.workers)
    return result.samples / (max(worker.alive_seconds for worker in result.workers) - opened)


def busy_rate(result: BatchInference) -> float:
    """Return the sum of the rates of the workers while they have a shard."""
    samples = result.samples / len(result.shard_seconds)
    return sum(worker.tasks * samples / worker.busy_seconds for worker in result.workers)


def describe(result: BatchInference) -> dict[str, Any]:
    """Return the rates, the parts and the shards of a run."""
    document = result.to_json()
    keys = ("samples", "seconds", "parts", "input", "workers", "cluster", "threads")
    rates = {"rate": rate_after_start(result), "busy_rate": busy_rate(result)}
    return {**{key: document[key] for key in keys}, **rates, "shard_seconds": list(result.shard_seconds)}


def efficiency(round_: dict[str, Any], cluster: str, key: str) -> float:
    return float(round_[f"{cluster} 2"][key] / round_[f"{cluster} 1"][key] / 2)


class PlainLoop:
    """Loop without workers, shards and result files."""

    def __init__(self, model: str, data: Dataset) -> None:
        self._opened = open_model(qk.load(model), options=SessionOptions(intra_op=1))
        self._pipeline = InputPipeline.of(self._opened.session.inputs, data, self._opened.card or self._opened.basis)

    def seconds(self, data: Dataset) -> float:
        """Return the duration of the loop over a dataset."""
        start = time.perf_counter()
        for chunk in prepare_batches(data.read(), [self._pipeline], self._pipeline.batch_size or BATCH, {}, threads=1):
            self._opened.predict(self._pipeline, [values[0] for _, values in chunk], BATCH).argmax(axis=1)
        return time.perf_counter() - start


class PairedService(InferenceService):
    """Service that measures a plain loop before or after each shard."""

    loop: PlainLoop
    pairs: list[tuple[float, float]]

    def run(self, task: InferenceTask) -> ShardResult:
        first = self.loop.seconds(task.data) if len(self.pairs) % 2 else None
        start = time.perf_counter()
        result = super().run(task)
        own = time.perf_counter() - start
        self.pairs.append((first or self.loop.seconds(task.data), own))
        return result


def measure_overhead(model: str, data: str, folder: str) -> list[tuple[float, float]]:
    """Return the durations of a plain loop and of a worker for each shard, on one core."""
    PairedService.loop, PairedService.pairs = PlainLoop(model, as_dataset(data)), []

    class PairedCluster(InlineCluster):
        def start(self, spec: ServiceSpec, index: int) -> Any:
            return super().start(ServiceSpec(PairedService, spec.arguments), index)

    @contextmanager
    def open_inline(options: object) -> Iterator[InlineCluster]:
        yield PairedCluster()

    workflow.open_cluster = open_inline  # type: ignore[assignment]
    run(model, Path(data), Path(folder), "local", 1)
    return PairedService.pairs[2:]  # the first shards warm up


def in_child(function: Any, *arguments: Any) -> Any:
    """Run a function in its own process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure_evaluate(model: str, data: str, threads: int) -> dict[str, float]:
    """Return the rates of evaluate with a number of input threads."""
    preparation.default_threads = lambda: threads
    evaluation = qk.evaluate(model, data)
    return {"threads": threads, "seconds": evaluation.seconds, **evaluation.input_rates}


def compare_evaluations(model: str, images: Path, samples: int, folder: Path) -> dict[str, Any]:
    """Evaluate all samples without and with overlap, part by part in alternation."""
    rows = []
    for number in range(EVALUATIONS):
        data = str(link_images(images, samples // EVALUATIONS, folder / f"part{number}"))
        order = (0, 2) if number % 2 == 0 else (2, 0)
        pair = {threads: in_child(measure_evaluate, model, data, threads) for threads in order}
        rows.append([pair[0], pair[2]])
    return {
        "samples": samples // EVALUATIONS * EVALUATIONS,
        "pairs": rows,
        "speedup": median(after["samples_per_second"] / before["samples_per_second"] for before, after in rows),
        "waiting_fraction": [median(row[index]["waiting_fraction"] for row in rows) for index in (0, 1)],
    }


def predict(single: BatchInference, double: BatchInference) -> dict[str, float]:
    """Return simulated durations of a run with two workers, and the measured one, from the first opened model on."""
    parts = MeasuredParts(0.0, single.shard_seconds, single.parts["overhead"] / len(single.shard_seconds))
    slowdown = (sum(double.shard_seconds) / double.samples) / (sum(single.shard_seconds) / single.samples)
    measured = double.samples / rate_after_start(double)
    simulated = simulate_run(parts, 2)
    return {
        "simulated_seconds": simulated,
        "measured_seconds": measured,
        "ratio": measured / simulated,
        "slowdown": slowdown,
        "simulated_with_slowdown_seconds": simulate_run(parts, 2, slowdown=slowdown),
    }


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


def measure_round(model: str, data: Path, folder: Path, clusters: Sequence[str]) -> dict[tuple[str, int], Any]:
    """Run with one worker and with two workers."""
    return {
        (cluster, workers): run(model, data, folder / "out", cluster, workers)
        for cluster in clusters
        for workers in (1, 2)
    }


def main() -> None:
    """Measure, and write the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("images", type=Path)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--target", type=Path, default=HERE / "workers.json")
    options = parser.parse_args()
    model, clusters = options.model, ("local",) if options.no_ray else ("local", "ray")
    document: dict[str, Any] = {
        "schema": "quantkit.workers/2",
        "machine": this_machine().to_json(),
        "model": Path(model).name,
        "samples": options.samples,
        "shard_size": SHARD_SIZE,
        "rounds": [],
        "prediction": [],
    }

    def save(step: str) -> None:
        document["load"] = os.getloadavg()[0]
        options.target.write_text(json.dumps(document, indent=1) + "\n")
        print(f"{time.strftime('%H:%M:%S')} {step}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        document["all_reduce"] = measure_all_reduce()
        save("all-reduce")
        few = link_images(options.images, min(OVERHEAD_SAMPLES, options.samples), folder / "few")
        pairs = in_child(measure_overhead, model, str(few), str(folder / "paired"))
        document["overhead"] = {
            "pairs": pairs,
            "images_per_pair": SHARD_SIZE,
            "worker": median(own / loop for loop, own in pairs) - 1,
        }
        save(f"overhead of a worker {document['overhead']['worker']:.2%}")
        document["evaluate"] = compare_evaluations(model, options.images, options.samples, folder)
        save(f"evaluate {document['evaluate']['speedup']:.2f} times as fast")
        data = link_images(options.images, options.samples, folder / "images")
        for _ in range(options.rounds):
            results = measure_round(model, data, folder, clusters)
            round_ = {f"{cluster} {workers}": describe(result) for (cluster, workers), result in results.items()}
            document["rounds"].append(round_)
            single, double = results["local", 1], results["local", 2]
            document["prediction"].append(predict(single, double))
            document["overhead"]["pool"] = median(
                row["local 1"]["parts"]["overhead"] / sum(row["local 1"]["shard_seconds"]) for row in document["rounds"]
            )
            for key in ("rate", "busy_rate"):
                document[f"efficiency_by_{key}"] = {
                    cluster: [efficiency(row, cluster, key) for row in document["rounds"]] for cluster in clusters
                }
            save(f"efficiency {document['efficiency_by_rate']}, prediction {document['prediction'][-1]}")


if __name__ == "__main__":
    main()
