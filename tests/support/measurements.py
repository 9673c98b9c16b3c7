"""A small graph, scripted clocks and measurements for the tests of latencies."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quantkit.benchmark.host.machine import Machine
from quantkit.benchmark.profiling import ModelProfile, ProfileRow
from quantkit.benchmark.results.measurement import Measurement, MeasurementContext
from quantkit.benchmark.results.report import Benchmark, BenchmarkRow
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization.report import Latency
from quantkit.quantization.report.census import INT8
from quantkit.runtimes.session import RuntimeVersion

MACHINE = Machine("a processor", physical_cores=2, logical_cores=2, isa=("avx2",), load=0.1)
CONTEXT = MeasurementContext("model.pb", "00", 1_000_000, "reference", "1", MACHINE, started="2026-01-01T00:00:00")


def tiny_graph(batch: int | None = None) -> Graph:
    """Return the graph x (n, 4) -> scores = Softmax(x * W) (n, 3)."""
    return Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((batch, 4))}),
            constant("weights", np.arange(12, dtype=np.float32).reshape(4, 3)),
            Node("product", "MatMul", (Edge("x"), Edge("weights")), attrs={"T": DType.FLOAT}),
            Node("scores", "Softmax", (Edge("product"),), attrs={"T": DType.FLOAT}),
        ],
        ["x"],
        ["scores"],
    )


def scripted_clock(durations: Sequence[float]) -> Callable[[], float]:
    """Return a clock for `time_calls`: the n-th call takes ``durations[n]`` seconds."""

    def readings() -> Iterator[float]:
        now = 0.0
        for duration in durations:
            yield now
            now += duration
            yield now

    source = readings()
    return lambda: next(source)


def make_measurement(seconds: Sequence[float], blocks: int = 1, processes: int = 1, **context: Any) -> Measurement:
    """Return a measurement with blocks of equal size, and as many in each process."""
    return Measurement(
        seconds=tuple(seconds),
        warmup_seconds=(0.5, 0.25),
        context=replace(CONTEXT, **context),
        block_sizes=(len(seconds) // blocks,) * blocks,
        is_settled=True,
        warmup_calls=2,
        process_rounds=(blocks // processes,) * processes,
    )


def make_latency(milliseconds: Mapping[str, float], spread: float = 0.0, processes: int = 5) -> Latency:
    """Return latencies with their confidence intervals.

    Args:
        milliseconds: median of each row by ``float RUNTIME`` or ``int8 RUNTIME``.
        spread: relative difference between processes of int8.
        processes: number of processes of each row, at most 5.
    """
    factors = [1, 1 + spread, 1 - spread / 2, 1 + spread / 2, 1 - spread / 3][:processes]
    rows = []
    for name, value in milliseconds.items():
        label, runtime = name.split()
        seconds = [value / 1e3 * (factor if label == INT8 else 1) for factor in factors for _ in range(4)]
        measurement = make_measurement(seconds, 2 * processes, processes, model=label, runtime=runtime)
        rows.append(BenchmarkRow(label, runtime, measurement))
    return Latency(Benchmark(tuple(rows)))


def make_model_profile(
    seconds: Mapping[tuple[str, str], float], label: str = "int8", runtime: str = "openvino", **facts: Any
) -> ModelProfile:
    """Return a profile from the seconds of each pair of layer and precision; the op type is the layer in upper case."""
    rows = tuple(ProfileRow(name, name.upper(), precision, time) for (name, precision), time in seconds.items())
    total = sum(row.seconds for row in rows)
    return ModelProfile(label, RuntimeVersion(runtime, "1"), rows, total, total, 0.0, 5, **facts)
