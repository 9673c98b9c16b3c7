"""Accuracy of a model on a dataset, and its agreement with a reference model.

Each image is decoded once and prepared for each model: float or uint8, channels last or first, single or in batches.
"""

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

from quantkit.arguments import (
    expand_user,
    public,
    require_callable,
    require_fraction,
    require_positive,
    require_ratio,
    require_text,
    without_none,
)
from quantkit.data import InputTimes, as_dataset
from quantkit.data.images import FORMATS
from quantkit.data.preparation import describe_rates
from quantkit.errors import CheckError, InputError, UsageError
from quantkit.evaluation.classification_metrics import ClassificationMetrics
from quantkit.evaluation.evaluation_run import EvaluationCounts, EvaluationFacts, EvaluationRun, EvaluationSettings
from quantkit.evaluation.evaluation_workers import evaluate_parts
from quantkit.evaluation.interrupted import EvaluationInterrupted
from quantkit.evaluation.limited_process import limits_isa
from quantkit.evaluation.opened_model import describe_assumption, options_for
from quantkit.evaluation.options import DATA, MODEL, TASK, ClassifierOptions, DatasetOptions, MetricLimits
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.evaluation.tasks import Score, find_task
from quantkit.facts import RANDOM_WEIGHTS_NOTE, PlainReport, format_facts
from quantkit.model import as_model
from quantkit.model.early_checks import check_sources
from quantkit.model.options import OFFLINE
from quantkit.options import option, takes, values_of
from quantkit.progress import OnMessage, OnProgress, Progress, ignore_message, ignore_progress
from quantkit.runtimes import AUTO
from quantkit.runtimes.options import IsaOptions, PrecisionOptions, ThreadOptions
from quantkit.runtimes.runtime import isa_environment
from quantkit.runtimes.session import PRECISIONS, RuntimeVersion

COMPARE_HINT = "quantkit compare finds the first bad layer"


@dataclass(frozen=True, repr=False)
class Evaluation(PlainReport):
    """Metrics of a model on a dataset.

    Attributes:
        model: name of the model.
        runtime: runtime of the model.
        metrics: accuracy and agreement.
        reference: name of the reference model; empty without a reference.
        reference_runtime: runtime of the reference model.
        samples_per_second: throughput of the model; the first batch does not count if there are more.
        seconds: total time, with decoding and the reference model.
        input_rates: rates with and without overlap of input and runtime, from the first sample to the last one: see
            `quantkit.data.InputTimes.rates`.
        rejected: message by name of each image that could not be decoded.
        unknown_labels: number of samples whose label is not a class of the model.
        preprocessing: description of the preprocessing, with its source.
        is_assumed: True if neither the caller nor the model states the preprocessing.
        outputs: metric of a task and SQNR of the outputs, with the reference model; None without a task.
        environment: environment variables of the process that ``isa`` set.
        classes: source of the order of the classes if it is that of folders, else empty.
        output: name of the evaluated output if the model has several, or if the caller names it; empty otherwise, and
            for all outputs.
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
    outputs: OutputSqnr | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    classes: str = ""
    output: str = ""

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
            min_agreement: lowest allowed agreement with the reference model, or metric of a task, in [0, 1].
            max_kl: highest allowed mean KL divergence in nats.

        Raises:
            CheckError: a metric violates its limit, or is not known.
            UsageError: a limit is not a number in its range.
        """
        require_fraction(**without_none(min_top1=min_top1, min_agreement=min_agreement))
        require_ratio(**without_none(max_kl=max_kl))
        metrics = self.metrics
        if self.outputs is not None and min_agreement is not None:
            if metrics.not_finite or self.outputs.score < min_agreement:
                not_finite = f", and {metrics.not_finite} outputs are not finite" if metrics.not_finite else ""
                raise CheckError(
                    f"{self.outputs.metric} is {self.outputs.score:.4f}{not_finite}; the limit is {min_agreement:g}",
                    hint=COMPARE_HINT,
                )
            min_agreement = None
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
                hint = COMPARE_HINT
                if value is metrics.top1 and metrics.agreement and value.value + 1 - metrics.agreement.value < limit:
                    hint = "lower the limit: the reference model is below this limit, too"
                raise CheckError(f"{name} is {value}, below the limit {limit:g}", hint=hint)
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
            "environment": dict(self.environment),
            "reference": self.reference or None,
            "reference_runtime": other and {"name": other.name, "version": other.version},
            **self.metrics.to_json(),
            "outputs": None if self.outputs is None else self.outputs.to_json(),
            "samples_per_second": self.samples_per_second,
            "seconds": self.seconds,
            "input": dict(self.input_rates),
            "preprocessing": self.preprocessing,
            "preprocessing_is_assumed": self.is_assumed,
            "unknown_labels": self.unknown_labels,
            "classes": self.classes or None,
            "output": self.output or None,
            "rejected": [{"name": name, "message": message} for name, message in self.rejected.items()],
        }

    @property
    def _title(self) -> str:
        return f"{self.model} in {self.runtime}, {self.metrics.samples} samples"

    @property
    def _facts(self) -> list[tuple[str, str]]:
        metrics = self.metrics
        proportions = (("top-1", metrics.top1), ("top-5", metrics.top5), ("agreement", metrics.agreement))
        rows = [("output", self.output)] if self.output else []
        rows += [(name, str(value)) for name, value in proportions if value is not None]
        if self.outputs is not None:
            rows.append((self.outputs.metric, f"{self.outputs.score:.4f} of the reference model"))
            rows += [("sizes", text) for text in self.outputs.size_texts]
        if metrics.kl_divergence is not None:
            rows.append(("KL", f"{metrics.kl_divergence:.3g}"))
        rows.append(("speed", f"{self.samples_per_second:.1f} samples per second"))
        if self.input_rates:
            rows.append(("with input", describe_rates(self.input_rates)))
        rows += list(self.environment.items())
        if self.classes and metrics.top1 is not None:
            rows.append(("classes", f"{self.classes} (--labels FILE states another order)"))
        if self.reference:
            rows.append(("reference", f"{self.reference} in {self.reference_runtime}"))
        return rows

    @property
    def _notes(self) -> list[str]:
        metrics, notes = self.metrics, []
        if metrics.top1 is None and metrics.agreement is None and self.outputs is None:
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
        metrics = [f"{name} {value}" for name, value in self._facts if name in ("top-1", "agreement")]
        facts = [f"{self.model!r} in {self.runtime.name}", f"{self.metrics.samples} samples", *metrics]
        return f"Evaluation({', '.join(facts)})"

    def __str__(self) -> str:
        return format_facts(self._title, self._facts, self._notes)


@dataclass(frozen=True)
class EvaluateOptions(ClassifierOptions, DatasetOptions, ThreadOptions, IsaOptions, PrecisionOptions, MetricLimits):
    """The arguments of `evaluate`."""

    model: Annotated[Any, MODEL]
    data: Annotated[Any, DATA]
    reference: Any = option(
        None,
        help="reference model, for example the float model; FILE@RUNTIME too",
        doc="another version of the model, for example the float model",
    )
    _: KW_ONLY
    reference_runtime: str = option(AUTO, require_text, doc="runtime of the reference model")
    task: str | Score | None = option(
        None,
        TASK,
        help="metric of all outputs with the reference model (default: metrics of class scores)",
        doc="metric of all outputs with the reference model: ``segmentation``, ``detection``, ``regression``, "
        "``embedding``, ``text``, ``language``, or a function of the outputs of the reference model and of the "
        "model, (n, ...) by name, that returns 1 for equal outputs (default: metrics of class scores)",
    )
    workers: int = option(
        1,
        require_positive,
        help="processes that share the data and the cores (default: 1)",
        doc="number of processes, among which the cores are divided; the data is then files or arrays",
    )
    precision: str | None = option(
        None,
        choices=PRECISIONS,
        help="lowest precision that the runtime may compute in for MODEL; the reference runs in float32 (default: "
        "float32)",
        doc="lowest precision that the runtime may compute in; the reference model runs in float32",
    )
    offline: bool = option(False, OFFLINE)
    on_progress: OnProgress = option(ignore_progress, require_callable, doc="receives the number of evaluated samples")
    on_message: OnMessage = option(ignore_message, require_callable, doc="receives warnings")


@public
@limits_isa("model", "reference")
@takes(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> Evaluation:
    """Compute the accuracy of a model and its agreement with a reference model.

    Raises:
        UsageError: an input takes no images, the two models have different classes or outputs, or a task has no
            reference model.
        InputError: a file is missing or broken, or no sample could be decoded.
        CheckError: a metric violates its limit, or is not known.
        EvaluationInterrupted: Ctrl-C, with the metrics of the samples so far.
    """
    task, isa, workers = options.task, options.isa, options.workers
    if options.reference is None:
        require_reference(task=task, min_agreement=options.min_agreement, max_kl=options.max_kl)
    if callable(task) and workers > 1:
        raise UsageError("a function as task needs one process", hint="omit workers, or pass the name of a task")
    session = options.options.with_(
        precision=options.precision, intra_op=options.intra_op, inter_op=options.inter_op, isa=isa
    )
    sources = [value for value in (options.model, options.reference) if value is not None]
    runtimes = (options.runtime, options.reference_runtime)
    check_sources(*sources, data=[options.data], labels=options.labels, runtimes=runtimes)
    models = [as_model(value, offline=options.offline) for value in sources]
    dataset = as_dataset(options.data, options.limit, inputs=models[0].input_names)
    for loaded in models:
        if loaded.has_random_weights:
            options.on_message(f"{loaded.name}: {RANDOM_WEIGHTS_NOTE}")
    label_file = None if options.labels is None else Path(os.path.realpath(expand_user(options.labels)))
    settings = EvaluationSettings(
        options_for(session, models, dataset),
        runtimes,
        options.preprocessing,
        label_file,
        options.batch,
        options.input_layer,
        options.output_layer,
        find_task(task),
    )
    start = perf_counter()
    if dataset.size:
        workers = min(workers, -(-dataset.size // options.batch))  # a part has at least one batch
    if workers == 1:
        with EvaluationRun(models, dataset, settings) as run:
            if run.facts.is_assumed:
                options.on_message(describe_assumption(run.facts.preprocessing))
            try:
                for counts in run.count(dataset):
                    options.on_progress(Progress("evaluating", counts.samples, dataset.size))
            except KeyboardInterrupt:
                if not run.counts.evaluated:
                    raise
                raise EvaluationInterrupted(_make_evaluation(run.facts, run.counts, perf_counter() - start)) from None
            facts, counts = run.facts, run.counts
    else:
        facts, counts = evaluate_parts(models, dataset, settings, workers, options.on_progress)
        if facts.is_assumed:
            options.on_message(describe_assumption(facts.preprocessing))
    if not counts.evaluated:
        require_images(counts.rejected)
    evaluation = _make_evaluation(facts, counts, perf_counter() - start, workers)
    evaluation = replace(evaluation, environment={} if isa is None else isa_environment(isa))
    evaluation.check(**values_of(MetricLimits, options))
    return evaluation


def require_reference(
    *, task: str | Score | None = None, min_agreement: float | None = None, max_kl: float | None = None
) -> None:
    """Check before any work that no metric needs a reference model, which is not given.

    Raises:
        UsageError: the metric of a task, or that of a limit, needs a reference model.
    """
    metric = find_task(task)
    limits = {"agreement": min_agreement, "the KL divergence": max_kl}
    names = [metric.metric] if metric else [name for name, limit in limits.items() if limit is not None]
    if names:
        raise UsageError(f"{names[0]} is measured with a reference model", hint="pass --reference MODEL")


def _make_evaluation(facts: EvaluationFacts, counts: EvaluationCounts, seconds: float, workers: int = 1) -> Evaluation:
    """Return the metrics of the counted samples.

    Args:
        facts: names, runtimes and preprocessing.
        counts: counts of the samples.
        seconds: duration.
        workers: number of workers that ran at the same time.
    """
    timings = counts.timings[1:] or counts.timings
    rate = sum(count for count, _ in timings) / sum(seconds for _, seconds in timings)
    times = InputTimes(counts.times.cpu_seconds / workers, counts.times.waiting_seconds / workers)
    outputs = None if counts.outputs is None else counts.outputs.result
    metrics = counts.counter.metrics
    if outputs is not None:
        metrics = ClassificationMetrics(outputs.samples, not_finite=outputs.not_finite)
    return Evaluation(
        facts.models[0],
        facts.runtimes[0],
        metrics,
        facts.models[1] if len(facts.models) > 1 else "",
        facts.runtimes[1] if len(facts.models) > 1 else None,
        rate * workers,
        seconds,
        times.rates(counts.evaluated, (counts.seconds or seconds) / workers),
        counts.rejected,
        counts.unknown_labels,
        facts.preprocessing,
        facts.is_assumed,
        outputs,
        classes=counts.classes,
        output=facts.output,
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
