"""Warnings about tensors that no range quantizes well: NaN, infinity, a constant, a dominant channel."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from quantkit.ir.graph import Edge
from quantkit.ir.tensor import Array
from quantkit.quantization.plan import NOT_FINITE, Plan

# Number of arrays per edge whose channels are compared: it takes longer than all other observations.
CHANNEL_RUNS = 4
# Ratio of a channel's maximum to that of the median channel from which the others get few quantized values.
DOMINANT_RATIO = 100.0


class RangeMonitor:
    """Observer of tensors that are hard to quantize.

    Attributes:
        channel_maxima: largest absolute value of each channel, by edge.
        constants: the only value of an edge so far, by edge.
        num_nan, num_infinite: number of such values by edge.
        num_runs: number of observed arrays by edge.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.channel_maxima: dict[Edge, Array] = {}
        self.constants: dict[Edge, float] = {}
        self.num_nan: Counter[Edge] = Counter()
        self.num_infinite: Counter[Edge] = Counter()
        self.num_runs: Counter[Edge] = Counter()

    def observe(self, edge: Edge, values: Array, num_nan: int, num_infinite: int) -> None:
        """Observe one array (..., c) with its number of NaN and infinite values."""
        self.num_nan[edge] += num_nan
        self.num_infinite[edge] += num_infinite
        self.num_runs[edge] += 1
        if self.num_runs[edge] == 1 or edge in self.constants:
            self._observe_constant(edge, values)
        if self.num_runs[edge] > CHANNEL_RUNS or values.ndim < 2 or not values.size:
            return
        rows = values.reshape(-1, values.shape[-1])
        with np.errstate(invalid="ignore"):
            maxima = np.maximum(np.abs(rows.max(0)), np.abs(rows.min(0)))
        largest = self.channel_maxima.setdefault(edge, maxima)
        if largest.shape == maxima.shape:  # an axis of another size is not a channel axis
            self.channel_maxima[edge] = np.maximum(largest, maxima)

    def _observe_constant(self, edge: Edge, values: Array) -> None:
        """Record the only value of an edge; a range in common with other edges does not show it."""
        flat = values.reshape(-1)
        if flat.size and flat[0] == self.constants.get(edge, flat[0]) and (flat == flat[0]).all():
            self.constants[edge] = float(flat[0])
        else:
            self.constants.pop(edge, None)

    def warnings(self, edges: Iterable[Edge]) -> tuple[str, ...]:
        """Return one sentence per problem; of a problem that spreads, the first tensor and the number of others."""
        edges = tuple(edges)
        broken = [edge for edge in edges if self.num_nan[edge] + self.num_infinite[edge]]
        dominant = [text for edge in edges if (text := self._dominant_channel(edge))]
        texts = [f"{broken[0]}: {self._not_finite(broken[0])}{_downstream(broken)}"] if broken else []
        texts += [f"{dominant[0]}{_downstream(dominant)}"] if dominant else []
        texts += [
            f"{edge}: constant {self.constants[edge]:g}; its range has no width"
            for edge in edges
            if edge in self.constants and edge not in broken
        ]
        fallbacks = {name: reason for name, reason in self.plan.float_fallbacks.items() if NOT_FINITE in reason}
        return (*texts, *(f"{name}: {reason}; float fallback" for name, reason in fallbacks.items()))

    def state(self) -> dict[str, Array]:
        """Return the observations as arrays, for `restore`."""
        arrays: dict[str, Array] = {f"maxima {edge.reference}": maxima for edge, maxima in self.channel_maxima.items()}
        arrays |= {f"constant {edge.reference}": np.array(value) for edge, value in self.constants.items()}
        counts = [(self.num_nan[edge], self.num_infinite[edge], self.num_runs[edge]) for edge in self.plan.edges]
        return {**arrays, "counts": np.array(counts, np.int64)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore the observations of `state`."""
        for name, array in state.items():
            kind, _, edge_name = name.partition(" ")
            if kind == "maxima":
                self.channel_maxima[Edge.parse(edge_name)] = array
            elif kind == "constant":
                self.constants[Edge.parse(edge_name)] = float(array)
        for edge, counts in zip(self.plan.edges, state["counts"].tolist(), strict=True):
            self.num_nan[edge], self.num_infinite[edge], self.num_runs[edge] = counts

    def _not_finite(self, edge: Edge) -> str:
        nan, infinite = self.num_nan[edge], self.num_infinite[edge]
        return f"NaN in {nan} values" if nan else f"infinity in {infinite} values"

    def _dominant_channel(self, edge: Edge) -> str:
        """Return a sentence about a channel that dominates the others; empty without such a channel."""
        maxima = self.channel_maxima.get(edge)
        if maxima is None or not np.isfinite(maxima).all():
            return ""
        positive = maxima[maxima > 0]
        if positive.size < 3:
            return ""
        channel, ratio = int(maxima.argmax()), float(maxima.max() / np.median(positive))
        if ratio < DOMINANT_RATIO:
            return ""
        reach = f"channel {channel} reaches {ratio:.0f} times the maximum of the median channel"
        return f"{edge}: {reach}, which leaves few quantized values for the others"


def _downstream(affected: Sequence[object]) -> str:
    return f" (and {len(affected) - 1} downstream tensors)" if len(affected) > 1 else ""
