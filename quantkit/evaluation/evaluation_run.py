"""Counts of an evaluation: the models in sessions, and the samples of a dataset or of one of its parts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Self

from quantkit.data import Dataset, InputPipeline, InputTimes, PreprocessingOptions, prepare_batches
from quantkit.data.dataset import ArrayDataset, FileDataset, Sample
from quantkit.data.inference import unify_bases
from quantkit.data.labels import Labels
from quantkit.data.preparation import PreparedSample
from quantkit.errors import UsageError
from quantkit.evaluation.classification_metrics import ClassificationCounter
from quantkit.evaluation.opened_model import OpenedModel, open_model
from quantkit.evaluation.output_rows import join_rows, split_rows
from quantkit.evaluation.output_sqnr import OutputSqnrCounter
from quantkit.evaluation.tasks import TaskMetric
from quantkit.ir.tensor import Array, Shape
from quantkit.model import Model
from quantkit.runtimes.session import RuntimeVersion, SessionOptions, TensorInfo


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation.

    Attributes:
        options: threads, device and precision of the model; the reference model runs in float32.
        runtimes: runtimes of the model and of the reference model.
        preprocessing: preprocessing that the caller states.
        labels: label file; None for the labels of the models.
        batch: samples per run for models with a dynamic batch.
        input_layer, output_layer: names that the caller chose, or empty.
        task: metric of all outputs with the reference model; None for class scores.
    """

    options: SessionOptions
    runtimes: tuple[str, str]
    preprocessing: PreprocessingOptions
    labels: Path | None
    batch: int
    input_layer: str
    output_layer: str
    task: TaskMetric | None = None


@dataclass(frozen=True)
class EvaluationFacts:
    """Facts about the opened models.

    Attributes:
        models: names of the models.
        runtimes: their runtimes.
        preprocessing: description of the preprocessing.
        is_assumed: True if neither the caller nor a model states the preprocessing.
        output: name of the evaluated output if the model has several, or if the caller names it; empty otherwise, and
            for all outputs.
    """

    models: tuple[str, ...]
    runtimes: tuple[RuntimeVersion, ...]
    preprocessing: str
    is_assumed: bool
    output: str = ""


@dataclass
class EvaluationCounts:
    """Counts and times of evaluated samples.

    Attributes:
        counter: correct predictions and agreement.
        outputs: metric of a task, and SQNR of the outputs; None without a task.
        rejected: message by name of each sample that could not be prepared.
        unknown_labels: number of samples whose label is not a class of the model.
        classes: source of the order of the classes if it is that of folders, else empty.
        timings: number of samples and seconds of each run of the model.
        times: times of the input.
        seconds: time from the first sample to the last one; the sum of the parts in several workers.
    """

    counter: ClassificationCounter = field(default_factory=ClassificationCounter)
    outputs: OutputSqnrCounter | None = None
    rejected: dict[str, str] = field(default_factory=dict)
    unknown_labels: int = 0
    classes: str = ""
    timings: list[tuple[int, float]] = field(default_factory=list)
    times: InputTimes = field(default_factory=InputTimes)
    seconds: float = 0.0

    @property
    def samples(self) -> int:
        """Number of samples, rejected ones included."""
        return self.evaluated + len(self.rejected)

    @property
    def evaluated(self) -> int:
        """Number of samples without the rejected ones."""
        return self.counter.samples if self.outputs is None else self.outputs.samples

    def merge(self, other: "EvaluationCounts") -> None:
        """Add the counts of other samples."""
        self.counter.merge(other.counter)
        if self.outputs is None:
            self.outputs = other.outputs
        elif other.outputs is not None:
            self.outputs.merge(other.outputs)
        self.rejected |= other.rejected
        self.unknown_labels += other.unknown_labels
        self.classes = self.classes or other.classes
        self.timings += other.timings
        self.times.cpu_seconds += other.times.cpu_seconds
        self.times.waiting_seconds += other.times.waiting_seconds
        self.seconds += other.seconds


class EvaluationRun:
    """Models in open sessions; a context manager that closes them.

    Args:
        models: the model, and the reference model if there is one.
        dataset: the dataset, or its first sample.
        settings: settings of the evaluation.

    Attributes:
        counts: counts of the samples so far.
        facts: facts about the opened models.
    """

    def __init__(self, models: Sequence[Model], dataset: Dataset, settings: EvaluationSettings) -> None:
        self._settings, self._dataset = settings, dataset
        self._stack = ExitStack()
        try:
            self._models = [self._open(index, model, dataset) for index, model in enumerate(models)]
            self._pipelines = self._make_pipelines(dataset)
            self._labels = _find_labels(self._models, settings.labels)
            self._comparable_outputs = _find_comparable_outputs(
                *(model.session.outputs for model in reversed(self._models))
            )
        except BaseException:
            self._stack.close()
            raise
        self._classes: dict[str, int | None] = {}
        self.counts = EvaluationCounts()
        applied = self._pipelines[0].applied
        self.facts = EvaluationFacts(
            tuple(model.name for model in self._models),
            tuple(model.session.runtime for model in self._models),
            str(self._pipelines[0]) if applied is None else applied.description,
            any(pipeline.is_assumed for pipeline in self._pipelines),
            self._evaluated_output,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def _evaluated_output(self) -> str:
        opened, settings = self._models[0], self._settings
        model = opened.model
        outputs = model.graph.outputs if model.has_readable_graph else opened.session.outputs
        is_chosen = settings.task is None and (len(outputs) > 1 or bool(settings.output_layer))
        return opened.session.outputs[0].name if is_chosen else ""

    def count(self, dataset: Dataset) -> Iterator[EvaluationCounts]:
        """Count the samples of a dataset, and yield the counts after each batch."""
        counts = self.counts
        if isinstance(dataset, ArrayDataset) and self._settings.task is None:
            inputs = {info.name for info in self._models[0].session.inputs}
            outputs = (info.name.partition(":")[0] for info in self._models[0].session.outputs)
            dataset = dataset.labeled_by(name for name in outputs if name not in inputs)
        samples = dataset.read(self._pipelines[0].rank)
        start = perf_counter()
        chunks = prepare_batches(samples, self._pipelines, self._settings.batch, counts.rejected, times=counts.times)
        for chunk in chunks:
            if chunk:
                self._add(chunk)
            counts.seconds = perf_counter() - start
            yield counts

    def _open(self, index: int, model: Model, dataset: Dataset) -> OpenedModel:
        settings = self._settings
        precision = "float32" if index else settings.options.precision
        opened = open_model(
            model,
            settings.runtimes[index],
            replace(settings.options, precision=precision, isa=None if index else settings.options.isa),
            input_layer=settings.input_layer,
            output_layer=settings.output_layer,
            takes_arrays=not dataset.holds_images,
            has_all_outputs=settings.task is not None,
        )
        self._stack.callback(opened.session.close)
        return opened

    def _make_pipelines(self, dataset: Dataset) -> list[InputPipeline]:
        """Return a pipeline for each model."""
        stated, bases = self._settings.preprocessing, unify_bases([model.basis for model in self._models])
        sessions = (model.session for model in self._models)
        return [
            InputPipeline.of(session.inputs, dataset, basis, stated)
            for session, basis in zip(sessions, bases, strict=True)
        ]

    def _add(self, chunk: list[PreparedSample]) -> None:
        if self._settings.task is not None:
            self._add_outputs(chunk, self._settings.task)
            return
        start = perf_counter()
        outputs = self._predict(0, chunk)
        self.counts.timings.append((len(chunk), perf_counter() - start))
        reference = self._predict(1, chunk) if len(self._models) > 1 else None
        labels = [self._class_of(sample, outputs.shape[1]) for sample, _ in chunk]
        self.counts.counter.add(outputs, labels, reference)

    def _add_outputs(self, chunk: list[PreparedSample], task: TaskMetric) -> None:
        start = perf_counter()
        samples = self._run(0, chunk)
        self.counts.timings.append((len(chunk), perf_counter() - start))
        references = self._run(1, chunk)
        counter = self.counts.outputs = self.counts.outputs or OutputSqnrCounter(task)
        rows = [
            (expected, self._pair_outputs(expected, outputs), inputs)
            for (inputs, outputs), (_, expected) in zip(samples, references, strict=True)
        ]
        for expected, outputs, inputs in join_rows(rows):
            counter.add(expected, outputs, inputs)

    def _run(self, index: int, chunk: list[PreparedSample]) -> list[tuple[dict[str, Array], dict[str, Array]]]:
        """Return the inputs and outputs of a model for each sample, as runs of one sample."""
        prepared = [forms[index] for _, forms in chunk]
        runs = self._models[index].run(self._pipelines[index], prepared, self._settings.batch)
        return [pair for run in runs for pair in zip(*map(split_rows, run), strict=True)]

    def _pair_outputs(self, expected: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of the model under the names of the reference model: by name, else by position.

        Dynamic sizes may differ.

        Raises:
            UsageError: the two models have other outputs.
        """
        shapes = [[values.shape for values in arrays.values()] for arrays in (outputs, expected)]
        if len(outputs) == len(expected):
            paired = {name: outputs.get(name, values) for name, values in zip(expected, outputs.values(), strict=True)}
            if all(
                values.shape == paired[name].shape or name in self._comparable_outputs
                for name, values in expected.items()
            ):
                return paired
        raise UsageError(
            f"the model has outputs of shapes {shapes[0]} and the reference model {shapes[1]}",
            hint="compare versions of one model, or name one output with --output-layer",
        )

    def _predict(self, index: int, chunk: list[PreparedSample]) -> Array:
        samples = [prepared[index] for _, prepared in chunk]
        return self._models[index].predict(self._pipelines[index], samples, self._settings.batch)

    def _class_of(self, sample: Sample, num_classes: int) -> int | None:
        if not sample.label:
            return None
        if not self._labels.are_known and isinstance(dataset := self._dataset, FileDataset):
            self._labels = Labels.of_folders(dataset.classes, num_classes, dataset.source)
            self.counts.classes = self._labels.source
        if sample.label not in self._classes:
            self._classes[sample.label] = find_class(sample.label, self._labels, num_classes)
        index = self._classes[sample.label]
        self.counts.unknown_labels += index is None
        return index


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
    full_names = {index: text.replace("_", " ").casefold() for index, text in labels.names.items()}
    first_names = {index: text.partition(",")[0] for index, text in full_names.items()}
    for names in (full_names, first_names):
        matches = [index for index, text in names.items() if text == name]
        if len(matches) == 1:
            return matches[0]
    return int(label) if label.isdecimal() and int(label) < num_classes else None


def _find_comparable_outputs(expected: Sequence[TensorInfo], outputs: Sequence[TensorInfo] = ()) -> frozenset[str]:
    """Return the names of the outputs of the reference model that do not contradict the sizes of the other model."""
    by_name = {info.name: info for info in outputs}
    pairs = [(info, by_name.get(info.name, other)) for info, other in zip(expected, outputs, strict=False)]
    return frozenset(info.name for info, other in pairs if _may_be_equal(info.shape, other.shape))


def _may_be_equal(first: Shape, second: Shape) -> bool:
    """Return True if two shapes may be equal after the batch."""
    if first.dims is None or second.dims is None:
        return True
    sizes = zip(first.dims[1:], second.dims[1:], strict=False)
    return len(first.dims) == len(second.dims) and all(None in pair or pair[0] == pair[1] for pair in sizes)


def _find_labels(models: list[OpenedModel], file: Path | None) -> Labels:
    """Return the labels of the file, else of the first model that has any: versions have the same classes."""
    if file is not None:
        return models[0].read_labels(file)
    candidates = (model.read_labels(None) for model in models)
    return next((labels for labels in candidates if labels.are_known), Labels())
