"""Inference in one worker: a model in a session, and the result file of each shard."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

from quantkit.batch_inference.results import FORMATS, publish
from quantkit.batch_inference.rows import Row, class_rows, empty_class, tensor_rows
from quantkit.data import Dataset, InputPipeline, InputTimes, PreprocessingOptions, prepare_batches
from quantkit.data.dataset import Sample
from quantkit.data.labels import Labels
from quantkit.data.preparation import PreparedSample
from quantkit.errors import UsageError
from quantkit.evaluation.opened_model import OpenedModel, open_model
from quantkit.ir.graph import Graph
from quantkit.model import Model
from quantkit.model.transfer import ModelFile
from quantkit.runtimes import open_session
from quantkit.runtimes.session import SessionOptions
from quantkit.workers import Service, WorkerResources


@dataclass(frozen=True)
class InferenceSettings:
    """Settings of all workers of a run.

    Attributes:
        model: the model.
        folder: folder of the result files.
        example: first sample of the dataset, which determines the form of all samples.
        runtime: name of the runtime.
        options: precision of the sessions.
        preprocessing: preprocessing that the caller states.
        batch: samples per run for models with a dynamic batch.
        labels: label file; None for the model's own labels.
        input_layer, output_layer: names that the caller chose, or empty.
        rows: one of `ROWS`.
        format: one of `FORMATS`.
    """

    model: ModelFile
    folder: Path
    example: Dataset
    runtime: str
    options: SessionOptions
    preprocessing: PreprocessingOptions
    batch: int
    labels: Path | None
    input_layer: str
    output_layer: str
    rows: str
    format: str


@dataclass(frozen=True)
class InferenceTask:
    """One shard, or one sample of a shard that keeps failing.

    Attributes:
        index: number of the shard.
        data: samples.
        file: name of the result file; empty for a check of one sample, which writes no file.
        excluded: reason by position of each sample that ends its worker or fails in it.
        position: position of the sample of a check.
    """

    index: int
    data: Dataset
    file: str = ""
    excluded: Mapping[int, str] = field(default_factory=dict)
    position: int = 0


@dataclass(frozen=True)
class ShardResult:
    """Finished shard.

    Attributes:
        samples: number of samples, rejected ones included.
        rejected: reason by name of each rejected sample.
        sha256: digest of the result file.
        seconds: duration by part: ``input`` (without samples for the runtime), ``runtime`` and ``write``.
        input_cpu_seconds: CPU time of the preparation of the samples.
    """

    samples: int
    rejected: Mapping[str, str]
    sha256: str
    seconds: Mapping[str, float]
    input_cpu_seconds: float


class InferenceService(Service):
    """Model in a session of one worker.

    Attributes:
        facts: runtime, preprocessing and form of the rows: equal in all workers.
    """

    def __init__(self, settings: InferenceSettings, placement: WorkerResources) -> None:
        self._settings = settings
        self._threads = placement.threads
        device = "gpu" if placement.device == "gpu" else settings.options.device
        intra_op = settings.options.intra_op or placement.threads
        options = replace(settings.options, device=device, intra_op=intra_op)
        self._model, self._has_classes = _open(settings, options)
        session = self._model.session
        self._pipeline = _pipeline_of(self._model, settings)
        self._labels = self._model.read_labels(settings.labels) if self._has_classes else Labels()
        self.facts: Mapping[str, Any] = {
            "runtime": str(session.runtime),
            "preprocessing": str(self._pipeline),
            "preprocessing_is_assumed": self._pipeline.is_assumed,
            "rows": "classes" if self._has_classes else "tensors",
            "labels": len(self._labels.names),
        }

    def run(self, task: InferenceTask) -> ShardResult:
        """Run the samples of a task, and publish the result file of a shard."""
        start = perf_counter()
        times, rejected, runtime_seconds = InputTimes(), dict[str, str](), 0.0
        names: list[str] = []
        rows: dict[str, Row] = {}
        samples = _record(self._samples(task), names)
        size = self._pipeline.batch_size or self._settings.batch
        chunks = prepare_batches(samples, [self._pipeline], size, rejected, threads=self._threads, times=times)
        for chunk in chunks:
            before = perf_counter()
            rows |= self._run_batch(chunk) if chunk else {}
            runtime_seconds += perf_counter() - before
        before = perf_counter()
        excluded = {str(_first(task.data.part(at, at + 1))): reason for at, reason in task.excluded.items()}
        rejected |= excluded
        data = FORMATS[self._settings.format].encode(self._merge_rows(task, names, rows, rejected))
        if task.file:
            publish(self._settings.folder / task.file, data)
        seconds = {
            "input": times.waiting_seconds,
            "runtime": runtime_seconds,
            "write": perf_counter() - before,
            "total": perf_counter() - start,
        }
        count = len(names) + len(excluded)
        return ShardResult(count, rejected, sha256(data).hexdigest(), seconds, times.cpu_seconds)

    def close(self) -> None:
        """Close the session."""
        self._model.session.close()

    def _samples(self, task: InferenceTask) -> Iterator[Sample]:
        if not task.excluded:
            return task.data.read(self._pipeline.rank)
        positions = (at for at in range(task.data.size or 0) if at not in task.excluded)
        return chain.from_iterable(task.data.part(at, at + 1).read(self._pipeline.rank) for at in positions)

    def _run_batch(self, chunk: list[PreparedSample]) -> dict[str, Row]:
        prepared = [values[0] for _, values in chunk]
        if self._has_classes:
            rows = class_rows(self._model, self._pipeline, self._labels, prepared)
        else:
            rows = tensor_rows(self._model, self._pipeline, prepared)
        return {str(sample): row for (sample, _), row in zip(chunk, rows, strict=True)}

    def _merge_rows(
        self, task: InferenceTask, names: Iterable[str], rows: Mapping[str, Row], rejected: Mapping[str, str]
    ) -> list[Row]:
        """Return the rows in the order of the shard, with those of rejected samples."""
        remaining = iter(names)
        merged = []
        for position in range(task.data.size or 0):
            is_excluded = position in task.excluded
            name = str(_first(task.data.part(position, position + 1))) if is_excluded else next(remaining)
            merged.append({"file": name, **(rows[name] if name in rows else self._rejected_row(rejected[name]))})
        return merged

    def _rejected_row(self, reason: str) -> Row:
        return {**(empty_class() if self._has_classes else {"outputs": None}), "error": reason}


def _record(samples: Iterable[Sample], names: list[str]) -> Iterator[Sample]:
    """Yield samples, and append their names to a list."""
    for sample in samples:
        names.append(str(sample))
        yield sample


def _first(part: Dataset) -> Sample:
    """Return the first sample of a dataset, without reading its record."""
    samples = getattr(part, "samples", None)
    return samples[0] if samples else next(part.read())


def _open(settings: InferenceSettings, options: SessionOptions) -> tuple[OpenedModel, bool]:
    """Open the model; return it, and True if its rows are classes.

    Raises:
        UsageError: the caller requested classes, and the model has no image input or no class scores.
    """
    model = settings.model.load()
    if settings.rows == "classes" or (settings.rows == "auto" and not _has_further_outputs(model, settings, options)):
        try:
            opened = open_model(
                model,
                settings.runtime,
                options,
                input_layer=settings.input_layer,
                output_layer=settings.output_layer,
                takes_arrays=not settings.example.holds_images,
            )
        except UsageError:
            if settings.rows == "classes" or settings.input_layer or settings.output_layer:
                raise
        else:
            if settings.rows == "classes" or _has_class_scores(opened, settings):
                return opened, True
            if _has_all_endpoints(opened):
                return opened, False
            opened.session.close()
    session = open_session(model.runnable, settings.runtime, options)
    return OpenedModel(model, session, model.runnable), False


def _has_all_endpoints(opened: OpenedModel) -> bool:
    """Return True if the session has the inputs and outputs of the model, and no others."""
    model, runnable = opened.model, opened.runnable
    if not isinstance(runnable, Graph):
        return runnable is model.runnable
    return (runnable.inputs, runnable.outputs) == (model.graph.inputs, model.graph.outputs)


def _has_further_outputs(model: Model, settings: InferenceSettings, options: SessionOptions) -> bool:
    """Return True if a model has several outputs, and neither the caller nor a card names the one with the classes."""
    if model.card is not None or settings.output_layer:
        return False
    if model.has_readable_graph:
        return len(model.graph.outputs) > 1
    with open_session(model.runnable, settings.runtime, options) as session:
        return len(session.outputs) > 1


def _pipeline_of(model: OpenedModel, settings: InferenceSettings) -> InputPipeline:
    return InputPipeline.of(model.session.inputs, settings.example, model.basis, settings.preprocessing)


def _has_class_scores(model: OpenedModel, settings: InferenceSettings) -> bool:
    """Return True if the only output has a score for each of several classes."""
    session = model.session
    dims = session.outputs[0].shape.dims
    if dims is None:
        return model.card is not None
    (output, *others) = session.outputs
    is_row = not others and output.name not in model.whole_outputs and len(dims) == 2
    has_one_row = is_row and (dims[0] == 1 or not _pipeline_of(model, settings).unbatched)
    return has_one_row and dims[1] != 1 and output.dtype.is_float
