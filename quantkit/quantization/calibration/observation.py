"""Observation of the float graph's tensors: one observer per range, warnings, and channel means."""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np

from quantkit.errors import InputError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.ops.roles.onnx import CONVOLUTION_OPS
from quantkit.ops.semantics import SHAPE_OPS
from quantkit.quantization.calibration.clamped_sums import clip_ranges
from quantkit.quantization.calibration.range_warnings import RangeMonitor
from quantkit.quantization.observers import MinMax, Observer, create_observer
from quantkit.quantization.observers.error_search import histogram_sqnr
from quantkit.quantization.observers.histogram import HistogramObserver
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Provenance, Range, Ranges, graph_digest
from quantkit.quantization.significant_bits import round_means, round_range
from quantkit.runtimes.session import Session

# Number of positions per tensor that the channel means sample.
MEAN_POSITIONS = 401
# Ops that write a constant next to the values of an input.
_FILLING_OPS = frozenset({"Pad", "PadV2", "Select", "SelectV2", "Where"})


class Observation:
    """Everything observed in a calibration.

    Attributes:
        plan: decisions about the float graph.
        graph_digest: digest of the float graph.
        channels_first: edges whose channel axis is axis 1 instead of the last one.
        count: number of samples so far.
        observers: observer of each edge; edges with a common range have a common observer.
        monitor: source of the warnings.
        means: channel means for bias correction; None without bias correction.
    """

    def __init__(self, plan: Plan, session: Session, graph: Graph | None = None) -> None:
        self.plan = plan
        self.graph = graph
        self.graph_digest = "" if graph is None else graph_digest(graph)
        self.channels_first = frozenset() if graph is None else channels_first_edges(graph, plan)
        self.count = 0
        self.observers: dict[Edge, Observer] = {}
        for edge in plan.edges:
            common = next((self.observers[other] for other in plan.group_of(edge) if other in self.observers), None)
            self.observers[edge] = common or create_observer(plan.scheme.observer, plan.activations[edge])
        self.monitor = RangeMonitor(plan)
        self.means = ChannelMeans() if plan.mean_edges else None
        self._names = {edge: tensor_name(graph, edge) for edge in (*plan.edges, *plan.mean_edges)}
        self._outputs = {info.name for info in session.outputs}
        self._data = blake2b(digest_size=8)
        self._resumed_count = 0
        self._resumed_data = ""
        self._state: Path | None = None

    @property
    def data_digest(self) -> str:
        """Digest of all feeds so far."""
        return self._data.hexdigest()

    def resume_after(self, count: int, data_digest: str, state: Path) -> None:
        """Skip the first samples, which the observations of a state file contain."""
        self._resumed_count, self._resumed_data, self._state = count, data_digest, state

    def skips(self, feeds: Mapping[str, Array], count: int) -> bool:
        """Return True if the resumed state contains these samples.

        Raises:
            InputError: the state belongs to other data.
        """
        if self.count >= self._resumed_count:
            return False
        self._add_to_digest(feeds, count)
        if self.count >= self._resumed_count and self.data_digest != self._resumed_data:
            raise self._other_data_error()
        return True

    def require_resumed_samples(self) -> None:
        """Check that the data had all samples of the resumed state.

        Raises:
            InputError: the state belongs to other data.
        """
        if self.count < self._resumed_count:
            raise self._other_data_error()

    def _other_data_error(self) -> InputError:
        return InputError("the interrupted calibration ran on other data", hint=f"remove {self._state} to start again")

    def observe(self, feeds: Mapping[str, Array], outputs: Mapping[str, Array], count: int) -> None:
        """Observe feeds and outputs of one run with ``count`` samples."""
        for edge, observer in self.observers.items():
            before = observer.num_nan, observer.num_infinite
            values = self._values(edge, feeds, outputs)
            observer.observe(values)
            self.monitor.observe(
                edge,
                self._channels_last(edge, values),
                observer.num_nan - before[0],
                observer.num_infinite - before[1],
            )
        for edge in self.plan.mean_edges:
            if self.means is not None:
                self.means.add(edge, self.rows(edge, feeds, outputs))
        self._add_to_digest(feeds, count)

    def rows(self, edge: Edge, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> Array:
        """Return the values of an edge in one run, (..., c)."""
        return self._channels_last(edge, self._values(edge, feeds, outputs))

    def _values(self, edge: Edge, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> Array:
        name = self._names[edge]
        return outputs[name] if name in self._outputs else feeds[name]

    def _channels_last(self, edge: Edge, values: Array) -> Array:
        return np.moveaxis(values, 1, -1) if edge in self.channels_first else values

    def _add_to_digest(self, feeds: Mapping[str, Array], count: int) -> None:
        for name in sorted(feeds):
            self._data.update(name.encode() + _content(feeds[name]))
        self.count += count

    def ranges(self) -> Ranges:
        """Return the range of every edge that the plan quantizes."""
        computed = {id(observer): observer.range() for observer in self.observers.values()}
        by_edge: dict[Edge, Range] = {}
        extremes: dict[Edge, Range] = {}
        sqnr: dict[Edge, float] = {}
        for edge in self.plan.activations:
            observed = next(other for other in (edge, *self.plan.group_of(edge)) if other in self.observers)
            observer = self.observers[observed]
            # No runtime computes the inputs of the graph.
            is_computed = self._names[observed] in self._outputs
            limits = computed[id(observer)]
            by_edge[edge] = round_range(limits) if is_computed else limits
            if isinstance(observer, MinMax):
                extremes[edge] = round_range(observer.extremes) if is_computed else observer.extremes
            if isinstance(observer, HistogramObserver):
                sqnr[edge] = histogram_sqnr(observer, self.plan.activations[edge], by_edge[edge])
        if self.graph is not None:
            by_edge = clip_ranges(self.graph, self.plan, by_edge)
        provenance = Provenance(self.graph_digest, self.data_digest, self.plan.scheme.digest, self.count)
        means = {} if self.means is None else self.means.by_edge()
        means = {
            edge: round_means(values, by_edge[edge]) if edge in by_edge else values for edge, values in means.items()
        }
        channels = {edge for pattern in self.plan.patterns for edge in (*pattern.inputs, pattern.output)}
        maxima = {edge: values for edge, values in self.monitor.channel_maxima.items() if edge in channels}
        of_inputs = None if self.graph is None else _value_consumers(self.graph)
        reported = (edge for edge in self.observers if of_inputs is None or edge.node in of_inputs)
        warnings = self.monitor.warnings(edge for edge in reported if not self._writes_infinity(edge))
        return Ranges(by_edge, provenance, warnings, means, extremes=extremes, channel_maxima=maxima, sqnr=sqnr)

    def _writes_infinity(self, edge: Edge) -> bool:
        """Return True if a constant writes infinity to an edge, as in a mask or in the padding of a maximum pool."""
        if self.graph is None or self.monitor.num_nan[edge] or self.graph[edge.node].op not in _FILLING_OPS:
            return False
        values = map(self.graph.constant_of, self.graph[edge.node].inputs)
        return any(value is not None and value.dtype.is_float and np.isinf(value.array).any() for value in values)


def _value_consumers(graph: Graph) -> set[str]:
    """Return the inputs and the nodes that depend on their values, not only on their shapes."""
    names = {edge.node for edge in graph.inputs}
    for name in graph.order:
        if graph[name].op not in SHAPE_OPS and any(edge.node in names for edge in graph[name].inputs):
            names.add(name)
    return names


class ChannelMeans:
    """Mean of each channel of tensors, over a sample of positions.

    Attributes:
        sums: sum of the sampled positions of each edge, (c,).
        rows: number of sampled positions of each edge.
    """

    def __init__(self) -> None:
        self.sums: dict[Edge, Array] = {}
        self.rows: dict[Edge, int] = {}

    def add(self, edge: Edge, values: Array) -> None:
        """Add a tensor (..., c); vectors, positions with NaN or infinity, and other channel counts are ignored."""
        if values.ndim < 2 or not values.size:
            return
        rows = values.reshape(-1, values.shape[-1])
        # Neighbours are correlated: a few hundred positions, different ones in each run, suffice.
        step = max(len(rows) // MEAN_POSITIONS, 1)
        rows = rows[self.rows.get(edge, 0) % step :: step]
        rows = rows[np.isfinite(rows).all(axis=1)]
        sums = rows.sum(0, dtype=np.float64)
        if not len(rows) or self.sums.get(edge, sums).shape != sums.shape:
            return
        self.sums[edge] = self.sums.get(edge, 0) + sums
        self.rows[edge] = self.rows.get(edge, 0) + len(rows)

    def by_edge(self) -> dict[Edge, tuple[float, ...]]:
        """Return the means of each edge."""
        return {edge: tuple((total / self.rows[edge]).tolist()) for edge, total in self.sums.items()}


def tensor_name(graph: Graph | None, edge: Edge) -> str:
    """Return the name of an edge in a session of its graph."""
    is_onnx = graph is not None and graph.dialect == onnx.DIALECT
    return onnx.value_name(graph[edge.node], edge.port) if graph is not None and is_onnx else str(edge)


def channels_first_edges(graph: Graph, plan: Plan) -> frozenset[Edge]:
    """Return the edges of convolutions of ONNX graphs."""
    if graph.dialect != onnx.DIALECT:
        return frozenset()
    patterns = [pattern for pattern in plan.patterns if graph[pattern.layer].op in CONVOLUTION_OPS]
    return frozenset(edge for pattern in patterns for edge in (*pattern.inputs, pattern.output, pattern.inner) if edge)


def _content(array: Array) -> bytes:
    """Return the bytes of an array; for encoded images, these images."""
    if array.dtype.kind == "O":
        return b"".join(array.reshape(-1).tolist())
    return np.ascontiguousarray(array).tobytes()
