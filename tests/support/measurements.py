"""A small graph, scripted clocks and measurements for the tests of `quantkit.benchmark`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quantkit.benchmark.machine import Machine
from quantkit.benchmark.measurement import Measurement, MeasurementContext
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape

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


def make_measurement(seconds: Sequence[float], blocks: int = 1, **context: Any) -> Measurement:
    """Return a measurement with blocks of equal size."""
    return Measurement(
        seconds=tuple(seconds),
        warmup_seconds=(0.5, 0.25),
        context=replace(CONTEXT, **context),
        block_sizes=(len(seconds) // blocks,) * blocks,
        is_settled=True,
        warmup_calls=2,
    )
