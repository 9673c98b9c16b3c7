"""What a float graph says to examples, and how far another graph's answers are from that."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from math import inf
from pathlib import Path

import numpy as np

from quantkit.classify.choices import choose_labels, matching_card
from quantkit.classify.evaluation import class_of
from quantkit.classify.labels import Labels, read_labels
from quantkit.classify.preparation import Preparation, prepared_samples
from quantkit.classify.quality import Quality, Share, Tally
from quantkit.data import Data
from quantkit.ir.tensor import Array
from quantkit.model.loading import Model
from quantkit.quantization.fallback import Loss
from quantkit.runtimes.session import Session
from quantkit.zoo import list_cards

from ._arguments import flags

Feeds = dict[str, Array]
# Examples that are run again are kept, up to here; the others are made ready once more.
KEPT_BYTES = 64 << 20


@dataclass
class Examples:
    """Data as a graph takes it, one by one.

    Attributes:
        data: in order.
        preparation: of what is fed.
        labels: what the graph's numbers mean.
        num_classes: how many numbers it gives.
        refused: pictures that can not be read, and why.
        place: how many of the data have been gone through.
        shown: the class that the last example shows; None: it is not known.
    """

    data: Data
    preparation: Preparation
    labels: Labels
    num_classes: int
    refused: dict[str, str] = field(default_factory=dict)
    place: int = 0
    shown: int | None = None

    @classmethod
    def of(cls, args: Namespace, model: Model, session: Session, data: Data) -> "Examples":
        """For a session of a graph whose first output gives a number for each class.

        Raises:
            UsageError: the inputs do not take the data.
        """
        result, card = session.outputs[0], model.card
        if card is None and len(session.inputs) == 1:
            card = matching_card(session.inputs[0], result, list_cards())
        labels = read_labels(Path(args.labels).expanduser()) if args.labels else choose_labels(card, model.path, result)
        preparation = Preparation.of(session.inputs, data, card, flags(args))
        return cls(data, preparation, labels, (result.shape.dims or (None,))[-1] or 0)

    @property
    def noun(self) -> str:
        """What they are called."""
        return "examples" if self.preparation.preprocessing is None else "pictures"

    @property
    def at_once(self) -> int:
        """Rows of one example's feeds: more than one where the graph's batch is fixed."""
        return self.preparation.batch or 1

    def __iter__(self) -> Iterator[Feeds]:
        """Feeds of one example each; pictures that can not be read are left out."""
        places = {sample: place for place, sample in enumerate(self.data.samples, 1)}
        for sample, (one,) in prepared_samples(self.data, self.data.samples, [self.preparation], self.refused):
            self.place, self.shown = places[sample], self._class(sample.label)
            yield self.preparation.feeds([one])

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
        feeds: the first examples, as many as are kept.
        outputs: the answers to all.
        classes: what all show.
        rest: those that are not kept.
        is_full: whether an example was too much to keep.
    """

    source: str = ""
    feeds: list[Feeds] = field(default_factory=list)
    outputs: list[Array] = field(default_factory=list)
    classes: list[int | None] = field(default_factory=list)
    rest: Examples | None = None
    num_bytes: int = 0
    is_full: bool = False

    def take(self, feeds: Feeds, answer: Array, shown: int | None) -> bool:
        """Keep an example, unless there are too many already; whether it was kept."""
        size = sum(array.nbytes for array in feeds.values())
        if self.num_bytes + size > KEPT_BYTES:
            self.is_full = True
            return False
        self.num_bytes += size
        self.feeds.append(dict(feeds))
        self._note(answer, shown)
        return True

    def take_all(self, session: Session, examples: Examples) -> Iterator[int]:
        """Run examples through the float graph; gives how many have been run."""
        result = session.outputs[0].name
        for feeds in examples:
            answer, shown = session.run(feeds)[result], examples.shown
            if self.rest is not None:
                self._note(answer, shown)
            elif not self.take(feeds, answer, shown):
                self.rest = examples.after(examples.place - 1)
                self._note(answer, shown)
            yield examples.place

    def _note(self, answer: Array, shown: int | None) -> None:
        self.outputs.append(answer.reshape(len(answer), -1))
        self.classes.append(shown)

    def each(self) -> Iterator[tuple[Feeds, Array, int | None]]:
        """What was fed, what the float graph said to it, and what it shows."""
        rest = iter(self.rest) if self.rest is not None else iter(())
        yield from zip(self.feeds, self.outputs, self.classes, strict=False)
        done = len(self.feeds)
        left = islice(zip(self.outputs, self.classes, strict=True), done, None)
        for feeds, (answer, shown) in zip(rest, left, strict=True):
            yield feeds, answer, shown

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def are_broken(self) -> bool:
        """Whether no answer is made of numbers."""
        return not any(np.isfinite(answer).all() for answer in self.outputs)

    @property
    def top1(self) -> Share | None:
        """How often the float graph is right; None: nothing says what is shown."""
        tally = Tally()
        for answer, shown in zip(self.outputs, self.classes, strict=True):
            tally.add(answer, (shown,))
        return tally.quality.top1

    @property
    def digest(self) -> str:
        """Equal for equal answers to examples that show the same."""
        found = blake2b(repr(self.classes).encode(), digest_size=8)
        for answer in self.outputs:
            found.update(np.ascontiguousarray(answer).tobytes())
        return found.hexdigest()

    def quality(self, session: Session) -> Quality:
        """What another graph says, beside what the float graph said."""
        tally, result = Tally(), session.outputs[0].name
        for feeds, wanted, shown in self.each():
            tally.add(session.run(feeds)[result].reshape(len(wanted), -1), (shown,), wanted)
        return tally.quality

    def loss(self, quality: Quality) -> Loss:
        """What was lost: of the right answers where labels tell which are, else of those that are the float graph's."""
        before, divergence = self.top1, inf if quality.divergence is None else quality.divergence
        if before is not None and quality.top1 is not None:
            return Loss(before.value - quality.top1.value, divergence)
        return Loss(1 - quality.agreement.value if quality.agreement else 1.0, divergence)
