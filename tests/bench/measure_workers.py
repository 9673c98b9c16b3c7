"""Measure batch inference with workers: speed, efficiency, overhead, and the overlap of input and runtime.

    python tests/bench/measure_workers.py MODEL IMAGES [--samples 2000] [--rounds 2] [--no-ray]

Takes about 11 minutes with an int8 Inception v3. MODEL is a classifier, IMAGES a folder of JPEG files. Writes
`workers.json`, and prints its summary:

    rounds      runs of all samples with 1 worker on 1 core and 2 workers on 2 cores, processes and Ray, in alternation,
                and the limit of the machine: a plain loop alone, and two plain loops at the same time on two cores
    efficiency  images per second with 2 workers, divided by twice those with 1 worker:
                  steady  while all workers have a shard: no start, no end
                  open    from the first opened model to the end
                  whole   the whole call: with the start of the processes, and with the end of Ray
    overhead    time per image of a worker divided by that of a plain loop, minus 1: rows, files and threads of the
                worker (shard by shard in alternation with the loop), and the time of the pool between shards
    cpu         CPU seconds of the workers, of the command, and of Ray's own processes, start included
    evaluate    images per second of evaluate without and with overlap of input and runtime, in alternation
    prediction  duration with 2 workers: simulated from the shards of 1 worker, and measured
    all_reduce  duration of a ring all-reduce between processes, and the prediction of the formula

Each worker has one thread, and the plain loop as well: for each batch, it reads, decodes and resizes the images with
the functions of quantkit, runs the model, and takes the most probable class. It has no threads for the input, no shards
and no files. `measure_worker_kills.py` measures the behavior when processes are killed.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np
import psutil

import quantkit as qk
from quantkit.batch_inference import BatchInference, MeasuredParts, simulate_run, workflow
from quantkit.batch_inference.service import InferenceService, InferenceTask, ShardResult
from quantkit.benchmark.host.machine import this_machine
from quantkit.data import Dataset, InputPipeline, as_dataset, preparation, prepare_batches
from quantkit.evaluation.opened_model import open_model
from quantkit.progress import Progress
from quantkit.runtimes.session import SessionOptions
from quantkit.workers import ServiceSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from inline_clusters import InlineCluster
from linked_images import link_images
from worker_processes import kind_of

HERE = Path(__file__).parent
BATCH = 8
SHARD_SIZE = 40
# Images of the comparison of a worker with a plain loop, and of the loops that measure the limit of the machine.
OVERHEAD_SAMPLES, LIMIT_SAMPLES = 560, 280
EVALUATIONS = 4
# Seconds after which a plain loop that sends no rate is an error.
LOOP_TIMEOUT = 600
CLUSTERS = ("local", "ray")


@contextmanager
def cores(count: int, first: int = 0) -> Iterator[None]:
    """Limit this process and its children to a number of cores, from a first one on."""
    own = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, (own[first:] + own[:first])[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def processor_times() -> dict[tuple[int, str], float]:
    """Return the CPU seconds of this process and of those below it, by process id and kind."""
    this = psutil.Process()
    times = {}
    for process in [this, *this.children(recursive=True)]:
        kind = "command" if process == this else {"worker": "workers"}.get(kind_of(process), "cluster")
        with suppress(psutil.NoSuchProcess):
            times[process.pid, kind] = sum(process.cpu_times()[:2])
    return times


class ProcessorClock:
    """CPU seconds by kind of process from the start of a run to its last shard, while all processes still exist."""

    def __init__(self) -> None:
        self._before = processor_times()
        self.seconds = dict.fromkeys(("workers", "command", "cluster"), 0.0)

    def report(self, progress: Progress) -> None:
        if progress.done == progress.total and not self.seconds["command"]:
            for (pid, kind), seconds in processor_times().items():
                self.seconds[kind] += seconds - self._before.get((pid, kind), 0.0)


def run(model: str, data: Path, folder: Path, cluster: str, workers: int, core: int = 0) -> dict[str, Any]:
    """Run with one thread and one core for each worker; return rates, CPU seconds, parts and shards."""
    shutil.rmtree(folder, ignore_errors=True)
    clock, start = ProcessorClock(), time.perf_counter()
    with cores(workers, core):
        result = qk.run(
            model,
            data,
            folder,
            cluster=cluster,
            workers=workers,
            threads=1,
            shard_size=SHARD_SIZE,
            batch=BATCH,
            on_progress=clock.report,
        )
    seconds = time.perf_counter() - start
    return {**describe(result), "cpu_seconds": clock.seconds, "rates": rates(result, seconds)}


def rates(result: BatchInference, seconds: float) -> dict[str, float]:
    """Return the images per second of a run; see ``efficiency`` in the description of this script."""
    opened = min(worker.open_seconds for worker in result.workers)
    samples = result.samples / len(result.shard_seconds)
    return {
        "steady": sum(worker.tasks * samples / worker.busy_seconds for worker in result.workers),
        "open": result.samples / (max(worker.alive_seconds for worker in result.workers) - opened),
        "whole": result.samples / seconds,
    }


def describe(result: BatchInference) -> dict[str, Any]:
    """Return the parts and the shards of a run."""
    document = result.to_json()
    keys = ("samples", "seconds", "parts", "input", "workers", "cluster", "threads")
    return {**{key: document[key] for key in keys}, "shard_seconds": list(result.shard_seconds)}


class PlainLoop:
    """Loop without workers, input threads, shards and result files."""

    def __init__(self, model: str, data: Dataset) -> None:
        self._opened = open_model(qk.load(model), options=SessionOptions(intra_op=1))
        self._pipeline = InputPipeline.of(self._opened.session.inputs, data, self._opened.card or self._opened.basis)

    def run(self, data: Dataset) -> None:
        """Classify all images of a dataset."""
        for chunk in prepare_batches(data.read(), [self._pipeline], self._pipeline.batch_size or BATCH, {}, threads=0):
            self._opened.predict(self._pipeline, [values[0] for _, values in chunk], BATCH).argmax(axis=1)


class PairedService(InferenceService):
    """Service that measures a plain loop before or after each shard."""

    loop: PlainLoop
    pairs: list[dict[str, list[float]]]

    def run(self, task: InferenceTask) -> ShardResult:
        loop_is_first = len(self.pairs) % 2 == 0
        first = measure(lambda: self.loop.run(task.data)) if loop_is_first else [0.0, 0.0]
        results: list[ShardResult] = []
        own = measure(lambda: results.append(super(PairedService, self).run(task)))
        self.pairs.append(
            {"loop": first if loop_is_first else measure(lambda: self.loop.run(task.data)), "worker": own}
        )
        return results[0]


def measure(function: Callable[[], object]) -> list[float]:
    """Return the duration of a call, and the CPU seconds of this process during the call."""
    start, cpu_start = time.perf_counter(), time.process_time()
    function()
    return [time.perf_counter() - start, time.process_time() - cpu_start]


def measure_overhead(model: str, data: str, folder: str) -> list[dict[str, list[float]]]:
    """Return the durations and CPU seconds of a plain loop and of a worker for each shard, on one core."""
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


def run_plain_loop(model: str, data: str, core: int, barrier: Any, rates: Any) -> None:
    """Put the images per second of a plain loop on a core; the loops of several processes start together."""
    with cores(1, core):
        dataset = as_dataset(data)
        loop = PlainLoop(model, dataset)
        loop.run(dataset.part(0, SHARD_SIZE))  # warm-up
        barrier.wait()
        rates.put((dataset.size or 0) / measure(lambda: loop.run(dataset))[0])


def measure_plain_loops(model: str, data: Path, active: Sequence[int]) -> float:
    """Return the images per second of plain loops at the same time, each on its core."""
    context = multiprocessing.get_context("spawn")
    barrier, rates = context.Barrier(len(active)), context.Queue()
    loops = [context.Process(target=run_plain_loop, args=(model, str(data), core, barrier, rates)) for core in active]
    for loop in loops:
        loop.start()
    total = sum(rates.get(timeout=LOOP_TIMEOUT) for _ in loops)
    for loop in loops:
        loop.join()
    return float(total)


def measure_limit(model: str, data: Path) -> dict[str, float]:
    """Return the images per second of two plain loops at the same time, and the sum of those of each alone."""
    together, alone = measure_plain_loops(model, data, (0, 1)), measure_plain_loops(model, data, (0,))
    alone += measure_plain_loops(model, data, (1,))
    return {"together": together, "sum_of_each_alone": alone, "efficiency": together / alone}


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
        "samples_per_second": [median(row[index]["samples_per_second"] for row in rows) for index in (0, 1)],
        "waiting_fraction": [median(row[index]["waiting_fraction"] for row in rows) for index in (0, 1)],
    }


def predict(single: dict[str, Any], double: dict[str, Any], machine: float) -> dict[str, float]:
    """Return the simulated duration of a run with two workers, and the measured one, from the first opened model on.

    Args:
        single: run with one worker.
        double: run with two workers.
        machine: efficiency of two plain loops, by which the shards of two workers are slower.
    """
    shards = single["shard_seconds"]
    parts = MeasuredParts(0.0, shards, single["parts"]["overhead"] / len(shards))
    measured = double["samples"] / double["rates"]["open"]
    simulated = simulate_run(parts, 2, slowdown=1 / machine)
    return {
        "simulated_seconds": simulated,
        "simulated_seconds_with_own_cores": simulate_run(parts, 2),
        "measured_seconds": measured,
        "ratio": measured / simulated,
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
        return float(median(times))


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
            # Each member sends 2 (count - 1) pieces of the gradients to its neighbor.
            predicted = 2 * (count - 1) * (latency + size / (count * bandwidth))
            rows.append({"members": count, "bytes": size, "seconds": seconds, "predicted_seconds": predicted})
    return rows


def measure_round(
    model: str, data: Path, few: Path, folder: Path, clusters: Sequence[str], core: int
) -> dict[str, Any]:
    """Run plain loops, and all samples with one worker and with two workers.

    Args:
        core: core of the runs with one worker.
    """
    row: dict[str, Any] = {"machine": measure_limit(model, few)}
    for cluster in clusters:
        for workers in (1, 2):
            row[f"{cluster} {workers}"] = run(model, data, folder / "out", cluster, workers, core)
    row["prediction"] = predict(row["local 1"], row["local 2"], row["machine"]["efficiency"])
    return row


def summarize(document: dict[str, Any]) -> None:
    """Add efficiencies and overheads, as medians of all rounds."""
    rounds, clusters = document["rounds"], document["clusters"]

    def of(cluster: str, key: str) -> float:
        return float(
            median(row[f"{cluster} 2"]["rates"][key] / row[f"{cluster} 1"]["rates"][key] / 2 for row in rounds)
        )

    document["efficiency"] = {
        "machine": median(row["machine"]["efficiency"] for row in rounds),
        **{cluster: {key: of(cluster, key) for key in ("steady", "open", "whole")} for cluster in clusters},
    }
    document["overhead"]["pool"] = {
        cluster: median(
            row[f"{cluster} 1"]["parts"]["overhead"] / sum(row[f"{cluster} 1"]["shard_seconds"]) for row in rounds
        )
        for cluster in clusters
    }


def summary_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield the results as text."""
    overhead, evaluate = document["overhead"], document["evaluate"]
    yield f"overhead per image over a plain loop: worker {overhead['worker']:.1%} (CPU {overhead['worker_cpu']:.1%})"
    before, after = evaluate["samples_per_second"]
    waiting = " and ".join(f"{fraction:.1%}" for fraction in evaluate["waiting_fraction"])
    yield f"evaluate: {before:.1f} images/s without overlap, {after:.1f} with; the runtime waits {waiting} of the time"
    for cluster, values in document.get("efficiency", {}).items():
        if cluster == "machine":
            yield f"two plain loops on two cores: efficiency {values:.3f}"
            continue
        rates = {workers: document["rounds"][-1][f"{cluster} {workers}"] for workers in (1, 2)}
        speeds = ", ".join(f"{key} {values[key]:.3f}" for key in values)
        for workers, row in rates.items():
            text = ", ".join(f"{key} {rate:.1f}" for key, rate in row["rates"].items())
            cpu = ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in row["cpu_seconds"].items())
            yield f"{cluster}, {workers} workers: images/s {text}; CPU seconds {cpu}"
        yield f"{cluster}: efficiency {speeds}; overhead of the pool {overhead['pool'][cluster]:.1%}"
    for row in document["rounds"]:
        prediction = row["prediction"]
        yield (
            f"2 workers: simulated {prediction['simulated_seconds']:.1f} s "
            f"({prediction['simulated_seconds_with_own_cores']:.1f} s with the efficiency 1), "
            f"measured {prediction['measured_seconds']:.1f} s"
        )


def main() -> None:
    """Measure, write the document, and print its summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("images", type=Path)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--target", type=Path, default=HERE / "workers.json")
    options = parser.parse_args()
    model = options.model
    document: dict[str, Any] = {
        "schema": "quantkit.workers/3",
        "machine": this_machine().to_json(),
        "model": Path(model).name,
        "samples": options.samples,
        "shard_size": SHARD_SIZE,
        "clusters": list(CLUSTERS[:1] if options.no_ray else CLUSTERS),
        "rounds": [],
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
        worker, worker_cpu = (
            median(pair["worker"][index] / pair["loop"][index] for pair in pairs) - 1 for index in (0, 1)
        )
        document["overhead"] = {
            "pairs": pairs,
            "images_per_pair": SHARD_SIZE,
            "worker": worker,
            "worker_cpu": worker_cpu,
        }
        save("overhead of a worker")
        document["evaluate"] = compare_evaluations(model, options.images, options.samples, folder)
        save("evaluate")
        data = link_images(options.images, options.samples, folder / "images")
        loops = link_images(options.images, min(LIMIT_SAMPLES, options.samples), folder / "loops")
        for number in range(options.rounds):
            row = measure_round(model, data, loops, folder, document["clusters"], number % 2)
            document["rounds"].append(row)
            summarize(document)
            save(f"round {number + 1}")
    print("\n".join(summary_lines(document)))


if __name__ == "__main__":
    main()
