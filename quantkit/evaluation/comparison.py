"""Layer-by-layer comparison of two versions of one model on the same samples.

For a tensor a of the first version and b of the second, over all samples:

    SQNR    10 log10( sum a^2 / sum (a - b)^2 )          in decibels: 6 dB for each correct bit
    drop    SQNR of the worst input of the layer minus its own

The SQNR of a tensor hides small channels next to a large one, so the median channel is reported too. Only sums are kept
(`tensor_sums`): memory holds the tensors of one sample.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import inf, isfinite
from os import PathLike
from time import perf_counter
from typing import Any, Literal, Protocol, overload

import numpy as np

from quantkit.arguments import (
    as_names,
    public,
    require_callable,
    require_flag,
    require_names,
    require_natural,
    require_number,
    require_positive,
    require_text,
    without_none,
)
from quantkit.data import (
    Dataset,
    InputPipeline,
    InputTimes,
    Preprocessing,
    PreprocessingOptions,
    as_dataset,
    prepare_samples,
)
from quantkit.data.inference import find_origin
from quantkit.data.preparation import describe_rates
from quantkit.errors import GraphError, UnavailableError, UsageError
from quantkit.evaluation.accuracy import require_images
from quantkit.evaluation.graph_tensors import GraphTensors, TensorProbe
from quantkit.evaluation.interrupted import EvaluationInterrupted
from quantkit.evaluation.layer_comparison import FLOOR, LayerComparison, LayerRow
from quantkit.evaluation.opened_model import describe_assumption
from quantkit.evaluation.random_inputs import pair_inputs, random_feeds
from quantkit.evaluation.tensor_matching import TensorPair, match_tensors
from quantkit.evaluation.tensor_sums import TensorSums
from quantkit.formats import onnx
from quantkit.ir.difference import EQUAL, differences
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.model import RANDOM_WEIGHTS_NOTE, Model, as_model
from quantkit.model.endpoints import choose_image_endpoints
from quantkit.ops.tensorflow.in_place_sums import copy_shared_summands
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.runtimes import AUTO, observing_runtime, open_session
from quantkit.runtimes.session import Session, SessionOptions, TensorInfo
from quantkit.zoo.cards import ModelCard, list_cards

# Layers differ little between samples: a few find the bad one.
MAX_IMAGES = 16
RANDOM_SAMPLES = 8


@dataclass(frozen=True)
class StructureComparison:
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

    def _repr_html_(self) -> str:
        """Return the differences as HTML for notebooks."""
        return f"<pre>{escape(self.text())}</pre>"


@public
def compare_structure(first: Any, second: Any) -> StructureComparison:
    """Compare the nodes of two models instead of their values.

    Args:
        first: a `Model`, a `Graph`, a file, or the name of a model card.
        second: the reference, likewise.

    Raises:
        UnavailableError: the format of a model has no readable graph.
    """
    graphs = [_readable_graph(as_model(model)) for model in (first, second)]
    return StructureComparison(tuple(differences(*graphs)))


@overload
def compare(
    first: Any,
    second: Any,
    data: Any = ...,
    *,
    inputs: Sequence[str] | None = ...,
    outputs: Sequence[str] | None = ...,
    runtimes: tuple[str, str] = ...,
    options: SessionOptions = ...,
    precision: str | None = ...,
    intra_op: int | None = ...,
    inter_op: int | None = ...,
    structure: Literal[False] = ...,
    min_sqnr: float | None = ...,
    limit: int | None = ...,
    input_mean: float | Sequence[float] | None = ...,
    input_std: float | Sequence[float] | None = ...,
    seed: int = ...,
    floor: float = ...,
    offline: bool = ...,
    on_progress: OnProgress = ...,
    on_message: OnMessage = ...,
) -> LayerComparison: ...


@overload
def compare(first: Any, second: Any, *, structure: Literal[True], offline: bool = ...) -> StructureComparison: ...


@public
def compare(
    first: Any,
    second: Any,
    data: Any = None,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    runtimes: tuple[str, str] = (AUTO, AUTO),
    options: SessionOptions = SessionOptions(),
    precision: str | None = None,
    intra_op: int | None = None,
    inter_op: int | None = None,
    structure: bool = False,
    min_sqnr: float | None = None,
    limit: int | None = None,
    input_mean: float | Sequence[float] | None = None,
    input_std: float | Sequence[float] | None = None,
    seed: int = 0,
    floor: float = FLOOR,
    offline: bool = False,
    on_progress: OnProgress = ignore_progress,
    on_message: OnMessage = ignore_message,
) -> LayerComparison | StructureComparison:
    """Run two versions of a model on the same samples and compare all tensors that they have in common.

    Args:
        first: the reference version: a `Model`, a `Graph`, a file, or the name of a model card.
        second: the other version, in the same or another format.
        data: dataset: files, arrays or an iterable, see `quantkit.data.as_dataset`; None for seeded random inputs.
        inputs, outputs: names of inputs and outputs (default: from the model card, else inferred).
        runtimes: runtime of each version; ``auto``: one that can fetch all tensors.
        options: threads, device and precision in one value; the arguments above override it.
        precision: lowest precision that the second version may be computed in; the first runs in float32.
        intra_op, inter_op: threads inside one op, and ops that run in parallel (default: the runtime's choice).
        structure: compare nodes instead of values; only ``first``, ``second`` and ``offline`` apply.
        min_sqnr: lowest allowed SQNR in decibels.
        limit: maximum number of samples (default: 16 of a file or folder, 8 random inputs, else all).
        input_mean, input_std: normalization (x - mean) / std, numbers or one number per channel (default: from the
            model card, else from a scaling layer of the graph, else 128).
        seed: seed of the random inputs.
        floor: SQNR in decibels below which a layer is bad.
        offline: never download a model.
        on_progress: receives the number of compared samples.
        on_message: receives warnings.

    Raises:
        GraphError: the graphs have no tensor in common.
        UsageError: a sample does not fit an input, or the two versions have different inputs.
        UnavailableError: no runtime can run a version, or its format has no readable graph.
        CheckError: a tensor is broken or below ``min_sqnr``.
        EvaluationInterrupted: Ctrl-C, with the comparison of the samples so far.
    """
    require_flag(structure=structure, offline=offline)
    require_positive(**without_none(limit=limit))
    require_number(floor=floor, **without_none(min_sqnr=min_sqnr))
    preprocessing = PreprocessingOptions.of(input_mean=input_mean, input_std=input_std)
    require_natural(seed=seed)
    require_names(runtimes=runtimes, **without_none(inputs=inputs, outputs=outputs))
    runtime_names = as_names(runtimes) or ()
    require_text(**{f"runtimes[{index}]": name for index, name in enumerate(runtime_names)})
    if len(runtime_names) != 2:
        raise UsageError(
            f"runtimes has {len(runtime_names)} names, and must have 2",
            hint='for example runtimes=("auto", "reference")',
        )
    require_callable(on_progress=on_progress, on_message=on_message)
    options = options.with_(precision=precision, intra_op=intra_op, inter_op=inter_op)
    models = [as_model(value, offline=offline) for value in (first, second)]
    if structure:
        return compare_structure(*models)
    for model in models:
        if model.has_random_weights:
            on_message(f"{model.name}: {RANDOM_WEIGHTS_NOTE}")
    graphs = [_graph_with_endpoints(model, as_names(inputs), as_names(outputs)) for model in models]
    names = [
        model.name if model.path or model.card else f"{model.name} {number}" for number, model in enumerate(models, 1)
    ]
    if data is None:
        samples: _Samples = _RandomSamples(limit or RANDOM_SAMPLES, seed)
    else:
        default_limit = MAX_IMAGES if isinstance(data, str | PathLike) else None
        dataset = as_dataset(data, limit or default_limit)
        samples = _DatasetSamples(dataset, models, preprocessing, on_message)
    tensors = [GraphTensors(graph) for graph in graphs]
    pairs = match_tensors(*tensors)
    if not pairs:
        raise GraphError(
            f"{names[0]} and {names[1]} have no tensor in common, by name or by weights",
            hint="compare versions of one model; quantkit summarize shows the graphs",
        )
    with (
        _open(graphs[0], [pair.first for pair in pairs], runtimes[0], replace(options, precision="float32")) as session,
        _open(graphs[1], [pair.second for pair in pairs], runtimes[1], options) as other_session,
    ):
        run = _ComparisonRun(tensors[0], pairs)

        def comparison() -> LayerComparison:
            rows = run.rows()
            paired = {row.name for row in rows}
            return LayerComparison(
                (names[0], names[1]),
                (session.runtime, other_session.runtime),
                rows,
                run.samples,
                tuple(name for name in tensors[0].probes if name not in paired),
                floor,
                data is None,
                tuple(samples.rejected.items()),
                samples.preprocessing,
            )

        try:
            for feeds, other_feeds in samples.feeds(session.inputs, other_session.inputs):
                run.add(_fetch(session, graphs[0], feeds), _fetch(other_session, graphs[1], other_feeds))
                on_progress(Progress("comparing", run.samples, samples.total))
        except KeyboardInterrupt:
            if not run.samples:
                raise
            raise EvaluationInterrupted(comparison()) from None
        if not run.samples:
            raise UsageError("the dataset has no sample", hint="pass at least one sample, or omit the data")
        result = comparison()
    result.check(min_sqnr=min_sqnr)
    return result


class _Samples(Protocol):
    """Samples of a comparison.

    Attributes:
        total: number of samples; None if it is not known.
        rejected: message by name of each image that could not be decoded.
        preprocessing: preprocessing of images; None for arrays and random inputs.
    """

    total: int | None
    rejected: dict[str, str]
    preprocessing: Preprocessing | None

    def feeds(
        self, first: Sequence[TensorInfo], second: Sequence[TensorInfo]
    ) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Array]]]:
        """Yield the feeds of both versions for each sample."""
        ...


class _RandomSamples:
    """Seeded random inputs."""

    def __init__(self, total: int, seed: int) -> None:
        self.total: int | None = total
        self.rejected: dict[str, str] = {}
        self.preprocessing: Preprocessing | None = None
        self._seed = seed

    def feeds(
        self, first: Sequence[TensorInfo], second: Sequence[TensorInfo]
    ) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Array]]]:
        return random_feeds(first, second, self.total or 0, self._seed)


class _DatasetSamples:
    """Samples of a dataset, prepared for both versions."""

    def __init__(
        self,
        dataset: Dataset,
        models: Sequence[Model],
        preprocessing: PreprocessingOptions,
        on_message: OnMessage,
    ) -> None:
        self.total = dataset.size
        self.rejected: dict[str, str] = {}
        self.preprocessing: Preprocessing | None = None
        self._dataset = dataset
        self._models = models
        self._preprocessing = preprocessing
        self._on_message = on_message

    def feeds(
        self, first: Sequence[TensorInfo], second: Sequence[TensorInfo]
    ) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Array]]]:
        cards = [_card(model, infos) for model, infos in zip(self._models, (first, second), strict=True)]
        # Two versions of one model have the same preprocessing: a model without a card uses the card of the other.
        scalings = (
            model.find_scaling(infos[0].name) for model, infos in zip(self._models, (first, second), strict=True)
        )
        basis = cards[0] or cards[1] or next(filter(None, scalings), None)
        # Arrays have the input names of the first version.
        partners = pair_inputs(first, second)
        renamed = [replace(partner, name=name) for name, partner in partners.items()]
        pipelines = [
            InputPipeline.of(infos, self._dataset, own or basis, self._preprocessing)
            for infos, own in zip((first, renamed), cards, strict=True)
        ]
        self.preprocessing = pipelines[0].applied
        if pipelines[0].is_assumed:
            self._on_message(describe_assumption(pipelines[0]))
        times, start, count = InputTimes(), perf_counter(), 0
        samples = prepare_samples(self._dataset.read(pipelines[0].rank), pipelines, self.rejected, times=times)
        for _, (sample, other_sample) in samples:
            count += 1
            other_feeds = pipelines[1].stack([other_sample])
            yield (
                pipelines[0].stack([sample]),
                {partner.name: other_feeds[name] for name, partner in partners.items()},
            )
        if not count and self.rejected:
            require_images(self.rejected)
        if count and self._dataset.holds_images:
            rates = times.rates(count, perf_counter() - start)
            self._on_message(f"compared: {describe_rates(rates)}")


def _card(model: Model, inputs: Sequence[TensorInfo]) -> ModelCard | None:
    """Return the card of a model, or the card with the same input and output."""
    if model.card is not None or len(inputs) != 1:
        return model.card
    output = str(Edge.parse(model.graph.outputs[0].node.removesuffix(":0")))
    return find_origin(inputs[0], TensorInfo(output, DType.FLOAT, Shape(None)), list_cards())


def _readable_graph(model: Model) -> Graph:
    """Return the graph of a model.

    Raises:
        UnavailableError: quantkit does not read the format.
    """
    if not model.has_readable_graph:
        raise UnavailableError(
            f"the layers of {model.name} cannot be read",
            hint="quantkit evaluate compares the outputs of such models; .pb and .onnx are compared layer by layer",
        )
    return model.graph


def _graph_with_endpoints(model: Model, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """Return the graph of a model with inputs and outputs.

    Raises:
        UnavailableError: quantkit does not read the format.
        UsageError: the inputs or outputs cannot be inferred.
    """
    graph = _readable_graph(model)
    if inputs or outputs:
        return graph.with_endpoints(inputs, outputs)
    if graph.inputs and graph.outputs:
        return graph
    return choose_image_endpoints(graph, model.card, list_cards())


class _ComparisonRun:
    """Sums of all tensor pairs."""

    def __init__(self, tensors: GraphTensors, pairs: Sequence[TensorPair]) -> None:
        self.tensors = tensors
        self.pairs = pairs
        self.sums = [TensorSums(pair, tensors.graph.dialect == onnx.DIALECT) for pair in pairs]
        self.samples = 0

    def add(self, first: Mapping[Edge, Array], second: Mapping[Edge, Array]) -> None:
        """Add the tensors of one sample, by edge."""
        with np.errstate(all="ignore"):
            for pair, sums in zip(self.pairs, self.sums, strict=True):
                sums.add(pair.first.values(first), pair.second.values(second), pair.second.scale(second))
        self.samples += 1

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


def _open(graph: Graph, probes: Iterable[TensorProbe], runtime: str, options: SessionOptions) -> Session:
    """Open a session that fetches all compared tensors."""
    edges = list(dict.fromkeys(edge for probe in probes for edge in probe.edges))
    observed = graph.with_endpoints(None, edges)
    if graph.dialect != onnx.DIALECT:
        observed = copy_shared_summands(observed)
    return open_session(observed, observing_runtime(graph.dialect) if runtime == AUTO else runtime, options)


def _fetch(session: Session, graph: Graph, feeds: Mapping[str, Array]) -> dict[Edge, Array]:
    """Run a session and return its outputs by edge."""
    is_onnx = graph.dialect == onnx.DIALECT
    return {
        onnx.edge_of(graph, name) if is_onnx else Edge.parse(name): values
        for name, values in session.run(feeds).items()
    }
