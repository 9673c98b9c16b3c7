"""Time of each kernel of a plan in int8 and in float, and of the boundaries between them: measured, or from a table.

The table `costs.toml` has the constants. Decisions by the table do not depend on the machine of the quantization.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import prod
from statistics import fmean, median
from typing import Any

from quantkit.benchmark.profiling import ModelProfile
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.bodies import count_macs_of_run
from quantkit.quantization.plan import Plan
from quantkit.runtimes.session import CONVERSION

NANOSECOND = 1e-9
# Constants for a runtime that the table does not have.
DEFAULT = "default"


@dataclass(frozen=True)
class KernelTime:
    """Time of one layer or pass-through node in each precision, in seconds."""

    int8: float
    float: float


@dataclass(frozen=True)
class CostModel:
    """Times of a model in the runtimes that shall run it.

    Attributes:
        kernels: time of each layer and pass-through node by name.
        boundaries: time of the conversion of each edge between int8 and float, in seconds.
    """

    kernels: Mapping[str, KernelTime]
    boundaries: Mapping[Edge, float]

    @classmethod
    def mean(cls, models: Sequence["CostModel"]) -> "CostModel":
        """Return the mean of the times of several runtimes, each relative to its time of all kernels in float."""
        totals = [sum(time.float for time in model.kernels.values()) for model in models]
        factors = [fmean(totals) / total if total else 0.0 for total in totals]
        pairs = list(zip(models, factors, strict=True))
        return cls(
            {
                name: KernelTime(
                    fmean(model.kernels[name].int8 * factor for model, factor in pairs),
                    fmean(model.kernels[name].float * factor for model, factor in pairs),
                )
                for name in models[0].kernels
            },
            {edge: fmean(model.boundaries[edge] * factor for model, factor in pairs) for edge in models[0].boundaries},
        )


def predict_costs(graph: Graph, plan: Plan, shapes: Mapping[Edge, Shape], runtimes: Iterable[str]) -> CostModel:
    """Return the times of the kernels of a plan by the table, the mean over runtimes.

    Args:
        graph: float graph.
        plan: plan of ``graph`` with all kernels in int8.
        shapes: shapes of one sample.
        runtimes: names of the runtimes that shall run the model.
    """
    runtimes = runtimes_of(plan, runtimes)
    names = (*(pattern.layer for pattern in plan.patterns), *plan.pass_through)
    kernels = {name: predict_kernel_time(graph, name, shapes, runtimes) for name in names}
    boundaries = {edge: _mean(runtimes, "boundary", 0, _count_values(shapes, edge)) for edge in plan.activations}
    return CostModel(kernels, boundaries)


def measure_costs(
    graph: Graph, plan: Plan, table: CostModel, floats: Sequence[ModelProfile], quantized: Sequence[ModelProfile]
) -> CostModel:
    """Return the times of the kernels of a plan by profiles of a runtime.

    The profile shows the conversions together with a kernel before or after them. The boundaries of the table are
    scaled to the sum of the conversions next to a boundary; other conversions belong to their int8 kernel.

    Args:
        graph: float graph.
        plan: plan of ``graph``.
        table: times of `predict_costs`.
        floats: profiles of the float model.
        quantized: profiles of the int8 model of the plan.
    """
    nodes = {pattern.layer: pattern.nodes for pattern in plan.patterns} | {name: (name,) for name in plan.pass_through}
    computed = {name for names in nodes.values() for name in names}
    crossed = [edge for edge in plan.activations if _is_crossed(graph, edge, computed)]
    outer = {edge.node for edge in crossed} | {use.node.name for edge in crossed for use in graph.uses.get(edge, ())}

    def seconds(profiles: Sequence[ModelProfile], names: Collection[str], *, converts: bool) -> float:
        return median(
            sum(row.seconds for row in each.rows if row.name in names and (converts or row.precision != CONVERSION))
            for each in profiles
        )

    def measure(names: Collection[str]) -> KernelTime:
        time = KernelTime(
            seconds(quantized, names, converts=outer.isdisjoint(names)), seconds(floats, names, converts=True)
        )
        # A runtime that fuses the kernel with another one shows no time of its own.
        return time if time.int8 and time.float else KernelTime(*[max(time.int8, time.float)] * 2)

    inner = {name for names in nodes.values() if outer.isdisjoint(names) for name in names}
    conversions = median(
        sum(row.seconds for row in each.rows if row.precision == CONVERSION and row.name not in inner)
        for each in quantized
    )
    expected = sum(table.boundaries[edge] for edge in crossed)
    factor = conversions / expected if conversions and expected else 1.0
    return CostModel(
        {name: measure(names) for name, names in nodes.items()},
        {edge: factor * value for edge, value in table.boundaries.items()},
    )


def _is_crossed(graph: Graph, edge: Edge, computed: Collection[str]) -> bool:
    """Return True for a quantized edge with float nodes next to it."""
    names = {edge.node, *(use.node.name for use in graph.uses.get(edge, ()))}
    return edge in graph.outputs or not names <= set(computed)


def predict_kernel_time(graph: Graph, name: str, shapes: Mapping[Edge, Shape], runtimes: Collection[str]) -> KernelTime:
    """Return the times of a layer or pass-through node by the table, the mean over runtimes; see `predict_costs`."""
    node = graph[name]
    macs, values = count_macs_of_run(graph, node, shapes) or 0, _count_values(shapes, Edge(name))
    channels = _count_depthwise_channels(graph, node)
    return KernelTime(*[_mean(runtimes, precision, macs, values, channels) for precision in ("int8", "float")])


def _count_depthwise_channels(graph: Graph, node: Node) -> int:
    """Return the number of channels of an ONNX convolution with one input and output channel each; 0 for others."""
    weights = graph.constant_of(node.inputs[1]) if node.op == "Conv" else None
    channels = int(node.attrs.get("group", 1))
    return channels if weights is not None and channels > 1 and weights.shape[:2] == (channels, 1) else 0


def runtimes_of(plan: Plan, runtimes: Iterable[str]) -> tuple[str, ...]:
    """Return the runtimes that shall run the file of a plan: that of its scheme, or all."""
    return tuple(runtimes) if plan.scheme.runtime is None else (plan.scheme.runtime,)


def is_estimated(runtimes: Collection[str]) -> bool:
    """Return True if the constants of one of the runtimes are not measured."""
    return any(_constants().get(name, {}).get("is_estimate", False) for name in runtimes)


def _mean(runtimes: Collection[str], precision: str, macs: int, values: int, channels: int = 0) -> float:
    """Return the mean time of the runtimes in seconds.

    Args:
        runtimes: names of the runtimes.
        precision: kind of the kernel: ``int8``, ``float`` or ``boundary``.
        macs: number of MACs.
        values: number of output values.
        channels: number of channels of a depthwise convolution; 0 for other kernels.
    """
    default = _constants()[DEFAULT]
    rows = [{**default, **_constants().get(name, {})} for name in runtimes] or [default]

    def find_mac_time(row: Mapping[str, Any]) -> float:
        steps = row.get("depthwise", {}).get(precision, ()) if channels else ()
        return float(next((mac for multiple, mac in steps if channels % multiple == 0), row[precision]["mac"]))

    times = (find_mac_time(row) * macs + row[precision]["value"] * values + row["call"] for row in rows)
    return float(NANOSECOND * sum(times) / len(rows))


@cache
def _constants() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("costs.toml").read_text())


def _count_values(shapes: Mapping[Edge, Shape], edge: Edge) -> int:
    return prod(size or 1 for size in shapes.get(edge, UNKNOWN).dims or ())
