"""Samples of a dataset as the feeds of a model, with the classes of their labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Self

from quantkit.data import Dataset, InputPipeline, InputTimes, batches
from quantkit.data.dataset import FileDataset
from quantkit.data.labels import Labels
from quantkit.data.pipeline import ARRAYS_UNCHANGED
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import GraphError, InputError
from quantkit.evaluation.evaluation_run import find_class
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.quantization.workflow.description import choose_labels
from quantkit.quantization.workflow.options import Options
from quantkit.runtimes.session import Session

Feeds = dict[str, Array]
# Fraction of samples that may be NaN or infinite.
MAX_REJECTED = 0.1


@dataclass
class LabeledFeeds:
    """Feeds of a dataset, one per run, in the dataset's order.

    Attributes:
        dataset: samples in order.
        pipeline: conversion of samples to feeds.
        labels: names of the model's classes.
        num_classes: largest number of values of an output per sample; 0 if it is not known.
        unreadable: images that cannot be decoded and samples that are not finite, with the reason.
        position: number of samples consumed so far, with the unreadable ones.
        classes: class indices of the samples of the last feeds; None for a sample without a label.
        is_classifier: True if a card or labels state the classes of the model.
        times: times of the input of all iterations.
        seconds: duration of all iterations.
    """

    dataset: Dataset
    pipeline: InputPipeline
    labels: Labels
    num_classes: int
    unreadable: dict[str, str] = field(default_factory=dict)
    position: int = 0
    classes: tuple[int | None, ...] = ()
    is_classifier: bool = False
    times: InputTimes = field(default_factory=InputTimes)
    seconds: float = 0.0

    @classmethod
    def of(
        cls,
        model: Model,
        session: Session,
        dataset: Dataset,
        options: Options,
        preprocessing: Preprocessing | None = None,
    ) -> Self:
        """Return the feeds for a session, whose first output may contain one score per class.

        Args:
            model: float model, whose card or graph states the preprocessing.
            session: session of the prepared graph.
            dataset: samples.
            options: options of the caller.
            preprocessing: preprocessing of the samples that the ranges are calibrated on; None if it is not known.

        Raises:
            UsageError: the inputs do not accept the data.
            GraphError: the model has no outputs.
        """
        if not session.outputs:
            raise GraphError(f"{model.name} has no outputs", hint="name them: --outputs NAMES")
        if not session.inputs:
            raise GraphError(f"{model.name} has no inputs to calibrate", hint="name them: --inputs NAMES")
        card = model.find_card(session.inputs, session.outputs)
        sizes = [dims[-1] or 0 for info in session.outputs if (dims := info.shape.dims)]
        labels = choose_labels(model, card, session.outputs, options)
        basis = preprocessing or model.find_basis(session.inputs, session.outputs)
        pipeline = InputPipeline.of(session.inputs, dataset, basis, options.preprocessing)
        is_classifier = card is not None or labels.are_known
        if isinstance(dataset, FileDataset) and not labels.are_known:
            labels = Labels.of_folders(dataset.classes, max(sizes, default=0), dataset.source)
        return cls(dataset, pipeline, labels, max(sizes, default=0), is_classifier=is_classifier)

    @property
    def noun(self) -> str:
        """Plural noun for the samples in messages."""
        return "samples" if self.pipeline.preprocessing is None else "images"

    @property
    def preprocessing(self) -> Preprocessing | str:
        """Preprocessing of images, or `ARRAYS_UNCHANGED`."""
        return self.pipeline.applied or ARRAYS_UNCHANGED

    @property
    def batch(self) -> int:
        """Number of samples per run."""
        return self.pipeline.batch_size or 1

    def __iter__(self) -> Iterator[Feeds]:
        """Yield the feeds of each run; images that cannot be decoded and samples that are not finite are skipped.

        Raises:
            InputError: too many samples are not finite.
        """
        rejected: dict[str, str] = {}
        num_read = 0
        start = perf_counter()
        prepared = batches(self.dataset, self.pipeline, rejected=rejected, require_finite=True, times=self.times)
        for feeds, samples in prepared:
            num_read += len(samples)
            self.position = num_read + len(rejected)
            if self.dataset.size is not None:
                self._check_rejected(rejected, self.dataset.size)
            self.unreadable |= rejected
            self.classes = tuple(self._class_index(sample.label) for sample in samples)
            yield feeds
        self.seconds += perf_counter() - start
        self._check_rejected(rejected, num_read + len(rejected))
        self.unreadable |= rejected

    def _check_rejected(self, rejected: Mapping[str, str], total: int) -> None:
        """Reject a dataset that is broken as a whole; single images and samples may be broken."""
        is_usable = len(rejected) <= min(max(1, MAX_REJECTED * total), total - 1)
        if not rejected or self.dataset.holds_images or is_usable:
            return
        name, reason = next(iter(rejected.items()))
        raise InputError(
            f"{self.dataset.source}: at least {len(rejected)} of {total} samples are not finite; {name}: {reason}",
            hint="remove these samples, or correct the program that wrote them",
        )

    def skip(self, count: int) -> "LabeledFeeds":
        """Return the feeds of the samples after the first ``count``."""
        return replace(self, dataset=self.dataset.subset(skip=count, keep_order=True))

    def _class_index(self, label: str) -> int | None:
        return find_class(label, self.labels, self.num_classes) if label else None
