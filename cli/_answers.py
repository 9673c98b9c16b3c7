"""What a float graph says to examples, and how far another graph's answers are from that."""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from math import inf
from pathlib import Path

import numpy as np

from quantkit.data import Data
from quantkit.data.choices import choose_labels, matching_card
from quantkit.data.labels import Labels, read_labels
from quantkit.data.preparation import Preparation, prepared_samples
from quantkit.evaluation.accuracy import class_of
from quantkit.evaluation.classification_metrics import ClassificationCounter, ClassificationMetrics, Proportion
from quantkit.evaluation.output_sqnr import OutputSqnr, OutputSqnrCounter
from quantkit.ir.tensor import Array
from quantkit.model import Model
from quantkit.quantization.fallback import Loss
from quantkit.runtimes.session import Session
from quantkit.zoo import list_cards

from ._arguments import preprocessing_flags

Feeds = dict[str, Array]
# Examples that are run again are kept, up to here; the others are made ready once more.
KEPT_BYTES = 64 << 20


@dataclass
class Examples:
    """Data as a graph takes it: one by one, or as many as its inputs take at once.

    Attributes:
        data: in order.
        preparation: of what is fed.
        labels: what the graph's numbers mean.
        num_classes: how many numbers it gives.
        refused: pictures that can not be read, and why.
        place: how many of the data have been gone through.
        shown: the class that each of the last ones shows; None: it is not known.
    """

    data: Data
    preparation: Preparation
    labels: Labels
    num_classes: int
    refused: dict[str, str] = field(default_factory=dict)
    place: int = 0
    shown: tuple[int | None, ...] = ()

    @classmethod
    def of(cls, args: Namespace, model: Model, session: Session, data: Data) -> "Examples":
        """For a session of a graph, whose first output may give a number for each class.

        Raises:
            UsageError: the inputs do not take the data.
        """
        result, card = session.outputs[0], model.card
        if card is None and len(session.inputs) == 1:
            card = matching_card(session.inputs[0], result, list_cards())
        labels = read_labels(Path(args.labels).expanduser()) if args.labels else choose_labels(card, model.path, result)
        preparation = Preparation.of(session.inputs, data, card, preprocessing_flags(args))
        return cls(data, preparation, labels, (result.shape.dims or (None,))[-1] or 0)

    @property
    def noun(self) -> str:
        """What they are called."""
        return "examples" if self.preparation.preprocessing is None else "pictures"

    @property
    def at_once(self) -> int:
        """How many are fed together."""
        return self.preparation.batch or 1

    def __iter__(self) -> Iterator[Feeds]:
        """What to feed; pictures that can not be read are left out."""
        places = {sample: place for place, sample in enumerate(self.data.samples, 1)}
        ready = prepared_samples(self.data, self.data.samples, [self.preparation], self.refused)
        while some := list(islice(ready, self.at_once)):
            self.place = places[some[-1][0]]
            self.shown = tuple(self._class(sample.label) for sample, _ in some)
            yield self.preparation.feeds([one for _, (one,) in some])

    def after(self, place: int) -> "Examples":
        """Those behind the first ones."""
        return replace(self, data=replace(self.data, samples=self.data.samples[place:]))

    def _class(self, label: str) -> int | None:
        return class_of(label, self.labels, self.num_classes) if label else None


@dataclass
class Answers:
    """What the float graph said.

    Attributes:
        source: where the examples are from, for people.
        feeds: the first ones, as many as are kept.
        outputs: the answers to all, (n, ...) by name.
        classes: what all show.
        rest: those that are not kept.
        is_full: whether some were too much to keep.
        fed: rows of each run.
    """

    source: str = ""
    feeds: list[Feeds] = field(default_factory=list)
    outputs: list[Feeds] = field(default_factory=list)
    classes: list[tuple[int | None, ...]] = field(default_factory=list)
    rest: Examples | None = None
    num_bytes: int = 0
    is_full: bool = False
    fed: int = 1

    def take(self, examples: Examples, feeds: Feeds, outputs: Mapping[str, Array]) -> bool:
        """Keep the last examples, unless there are too many already; whether they were kept."""
        shown = examples.shown
        answers = _rows(outputs, examples.at_once, len(shown))
        kept = [feeds] if are_classes(answers) else [feeds, answers]
        size = sum(array.nbytes for arrays in kept for array in arrays.values())
        if self.num_bytes + size > KEPT_BYTES:
            self.is_full = True
            return False
        self.num_bytes += size
        self.fed = examples.at_once
        self.feeds.append(dict(feeds))
        self.outputs.append(answers)
        self.classes.append(shown)
        return True

    def take_all(self, session: Session, examples: Examples) -> Iterator[int]:
        """Run examples through the float graph; gives how many have been run.

        Answers that are no classes are as large as examples: where there are too many, only the first ones count.
        """
        before = 0
        for feeds in examples:
            outputs = session.run(feeds)
            answers = _rows(outputs, examples.at_once, len(examples.shown))
            if self.rest is None and not self.take(examples, feeds, outputs):
                if not are_classes(answers):
                    return
                self.rest = examples.after(before)
            if self.rest is not None:
                self.outputs.append(answers)
                self.classes.append(examples.shown)
            before = examples.place
            yield before

    def each(self) -> Iterator[tuple[Feeds, Feeds, tuple[int | None, ...]]]:
        """What was fed, what the float graph said to it, and what it shows."""
        rest = iter(self.rest) if self.rest is not None else iter(())
        yield from zip(self.feeds, self.outputs, self.classes, strict=False)
        done = len(self.feeds)
        left = islice(zip(self.outputs, self.classes, strict=True), done, None)
        for feeds, (answers, shown) in zip(rest, left, strict=True):
            yield feeds, answers, shown

    def __len__(self) -> int:
        return sum(map(len, self.classes))

    @property
    def give_classes(self) -> bool:
        """Whether the graph gives a number for each class, so that its answers can be right."""
        return bool(self.outputs) and are_classes(self.outputs[0])

    @property
    def are_broken(self) -> bool:
        """Whether no answer is made of numbers."""
        return not any(np.isfinite(one).all() for answers in self.outputs for one in answers.values())

    @property
    def top1(self) -> Proportion | None:
        """How often the float graph is right; None: nothing says what is shown."""
        if not self.give_classes:
            return None
        tally = ClassificationCounter()
        for answers, shown in zip(self.outputs, self.classes, strict=True):
            tally.add(_flat(answers), shown)
        return tally.metrics.top1

    @property
    def digest(self) -> str:
        """Equal for equal answers to examples that show the same."""
        found = blake2b(repr(self.classes).encode(), digest_size=8)
        for answers in self.outputs:
            for one in answers.values():
                found.update(np.ascontiguousarray(one).tobytes())
        return found.hexdigest()

    def judged(self, session: Session) -> ClassificationMetrics | OutputSqnr:
        """What another graph says, beside what the float graph said."""
        tally, fidelity = ClassificationCounter(), OutputSqnrCounter()
        for feeds, wanted, shown in self.each():
            outputs = session.run(feeds)
            # Outputs keep their order, and mostly their names.
            named = {name: outputs.get(name, one) for name, one in zip(wanted, outputs.values(), strict=True)}
            found = _rows(named, self.fed, len(shown))
            if self.give_classes:
                tally.add(_flat(found), shown, _flat(wanted))
            else:
                fidelity.add(wanted, found)
        return tally.metrics if self.give_classes else fidelity.result

    def loss(self, judged: ClassificationMetrics | OutputSqnr) -> Loss:
        """What was lost.

        Of the right answers where labels tell which are, else of those that are the float graph's; of answers that are
        no classes the error.
        """
        if isinstance(judged, OutputSqnr):
            return Loss(judged.error, 0.0)
        before, divergence = self.top1, inf if judged.kl_divergence is None else judged.kl_divergence
        if before is not None and judged.top1 is not None:
            return Loss(before.value - judged.top1.value, divergence)
        return Loss(1 - judged.agreement.value if judged.agreement else 1.0, divergence)


def are_classes(answers: Mapping[str, Array]) -> bool:
    """Whether answers are one row of several numbers for each example, which can be numbers of classes."""
    if len(answers) != 1:
        return False
    (values,) = answers.values()
    return bool(1 < values.shape[-1] == values[0].size)


def _rows(outputs: Mapping[str, Array], fed: int, count: int) -> Feeds:
    """A row for each example.

    Args:
        outputs: of one run.
        fed: rows that were fed.
        count: of these, how many are examples; the others filled up a batch.
    """
    return {
        name: values[:count] if values.ndim > 1 and len(values) == fed else np.repeat(values.reshape(1, -1), count, 0)
        for name, values in outputs.items()
    }


def _flat(answers: Feeds) -> Array:
    (values,) = answers.values()
    return values.reshape(len(values), -1)
