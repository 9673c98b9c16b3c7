"""Profile of one model: time by layer of the original graph, by precision and implementation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from quantkit.benchmark.profiling.layer_names import LayerNames
from quantkit.benchmark.profiling.layer_work import LayerWork
from quantkit.benchmark.profiling.tracing import TracedCalls
from quantkit.runtimes.session import CONVERSION, FLOAT, INT8, TRANSFER, OpTime, RuntimeVersion

PRECISIONS = (INT8, FLOAT, CONVERSION, TRANSFER)


@dataclass(frozen=True)
class ProfileRow:
    """Time of one layer of a model in one precision.

    Attributes:
        name: name of the layer in the original graph; empty for ops that belong to no layer.
        op: op type of the layer in the original graph.
        precision: `INT8`, `FLOAT`, `CONVERSION` or `TRANSFER`.
        seconds: time in one call.
        kernels: implementations, the slowest first.
        ops: names of the ops in the runtime, the slowest first.
        reference_seconds: part of the time in reference implementations.
        work: operations and bytes of the layer; None if they are unknown, and for conversions.
    """

    name: str
    op: str
    precision: str
    seconds: float
    kernels: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    reference_seconds: float = 0.0
    work: LayerWork | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self) | {"work": None if self.work is None else self.work.to_json(self.seconds)}


@dataclass(frozen=True)
class ModelProfile:
    """Time of the layers of one model in one runtime.

    The time of each op is its median over the traced calls. It is scaled by one factor for all ops, so that the rows
    and `overhead_seconds` sum to the untraced latency.

    Attributes:
        label: name of the model.
        runtime: runtime of the model.
        rows: layers in the order of the original graph, then the ops that belong to no layer.
        untraced_seconds: median latency without a trace.
        traced_seconds: median latency with a trace.
        overhead_seconds: part of the untraced latency in which no op ran.
        calls: number of traced calls.
        threads: threads that the options request, the product of both, or that the runtime creates by default; 0 for a
            runtime without thread options.
        usable_threads: hardware threads that the process may use.
        oversubscription_seconds: latency minus the one with `usable_threads`; 0 if `threads` is not larger.
        throttled_fraction: fraction of the time for which a CPU quota stopped the process.
        on_gpu: True if a GPU runs the model.
    """

    label: str
    runtime: RuntimeVersion
    rows: tuple[ProfileRow, ...]
    untraced_seconds: float
    traced_seconds: float
    overhead_seconds: float
    calls: int
    threads: int = 0
    usable_threads: int = 1
    oversubscription_seconds: float = 0.0
    throttled_fraction: float = 0.0
    on_gpu: bool = False

    @cached_property
    def seconds(self) -> float:
        """Time of all rows."""
        return sum(row.seconds for row in self.rows)

    @property
    def coverage(self) -> float:
        """Fraction of the time of the ops that belongs to layers of the original graph."""
        return sum(row.seconds for row in self.rows if row.name) / max(self.seconds, 1e-12)

    @property
    def tracing_cost(self) -> float:
        """Relative increase of the latency by the trace; negative if noise exceeds it."""
        return self.traced_seconds / self.untraced_seconds - 1

    @cached_property
    def fractions(self) -> Mapping[str, float]:
        """Fraction of the time of the ops by precision."""
        return {
            precision: sum(row.seconds for row in self.rows if row.precision == precision) / max(self.seconds, 1e-12)
            for precision in PRECISIONS
        }

    def seconds_of(self, layer: str) -> float:
        """Return the time of a layer in all precisions."""
        return sum(row.seconds for row in self.rows if row.name == layer)

    def to_json(self) -> dict[str, Any]:
        """Return the profile without its rows as JSON values."""
        return {
            "label": self.label,
            "runtime": {"name": self.runtime.name, "version": self.runtime.version},
            "device": self.runtime.device,
            "coverage": self.coverage,
            "untraced_seconds": self.untraced_seconds,
            "traced_seconds": self.traced_seconds,
            "overhead_seconds": self.overhead_seconds,
            "tracing_cost": self.tracing_cost,
            "fractions": dict(self.fractions),
            "calls": self.calls,
            "threads": self.threads,
            "usable_threads": self.usable_threads,
            "oversubscription_seconds": self.oversubscription_seconds,
            "throttled_fraction": self.throttled_fraction,
        }


def profile_model(label: str, calls: TracedCalls, layers: LayerNames, level: float = 0.5) -> ModelProfile:
    """Return the profile of a model from its traced calls.

    Args:
        label: name of the model.
        calls: calls with and without a trace.
        layers: layers of the original graph.
        level: quantile of the times over the calls; a low one excludes calls that other programs delay.
    """
    untraced, *seconds = (
        float(np.quantile(times, level)) for times in (calls.untraced_seconds, *(op.seconds for op in calls.trace.ops))
    )
    scale = untraced * _busy_fraction(calls) / max(sum(seconds), 1e-12)
    groups: dict[tuple[str, str], list[tuple[OpTime, float]]] = {}
    for op, layer, time in zip(calls.trace.ops, layers.find_layers(calls.trace.ops), seconds, strict=True):
        groups.setdefault((layer, op.precision), []).append((op, time * scale))
    positions = {name: position for position, name in enumerate(layers.graph.order)}
    keys = sorted(groups, key=lambda key: positions.get(key[0], len(positions)))
    rows = tuple(_row(layers, *key, groups[key]) for key in keys)
    overhead = max(untraced - sum(row.seconds for row in rows), 0.0)
    traced = median(calls.traced_seconds)
    count = len(calls.traced_seconds)
    return ModelProfile(label, calls.runtime, rows, untraced, traced, overhead, count, on_gpu=calls.on_gpu)


def _busy_fraction(calls: TracedCalls) -> float:
    """Return the fraction of a call in which an op ran, 1 at most.

    It is measured in the traced calls. The duration of a call in the runtime, which excludes the cost of reading the
    trace, is preferred to the one that the caller sees.
    """
    durations = calls.trace.run_seconds or calls.traced_seconds
    totals = [sum(times) for times in zip(*(op.seconds for op in calls.trace.ops), strict=True)]
    fractions = [total / duration for total, duration in zip(totals, durations, strict=True)]
    return min(float(median(fractions)), 1.0)


def _row(layers: LayerNames, layer: str, precision: str, ops: Sequence[tuple[OpTime, float]]) -> ProfileRow:
    ordered = sorted(ops, key=lambda pair: -pair[1])
    is_computation = bool(layer) and precision in (INT8, FLOAT)
    return ProfileRow(
        layer,
        layers.graph[layer].op if layer else "",
        precision,
        sum(time for _, time in ops),
        tuple(dict.fromkeys(op.kernel for op, _ in ordered if op.kernel)),
        tuple(op.name for op, _ in ordered),
        sum(time for op, time in ops if op.is_reference),
        LayerWork.of(layers, layer, precision) if is_computation else None,
    )
