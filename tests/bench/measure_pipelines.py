"""Optimize input pipelines, and compare them with a hand sweep, with AUTOTUNE, and element by element.

    python tests/bench/measure_pipelines.py [--only generated|pipelines] [--names filter] [--count 200] [--budget 20]

Takes about 10 minutes. Writes ``tests/bench/pipelines.json`` after each row. ``pipelines``: the pipeline of the article
(parse each example, then batch) and seven others; each one is optimized, the variants of a hand sweep are measured, and
then the original, the optimized one, the best variant and AUTOTUNE in alternation. ``generated``: random pipelines, all
rewrites applied without a measurement, all elements compared.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from quantkit.benchmark.host.machine import this_machine
from quantkit.ir.graph import Graph
from quantkit.pipelines import bridge, caching, optimize
from quantkit.pipelines.execution import Execution
from quantkit.pipelines.optimization import REWRITES
from quantkit.pipelines.parallelism import parallelize
from quantkit.pipelines.verification import describe_difference, fix_randomness
from quantkit.runtimes.tensorflow_library import import_tensorflow

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from generated_pipelines import make_pipeline

tf = import_tensorflow()
# Rounds of the hand sweep, and of the comparison with its best variant.
SWEEP_ROUNDS, ROUNDS = 2, 5
# Maximum time of the epoch that fills the caches of a pipeline.
FILL_SECONDS = 10.0
AUTOTUNE = tf.data.AUTOTUNE
# Variant of the hand sweep: number of parallel calls, prefetch, cache.
VARIANTS: list[tuple[int | None, bool, bool]] = [
    (None, True, False),
    (2, True, False),
    (4, False, False),
    (4, True, False),
    (AUTOTUNE, True, False),
    (AUTOTUNE, True, True),
    (4, True, True),
]
Build = Callable[..., Any]


def write_examples(folder: Path) -> str:
    """Write 30,000 examples of 64 packed bytes and two numbers."""
    path, rng = str(folder / "bits.tfrecord"), np.random.default_rng(0)
    with tf.io.TFRecordWriter(path) as writer:
        for _ in range(30_000):
            bits = tf.train.Feature(bytes_list=tf.train.BytesList(value=[rng.bytes(64)]))
            value = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0]))
            features = tf.train.Features(feature={"bits": bits, "value": value})
            writer.write(tf.train.Example(features=features).SerializeToString())
    return path


def write_images(folder: Path) -> list[str]:
    """Write 200 JPEG files of 160 x 160 pixels."""
    rng, paths = np.random.default_rng(1), []
    for number in range(200):
        pixels = tf.image.resize(rng.integers(0, 255, (40, 40, 3)), [160, 160])
        path = str(folder / f"{number}.jpg")
        tf.io.write_file(path, tf.io.encode_jpeg(tf.cast(pixels, tf.uint8)))
        paths.append(path)
    return paths


def pipelines(folder: Path) -> dict[str, tuple[Build, bool]]:
    """Return the pipelines as functions of a variant; True if a cache fits into the pipeline."""
    records, images = write_examples(folder), write_images(folder)
    features = {"bits": tf.io.FixedLenFeature([], tf.string), "value": tf.io.FixedLenFeature([2], tf.float32)}

    def tail(dataset: Any, prefetch: bool) -> Any:
        return dataset.prefetch(AUTOTUNE) if prefetch else dataset

    def keep(dataset: Any, cache: bool) -> Any:
        return dataset.cache() if cache else dataset

    def parse(record: Any) -> Any:
        return tf.io.parse_single_example(record, features)

    def unpack(example: Any) -> Any:
        raw = tf.io.decode_raw(example["bits"], tf.uint8)
        planes = [
            tf.bitwise.bitwise_and(tf.bitwise.right_shift(raw, tf.constant(bit, tf.uint8)), 1) for bit in range(8)
        ]
        return tf.cast(tf.stack(planes, axis=-1), tf.float32), example["value"]

    def article(calls: int | None = None, prefetch: bool = False, cache: bool = False) -> Any:
        dataset = keep(tf.data.TFRecordDataset(records), cache).shuffle(10_000)
        return tail(dataset.map(parse, calls).batch(512).map(unpack, calls), prefetch)

    def decode(path: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.image.resize(tf.cast(image, tf.float32) / 255.0, [96, 96])

    def augment(image: Any) -> Any:
        return tf.image.random_flip_left_right(tf.image.random_brightness(image, 0.1))

    def jpeg(calls: int | None = None, prefetch: bool = False, cache: bool = False) -> Any:
        dataset = keep(tf.data.Dataset.from_tensor_slices(images).map(decode, calls), cache)
        return tail(dataset.shuffle(100).map(augment, calls).batch(16), prefetch)

    def small_files(calls: int | None = None, prefetch: bool = False, cache: bool = False) -> Any:
        files = tf.data.Dataset.from_tensor_slices(images)
        if cache:  # by hand, a cache needs the shuffle after it
            lengths = files.map(tf.io.read_file, calls).map(tf.strings.length, calls).cache()
            return tail(lengths.shuffle(200).batch(32), prefetch)
        dataset = files.shuffle(200).map(tf.io.read_file, calls).map(tf.strings.length, calls)
        return tail(dataset.batch(32), prefetch)

    def read_slowly(path: Any) -> Any:
        rows = tf.data.Dataset.range(20).map(lambda row: tf.cast(row, tf.float32))
        return rows.map(lambda row: tf.reduce_sum(tf.linalg.matmul(tf.fill([96, 96], row), tf.ones([96, 96]))))

    def interleave_files(calls: int | None = None, prefetch: bool = False, cache: bool = False) -> Any:
        files = tf.data.Dataset.from_tensor_slices(images[:20])
        dataset = files.interleave(read_slowly, cycle_length=4, num_parallel_calls=calls)
        return tail(keep(dataset, cache).batch(8), prefetch)

    def filter_rows(calls: int | None = None, prefetch: bool = False, cache: bool = False) -> Any:
        dataset = tf.data.Dataset.range(20_000).map(lambda x: tf.cast(x, tf.float32) * 0.5, calls)
        return tail(keep(dataset.filter(lambda x: tf.math.floormod(x, 2.0) < 1.0), cache).batch(256), prefetch)

    # Parallel calls of the map would change the elements, because its random op has a seed.
    def stateful(calls: int | None = None, prefetch: bool = False, cache: bool = False) -> Any:
        numbers = tf.data.Dataset.range(5_000).scan(np.int64(0), lambda total, x: (total + x, total))
        noisy = numbers.map(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([64], seed=3))
        return tail(noisy.batch(64), prefetch)

    def good(calls: int | None = None, prefetch: bool = False, cache: bool = False) -> Any:
        dataset = tf.data.TFRecordDataset(records).shuffle(10_000).batch(512)
        return dataset.map(lambda rows: unpack(tf.io.parse_example(rows, features)), AUTOTUNE).prefetch(AUTOTUNE)

    def cacheable(calls: int | None = None, prefetch: bool = False, cache: bool = False) -> Any:
        dataset = keep(tf.data.Dataset.from_tensor_slices(images).map(decode, calls), cache)
        return tail(dataset.batch(20), prefetch)

    return {
        "article: parse each example, then batch": (article, False),
        "JPEG decode and augment": (jpeg, True),
        "many small files": (small_files, True),
        "interleave of slow files": (interleave_files, True),
        "filter": (filter_rows, True),
        "map with state": (stateful, False),
        "already good": (good, False),
        "cache potential": (cacheable, True),
    }


def measure_pipeline(name: str, build: Build, fits: bool, execution: Execution, budget: float) -> dict[str, Any]:
    """Optimize a pipeline, and compare it with the original, AUTOTUNE and the best variant of a hand sweep."""
    result = optimize(build(), time_budget=budget)
    variants = {describe_variant(variant): bridge.to_graph(build(*variant)) for variant in VARIANTS}
    sweep = measure_rates({"original": result.original, **variants}, execution, SWEEP_ROUNDS)
    best = max(sweep, key=lambda key: median(sweep[key]))
    autotune = describe_variant((AUTOTUNE, True, False))
    # The best variant is the one whose noise was favorable: the comparison measures it again.
    candidates = {"original": result.original, "best": {"original": result.original, **variants}[best]}
    candidates |= {"autotune": variants[autotune], "optimized": result.graph}
    rates = measure_rates(candidates, execution, ROUNDS)

    # Elements per second of processor time: other processes change this ratio less.
    costs = measure_rates({"before": result.original, "after": result.graph}, Execution(process_time), 2)

    def ratio(key: str) -> float:
        return median(left / right for left, right in zip(rates["optimized"], rates[key], strict=True))

    return {
        "pipeline": name,
        "applied": list(result.applied),
        "steps": list(map(str, result.steps)),
        "python": result.python().splitlines(),
        "verified_elements": max((step.to_json()["verified_elements"] for step in result.steps), default=0),
        "sweep": sweep,
        "rates": rates,
        "ratio_to_original": ratio("original"),
        "ratio_to_original_by_processor_time": median(
            after / before for before, after in zip(costs["before"], costs["after"], strict=True)
        ),
        "best_of_sweep": best,
        "ratio_to_best_of_sweep": ratio("best"),
        "ratio_to_autotune": ratio("autotune"),
        "cache_fits": fits,
        "different_elements": count_differences(result.original, result.graph, execution),
    }


def describe_variant(variant: tuple[int | None, bool, bool]) -> str:
    return "calls={} prefetch={} cache={}".format(*variant)


def measure_rates(graphs: dict[str, Graph], execution: Execution, rounds: int) -> dict[str, list[float]]:
    """Return the elements per second of pipelines in rounds, each in another order; caches are filled before."""
    opened = {key: execution.open(graph, FILL_SECONDS if has_cache(graph) else 0.0) for key, graph in graphs.items()}
    rates: dict[str, list[float]] = {key: [] for key in graphs}
    for number in range(rounds):
        keys = list(graphs)[number % len(graphs) :] + list(graphs)[: number % len(graphs)]
        for key in keys if number % 2 == 0 else reversed(keys):
            rates[key].append(execution.rate(opened[key], 0.6, 0.5))
    return rates


def has_cache(graph: Graph) -> bool:
    return any("Cache" in node.op for node in graph.nodes.values())


def count_differences(original: Graph, rewritten: Graph, execution: Execution) -> int:
    """Compare all elements of an epoch; return the number of differences."""
    expected, actual = (list(execution.elements(fix_randomness(graph))) for graph in (original, rewritten))
    different = sum(bool(describe_difference(left, right)) for left, right in zip(expected, actual, strict=False))
    return different + abs(len(expected) - len(actual))


def measure_generated(count: int, execution: Execution) -> dict[str, Any]:
    """Apply every rewrite to random pipelines, and compare all elements."""
    changed = elements = 0
    wrong: list[int] = []
    for seed in range(count):
        original = graph = bridge.to_graph(make_pipeline(seed))
        for rewrite in REWRITES.values():
            graph = rewrite(graph).graph
        graph = parallelize(graph, seed % 4 or AUTOTUNE).graph
        graph = caching.delay_shuffles(graph)
        site = caching.find_cache_site(graph, execution, 5.0, 1 << 30)
        if isinstance(site, caching.CacheSite):
            graph = caching.insert_cache(graph, site).graph
        changed += graph is not original
        elements += len(list(execution.elements(fix_randomness(original))))
        if count_differences(original, graph, execution):
            wrong.append(seed)
    return {"pipelines": count, "changed": changed, "elements": elements, "wrong": wrong}


def describe_row(row: dict[str, Any]) -> str:
    return (
        f"{row['pipeline']}: {row['ratio_to_original']:.2f} times the original, "
        f"{row['ratio_to_best_of_sweep']:.2f} times the best of the sweep ({row['best_of_sweep']}), "
        f"{row['ratio_to_autotune']:.2f} times AUTOTUNE; {', '.join(row['applied']) or 'unchanged'}; "
        f"{row['different_elements']} different elements"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("generated", "pipelines"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--names", nargs="*", default=[""], help="first characters of the names of pipelines")
    parser.add_argument("--budget", type=float, default=20)
    parser.add_argument("--target", type=Path, default=Path(__file__).with_name("pipelines.json"))
    args = parser.parse_args()
    execution = Execution()
    document: dict[str, Any] = json.loads(args.target.read_text()) if args.target.exists() else {}
    document |= {
        "schema": "quantkit.bench_pipelines/2",
        "machine": this_machine().to_json(),
        "load": os.getloadavg()[0],
    }
    document.setdefault("rows", [])
    if args.only != "pipelines":
        document["generated"] = measure_generated(args.count, execution)
        args.target.write_text(json.dumps(document, indent=1) + "\n")
        print(document["generated"], flush=True)
    if args.only != "generated":
        with tempfile.TemporaryDirectory() as folder:
            for name, (build, fits) in pipelines(Path(folder)).items():
                if not name.startswith(tuple(args.names)):
                    continue
                row = measure_pipeline(name, build, fits, execution, args.budget)
                document["rows"] = [other for other in document["rows"] if other["pipeline"] != name] + [row]
                args.target.write_text(json.dumps(document, indent=1) + "\n")
                print(describe_row(row), flush=True)


if __name__ == "__main__":
    main()
