"""Time of each layer in int8 and in float, and of the boundaries between them.

The table `costs.toml` has the constants. Decisions by the table do not depend on the machine of the quantization.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.bodies import count_macs_of_run
from quantkit.quantization.plan import Plan

NANOSECOND = 1e-9
# Constants for a runtime that the table does not have.
DEFAULT = "default"


@dataclass(frozen=True)
class LayerTime:
    """Time of one layer in each precision, in seconds."""

    int8: float
    float: float


@dataclass(frozen=True)
class CostModel:
    """Predicted times of a model in the runtimes that shall run it.

    Attributes:
        layers: time of each layer by name.
        boundaries: time of the conversion of each edge between int8 and float, in seconds.
    """

    layers: Mapping[str, LayerTime]
    boundaries: Mapping[Edge, float]


def predict_costs(graph: Graph, plan: Plan, shapes: Mapping[Edge, Shape], runtimes: Iterable[str]) -> CostModel:
    """Return the times of the layers of a plan by the table, the mean over runtimes.

    Args:
        graph: float graph.
        plan: plan of ``graph`` with all layers in int8.
        shapes: shapes of one sample.
        runtimes: names of the runtimes that shall run the model.
    """
    runtimes = runtimes_of(plan, runtimes)
    layers = {pattern.layer: predict_layer_time(graph, pattern.layer, shapes, runtimes) for pattern in plan.patterns}
    boundaries = {edge: _mean(runtimes, "boundary", 0, _count_values(shapes, edge)) for edge in plan.activations}
    return CostModel(layers, boundaries)


def predict_layer_time(graph: Graph, layer: str, shapes: Mapping[Edge, Shape], runtimes: Collection[str]) -> LayerTime:
    """Return the times of a layer by the table, the mean over runtimes; see `predict_costs`."""
    macs, values = count_macs_of_run(graph, graph[layer], shapes) or 0, _count_values(shapes, Edge(layer))
    return LayerTime(_mean(runtimes, "int8", macs, values), _mean(runtimes, "float", macs, values))


def runtimes_of(plan: Plan, runtimes: Iterable[str]) -> tuple[str, ...]:
    """Return the runtimes that shall run the file of a plan: that of its scheme, or all."""
    return tuple(runtimes) if plan.scheme.runtime is None else (plan.scheme.runtime,)


def _mean(runtimes: Collection[str], precision: str, macs: int, values: int) -> float:
    """Return the mean time of the runtimes in seconds."""
    rows = [_constants().get(name, _constants()[DEFAULT]) for name in runtimes] or [_constants()[DEFAULT]]
    times = (row[precision]["mac"] * macs + row[precision]["value"] * values + row["call"] for row in rows)
    return float(NANOSECOND * sum(times) / len(rows))


@cache
def _constants() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("costs.toml").read_text())


def _count_values(shapes: Mapping[Edge, Shape], edge: Edge) -> int:
    return prod(size or 1 for size in shapes.get(edge, UNKNOWN).dims or ())
