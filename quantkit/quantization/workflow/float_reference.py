"""Outputs of the float model, and the distance of a quantized model's outputs from them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice, pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from quantkit.data.preprocessing import Preprocessing
from quantkit.evaluation.classification_metrics import (
    ClassificationCounter,
    ClassificationMetrics,
    Proportion,
    act_as_class_scores,
)
from quantkit.evaluation.output_rows import rows_of
from quantkit.evaluation.output_sqnr import OutputSqnr, OutputSqnrCounter
from quantkit.evaluation.tasks import TASKS, TaskMetric
from quantkit.ir.tensor import Array
from quantkit.quantization.fallback import ERROR, TOP1, Loss
from quantkit.quantization.ranges import UNKNOWN
from quantkit.quantization.states import StateLoop, find_states
from quantkit.quantization.workflow.labeled_feeds import Feeds, LabeledFeeds
from quantkit.runtimes.session import Session

# Memory for feeds that run again in the quantized model; later samples are prepared a second time.
CACHE_BYTES = 64 << 20


class ComparedRun(NamedTuple):
    """Outputs of the float model and of another one for the same samples.

    Attributes:
        expected, actual: outputs of the float model and of the other one, (n, ...) by name.
        inputs: inputs of both models, (n, ...) by name.
        classes: class index of each sample; None for one without a label.
    """

    expected: Feeds
    actual: Feeds
    inputs: Feeds
    classes: tuple[int | None, ...]


@dataclass
class FloatReference:
    """Outputs of the float model on a dataset.

    Attributes:
        source: description of the samples.
        preprocessing: preprocessing of images, `ARRAYS_UNCHANGED`, or `UNKNOWN` without samples.
        feeds: cached feeds of the first runs.
        outputs: outputs of all runs, (n, ...) by name.
        classes: class indices of the samples of all runs.
        uncached: feeds after the cached ones; None if all are cached.
        num_bytes: memory of the cached arrays.
        is_full: True if the cache has reached its limit.
        rows: samples per run.
        is_classifier: True if a card or labels state that the outputs are class scores.
        has_named_outputs: True if the caller named the outputs, the one with the class scores first.
        task: metric of the user's task; None to infer it from the outputs.
        whole_outputs: names of the outputs whose first dimension does not count samples: see `find_whole_outputs`.
    """

    source: str = ""
    preprocessing: Preprocessing | str = UNKNOWN
    feeds: list[Feeds] = field(default_factory=list)
    outputs: list[Feeds] = field(default_factory=list)
    classes: list[tuple[int | None, ...]] = field(default_factory=list)
    uncached: LabeledFeeds | None = None
    num_bytes: int = 0
    is_full: bool = False
    rows: int = 1
    is_classifier: bool = False
    has_named_outputs: bool = False
    task: TaskMetric | None = None
    whole_outputs: frozenset[str] = frozenset()

    @property
    def sample_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each input in the first run, by name; empty without runs."""
        return {name: array.shape for name, array in next(iter(self.feeds), {}).items()}

    @property
    def varies(self) -> bool:
        """True if the runs have inputs of different sizes; the last one may have fewer samples."""
        shapes = ({name: array.shape[1:] for name, array in feeds.items()} for feeds in self.feeds)
        return any(first != other for first, other in pairwise(shapes))

    def record(self, samples: LabeledFeeds, feeds: Feeds, outputs: Mapping[str, Array]) -> bool:
        """Cache the last run if it fits; return whether it does.

        Raises:
            UsageError: the task has no metric for such outputs.
        """
        rows = rows_of(outputs, samples.batch, len(samples.classes), self.whole_outputs)
        if self.task is not None and self.task in TASKS.values() and not self.outputs:
            self.task.compute(rows, rows, rows_of(feeds, samples.batch, len(samples.classes)))
        cached = [feeds] if are_vectors(rows) else [feeds, rows]
        size = sum(array.nbytes for arrays in cached for array in arrays.values())
        if self.num_bytes + size > CACHE_BYTES:
            self.is_full = True
            return False
        self.num_bytes += size
        self.rows = samples.batch
        self.feeds.append(dict(feeds))
        self.outputs.append(rows)
        self.classes.append(samples.classes)
        return True

    def run(self, session: Session, samples: LabeledFeeds) -> Iterator[int]:
        """Run the float model on a dataset; yield the number of finished samples.

        Outputs other than vectors are as large as the inputs: then only the samples that fit the cache run.
        """
        position = 0
        for feeds in samples:
            outputs = session.run(feeds)
            rows = rows_of(outputs, samples.batch, len(samples.classes), self.whole_outputs)
            if self.uncached is None and not self.record(samples, feeds, outputs):
                if not are_vectors(rows):
                    return
                self.uncached = samples.skip(position)
            if self.uncached is not None:
                self.outputs.append(rows)
                self.classes.append(samples.classes)
            position = samples.position
            yield position

    def replay(self) -> Iterator[tuple[Feeds, Feeds, tuple[int | None, ...]]]:
        """Yield feeds, float outputs and class indices of every run."""
        uncached = iter(self.uncached) if self.uncached is not None else iter(())
        yield from zip(self.feeds, self.outputs, self.classes, strict=False)
        remaining = islice(zip(self.outputs, self.classes, strict=True), len(self.feeds), None)
        for feeds, (outputs, classes) in zip(uncached, remaining, strict=True):
            yield feeds, outputs, classes

    def __len__(self) -> int:
        return sum(map(len, self.classes))

    @cached_property
    def has_class_scores(self) -> bool:
        """True if the model has one output with one score per class, so that it has a top-1.

        A card, labels or the values themselves show it. To be read after the last run.
        """
        if self.task is not None or not self.outputs or not are_vectors(self.outputs[0]):
            return False
        if len({array.shape[1:] for outputs in self.outputs for array in outputs.values()}) > 1:
            return False
        scores = np.concatenate([flatten(outputs, name) for outputs in self.outputs for name in outputs])
        if scores.dtype.kind != "f":
            return False
        classes = {index for run in self.classes for index in run if index is not None}
        if self.is_classifier or 2 * len(classes) >= scores.shape[1]:
            return True
        sizes = {array[0].size for feeds in self.feeds[:1] for array in feeds.values() if array.ndim > 1}
        is_reconstruction = scores.shape[1] in sizes
        return act_as_class_scores(scores) and not is_reconstruction

    @cached_property
    def score_outputs(self) -> tuple[str, ...]:
        """Outputs that the labels may belong to, of a model with several outputs; empty without labels.

        Such an output has one score for each class. Only labels for a single output count, or for the first one that
        the caller names.
        """
        labels = {index for run in self.classes for index in run if index is not None}
        if not labels or self.task is not None or len(self.outputs[0]) < 2:
            return ()
        names = [
            name
            for name, values in self.outputs[0].items()
            if values.dtype.kind == "f" and max(labels) < values.shape[-1] == values[0].size > 1
        ]
        return tuple(names[: 1 if self.has_named_outputs else None])

    @property
    def unused_labels(self) -> str:
        """Reason why the labels of the samples are not used, for a model with several outputs; else empty."""
        has_labels = any(index is not None for run in self.classes for index in run)
        if not has_labels or self.task is not None or len(self.outputs[0]) < 2 or self.score_output is not None:
            return ""
        names = " or ".join(map(repr, self.score_outputs))
        hint = f"the labels may belong to {names}: name that output first, --outputs NAMES"
        reason = hint if names else "no output fits"
        return f"the labels of the samples are not used: {reason}"

    @property
    def score_output(self) -> str | None:
        """Output with the class scores of the labels; None without labels, or if it is ambiguous."""
        if self.has_class_scores:
            return next(iter(self.outputs[0]))
        return self.score_outputs[0] if len(self.score_outputs) == 1 else None

    @property
    def is_never_finite(self) -> bool:
        """True if every output contains NaN or infinity."""
        arrays = (array for outputs in self.outputs for array in outputs.values())
        return not any(array.dtype.kind == "O" or np.isfinite(array).all() for array in arrays)

    @property
    def top1(self) -> Proportion | None:
        """Top-1 accuracy of the float model; None without labels."""
        return None if self.metrics is None else self.metrics.top1

    @cached_property
    def metrics(self) -> ClassificationMetrics | None:
        """Class metrics of the float model; None without class scores."""
        name = self.score_output
        if name is None:
            return None
        counter = ClassificationCounter()
        for outputs, classes in zip(self.outputs, self.classes, strict=True):
            counter.add(flatten(outputs, name), classes)
        return counter.metrics

    @property
    def digest(self) -> str:
        """Digest of outputs and classes."""
        digest = blake2b(repr(self.classes).encode(), digest_size=8)
        for outputs in self.outputs:
            for array in outputs.values():
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def first_runs(self, count: int) -> "FloatReference":
        """Return the reference of the first cached runs, at most ``count``."""
        return self.select(range(min(count, len(self.feeds))))

    def select(self, runs: Sequence[int]) -> "FloatReference":
        """Return the reference of some cached runs."""
        return replace(
            self,
            feeds=[self.feeds[run] for run in runs],
            outputs=[self.outputs[run] for run in runs],
            classes=[self.classes[run] for run in runs],
            uncached=None,
            is_classifier=self.has_class_scores,
        )

    @cached_property
    def states(self) -> dict[str, str]:
        """Output of each state of a recurrent model, by the name of its input, if the samples are a sequence."""
        return find_states(self.feeds, self.outputs) if self.rows == 1 and not self.has_class_scores else {}

    def runs(self, session: Session) -> Iterator["ComparedRun"]:
        """Run another model on the same samples.

        In a sequence, the other model runs with its own states, which are not compared.
        """
        loop = StateLoop(self.states)
        for feeds, expected, classes in self.replay():
            outputs = session.run(loop.feeds(feeds))
            # Outputs have the same order, and usually the same names.
            renamed = {name: outputs.get(name, array) for name, array in zip(expected, outputs.values(), strict=True)}
            loop.add(expected, renamed)
            rows = rows_of(renamed, self.rows, len(classes), self.whole_outputs)
            yield ComparedRun(expected, rows, rows_of(feeds, self.rows, len(classes)), classes)

    def compare(
        self, session: Session, by_run: list[ClassificationMetrics | OutputSqnr] | None = None
    ) -> ClassificationMetrics | OutputSqnr:
        """Run another model on the same samples; return its distance from the float model.

        Args:
            session: session of the other model.
            by_run: list that gets the distance in each run; None to measure all runs together only.
        """
        runs = self.runs(session)
        return self.measure(runs if by_run is None else self._measure_each(runs, by_run))

    def _measure_each(
        self, runs: Iterable[ComparedRun], by_run: list[ClassificationMetrics | OutputSqnr]
    ) -> Iterator[ComparedRun]:
        """Yield the runs; append the distance in each to a list."""
        for run in runs:
            by_run.append(self.measure([run]))
            yield run

    def losses(self, session: Session) -> list[Loss]:
        """Run another model on the same samples; return the loss of each run."""
        return [self.loss(self.measure([run])) for run in self.runs(session)]

    def measure(self, runs: Iterable[ComparedRun]) -> ClassificationMetrics | OutputSqnr:
        """Return the distance of the outputs of some runs from the float model."""
        counter, sqnr, name = ClassificationCounter(), OutputSqnrCounter(self.task), self.score_output
        for run in runs:
            if name is not None:
                counter.add(flatten(run.actual, name), run.classes, flatten(run.expected, name))
            if not self.has_class_scores:
                sqnr.add(self.without_states(run.expected), run.actual, run.inputs)
        if self.has_class_scores:
            return counter.metrics
        return sqnr.result if name is None else replace(sqnr.result, classes={name: counter.metrics})

    def without_states(self, outputs: Feeds) -> Feeds:
        """Return the outputs that are not states; all if there are no others."""
        names = set(self.states.values())
        return {name: array for name, array in outputs.items() if name not in names} or outputs

    def loss(self, comparison: ClassificationMetrics | OutputSqnr) -> Loss:
        """Return the loss of a comparison, with the drop of top-1 if labels are known."""
        return loss_of(comparison, self.top1)


def loss_of(comparison: ClassificationMetrics | OutputSqnr, float_top1: Proportion | None = None) -> Loss:
    """Return the loss of a comparison.

    The drop is that of top-1, else of the agreement with the float model; without class scores it is the error of the
    outputs, or the loss of the task's metric.

    Args:
        comparison: distance from the float model.
        float_top1: top-1 accuracy of the float model; None to compare with the float model only.
    """
    if isinstance(comparison, OutputSqnr):
        if float_top1 is None or not comparison.classes:
            return Loss(comparison.error, 0.0, ERROR)
        (metrics,) = comparison.classes.values()
        return Loss(float_top1.value - metrics.top1.value if metrics.top1 else 1.0, comparison.error, TOP1)
    kl_divergence = inf if comparison.kl_divergence is None else comparison.kl_divergence
    if float_top1 is not None and comparison.top1 is not None:
        return Loss(float_top1.value - comparison.top1.value, kl_divergence, TOP1)
    return Loss(1 - comparison.agreement.value if comparison.agreement else 1.0, kl_divergence)


def are_vectors(outputs: Mapping[str, Array]) -> bool:
    """Return True if outputs are one array with one row of several values per sample."""
    if len(outputs) != 1:
        return False
    (values,) = outputs.values()
    return bool(1 < values.shape[-1] == values[0].size)


def flatten(outputs: Feeds, name: str) -> Array:
    """Return an output with one row for each sample, (n, values)."""
    return outputs[name].reshape(len(outputs[name]), -1)
