"""What the tests of the latency lab measure: a tiny graph, scripted clocks, made-up measurements."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quantkit.benchmark.machine import Machine
from quantkit.benchmark.measurement import Context, Measurement
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape

MACHINE = Machine("a processor", physical_cores=2, logical_cores=2, isa=("avx2",), load=0.1)
CONTEXT = Context("model.pb", "00", 1_000_000, "reference", "1", MACHINE, started="2026-01-01T00:00:00")


def tiny_graph(batch: int | None = None) -> Graph:
    """x (n, 4) -> answer = Softmax(x * W) (n, 3)."""
    return Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((batch, 4))}),
            constant("weights", np.arange(12, dtype=np.float32).reshape(4, 3)),
            Node("product", "MatMul", (Edge("x"), Edge("weights")), attrs={"T": DType.FLOAT}),
            Node("answer", "Softmax", (Edge("product"),), attrs={"T": DType.FLOAT}),
        ],
        ["x"],
        ["answer"],
    )


def scripted_clock(durations: Sequence[float]) -> Callable[[], float]:
    """A clock that is read before and after every call; the n-th call takes ``durations[n]`` seconds."""

    def readings() -> Iterator[float]:
        now = 0.0
        for duration in durations:
            yield now
            now += duration
            yield now

    source = readings()
    return lambda: next(source)


def measured(seconds: Sequence[float], blocks: int = 1, **context: Any) -> Measurement:
    """A measurement of so many equal blocks."""
    return Measurement(
        seconds=tuple(seconds),
        warmup_seconds=(0.5, 0.25),
        context=replace(CONTEXT, **context),
        block_sizes=(len(seconds) // blocks,) * blocks,
        is_settled=True,
        warmup_calls=2,
    )
