"""Outputs that the optimizer of a runtime changes, and the nodes between which it does.

The observed session of a comparison computes the nodes of the graph one by one: without the optimizer, or with all
tensors as outputs, which cannot be fused away. As deployed, with the outputs of the model only, a runtime computes
fused kernels. Both differ by rounding, or because a fused kernel is wrong or saturates:

    change      SQNR of the deployed outputs against the observed ones
    rounding    SQNR of the observed outputs for inputs and weights that move by one step of the number format

A change is reported if its SQNR is much lower than that of the rounding. It was at most 2 dB lower for the correct
kernels of 20 float and int8 networks, and 26 dB lower for sums of int8 products that saturate.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from quantkit.errors import GraphError, UnavailableError
from quantkit.evaluation.output_sqnr import sqnr
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.tensorflow.in_place_sums import copy_shared_summands
from quantkit.recipes.rounding import ULP, move_arrays, move_constants
from quantkit.runtimes import REFERENCE, find_runtime, open_session
from quantkit.runtimes.session import RuntimeVersion, Session, SessionOptions

Feeds = Mapping[str, Array]
Tensors = Mapping[Edge, Array]

# Changes with a higher SQNR are within half precision: ten correct bits.
MAX_SQNR = 60.0
# Decibels below the rounding: the kernels of a runtime round in another order.
ROUNDING_MARGIN = 10.0
# Fraction of the noise that the reported nodes must cause.
MIN_FRACTION = 0.25
# Step of a quantized tensor as a fraction of its range.
QUANTIZATION_STEP = 2.0**-8
_PRECISIONS = {"float16": DType.HALF, "bfloat16": DType.BFLOAT16}
_QUANTIZING = ("Quant", "QLinear", "Integer")


@dataclass(frozen=True)
class OptimizerChange:
    """Outputs of one version that the optimizer of its runtime changes by more than their rounding.

    Attributes:
        model: name of the version.
        runtime: its runtime.
        outputs: plain names of the outputs.
        sqnr: lowest SQNR of these outputs in decibels, against those of the nodes one by one.
        first, last: names of the first and the last one of the fused nodes.
        ops: op types of both.
        is_only_location: False if other nodes change the outputs, too.
    """

    model: str
    runtime: RuntimeVersion
    outputs: tuple[str, ...]
    sqnr: float
    first: str
    last: str
    ops: tuple[str, str]
    is_only_location: bool

    def to_json(self) -> dict[str, Any]:
        """Return the change as plain values; null for an SQNR of minus infinity."""
        runtime = {"name": self.runtime.name, "version": self.runtime.version}
        lists = {"outputs": list(self.outputs), "ops": list(self.ops)}
        return {**vars(self), **lists, "runtime": runtime, "sqnr": self.sqnr if self.sqnr > -inf else None}

    def __str__(self) -> str:
        location = f"between {self.first} ({self.ops[0]}) and {self.last} ({self.ops[1]})"
        others = "" if self.is_only_location else ", and at other nodes"
        ratio = f"{self.sqnr:.1f} dB" if self.sqnr > -inf else "no correct bit"
        return (
            f"the optimizer of {self.runtime} changes the result of {self.model} {location}{others}: "
            f"{', '.join(self.outputs)} {ratio} against the nodes one by one"
        )


@dataclass(frozen=True)
class ComparedVersion:
    """Version of a model with the tensors that are compared.

    Attributes:
        name: name of the version.
        graph: its graph, with inputs and outputs.
        edges: compared tensors.
        names: plain names of the outputs among them, by edge.
        runtime: name of its runtime.
        options: its session options.
    """

    name: str
    graph: Graph
    edges: tuple[Edge, ...]
    names: Mapping[Edge, str]
    runtime: str
    options: SessionOptions

    @property
    def outputs(self) -> tuple[Edge, ...]:
        """Outputs of the graph, each of them once."""
        return tuple(dict.fromkeys(self.graph.outputs))

    @property
    def step(self) -> float:
        """Distance of neighbouring values in the coarsest number format, as a fraction of a value."""
        step = ULP[_PRECISIONS.get(self.options.precision, DType.FLOAT)]
        for node in self.graph.nodes.values():
            if any(part in node.op for part in _QUANTIZING):
                return QUANTIZATION_STEP
            dtypes = (value.dtype if isinstance(value, Tensor) else value for value in node.attrs.values())
            step = max((step, *(ULP[dtype] for dtype in dtypes if isinstance(dtype, DType) and dtype in ULP)))
        return step

    def open(self, edges: Sequence[Edge], *, is_optimized: bool = True) -> Session:
        """Open a session whose outputs are these edges.

        Args:
            edges: outputs.
            is_optimized: False for the nodes one by one, if the runtime can compute them.
        """
        graph = copy_shared_summands(self.graph.with_endpoints(None, edges))
        # The optimizer reduces the precision.
        if not is_optimized and find_runtime(self.runtime).can_omit_optimizer and self.options.precision == "float32":
            with suppress(GraphError, UnavailableError):
                return open_session(graph, self.runtime, replace(self.options, optimized=False))
        return open_session(graph, self.runtime, self.options)


class VersionRun:
    """Observed session of a version and the one that is deployed, with the changes of its outputs.

    Args:
        version: the version.
        stack: closes the sessions.

    Attributes:
        deployed: session with the outputs of the graph; the observed one if the runtime fuses no nodes.
    """

    def __init__(self, version: ComparedVersion, stack: ExitStack) -> None:
        self.version = version
        self._observed = stack.enter_context(version.open(version.edges, is_optimized=False))
        self.runtime = self._observed.runtime
        self.deployed = self._observed
        if self.runtime.name != REFERENCE:
            self.deployed = stack.enter_context(version.open(version.outputs))
        # Sums of squares of the observed values and of the changes, by edge.
        self._powers = dict.fromkeys(version.names, (0.0, 0.0))
        # Inputs of the sample with the largest change.
        self._feeds: Feeds = {}
        self._lowest = inf

    def run(self, feeds: Feeds) -> Tensors:
        """Return the compared tensors of a sample: outputs of the deployed session, the others of the observed one."""
        observed = _fetch(self._observed, self.version.edges, feeds)
        if self.deployed is self._observed:
            return observed
        deployed = _fetch(self.deployed, self.version.outputs, feeds)
        for edge, (signal, noise) in self._powers.items():
            # Rounding decides about integers and sizes, for example of two almost equal scores.
            if observed[edge].shape != deployed[edge].shape or not DType.of(deployed[edge].dtype).is_float:
                continue
            more_signal, more_noise = _powers(observed[edge], deployed[edge])
            self._powers[edge] = signal + more_signal, noise + more_noise
            if more_noise and (ratio := float(sqnr(more_signal, more_noise))) < self._lowest:
                self._lowest, self._feeds = ratio, feeds
        return {**observed, **deployed}

    def find_changes(self) -> list[OptimizerChange]:
        """Return the changes of outputs that exceed the rounding."""
        names = self.version.names
        ratios = {edge: float(sqnr(*powers)) for edge, powers in self._powers.items()}
        edges = sorted((edge for edge in ratios if ratios[edge] < MAX_SQNR), key=ratios.__getitem__)
        changes: list[OptimizerChange] = []
        if not edges:
            return changes
        search = _ChangeSearch(self.version, self._feeds)
        edges = [edge for edge in edges if search.exceeds_rounding(edge)]
        while edges:
            location, restored = search.locate(edges)
            nodes = [self.version.graph[name] for name in location]
            changes.append(
                OptimizerChange(
                    self.version.name,
                    self.runtime,
                    tuple(names[edge] for edge in restored or edges[:1]),
                    ratios[edges[0]],
                    *location,
                    (nodes[0].op, nodes[1].op),
                    bool(restored),
                )
            )
            edges = [edge for edge in edges[1:] if edge not in restored]
        return changes


class _ChangeSearch:
    """Search for the fused nodes that change outputs, in one sample.

    Inner tensors that are outputs, too, prevent a fusion: if the first ones up to x change the deployed outputs, and
    the last ones from y on restore the observed outputs, the fused nodes are between x and y. A layer of int8 values is
    fused even if its result is an output; then the first changed tensor is searched instead.

    Args:
        version: version of a model.
        feeds: inputs of the sessions.
    """

    def __init__(self, version: ComparedVersion, feeds: Feeds) -> None:
        self._version, self._feeds = version, feeds
        self._positions = {name: position for position, name in enumerate(version.graph.order)}
        inner = {*version.edges} - {*version.outputs}
        self._inner = sorted(inner, key=lambda edge: (self._positions[edge.node], edge.port))
        moved = replace(version, graph=move_constants(version.graph, 0, step=version.step))
        with version.open(version.edges, is_optimized=False) as session:
            self._observed = _fetch(session, version.edges, feeds)
        with moved.open(version.edges, is_optimized=False) as session:
            tensors = _fetch(session, version.edges, move_arrays(feeds, 1, version.step))
            self._moved = {edge: tensors[edge] for edge in version.names}
        self._deployed = self._compute([])

    def _compute(self, inner: Sequence[Edge]) -> Tensors:
        """Return the outputs of an optimized session, and some inner tensors, which are outputs, too."""
        edges = (*self._version.outputs, *inner)
        with self._version.open(edges) as session:
            return _fetch(session, edges, self._feeds)

    def exceeds_rounding(self, output: Edge) -> bool:
        """Return True if an output of the sample changes by more than its rounding."""
        change, rounding = (
            float(sqnr(*_powers(self._observed[output], others[output]))) for others in (self._deployed, self._moved)
        )
        return change < rounding - ROUNDING_MARGIN

    def locate(self, outputs: Sequence[Edge]) -> tuple[tuple[str, str], list[Edge]]:
        """Return the first and the last one of the nodes whose fusion changes an output.

        Args:
            outputs: the output, then others.

        Returns:
            The names of the nodes, and the outputs that these nodes alone change.
        """
        output = outputs[0]
        separate = self._compute(self._inner)
        if self._distance(self._observed, separate, output) >= MIN_FRACTION:
            return self._first_changed(separate, output), []
        first = bisect_left(range(1, len(self._inner)), True, key=lambda count: self._changes(output, count))
        starts = range(first + 1, len(self._inner))
        last = first + bisect_left(starts, True, key=lambda start: not self._restores(self._inner[start:], [output]))
        consumers = {use.node.name for use in self._version.graph.uses.get(self._inner[last], ()) if use.slot >= 0}
        end = max(consumers, key=self._positions.__getitem__, default=self._inner[last].node)
        return (self._inner[first].node, end), self._restores(self._inner[first : last + 1], outputs)

    def _first_changed(self, separate: Tensors, output: Edge) -> tuple[str, str]:
        """Return the nodes before and after the first tensor that changes as much as an output."""
        limit = MIN_FRACTION * _ratio(self._observed[output], separate[output])
        edges = (*self._inner, output)
        changed = next((edge for edge in edges if _ratio(self._observed[edge], separate[edge]) >= limit), output)
        inputs = [edge.node for edge in self._version.graph[changed.node].inputs if edge in self._inner]
        return max(inputs, key=self._positions.__getitem__, default=changed.node), changed.node

    def _changes(self, output: Edge, count: int) -> bool:
        """Return True if the deployed output changes without a fusion of the first inner tensors."""
        return self._distance(self._deployed, self._compute(self._inner[:count]), output) >= MIN_FRACTION

    def _restores(self, inner: Sequence[Edge], outputs: Sequence[Edge]) -> list[Edge]:
        """Return the outputs that are those of the observed session without a fusion of some inner tensors."""
        computed = self._compute(inner)
        return [edge for edge in outputs if self._distance(self._observed, computed, edge) < MIN_FRACTION]

    def _distance(self, expected: Tensors, actual: Tensors, edge: Edge) -> float:
        """Return the noise of an output as a fraction of the change by the optimizer."""
        (_, noise), (_, change) = (
            _powers(pair[0][edge], pair[1][edge]) for pair in ((expected, actual), (self._observed, self._deployed))
        )
        return noise / change if change < inf else float(noise == inf)


def _ratio(expected: Array, actual: Array) -> float:
    """Return the noise of a tensor as a fraction of its signal."""
    signal, noise = _powers(expected, actual)
    return noise / signal if signal else inf if noise else 0.0


def _fetch(session: Session, edges: Sequence[Edge], feeds: Feeds) -> dict[Edge, Array]:
    """Run a session of `ComparedVersion.open` and return its outputs by edge."""
    return dict(zip(edges, session.run(feeds).values(), strict=True))


def _powers(expected: Array, actual: Array) -> tuple[float, float]:
    """Return the sums of the squares of an output and of its change."""
    a, b = (array.astype(np.float64) for array in (expected, actual))
    finite = np.isfinite(a)
    signal = float(np.square(a[finite]).sum())
    if a.shape != b.shape or (finite != np.isfinite(b)).any():
        return signal, inf
    return signal, float(np.square(a[finite] - b[finite]).sum())
