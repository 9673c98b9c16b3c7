"""Samples of a dataset as the feeds of a model, with the classes of their labels."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Self

from quantkit.data import Data
from quantkit.data.choices import choose_labels, matching_card
from quantkit.data.labels import Labels, read_labels
from quantkit.data.preparation import Preparation, prepared_samples
from quantkit.evaluation.accuracy import find_class
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.quantization.workflow.options import Options
from quantkit.runtimes.session import Session
from quantkit.zoo import list_cards

Feeds = dict[str, Array]


@dataclass
class LabeledFeeds:
    """Feeds of a dataset, one per run, in the dataset's order.

    Attributes:
        data: samples in order.
        preparation: conversion of samples to feeds.
        labels: names of the model's classes.
        num_classes: number of values of the model's first output per sample.
        unreadable: images that cannot be decoded, with the reason.
        position: number of samples consumed so far.
        classes: class indices of the samples of the last feeds; None for a sample without a label.
    """

    data: Data
    preparation: Preparation
    labels: Labels
    num_classes: int
    unreadable: dict[str, str] = field(default_factory=dict)
    position: int = 0
    classes: tuple[int | None, ...] = ()

    @classmethod
    def of(cls, model: Model, session: Session, data: Data, options: Options) -> Self:
        """Return the feeds for a session, whose first output may contain one score per class.

        Raises:
            UsageError: the inputs do not accept the data.
        """
        result, card = session.outputs[0], model.card
        if card is None and len(session.inputs) == 1:
            card = matching_card(session.inputs[0], result, list_cards())
        if options.labels is None:
            labels = choose_labels(card, model.path, result)
        else:
            labels = read_labels(Path(options.labels).expanduser())
        preparation = Preparation.of(session.inputs, data, card, options.preprocessing)
        return cls(data, preparation, labels, (result.shape.dims or (None,))[-1] or 0)

    @property
    def noun(self) -> str:
        """Plural noun for the samples in messages."""
        return "samples" if self.preparation.preprocessing is None else "images"

    @property
    def batch(self) -> int:
        """Number of samples per run."""
        return self.preparation.batch or 1

    def __iter__(self) -> Iterator[Feeds]:
        """Yield the feeds of each run; images that cannot be decoded are skipped."""
        positions = {sample: position for position, sample in enumerate(self.data.samples, 1)}
        prepared = prepared_samples(self.data, self.data.samples, [self.preparation], self.unreadable)
        while samples := list(islice(prepared, self.batch)):
            self.position = positions[samples[-1][0]]
            self.classes = tuple(self._class_index(sample.label) for sample, _ in samples)
            yield self.preparation.feeds([values for _, (values,) in samples])

    def skip(self, count: int) -> "LabeledFeeds":
        """Return the feeds of the samples after the first ``count``."""
        return replace(self, data=replace(self.data, samples=self.data.samples[count:]))

    def _class_index(self, label: str) -> int | None:
        return find_class(label, self.labels, self.num_classes) if label else None
