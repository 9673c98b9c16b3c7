"""Peaks of the machine, measured: matrix products in a runtime, and a copy of arrays larger than the caches."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from quantkit import formats
from quantkit.benchmark.host.machine import Machine, usable_threads
from quantkit.benchmark.profiling.layer_work import Peaks
from quantkit.benchmark.profiling.peak_models import OPERATIONS, float_product, int8_product
from quantkit.benchmark.profiling.tracing import trace_calls
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.errors import GraphError, UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.runtimes import find_runtime

# Bytes of each copied array for each thread, unless the caches are larger.
LEAST_COPY_BYTES = 32 << 20
COPIES = 5
Clock = Callable[[], float]


def measure_peaks(runtime: str, settings: Settings, machine: Machine, folder: Path) -> Peaks:
    """Measure the peaks of a runtime with the settings of a candidate.

    Args:
        runtime: name of the runtime.
        settings: threads, CPUs and variables of the process.
        machine: this host.
        folder: for the files of the products.
    """
    dialect = find_runtime(runtime).native_dialect or onnx.DIALECT
    path = folder / ("product.onnx" if dialect == onnx.DIALECT else "product.pb")
    own = Settings(runtime, settings.options, settings.environment, settings.cpus)
    float_peak, int8_peak = (_product_rate(make(dialect), path, own) for make in (float_product, int8_product))
    return Peaks(float_peak, int8_peak, copy_rate(usable_threads(machine, settings.cpus), machine))


def copy_rate(threads: int, machine: Machine, clock: Clock = perf_counter) -> float:
    """Return the bytes per second that copies of arrays read and write, in the fastest of several rounds.

    Args:
        threads: number of copies at the same time.
        machine: this host; the arrays are larger than its caches.
        clock: monotonic clock in seconds.
    """
    largest_cache = max((size for _, size in machine.cache_bytes), default=0)
    num_bytes = max(LEAST_COPY_BYTES, min(2 * largest_cache // threads, 4 * LEAST_COPY_BYTES))
    arrays = [(np.ones(num_bytes, np.uint8), np.empty(num_bytes, np.uint8)) for _ in range(threads)]
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(COPIES):
            start = clock()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), arrays))
            seconds.append(clock() - start)
    return 2 * num_bytes * threads / min(seconds)


def _product_rate(product: Graph, path: Path, settings: Settings) -> float | None:
    """Return the operations per second of the fastest call of a product; None if the runtime cannot run it."""
    formats.save(product, path)
    if product.dialect != onnx.DIALECT:
        settings = replace(settings, inputs=("x",), outputs=("product",))
    with suppress(UnavailableError, GraphError):
        calls = trace_calls(Candidate("matrix product", path, settings))
        slowest = max(calls.trace.ops, key=lambda op: sum(op.seconds))
        return OPERATIONS / min(slowest.seconds)
    return None
