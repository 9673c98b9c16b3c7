"""Accuracy of a model on a dataset, and its agreement with a reference model.

Each image is decoded once and prepared for each model: float or uint8, channels last or first, single or in batches.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from html import escape
from time import perf_counter
from typing import Any

from quantkit.arguments import (
    expand_user,
    public,
    require_callable,
    require_flag,
    require_fraction,
    require_path,
    require_positive,
    require_ratio,
    require_text,
    without_none,
)
from quantkit.data import Dataset, InputPipeline, InputTimes, PreprocessingOptions, as_dataset, prepare_batches
from quantkit.data.dataset import Sample
from quantkit.data.images import FORMATS
from quantkit.data.inference import Basis
from quantkit.data.labels import Labels
from quantkit.data.preparation import PreparedSample, describe_rates
from quantkit.errors import CheckError, InputError
from quantkit.evaluation.classification_metrics import ClassificationCounter, ClassificationMetrics
from quantkit.evaluation.interrupted import EvaluationInterrupted
from quantkit.evaluation.opened_model import OpenedModel, describe_assumption, open_model
from quantkit.ir.tensor import Array
from quantkit.model import RANDOM_WEIGHTS_NOTE, as_model
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.runtimes import AUTO
from quantkit.runtimes.session import RuntimeVersion, SessionOptions

# Samples per run for models with a dynamic batch: larger batches are hardly faster on a CPU.
BATCH = 8
COMPARE_HINT = "quantkit compare finds the first bad layer"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics of a model on a dataset.

    Attributes:
        model: name of the model.
        runtime: runtime of the model.
        metrics: accuracy and agreement.
        reference: name of the reference model; empty without a reference.
        reference_runtime: runtime of the reference model.
        samples_per_second: throughput of the model; the first batch does not count if there are more.
        seconds: total time, with decoding and the reference model.
        input_rates: rates with and without overlap of input and runtime, see `quantkit.data.InputTimes.to_json`.
        rejected: message by name of each image that could not be decoded.
        unknown_labels: number of samples whose label is not a class of the model.
        preprocessing: description of the preprocessing, with its source.
        is_assumed: True if neither the caller nor the model states the preprocessing.
    """

    model: str
    runtime: RuntimeVersion
    metrics: ClassificationMetrics
    reference: str = ""
    reference_runtime: RuntimeVersion | None = None
    samples_per_second: float = 0.0
    seconds: float = 0.0
    input_rates: Mapping[str, float] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    unknown_labels: int = 0
    preprocessing: str = ""
    is_assumed: bool = False

    @public
    def check(
        self,
        *,
        min_top1: float | None = None,
        min_agreement: float | None = None,
        max_kl: float | None = None,
    ) -> None:
        """Check metrics against the limits that are given.

        Args:
            min_top1: lowest allowed top-1 accuracy in [0, 1].
            min_agreement: lowest allowed agreement with the reference model in [0, 1].
            max_kl: highest allowed mean KL divergence in nats.

        Raises:
            CheckError: a metric violates its limit, or is not known.
        """
        metrics = self.metrics
        no_label = "no sample has a label that is a class of the model"
        label_hint = "pass --labels, or label the data: a folder per class, or a list file"
        no_reference, reference_hint = "there is no reference model", "pass --reference MODEL"
        for name, value, limit, reason, hint in (
            ("top-1", metrics.top1, min_top1, no_label, label_hint),
            ("agreement", metrics.agreement, min_agreement, no_reference, reference_hint),
        ):
            if limit is not None and value is None:
                raise CheckError(f"{name} is not known: {reason}", hint=hint)
            if limit is not None and value is not None and value.value < limit:
                raise CheckError(f"{name} is {value}, below the limit {limit:g}", hint=COMPARE_HINT)
        if max_kl is None:
            return
        if metrics.kl_divergence is None:
            raise CheckError(f"the KL divergence is not known: {no_reference}", hint=reference_hint)
        if metrics.kl_divergence > max_kl or metrics.not_finite:
            not_finite = f", and {metrics.not_finite} outputs are not finite" if metrics.not_finite else ""
            raise CheckError(
                f"the KL divergence is {metrics.kl_divergence:.3g}{not_finite}; the limit is {max_kl:g}",
                hint=COMPARE_HINT,
            )

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``quantkit evaluate --json``."""
        other = self.reference_runtime
        return {
            "schema": "quantkit.evaluate/2",
            "model": self.model,
            "runtime": {"name": self.runtime.name, "version": self.runtime.version},
            "reference": self.reference or None,
            "reference_runtime": other and {"name": other.name, "version": other.version},
            **self.metrics.to_json(),
            "samples_per_second": self.samples_per_second,
            "seconds": self.seconds,
            "input": dict(self.input_rates),
            "preprocessing": self.preprocessing,
            "preprocessing_is_assumed": self.is_assumed,
            "unknown_labels": self.unknown_labels,
            "rejected": [{"name": name, "message": message} for name, message in self.rejected.items()],
        }

    @property
    def _rows(self) -> list[tuple[str, str]]:
        metrics = self.metrics
        proportions = (("top-1", metrics.top1), ("top-5", metrics.top5), ("agreement", metrics.agreement))
        rows = [(name, str(value)) for name, value in proportions if value is not None]
        if metrics.kl_divergence is not None:
            rows.append(("KL", f"{metrics.kl_divergence:.3g}"))
        rows.append(("speed", f"{self.samples_per_second:.1f} samples per second"))
        if self.input_rates:
            rows.append(("with input", describe_rates(self.input_rates)))
        if self.reference:
            rows.append(("reference", f"{self.reference} in {self.reference_runtime}"))
        return rows

    @property
    def _notes(self) -> list[str]:
        metrics, notes = self.metrics, []
        if metrics.top1 is None and metrics.agreement is None:
            notes.append("no labels and no reference: use a folder per class, or pass --reference")
        notes += [f"warning: {warning}" for warning in metrics.warnings]
        if self.is_assumed:
            notes.append(f"preprocessing: {self.preprocessing}")
        if metrics.not_finite:
            notes.append(f"{metrics.not_finite} outputs hold NaN or infinity: {COMPARE_HINT}")
        if self.rejected:
            name, message = next(iter(self.rejected.items()))
            notes.append(f"{len(self.rejected)} images rejected, the first: {name}: {message}")
        if self.unknown_labels:
            notes.append(
                f"{self.unknown_labels} labels are not classes of the model and do not count: pass --labels FILE"
            )
        return notes

    def __repr__(self) -> str:
        metrics = [f"{name} {value}" for name, value in self._rows if name in ("top-1", "agreement")]
        facts = [f"{self.model!r} in {self.runtime.name}", f"{self.metrics.samples} samples", *metrics]
        return f"Evaluation({', '.join(facts)})"

    def __str__(self) -> str:
        lines = [f"{self.model} in {self.runtime}, {self.metrics.samples} samples"]
        lines += [f"  {name:<12} {value}" for name, value in self._rows]
        lines += [f"  {note}" for note in self._notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the metrics as HTML for notebooks."""
        rows = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in self._rows)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes)
        title = escape(f"{self.model} in {self.runtime}, {self.metrics.samples} samples")
        return f"<p>{title}</p><table>{rows}</table>{notes}"


@public
def evaluate(
    model: Any,
    data: Any,
    reference: Any = None,
    *,
    runtime: str = AUTO,
    reference_runtime: str = AUTO,
    labels: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    batch: int = BATCH,
    precision: str | None = None,
    intra_op: int | None = None,
    inter_op: int | None = None,
    min_top1: float | None = None,
    min_agreement: float | None = None,
    max_kl: float | None = None,
    options: SessionOptions = SessionOptions(),
    input_height: int | None = None,
    input_width: int | None = None,
    input_mean: float | Sequence[float] | None = None,
    input_std: float | Sequence[float] | None = None,
    input_layer: str = "",
    output_layer: str = "",
    offline: bool = False,
    on_progress: OnProgress = ignore_progress,
    on_message: OnMessage = ignore_message,
) -> Evaluation:
    """Compute the accuracy of a model and its agreement with a reference model.

    Args:
        model: a `Model`, a `Graph`, a file, or the name of a model card.
        data: dataset: files, arrays or an iterable, see `quantkit.data.as_dataset`.
        reference: another version of the model, for example the float model.
        runtime: runtime of the model.
        reference_runtime: runtime of the reference model.
        labels: label file; None for the model's own labels.
        limit: maximum number of samples (fixed subset).
        batch: samples per run for models with a dynamic batch.
        precision: lowest precision that the runtime may compute in; the reference model runs in float32.
        intra_op, inter_op: threads inside one op, and ops that run in parallel (default: the runtime's choice).
        min_top1, min_agreement: lowest allowed top-1 accuracy and agreement in [0, 1].
        max_kl: highest allowed mean KL divergence in nats.
        options: threads, device and precision in one value; the arguments above override it.
        input_height, input_width: size of the resized images in pixels (default: from the model).
        input_mean, input_std: normalization (x - mean) / std, numbers or one number per channel (default: from the
            model card, else from a scaling layer of the graph, else 128).
        input_layer: input name (default: from the model card, else the image input).
        output_layer: name of the class scores (default: from the model card, else the edge without consumers).
        offline: never download a model.
        on_progress: receives the number of evaluated samples.
        on_message: receives warnings.

    Raises:
        UsageError: an input takes no images, or the two models have different classes.
        InputError: a file is missing or broken, or no sample could be decoded.
        CheckError: a metric violates its limit, or is not known.
        EvaluationInterrupted: Ctrl-C, with the metrics of the samples so far.
    """
    require_positive(batch=batch, **without_none(limit=limit))
    preprocessing = PreprocessingOptions.of(
        input_height=input_height, input_width=input_width, input_mean=input_mean, input_std=input_std
    )
    require_fraction(**without_none(min_top1=min_top1, min_agreement=min_agreement))
    require_ratio(**without_none(max_kl=max_kl))
    require_text(
        runtime=runtime, reference_runtime=reference_runtime, input_layer=input_layer, output_layer=output_layer
    )
    require_path(**without_none(labels=labels))
    require_flag(offline=offline)
    require_callable(on_progress=on_progress, on_message=on_message)
    options = options.with_(precision=precision, intra_op=intra_op, inter_op=inter_op)
    dataset = as_dataset(data, limit)
    with ExitStack() as stack:

        def open_and_close_later(value: Any, runtime_name: str, precision: str) -> OpenedModel:
            loaded = as_model(value, offline=offline)
            if loaded.has_random_weights:
                on_message(f"{loaded.name}: {RANDOM_WEIGHTS_NOTE}")
            opened_model = open_model(
                loaded,
                runtime_name,
                replace(options, precision=precision),
                input_layer=input_layer,
                output_layer=output_layer,
                takes_arrays=not dataset.holds_images,
            )
            stack.callback(opened_model.session.close)
            return opened_model

        models = [open_and_close_later(model, runtime, options.precision)]
        if reference is not None:
            models.append(open_and_close_later(reference, reference_runtime, "float32"))
        run = _EvaluationRun(models, dataset, preprocessing, _find_labels(models, labels), batch)
        if run.is_assumed:
            on_message(describe_assumption(run.pipelines[0]))
        evaluation = run.evaluation(on_progress)
    evaluation.check(min_top1=min_top1, min_agreement=min_agreement, max_kl=max_kl)
    return evaluation


def find_class(label: str, labels: Labels, num_classes: int) -> int | None:
    """Return the class index of a label: a WordNet id, a name or an index; None if it is not a class of the model.

    Args:
        label: label of a sample.
        labels: labels of the model.
        num_classes: number of classes of the model.

    >>> find_class("n02510455", Labels({1: "giant panda"}, {1: "n02510455"}, length=2), 2)
    1
    >>> find_class("giant panda", Labels({1: "giant panda, panda"}, length=2), 2)
    1
    """
    for index, synset in labels.wordnet.items():
        if synset == label:
            return index
    name = label.replace("_", " ").casefold()
    first_names = {index: text.partition(",")[0] for index, text in labels.names.items()}
    for names in (labels.names, first_names):
        matches = [index for index, text in names.items() if text.casefold() == name]
        if len(matches) == 1:
            return matches[0]
    return int(label) if label.isdecimal() and int(label) < num_classes else None


class _EvaluationRun:
    """State of one evaluation: the model, the reference model if there is one, and the counts."""

    def __init__(
        self,
        models: list[OpenedModel],
        dataset: Dataset,
        preprocessing: PreprocessingOptions,
        labels: Labels,
        batch: int,
    ) -> None:
        self.models = models
        self.dataset = dataset
        # Two versions of one model have the same preprocessing: a model without a card uses the card of the other.
        is_stated = preprocessing != PreprocessingOptions()
        card = None if is_stated else next(filter(None, (model.card for model in models)), None)
        bases: list[Basis | None] = [card, *(model.basis for model in models)]
        basis = next((basis for basis in bases if basis is not None), None)
        self.pipelines = [
            InputPipeline.of(model.session.inputs, dataset, model.card or basis, preprocessing) for model in models
        ]
        self.labels = labels
        self.batch = batch
        self.counter = ClassificationCounter()
        self.rejected: dict[str, str] = {}
        self.unknown_labels = 0
        self.timings: list[tuple[int, float]] = []
        self.times = InputTimes()
        self.start = perf_counter()
        self.classes: dict[str, int | None] = {}

    @property
    def is_assumed(self) -> bool:
        return any(pipeline.is_assumed for pipeline in self.pipelines)

    @property
    def preprocessing(self) -> str:
        applied = self.pipelines[0].applied
        return str(self.pipelines[0]) if applied is None else applied.description

    def evaluation(self, on_progress: OnProgress) -> Evaluation:
        """Run all samples.

        Raises:
            InputError: no sample could be decoded.
            EvaluationInterrupted: Ctrl-C.
        """
        samples = self.dataset.read(self.pipelines[0].rank)
        try:
            for chunk in prepare_batches(samples, self.pipelines, self.batch, self.rejected, times=self.times):
                if chunk:
                    self._add(chunk)
                done = self.counter.samples + len(self.rejected)
                on_progress(Progress("evaluating", done, self.dataset.size))
        except KeyboardInterrupt:
            if not self.counter.samples:
                raise
            raise EvaluationInterrupted(self._result()) from None
        if not self.counter.samples:
            require_images(self.rejected)
        return self._result()

    def _add(self, chunk: list[PreparedSample]) -> None:
        start = perf_counter()
        outputs = self._predict(0, chunk)
        self.timings.append((len(chunk), perf_counter() - start))
        reference = self._predict(1, chunk) if len(self.models) > 1 else None
        labels = [self._class_of(sample, outputs.shape[1]) for sample, _ in chunk]
        self.counter.add(outputs, labels, reference)

    def _predict(self, index: int, chunk: list[PreparedSample]) -> Array:
        samples = [prepared[index] for _, prepared in chunk]
        return self.models[index].predict(self.pipelines[index], samples, self.batch)

    def _class_of(self, sample: Sample, num_classes: int) -> int | None:
        if not sample.label:
            return None
        if sample.label not in self.classes:
            self.classes[sample.label] = find_class(sample.label, self.labels, num_classes)
        index = self.classes[sample.label]
        self.unknown_labels += index is None
        return index

    def _result(self) -> Evaluation:
        model, other = self.models[0], self.models[1] if len(self.models) > 1 else None
        timings = self.timings[1:] or self.timings
        seconds = perf_counter() - self.start
        return Evaluation(
            model.name,
            model.session.runtime,
            self.counter.metrics,
            other.name if other else "",
            other.session.runtime if other else None,
            sum(count for count, _ in timings) / sum(seconds for _, seconds in timings),
            seconds,
            self.times.rates(self.counter.samples, seconds),
            self.rejected,
            self.unknown_labels,
            self.preprocessing,
            self.is_assumed,
        )


def require_images(rejected: Mapping[str, str]) -> None:
    """Reject a dataset in which no image can be decoded.

    Args:
        rejected: message by name of the image; not empty.

    Raises:
        InputError: always.
    """
    name, message = next(iter(rejected.items()))
    raise InputError(
        f"none of {len(rejected)} images can be decoded; {name}: {message}", hint=f"use {', '.join(FORMATS)} files"
    )


def _find_labels(models: list[OpenedModel], file: str | os.PathLike[str] | None) -> Labels:
    """Return the labels of the file, else of the first model that has any: versions have the same classes."""
    if file is not None:
        return models[0].read_labels(expand_user(file))
    candidates = (model.read_labels(None) for model in models)
    return next((labels for labels in candidates if labels.are_known), Labels())
