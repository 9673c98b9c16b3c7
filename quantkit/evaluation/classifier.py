"""Pictures in, the most likely classes out, over any session.

A broken picture is an answer too, so that it does not stop the thousand others.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from quantkit.data.feeding import Feeding
from quantkit.data.images import read_bytes
from quantkit.data.labels import Labels, Order
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import GraphError, InputError, UsageError
from quantkit.ir.tensor import Array, DType
from quantkit.runtimes.session import Session

# A softmax in 8 bits, or in bfloat16, misses 1 by this much.
SUM_TOLERANCE = 0.05


class Score(NamedTuple):
    """What a network gave for one class; `probability` is its raw number where it gives no probabilities."""

    id: int
    words: str
    probability: float
    wordnet: str = ""


class Seconds(NamedTuple):
    """Where the time of one picture went; `run` is its share of the batch it ran in."""

    decode: float
    preprocess: float
    run: float

    @property
    def total(self) -> float:
        return sum(self)


@dataclass(frozen=True)
class Prediction:
    """The answer for one picture.

    Attributes:
        path: of the picture.
        scores: the highest, highest first.
        seconds: of each stage.
        sum_of_outputs: of all classes; 1 for probabilities.
        are_probabilities: whether the outputs are positive and sum to one.
    """

    path: Path
    scores: tuple[Score, ...]
    seconds: Seconds
    sum_of_outputs: float
    are_probabilities: bool


@dataclass(frozen=True)
class Refused:
    """A picture that could not be read, and why."""

    path: Path
    error: InputError


class _Ready(NamedTuple):
    path: Path
    feed: bytes | Array
    decode_seconds: float
    preprocess_seconds: float


class Classifier:
    """Names what pictures show.

    Args:
        session: of one input and at least one output, the first of which gives a number per class.
        preprocessing: what the network wants to be fed.
        labels: what its numbers mean; empty ones give class numbers.
        order: how its classes are numbered, where a card says so.
        top: how many classes to give for each picture.
        batch_size: pictures that run together, where the graph leaves that open.

    Raises:
        UsageError: the session's input takes no pictures.
        InputError: the labels are not those of this graph.
    """

    def __init__(
        self,
        session: Session,
        preprocessing: Preprocessing,
        labels: Labels = Labels(),
        *,
        order: Order | None = None,
        top: int = 5,
        batch_size: int = 1,
    ) -> None:
        if top < 1 or batch_size < 1:
            raise UsageError(
                f"--top is {top} and the batch {batch_size}, and both are at least 1", hint="--top 5 shows five classes"
            )
        if len(session.inputs) != 1:
            names = ", ".join(info.name for info in session.inputs)
            raise UsageError(
                f"this graph takes {len(session.inputs)} inputs ({names}); classifying feeds one",
                hint="name it with --input-layer",
            )
        self.session = session
        self.preprocessing = preprocessing
        self.labels = labels
        self.top = top
        self._order = order
        self._input = session.inputs[0]
        self._output = session.outputs[0]
        self._feeding = Feeding.of(self._input)
        self._batch_size = self._feeding.batch or batch_size
        self._num_outputs: int | None = None
        dims = self._output.shape.dims
        if dims and dims[-1] is not None:
            self._check(dims[-1])

    @property
    def normalizes(self) -> bool:
        """Whether mean and deviation are applied here, and not by the graph."""
        return self._feeding.kind == "resized" and self._feeding.dtype is not DType.UINT8

    def classify(self, paths: Iterable[Path]) -> Iterator[Prediction | Refused]:
        """An answer for each picture, in order; a broken picture does not stop the others.

        Raises:
            GraphError: the network gives numbers that are none.
            InputError: the labels are not those of this graph.
        """
        pending = iter(paths)
        while chunk := list(islice(pending, self._batch_size)):
            prepared = [self._prepare(path) for path in chunk]
            predictions = iter(self._run([item for item in prepared if isinstance(item, _Ready)]))
            for item in prepared:
                yield item if isinstance(item, Refused) else next(predictions)

    def _prepare(self, path: Path) -> _Ready | Refused:
        start = perf_counter()
        try:
            decoded = self._feeding.decode(read_bytes(path), str(path), self.preprocessing.channels)
        except InputError as error:
            return Refused(path, error)
        middle = perf_counter()
        feed = self._feeding.prepare(decoded, self.preprocessing)
        return _Ready(path, feed, middle - start, perf_counter() - middle)

    def _run(self, ready: Sequence[_Ready]) -> list[Prediction]:
        if not ready:
            return []
        feed = self._feeding.join([item.feed for item in ready])
        start = perf_counter()
        outputs = self.session.run({self._input.name: feed})[self._output.name]
        seconds = (perf_counter() - start) / len(ready)
        rows = outputs.reshape(self._feeding.batch or len(ready), -1).astype(np.float64)
        self._check(rows.shape[1])
        return [self._prediction(item, row, seconds) for item, row in zip(ready, rows, strict=False)]

    def _check(self, num_outputs: int) -> None:
        """Compare the labels with how many numbers the graph gives, once that is known."""
        if num_outputs != self._num_outputs:
            self.labels.check(num_outputs, self._order)
            self._num_outputs = num_outputs

    def _prediction(self, item: _Ready, row: Array, run_seconds: float) -> Prediction:
        if np.isnan(row).any():
            raise GraphError(
                f"output {self._output.name!r} gives NaN for {str(item.path)!r}",
                hint="quantkit compare finds the first layer that goes wrong",
            )
        best = np.argsort(-row, kind="stable")[: self.top]
        scores = tuple(
            Score(int(index), self.labels.name(int(index)), float(row[index]), self.labels.wordnet.get(int(index), ""))
            for index in best
        )
        total = float(row.sum())
        probabilities = bool(abs(total - 1) <= SUM_TOLERANCE and row.min() >= 0)
        seconds = Seconds(item.decode_seconds, item.preprocess_seconds, run_seconds)
        return Prediction(item.path, scores, seconds, total, probabilities)
