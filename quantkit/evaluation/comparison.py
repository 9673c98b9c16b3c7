"""Layer-by-layer comparison of two versions of one model on the same samples.

For a tensor a of the first version and b of the second, over all samples:

    SQNR    10 log10( sum a^2 / sum (a - b)^2 )          in decibels: 6 dB for each correct bit
    drop    SQNR of the worst input of the layer minus its own

The SQNR of a tensor hides small channels next to a large one, so the median channel is reported too. Only sums are kept
(`tensor_sums`): memory holds the tensors of one sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from os import PathLike
from typing import Any, Literal, overload

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
    PreprocessingOptions,
    as_dataset,
)
from quantkit.data.preprocessing import ColorOrder
from quantkit.errors import UsageError
from quantkit.evaluation.comparison_run import ComparisonRun
from quantkit.evaluation.comparison_samples import ComparisonSamples, DatasetSamples, RandomSamples
from quantkit.evaluation.layer_comparison import FLOOR, LayerComparison
from quantkit.evaluation.limited_process import limits_isa
from quantkit.facts import RANDOM_WEIGHTS_NOTE
from quantkit.ir.difference import EQUAL, differences
from quantkit.ir.graph import Graph
from quantkit.model import Model, as_model
from quantkit.model.early_checks import check_sources
from quantkit.model.endpoints import choose_image_endpoints
from quantkit.progress import OnMessage, OnProgress, ignore_message, ignore_progress
from quantkit.runtimes import AUTO
from quantkit.runtimes.runtime import isa_environment
from quantkit.runtimes.session import SessionOptions
from quantkit.zoo.cards import list_cards

# Layers differ little between samples: a few find the bad one.
MAX_IMAGES = 16
RANDOM_SAMPLES, MAX_RANDOM_SAMPLES = 8, 10_000


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
    check_sources(first, second, reads_layers=True)
    graphs = [as_model(model).graph for model in (first, second)]
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
    isa: str | None = ...,
    structure: Literal[False] = ...,
    min_sqnr: float | None = ...,
    limit: int | None = ...,
    input_mean: float | Sequence[float] | None = ...,
    input_std: float | Sequence[float] | None = ...,
    input_color_order: ColorOrder | None = ...,
    seed: int = ...,
    floor: float = ...,
    offline: bool = ...,
    on_progress: OnProgress = ...,
    on_message: OnMessage = ...,
) -> LayerComparison: ...


@overload
def compare(first: Any, second: Any, *, structure: Literal[True], offline: bool = ...) -> StructureComparison: ...


@public
@limits_isa("first", "second")
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
    isa: str | None = None,
    structure: bool = False,
    min_sqnr: float | None = None,
    limit: int | None = None,
    input_mean: float | Sequence[float] | None = None,
    input_std: float | Sequence[float] | None = None,
    input_color_order: ColorOrder | None = None,
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
        isa: instruction set, ``avx2`` or ``avx512``, of the kernels of OpenVINO and TensorFlow (oneDNN),
            as on another processor. Both models then run in another process.
        structure: compare nodes instead of values; only ``first``, ``second`` and ``offline`` apply.
        min_sqnr: lowest allowed SQNR in decibels.
        limit: maximum number of samples (default: 16 of a file or folder, 8 of at most 10,000 random inputs, else all).
        input_mean, input_std: normalization (x - mean) / std, numbers or one number per channel (default: from the
            file, else from the model card, else from a scaling layer of the graph, else 128).
        input_color_order: order of the channels of the input, ``rgb`` or ``bgr`` (default: the file's, else ``rgb``).
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
    preprocessing = PreprocessingOptions.of(
        input_mean=input_mean, input_std=input_std, input_color_order=input_color_order
    )
    require_natural(seed=seed)
    if data is None and limit is not None and limit > MAX_RANDOM_SAMPLES:
        raise UsageError(
            f"limit is {limit}, and there are at most {MAX_RANDOM_SAMPLES:,} random inputs",
            hint="compare on data for more samples: --data",
        )
    require_names(runtimes=runtimes, **without_none(inputs=inputs, outputs=outputs))
    runtime_names = as_names(runtimes) or ()
    require_text(**{f"runtimes[{index}]": name for index, name in enumerate(runtime_names)})
    if len(runtime_names) != 2:
        raise UsageError(
            f"runtimes has {len(runtime_names)} names, and must have 2",
            hint='for example runtimes=("auto", "reference")',
        )
    require_callable(on_progress=on_progress, on_message=on_message)
    options = options.with_(precision=precision, intra_op=intra_op, inter_op=inter_op, isa=isa)
    check_sources(first, second, data=[data], runtimes=runtime_names, reads_layers=True)
    models = [as_model(value, offline=offline) for value in (first, second)]
    if structure:
        return compare_structure(*models)
    for model in models:
        if model.has_random_weights:
            on_message(f"{model.name}: {RANDOM_WEIGHTS_NOTE}")
    first_graph, second_graph = (_graph_with_endpoints(model, as_names(inputs), as_names(outputs)) for model in models)
    first_name, second_name = (
        model.name if model.path or model.card else f"{model.name} {number}" for number, model in enumerate(models, 1)
    )
    if data is None:
        samples: ComparisonSamples = RandomSamples(first_graph, limit or RANDOM_SAMPLES, seed)
    else:
        default_limit = MAX_IMAGES if isinstance(data, str | PathLike) else None
        dataset = as_dataset(data, limit or default_limit, inputs=models[0].input_names)
        samples = DatasetSamples(dataset, models, preprocessing, on_message)
    comparison = ComparisonRun((first_name, second_name), (first_graph, second_graph), samples, floor)
    result = comparison.run(runtime_names, options, on_progress)
    result = replace(result, environment={} if isa is None else isa_environment(isa))
    result.check(min_sqnr=min_sqnr)
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
