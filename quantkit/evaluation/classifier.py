"""Classifier of images over any session; an image that cannot be decoded does not stop the others."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from quantkit.data import InputPipeline
from quantkit.data.dataset import Sample
from quantkit.data.labels import Labels, Order
from quantkit.data.pipeline import Prepared
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import GraphError, InputError, UsageError
from quantkit.evaluation.classification_metrics import are_probabilities
from quantkit.facts import PlainReport
from quantkit.ir.tensor import Array
from quantkit.runtimes.session import Session


@dataclass(frozen=True)
class Prediction:
    """One class of an image.

    Attributes:
        label: text of the label file, or ``class 7`` without labels.
        score: probability, or the raw output of a model without softmax.
        index: class index in the model's output.
        wordnet: WordNet id of the class; empty if it is not known.
    """

    label: str
    score: float
    index: int
    wordnet: str = ""

    @property
    def index_text(self) -> str:
        """Index in parentheses, because two classes may have the same label; empty if the label ends in it."""
        return "" if self.label.split()[-1:] == [str(self.index)] else f" ({self.index})"


class StageSeconds(NamedTuple):
    """Time of one image by stage; ``run`` is the time of its batch divided by the batch size."""

    decode: float
    preprocess: float
    run: float

    @property
    def total(self) -> float:
        return sum(self)


class ImagePredictions(PlainReport, list[Prediction]):
    """Most probable classes of one image, the best first.

    Attributes:
        image: path of the image, or ``array 0`` for an array.
        seconds: time by stage.
        are_probabilities: True if the outputs are non-negative and sum to one.
    """

    def __init__(
        self, predictions: Iterable[Prediction], image: str, seconds: StageSeconds, are_probabilities: bool
    ) -> None:
        super().__init__(predictions)
        self.image = image
        self.seconds = seconds
        self.are_probabilities = are_probabilities

    def to_json(self) -> dict[str, Any]:
        """Return the predictions as plain values."""
        return {
            "image": self.image,
            "seconds": self.seconds._asdict(),
            "are_probabilities": self.are_probabilities,
            "predictions": [{**vars(prediction), "wordnet": prediction.wordnet or None} for prediction in self],
        }

    def score_text(self, prediction: Prediction) -> str:
        """Return a score as a percentage, or as a number if it is not a probability."""
        return f"{prediction.score:8.2%}" if self.are_probabilities else f"{prediction.score:12.4f}"

    def __str__(self) -> str:
        rows = (f"{self.score_text(prediction)}  {prediction.label}" for prediction in self)
        return "\n".join((self.image, *rows))


@dataclass(frozen=True)
class RejectedImage:
    """Image that could not be decoded, with the error."""

    image: str
    error: InputError


class _PreparedImage(NamedTuple):
    image: str
    values: Prepared
    decode_seconds: float
    preprocess_seconds: float


class Classifier:
    """Classifier of images in an open session.

    Args:
        session: session with one input, whose first output has a score for each class.
        preprocessing: size and normalization of the images.
        labels: class labels; empty labels give class indices.
        order: order of the classes; None if no card states it.
        top: number of classes for each image.
        batch_size: images per run for models with a dynamic batch.

    Raises:
        UsageError: the input takes no images.
        InputError: the labels belong to another model.
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
                f"top is {top} and batch_size {batch_size}, but both must be at least 1",
                hint="top=5 gives five classes",
            )
        if len(session.inputs) != 1:
            names = ", ".join(info.name for info in session.inputs)
            raise UsageError(
                f"the graph has {len(session.inputs)} inputs ({names}), but a classifier has one",
                hint="select it with --input-layer",
            )
        self.session = session
        self.preprocessing = preprocessing
        self.labels = labels
        self.top = top
        self._order = order
        self._pipeline = InputPipeline(tuple(session.inputs), preprocessing)
        self._output = session.outputs[0]
        self._batch_size = self._pipeline.batch_size or batch_size
        self._num_outputs: int | None = None
        dims = self._output.shape.dims
        if dims and dims[-1] is not None:
            self._check_labels(dims[-1])

    @property
    def normalizes(self) -> bool:
        """True if mean and standard deviation are applied before the graph, not inside it."""
        return self._pipeline.image_input.is_normalized

    def classify(self, images: Iterable[Sample]) -> Iterator[ImagePredictions | RejectedImage]:
        """Yield the predictions of each image, in order.

        Args:
            images: image files, or samples with one array: uint8 pixels (h, w, c), or float values like the input.

        Raises:
            GraphError: the model's output is NaN.
            InputError: the labels belong to another model.
        """
        pending = iter(images)
        while chunk := list(islice(pending, self._batch_size)):
            prepared = [self._prepare(image) for image in chunk]
            predictions = iter(self._run([item for item in prepared if isinstance(item, _PreparedImage)]))
            for item in prepared:
                yield item if isinstance(item, RejectedImage) else next(predictions)

    def _prepare(self, image: Sample) -> _PreparedImage | RejectedImage:
        start = perf_counter()
        if image.arrays is not None:
            values = self._pipeline.prepare_arrays(image.arrays)
            return _PreparedImage(str(image), values, 0.0, perf_counter() - start)
        try:
            decoded = self._pipeline.decode(image.read_image(), str(image))
        except InputError as error:
            return RejectedImage(str(image), error)
        middle = perf_counter()
        values = self._pipeline.prepare_image(decoded)
        return _PreparedImage(str(image), values, middle - start, perf_counter() - middle)

    def _run(self, images: Sequence[_PreparedImage]) -> list[ImagePredictions]:
        if not images:
            return []
        feeds = self._pipeline.stack([image.values for image in images])
        start = perf_counter()
        outputs = self.session.run(feeds)[self._output.name]
        seconds = (perf_counter() - start) / len(images)
        rows = outputs.reshape(self._pipeline.batch_size or len(images), -1).astype(np.float64)
        self._check_labels(rows.shape[1])
        return [self._predictions(image, row, seconds) for image, row in zip(images, rows, strict=False)]

    def _check_labels(self, num_outputs: int) -> None:
        """Compare the labels with the number of classes, as soon as it is known."""
        if num_outputs != self._num_outputs:
            self.labels.check(num_outputs, self._order)
            self._num_outputs = num_outputs

    def _predictions(self, image: _PreparedImage, row: Array, run_seconds: float) -> ImagePredictions:
        if np.isnan(row).any():
            raise GraphError(
                f"output {self._output.name!r} is NaN for {image.image!r}",
                hint="quantkit compare finds the first bad layer",
            )
        best = np.argsort(-row, kind="stable")[: self.top].tolist()
        predictions = (
            Prediction(self.labels.name(index), float(row[index]), index, self.labels.wordnet.get(index, ""))
            for index in best
        )
        seconds = StageSeconds(image.decode_seconds, image.preprocess_seconds, run_seconds)
        return ImagePredictions(predictions, image.image, seconds, bool(are_probabilities(row[None])[0]))
