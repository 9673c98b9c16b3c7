"""Run of a comparison: both versions on each sample, with the sums of each pair of tensors."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from quantkit.errors import GraphError, UnavailableError, UsageError
from quantkit.evaluation.comparison_samples import ComparisonSamples
from quantkit.evaluation.graph_tensors import GraphTensors, TensorProbe
from quantkit.evaluation.interrupted import EvaluationInterrupted
from quantkit.evaluation.layer_comparison import LayerComparison, LayerRow
from quantkit.evaluation.optimizer_changes import ComparedVersion, Tensors, VersionRun
from quantkit.evaluation.tensor_matching import TensorPair, match_tensors
from quantkit.evaluation.tensor_sums import TensorSums
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.ops.semantics import is_quantized
from quantkit.progress import OnProgress, Progress
from quantkit.runtimes import AUTO, observing_runtimes
from quantkit.runtimes.session import RuntimeVersion, SessionOptions


@dataclass(frozen=True)
class ComparisonRun:
    """Two versions of a model with the samples that both run on.

    Attributes:
        names: names of the versions.
        graphs: their graphs, with inputs and outputs.
        samples: the samples.
        floor: SQNR in decibels below which a layer is bad.
    """

    names: tuple[str, str]
    graphs: tuple[Graph, Graph]
    samples: ComparisonSamples
    floor: float

    def run(self, runtimes: Sequence[str], options: SessionOptions, on_progress: OnProgress) -> LayerComparison:
        """Compare all tensors that the versions have in common; outputs as the runtimes compute them without the rest.

        Args:
            runtimes: runtime of each version.
            options: session options of the second version; the first one runs in float32.
            on_progress: receives the number of compared samples.

        Raises:
            GraphError: the graphs have no tensor in common.
            UsageError: the samples do not fit an input, or the dataset is empty.
            EvaluationInterrupted: Ctrl-C, with the comparison of the samples so far.
        """
        tensors = (GraphTensors(self.graphs[0]), GraphTensors(self.graphs[1]))
        pairs = match_tensors(*tensors)
        if not pairs:
            raise GraphError(
                f"{self.names[0]} and {self.names[1]} have no tensor in common, by name or by weights",
                hint="compare versions of one model; quantkit summarize shows the graphs",
            )
        sums = _PairSums(tensors[0], pairs)
        first_options = replace(options, precision="float32", isa=None)
        with ExitStack() as stack:
            first = self._open(0, [(pair.name, pair.first) for pair in pairs], runtimes[0], first_options, stack)
            second = self._open(1, [(pair.name, pair.second) for pair in pairs], runtimes[1], options, stack)
            try:
                for feeds, other_feeds in self.samples.feeds(first.deployed, second.deployed):
                    sums.add(first.run(feeds), second.run(other_feeds))
                    on_progress(Progress("comparing", sums.num_samples, self.samples.total))
            except KeyboardInterrupt:
                if not sums.num_samples:
                    raise
                raise EvaluationInterrupted(self._result(sums, (first.runtime, second.runtime))) from None
        if not sums.num_samples:
            raise UsageError("the dataset has no sample", hint="pass at least one sample, or omit the data")
        result = self._result(sums, (first.runtime, second.runtime))
        try:
            return replace(result, optimizer_changes=(*first.find_changes(), *second.find_changes()))
        except KeyboardInterrupt:
            raise EvaluationInterrupted(result) from None

    def _open(
        self,
        index: int,
        probes: Sequence[tuple[str, TensorProbe]],
        runtime: str,
        options: SessionOptions,
        stack: ExitStack,
    ) -> VersionRun:
        """Open a version with its compared tensors, by plain name."""
        graph = self.graphs[index]
        edges = tuple(dict.fromkeys(edge for _, probe in probes for edge in probe.edges))
        names = {probe.edge: name for name, probe in probes if probe.edge in graph.outputs}
        candidates = observing_runtimes(graph.dialect) if runtime == AUTO else (runtime,)
        errors: list[UnavailableError] = []
        for name in candidates:
            try:
                return VersionRun(ComparedVersion(self.names[index], graph, edges, names, name, options), stack)
            except UnavailableError as error:
                errors.append(error)
        raise errors[0]

    def _result(self, sums: "_PairSums", runtimes: tuple[RuntimeVersion, RuntimeVersion]) -> LayerComparison:
        rows = sums.rows()
        paired = {row.name for row in rows}
        return LayerComparison(
            self.names,
            runtimes,
            rows,
            sums.num_samples,
            tuple(name for name in sums.tensors.probes if name not in paired and name not in sums.resized),
            self.floor,
            self.samples.are_random,
            tuple(self.samples.rejected.items()),
            self.samples.preprocessing,
            sums.resized,
            are_quantized=(is_quantized(self.graphs[0]), is_quantized(self.graphs[1])),
        )


class _PairSums:
    """Sums of all tensor pairs."""

    def __init__(self, tensors: GraphTensors, pairs: Sequence[TensorPair]) -> None:
        self.tensors = tensors
        self.pairs = pairs
        self.sums = [TensorSums(pair, tensors.graph.dialect == onnx.DIALECT) for pair in pairs]
        self.num_samples = 0

    def add(self, first: Tensors, second: Tensors) -> None:
        """Add the tensors of one sample, by edge."""
        with np.errstate(all="ignore"):
            for pair, sums in zip(self.pairs, self.sums, strict=True):
                sums.add(pair.first.values(first), pair.second.values(second), pair.second.scale(second))
        self.num_samples += 1

    @property
    def resized(self) -> tuple[str, ...]:
        """Tensors whose size depends on the data, and differs between the versions in every sample."""
        pairs = zip(self.pairs, self.sums, strict=True)
        return tuple(pair.name for pair, sums in pairs if sums.has_different_shapes and sums.is_resized)

    def rows(self) -> tuple[LayerRow, ...]:
        """Return the rows in topological order, with the drop from the worst input of each layer."""
        rows = {index: sums.row() for index, sums in enumerate(self.sums) if not sums.has_different_shapes}
        rows_of_node: dict[str, list[int]] = {}
        for index in rows:
            rows_of_node.setdefault(self.pairs[index].first.edge.node, []).append(index)
        sqnr_of_node: dict[str, float] = {}
        for name, node in self.tensors.live.items():
            input_sqnr = min((sqnr_of_node.get(edge.node, inf) for edge in node.inputs), default=inf)
            indices = rows_of_node.get(name, ())
            sqnr_of_node[name] = min((rows[index].sqnr for index in indices), default=input_sqnr)
            for index in indices:
                drop = input_sqnr - rows[index].sqnr
                rows[index] = replace(rows[index], sqnr_drop=drop if isfinite(drop) else 0.0)
        return tuple(rows.values())
