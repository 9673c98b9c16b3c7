"""Layer-by-layer comparison of two versions of one model on the same samples.

For a tensor a of the first version and b of the second, over all samples:

    SQNR    10 log10( sum a^2 / sum (a - b)^2 )          in decibels: 6 dB for each correct bit
    drop    SQNR of the worst input of the layer minus its own

The SQNR of a tensor hides small channels next to a large one, so the median channel is reported too. Only sums are kept
(`tensor_sums`): memory holds the tensors of one sample.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from math import inf, isfinite
from os import PathLike
from typing import Annotated, Any, Literal, ParamSpec, Protocol, cast, overload

import numpy as np

from quantkit.arguments import (
    as_names,
    public,
    require_callable,
    require_names,
    require_natural,
    require_number,
    require_positive,
    require_text,
)
from quantkit.data import as_dataset
from quantkit.data.options import NormalizationOptions
from quantkit.errors import GraphError, UnavailableError, UsageError
from quantkit.evaluation.comparison_samples import ComparisonSamples, DatasetSamples, RandomSamples
from quantkit.evaluation.graph_tensors import GraphTensors, TensorProbe
from quantkit.evaluation.interrupted import EvaluationInterrupted
from quantkit.evaluation.layer_comparison import FLOOR, LayerComparison, LayerRow
from quantkit.evaluation.limited_process import limits_isa
from quantkit.evaluation.optimizer_changes import ComparedVersion, Tensors, VersionRun
from quantkit.evaluation.tensor_matching import TensorPair, match_tensors
from quantkit.evaluation.tensor_sums import TensorSums
from quantkit.facts import RANDOM_WEIGHTS_NOTE, PlainReport
from quantkit.formats import onnx
from quantkit.ir.difference import EQUAL, differences
from quantkit.ir.graph import Graph
from quantkit.model import Model, as_model
from quantkit.model.early_checks import check_sources
from quantkit.model.endpoints import choose_image_endpoints
from quantkit.model.options import OFFLINE
from quantkit.ops.semantics import is_quantized
from quantkit.options import Declaration, option, takes
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.runtimes import AUTO, observing_runtimes
from quantkit.runtimes.options import IsaOptions, PrecisionOptions, ThreadOptions
from quantkit.runtimes.runtime import isa_environment
from quantkit.runtimes.session import PRECISIONS, RuntimeVersion, SessionOptions
from quantkit.zoo.cards import list_cards

P = ParamSpec("P")
# Layers differ little between samples: a few find the bad one.
MAX_IMAGES = 16
RANDOM_SAMPLES, MAX_RANDOM_SAMPLES = 8, 10_000


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


@dataclass(frozen=True)
class StructureComparison(PlainReport):
    """Differences between the nodes of two graphs.

    Attributes:
        differences: one sentence per node.
    """

    differences: tuple[str, ...]

    @property
    def are_equal(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``quantkit compare --structure --json``."""
        return {
            "schema": "quantkit.compare/2",
            "equal": self.are_equal,
            "difference": next(iter(self.differences), None),
            "differences": list(self.differences),
        }

    def text(self, max_rows: int | None = None) -> str:
        """Return one line per difference.

        Args:
            max_rows: number of differences; None for all.
        """
        lines = list(self.differences[:max_rows])
        if len(lines) < len(self.differences):
            lines.append(f"{len(self.differences) - len(lines)} more (--verbose lists them)")
        return "\n".join(lines) or EQUAL

    def __str__(self) -> str:
        return self.text()


@public
def compare_structure(first: Any, second: Any) -> StructureComparison:
    """Compare the nodes of two models instead of their values.

    Args:
        first: a `Model`, a `Graph`, a file, or the name of a model card.
        second: the reference, likewise.

    Raises:
        UnavailableError: the format of a model has no readable graph.
    """
    check_sources(first, second, reads_layers=True)
    graphs = [as_model(model).graph for model in (first, second)]
    return StructureComparison(tuple(differences(*graphs)))


@dataclass(frozen=True)
class CompareOptions(NormalizationOptions, ThreadOptions, IsaOptions, PrecisionOptions):
    """The arguments of `compare`."""

    first: Annotated[
        Any,
        Declaration(doc="the reference version: a `Model`, a `Graph`, a file, or the name of a model card"),
    ]
    second: Annotated[Any, Declaration(doc="the other version, in the same or another format")]
    data: Any = option(
        None,
        help=f"dataset, in any form that evaluate accepts (default: {RANDOM_SAMPLES} seeded random inputs)",
        doc="dataset: files, arrays or an iterable, see `quantkit.data.as_dataset` (default: seeded random inputs)",
    )
    _: KW_ONLY
    limit: int | None = option(
        None,
        require_positive,
        help=f"maximum number of samples (default: {MAX_IMAGES} of a dataset, {RANDOM_SAMPLES} random inputs)",
        doc=f"maximum number of samples (default: {MAX_IMAGES} of a file or folder, {RANDOM_SAMPLES} of at most "
        f"{MAX_RANDOM_SAMPLES:,} random inputs, else all)",
    )
    seed: int = option(0, require_natural, help="seed of the random inputs (default: 0)")
    floor: float = option(FLOOR, require_number, help=f"flag layers with SQNR below this, in dB (default: {FLOOR:g})")
    min_sqnr: float | None = option(
        None,
        require_number,
        help="exit 1 if a tensor is broken or its SQNR is below this, in dB",
        doc="lowest allowed SQNR in decibels",
    )
    structure: bool = option(
        False,
        help="compare nodes instead of values; exit 1 if they differ",
        doc="compare nodes instead of values; only ``first``, ``second`` and ``offline`` apply",
    )
    inputs: Sequence[str] | None = option(
        None, require_names, doc="names of the inputs (default: from the model card, else inferred)", convert=as_names
    )
    outputs: Sequence[str] | None = option(
        None, require_names, doc="names of the outputs (default: from the model card, else inferred)", convert=as_names
    )
    runtimes: tuple[str, str] = option(
        (AUTO, AUTO), require_names, doc="runtime of each version; ``auto``: one that can fetch all tensors"
    )
    precision: str | None = option(
        None,
        choices=PRECISIONS,
        help="lowest precision that the runtime may compute in for B; A runs in float32 (default: float32)",
        doc="lowest precision that the second version may be computed in; the first runs in float32",
    )
    offline: bool = option(False, OFFLINE)
    on_progress: OnProgress = option(ignore_progress, require_callable, doc="receives the number of compared samples")
    on_message: OnMessage = option(ignore_message, require_callable, doc="receives warnings")


class Compare(Protocol[P]):
    """Type of `compare`, whose result depends on ``structure``."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, first: Any, second: Any, *, structure: Literal[True], offline: bool = ...
    ) -> StructureComparison: ...

    @overload
    def __call__(self, *arguments: P.args, **options: P.kwargs) -> LayerComparison: ...


def _by_structure(function: Callable[P, Any]) -> Compare[P]:
    return cast(Compare[P], function)


@_by_structure
@public
@limits_isa("first", "second")
@takes(CompareOptions)
def compare(options: CompareOptions) -> LayerComparison | StructureComparison:
    """Run two versions of a model on the same samples and compare all tensors that they have in common.

    Raises:
        GraphError: the graphs have no tensor in common.
        UsageError: a sample does not fit an input, or the two versions have different inputs.
        UnavailableError: no runtime can run a version, or its format has no readable graph.
        CheckError: a tensor is broken or below ``min_sqnr``.
        EvaluationInterrupted: Ctrl-C, with the comparison of the samples so far.
    """
    data, limit, isa, on_message = options.data, options.limit, options.isa, options.on_message
    if data is None and limit is not None and limit > MAX_RANDOM_SAMPLES:
        raise UsageError(
            f"limit is {limit}, and there are at most {MAX_RANDOM_SAMPLES:,} random inputs",
            hint="compare on data for more samples: --data",
        )
    runtime_names = as_names(options.runtimes) or ()
    require_text(**{f"runtimes[{index}]": name for index, name in enumerate(runtime_names)})
    if len(runtime_names) != 2:
        raise UsageError(
            f"runtimes has {len(runtime_names)} names, and must have 2",
            hint='for example runtimes=("auto", "reference")',
        )
    session = options.options.with_(
        precision=options.precision, intra_op=options.intra_op, inter_op=options.inter_op, isa=isa
    )
    check_sources(options.first, options.second, data=[data], runtimes=runtime_names, reads_layers=True)
    models = [as_model(value, offline=options.offline) for value in (options.first, options.second)]
    if options.structure:
        return compare_structure(*models)
    for model in models:
        if model.has_random_weights:
            on_message(f"{model.name}: {RANDOM_WEIGHTS_NOTE}")
    first_graph, second_graph = (_graph_with_endpoints(model, options.inputs, options.outputs) for model in models)
    first_name, second_name = (
        model.name if model.path or model.card else f"{model.name} {number}" for number, model in enumerate(models, 1)
    )
    if data is None:
        samples: ComparisonSamples = RandomSamples(first_graph, limit or RANDOM_SAMPLES, options.seed)
    else:
        default_limit = MAX_IMAGES if isinstance(data, str | PathLike) else None
        dataset = as_dataset(data, limit or default_limit, inputs=models[0].input_names)
        samples = DatasetSamples(dataset, models, options.preprocessing, on_message)
    comparison = ComparisonRun((first_name, second_name), (first_graph, second_graph), samples, options.floor)
    result = comparison.run(runtime_names, session, options.on_progress)
    result = replace(result, environment={} if isa is None else isa_environment(isa))
    result.check(min_sqnr=options.min_sqnr)
    return result


def _graph_with_endpoints(model: Model, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """Return the graph of a model with inputs and outputs.

    Raises:
        UsageError: the inputs or outputs cannot be inferred.
    """
    graph = model.graph
    if inputs or outputs:
        return graph.with_endpoints(inputs, outputs)
    if graph.inputs and graph.outputs:
        return graph
    return choose_image_endpoints(graph, model.card, list_cards())
