"""A model's answers over a set of pictures, against what they show and against another model's answers.

Each picture is decoded once and fed to both models, to each as its own input wants it: float or uint8, channels
last or first, one by one or in batches.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from quantkit.data import Data, Sample, find_data
from quantkit.data.choices import Flags, choose_ends, choose_labels, matching_card, needs_tensorflow
from quantkit.data.images import FORMATS
from quantkit.data.labels import Labels, Order, read_labels
from quantkit.data.preparation import Preparation, Prepared, prepared_samples
from quantkit.errors import InputError, UsageError
from quantkit.evaluation.classification_metrics import ClassificationCounter, ClassificationMetrics
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.model import as_model
from quantkit.runtimes import AUTO, open_session
from quantkit.runtimes.session import RuntimeVersion, Session, SessionOptions
from quantkit.zoo import ModelCard, list_cards

Progress = Callable[[int, int], None]
# Pictures that run together where the graph leaves that open: more hardly run faster on a processor.
BATCH = 8


@dataclass(frozen=True)
class Evaluation:
    """How well a model did.

    Attributes:
        model: as it was named.
        runtime: the engine it ran in.
        quality: what its answers came to.
        reference: what it was compared with; empty: nothing.
        reference_runtime: the engine that ran in.
        pictures_per_second: in the model's own engine; its first batch does not count where there are more.
        seconds: of everything, decoding and the reference included.
        refused: pictures that could not be read, and why.
        unknown_labels: samples whose label is none of the model's classes.
        preprocessing: how pictures were made ready, in a sentence.
        is_assumed: whether nobody said how their pixels are normalised.
    """

    model: str
    runtime: RuntimeVersion
    quality: ClassificationMetrics
    reference: str = ""
    reference_runtime: RuntimeVersion | None = None
    pictures_per_second: float = 0.0
    seconds: float = 0.0
    refused: Mapping[str, str] = field(default_factory=dict)
    unknown_labels: int = 0
    preprocessing: str = ""
    is_assumed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "model": self.model,
            "runtime": {"name": self.runtime.name, "version": self.runtime.version},
            "reference": self.reference or None,
            "reference_runtime": self.reference_runtime
            and {"name": self.reference_runtime.name, "version": self.reference_runtime.version},
            **self.quality.to_json(),
            "pictures_per_second": self.pictures_per_second,
            "seconds": self.seconds,
            "preprocessing": self.preprocessing,
            "unknown_labels": self.unknown_labels,
            "refused": [{"name": name, "message": message} for name, message in self.refused.items()],
        }

    def __str__(self) -> str:
        quality = self.quality
        lines = [f"{self.model} in {self.runtime}, {quality.samples} pictures"]
        shares = (("top-1", quality.top1), ("top-5", quality.top5), ("agreement", quality.agreement))
        lines += [f"  {name:<12} {share}" for name, share in shares if share is not None]
        if quality.kl_divergence is not None:
            lines.append(f"  {'KL':<12} {quality.kl_divergence:.3g}")
        if quality.top1 is None and quality.agreement is None:
            lines.append(
                "  nothing tells what is right: put the pictures in a folder for each class, or give --reference"
            )
        lines.append(f"  {'speed':<12} {self.pictures_per_second:.1f} pictures per second")
        if self.reference:
            lines.append(f"  {'reference':<12} {self.reference} in {self.reference_runtime}")
        if quality.not_finite:
            lines.append(f"  {quality.not_finite} answers hold NaN or infinity: quantkit compare names the layer")
        if self.refused:
            name, message = next(iter(self.refused.items()))
            lines.append(f"  {len(self.refused)} pictures could not be read, the first: {name}: {message}")
        if self.unknown_labels:
            lines.append(
                f"  {self.unknown_labels} labels are none of the model's classes and do not count: "
                "--labels FILE says what its numbers mean"
            )
        return "\n".join(lines)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; what was counted until then is kept.

    Args:
        evaluation: of the samples that were done.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__("interrupted")
        self.evaluation = evaluation


@dataclass(frozen=True)
class Subject:
    """An opened model.

    Attributes:
        name: as it was asked for.
        session: with an output that has a number for each class.
        card: what is known of it.
        path: the file it came from.
    """

    name: str
    session: Session
    card: ModelCard | None = None
    path: Path | None = None

    def answers(self, preparation: Preparation, samples: Sequence[Prepared], batch_size: int) -> Array:
        """What the model says, (n, k) float64.

        Args:
            preparation: of its inputs.
            samples: as it prepared them.
            batch_size: how many run together, where the graph leaves that open.

        Raises:
            UsageError: it gives no number for each class.
        """
        rows, result = [], self.session.outputs[0].name
        size = preparation.batch or batch_size
        for start in range(0, len(samples), size):
            part = samples[start : start + size]
            outputs = self.session.run(preparation.feeds(part))[result]
            count = preparation.batch or len(part)
            if not 1 < outputs.size / count == outputs.shape[-1]:
                raise UsageError(
                    f"the output {result!r} of {self.name} is {'x'.join(map(str, outputs.shape))} for {count} samples, "
                    "and not a number for each class",
                    hint="name another one with --output-layer; quantkit compare tells how near versions are",
                )
            rows.append(outputs.reshape(count, -1)[: len(part)].astype(np.float64))
        return np.concatenate(rows)


def evaluate(
    model: Any,
    data: str | os.PathLike[str] | Data,
    *,
    reference: Any = None,
    runtime: str = AUTO,
    reference_runtime: str = AUTO,
    labels: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    batch: int = BATCH,
    options: SessionOptions = SessionOptions(),
    flags: Flags = Flags(),
    input_layer: str = "",
    output_layer: str = "",
    offline: bool = False,
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Count how often a model is right, and how near it is to a reference.

    Args:
        model: a graph, a file, or the name of a card.
        data: pictures or tensors, as `quantkit.data.find_data` takes them.
        reference: another version of the model, whose answers count as right for agreement and KL.
        runtime: the engine of the model.
        reference_runtime: the engine of the reference.
        labels: a label file; None: the model's own.
        limit: how many samples at most; the same ones each time.
        batch: samples that run together, where the graph leaves that open.
        options: threads, device and precision; the reference computes in float32 whatever it says.
        flags: what is known of the preprocessing; nothing: the card's, or what the input shows.
        input_layer: what to feed; empty: the card's, or what takes pictures.
        output_layer: what gives a number for each class; empty: the card's, or what nobody reads.
        offline: fetch nothing.
        progress: told samples done and in all.

    Raises:
        UsageError: an input takes no pictures, or the two models tell other classes apart.
        InputError: a file is missing or broken, or no sample could be read.
        Interrupted: by Ctrl-C, with what was counted.
    """
    if batch < 1 or (limit is not None and limit < 1):
        raise UsageError("the batch size, and the number of pictures, are at least 1", hint="leave them out")
    samples = data.part(limit) if isinstance(data, Data) else find_data(data, limit)
    with ExitStack() as stack:

        def opened(one: Any, engine: str, precision: str) -> Subject:
            its = replace(options, precision=precision)
            subject = open_subject(
                one, engine, its, input_layer, output_layer, takes_rows=bool(samples.arrays), offline=offline
            )
            stack.callback(subject.session.close)
            return subject

        subject = opened(model, runtime, options.precision)
        other = None if reference is None else opened(reference, reference_runtime, "float32")
        named = _labels(subject, other, Path(labels).expanduser() if labels else None)
        return _Run(subject, other, samples, flags, named, batch).evaluation(progress)


def open_subject(
    model: Any,
    runtime: str = AUTO,
    options: SessionOptions = SessionOptions(),
    input_layer: str = "",
    output_layer: str = "",
    *,
    takes_rows: bool = False,
    offline: bool = False,
) -> Subject:
    """A model that is ready for data; the caller closes its session.

    Args:
        model: a graph, a file, or the name of a card.
        runtime: its engine.
        options: threads, device and precision.
        input_layer: what to feed; empty: the card's, or what takes pictures.
        output_layer: what gives a number for each class; empty: the card's, or what nobody reads.
        takes_rows: whether it is fed rows of tensors, so that inputs need not take pictures.
        offline: fetch nothing.

    Raises:
        UsageError: it does not show which input or output is meant.
    """
    found = as_model(model, offline=offline)
    runnable = found.runnable
    if isinstance(runnable, Graph):
        runnable = _between_ends(runnable, found.card, input_layer, output_layer, takes_rows)
        runtime = "tensorflow" if runtime == AUTO and needs_tensorflow(runnable) else runtime
    session = open_session(runnable, runtime, options)
    card = found.card
    if card is None and len(session.inputs) == 1:
        card = matching_card(session.inputs[0], session.outputs[0], list_cards())
    return Subject(found.name, session, card, found.path)


def _between_ends(graph: Graph, card: ModelCard | None, input_layer: str, output_layer: str, takes_rows: bool) -> Graph:
    """The graph between what it is fed and the numbers that it gives for classes.

    Raises:
        UsageError: it does not show which these are.
    """
    try:
        return choose_ends(graph, card, list_cards(), input_layer, output_layer)
    except UsageError:
        if not takes_rows or input_layer or output_layer or not graph.inputs or len(graph.outputs) != 1:
            raise
        return graph


def class_of(label: str, labels: Labels, num_classes: int) -> int | None:
    """The class that a label means: by WordNet id, by words, or by number; None: none of the model's.

    Args:
        label: of a sample.
        labels: the model's.
        num_classes: numbers that the model gives.

    >>> class_of("n02510455", Labels({1: "giant panda"}, {1: "n02510455"}, length=2), 2)
    1
    >>> class_of("giant panda", Labels({1: "giant panda, panda"}, length=2), 2)
    1
    """
    for number, synset in labels.wordnet.items():
        if synset == label:
            return number
    wanted = label.replace("_", " ").casefold()
    firsts = {number: text.partition(",")[0] for number, text in labels.words.items()}
    for words in (labels.words, firsts):
        found = [number for number, text in words.items() if text.casefold() == wanted]
        if len(found) == 1:
            return found[0]
    return int(label) if label.isdecimal() and int(label) < num_classes else None


class _Run:
    """One evaluation as it goes on."""

    def __init__(
        self, subject: Subject, other: Subject | None, data: Data, flags: Flags, labels: Labels, batch: int
    ) -> None:
        self.subject = subject
        self.other = other
        self.data = data
        cards = [one.card for one in (subject, other) if one is not None]
        # Two versions of one model are made ready alike: who has no card takes what the other's card says.
        known = next(filter(None, cards), None) if flags == Flags() else None
        self.preparations = [
            Preparation.of(one.session.inputs, data, one.card or known, flags)
            for one in (subject, other)
            if one is not None
        ]
        self.labels = labels
        self.batch = batch
        self.tally = ClassificationCounter()
        self.refused: dict[str, str] = {}
        self.unknown_labels = 0
        self.timings: list[tuple[int, float]] = []
        self.start = perf_counter()
        self.classes: dict[str, int | None] = {}

    def evaluation(self, progress: Progress) -> Evaluation:
        """Run everything.

        Raises:
            InputError: no sample could be read.
            Interrupted: by Ctrl-C.
        """
        pending = iter(self.data.samples)
        done = 0
        try:
            while chunk := list(islice(pending, self.batch)):
                self._take(chunk)
                done += len(chunk)
                progress(done, len(self.data))
        except KeyboardInterrupt:
            if not self.tally.samples:
                raise
            raise Interrupted(self._result()) from None
        if not self.tally.samples:
            name, message = next(iter(self.refused.items()))
            raise InputError(
                f"none of {len(self.refused)} pictures can be read; {name}: {message}",
                hint=f"pictures are {', '.join(FORMATS)}",
            )
        return self._result()

    def _take(self, chunk: list[Sample]) -> None:
        ready = list(prepared_samples(self.data, chunk, self.preparations, self.refused))
        if not ready:
            return
        start = perf_counter()
        answers = self.subject.answers(self.preparations[0], [fed[0] for _, fed in ready], self.batch)
        self.timings.append((len(ready), perf_counter() - start))
        reference = None
        if self.other is not None:
            reference = self.other.answers(self.preparations[1], [fed[1] for _, fed in ready], self.batch)
        self.tally.add(answers, [self._class(sample, answers.shape[1]) for sample, _ in ready], reference)

    def _class(self, sample: Sample, num_classes: int) -> int | None:
        if not sample.label:
            return None
        if sample.label not in self.classes:
            self.classes[sample.label] = class_of(sample.label, self.labels, num_classes)
        found = self.classes[sample.label]
        self.unknown_labels += found is None
        return found

    def _result(self) -> Evaluation:
        subject, other = self.subject, self.other
        timings = self.timings[1:] or self.timings
        return Evaluation(
            subject.name,
            subject.session.runtime,
            self.tally.metrics,
            other.name if other else "",
            other.session.runtime if other else None,
            sum(count for count, _ in timings) / sum(seconds for _, seconds in timings),
            perf_counter() - self.start,
            self.refused,
            self.unknown_labels,
            str(self.preparations[0]),
            any(one.is_assumed for one in self.preparations),
        )


def _labels(subject: Subject, other: Subject | None, file: Path | None) -> Labels:
    """The labels given, or the model's, or those of its reference, which tells the same classes apart."""
    if file is not None:
        found, card = read_labels(file), subject.card
        dims = subject.session.outputs[0].shape.dims
        if dims and dims[-1] is not None:
            found.check(dims[-1], Order(card.labels.order) if card else None)
        return found
    for one in (subject, other):
        if one is not None:
            found = choose_labels(one.card, one.path, one.session.outputs[0])
            if found.are_known:
                return found
    return Labels()
