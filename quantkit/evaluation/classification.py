"""Classification of images: files, folders or arrays."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any, ParamSpec, Protocol, cast, overload

import numpy as np

from quantkit.arguments import expand_user, public, require_callable, require_positive, require_text, type_name
from quantkit.data import find_images
from quantkit.data.dataset import Sample, to_array
from quantkit.data.images import is_pillow_image, pixels_of
from quantkit.data.inference import infer_preprocessing
from quantkit.data.labels import Labels
from quantkit.data.preprocessing import Origin, Preprocessing
from quantkit.errors import InputError, UsageError
from quantkit.evaluation.classifier import Classifier, ImagePredictions, RejectedImage, StageSeconds
from quantkit.evaluation.interrupted import EvaluationInterrupted
from quantkit.evaluation.opened_model import OpenedModel, describe_assumption, open_model
from quantkit.evaluation.options import MODEL, ClassifierOptions
from quantkit.facts import RANDOM_WEIGHTS_NOTE, PlainReport
from quantkit.ir.tensor import Array
from quantkit.model import Model, as_model
from quantkit.model.options import OFFLINE, RANDOM_WEIGHTS
from quantkit.options import Declaration, option, takes
from quantkit.progress import OnMessage, ignore_image, ignore_message
from quantkit.runtimes import AUTO
from quantkit.runtimes.options import PrecisionOptions, ThreadOptions
from quantkit.runtimes.session import RuntimeVersion, SkippedRuntime

DEFAULT_MODEL = "inception_v3"
# Paths in the message about rejected images.
MAX_NAMES = 5

P = ParamSpec("P")
ImageFile = str | os.PathLike[str]
OnImage = Callable[[ImagePredictions | RejectedImage], None]


@dataclass(frozen=True, repr=False)
class Classification(PlainReport, Sequence[ImagePredictions]):
    """Predictions of several images; a sequence of `ImagePredictions`.

    Attributes:
        model: name of the model.
        runtime: runtime of the model.
        images: predictions in the order of the images.
        rejected: images that could not be decoded.
        input, output: names of the image input and of the class scores.
        preprocessing: size and normalization of the images.
        labels: class labels.
        opened_seconds: time to open the session.
        has_random_weights: True if the predictions are meaningless.
        skipped_files: number of files in the folders that are not images.
        skipped_runtimes: faster runtimes that cannot run the model, with reasons.
    """

    model: str
    runtime: RuntimeVersion
    images: tuple[ImagePredictions, ...]
    rejected: tuple[RejectedImage, ...]
    input: str
    output: str
    preprocessing: Preprocessing
    labels: Labels
    opened_seconds: float
    has_random_weights: bool = False
    skipped_files: int = 0
    skipped_runtimes: tuple[SkippedRuntime, ...] = ()

    @overload
    def __getitem__(self, index: int) -> ImagePredictions: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ImagePredictions]: ...

    def __getitem__(self, index: int | slice) -> ImagePredictions | Sequence[ImagePredictions]:
        return self.images[index]

    def __len__(self) -> int:
        return len(self.images)

    def check(self) -> None:
        """Check that all images could be decoded.

        Raises:
            InputError: an image was rejected.
        """
        if len(self.rejected) == 1:
            raise self.rejected[0].error
        if self.rejected:
            names = ", ".join(rejected.image for rejected in self.rejected[:MAX_NAMES])
            more = ", ..." if len(self.rejected) > MAX_NAMES else ""
            raise InputError(
                f"{len(self.rejected)} of {len(self.images) + len(self.rejected)} images cannot be decoded: "
                f"{names}{more}",
                hint=self.rejected[0].error.message,
            )

    @property
    def summary(self) -> str:
        """One line with the runtime and the median times; empty if all images were rejected."""
        if not self.images:
            return ""
        stages = zip(StageSeconds._fields, zip(*(image.seconds for image in self.images), strict=True), strict=True)
        times = ", ".join(f"{stage} {median(seconds) * 1e3:.1f} ms" for stage, seconds in stages)
        count = f"{len(self.images)} images, medians" if len(self.images) > 1 else "1 image, first run of the session"
        return f"{self.model} in {self.runtime}, opened in {self.opened_seconds:.2f} s; {count}: {times}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the meaning of the scores."""
        are_probabilities = all(image.are_probabilities for image in self.images)
        notes = [] if are_probabilities else [f"output {self.output!r} does not sum to one: scores, not probabilities"]
        notes += [RANDOM_WEIGHTS_NOTE] if self.has_random_weights else []
        if self.preprocessing.origin is Origin.ASSUMED:
            notes.append(f"preprocessing: {self.preprocessing.description}")
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``quantkit classify --json``."""
        preprocessing, labels = self.preprocessing, self.labels
        return {
            "schema": "quantkit.classify/2",
            "model": self.model,
            "random_weights": self.has_random_weights,
            "runtime": {"name": self.runtime.name, "version": self.runtime.version},
            "opened_seconds": self.opened_seconds,
            "input": self.input,
            "output": self.output,
            "preprocessing": preprocessing.to_json(),
            "labels": {"source": labels.source, "order": labels.order.value, "are_known": labels.are_known},
            "skipped_files": self.skipped_files,
            "images": [image.to_json() for image in self.images],
            "rejected": [{"image": rejected.image, "message": rejected.error.message} for rejected in self.rejected],
        }

    def __repr__(self) -> str:
        images = f"{len(self.images)} images, {len(self.rejected)} rejected"
        return f"Classification({self.model!r} in {self.runtime.name}, {images})"

    def __str__(self) -> str:
        return "\n".join((*map(str, self.images), self.summary, *self.notes))


@dataclass(frozen=True, kw_only=True)
class ClassifyKeywords(ClassifierOptions, ThreadOptions, PrecisionOptions):
    """The keyword arguments of `classify`."""

    runtime: str = option(
        AUTO,
        require_text,
        help="name of a runtime (default: that of the receipt, else the fastest one)",
    )
    top: int = option(5, require_positive, help="number of classes per image (default: 5)")
    random_weights: bool = option(False, RANDOM_WEIGHTS)
    offline: bool = option(False, OFFLINE)
    on_image: OnImage = option(
        ignore_image, require_callable, doc="receives the predictions of each image as soon as they are computed"
    )
    on_message: OnMessage = option(ignore_message, require_callable, doc="receives warnings")


@dataclass(frozen=True)
class ClassifyOptions(ClassifyKeywords):
    """The arguments of `classify`."""

    images: Annotated[
        ImageFile | Array | Iterable[ImageFile | Array],
        Declaration(
            doc="one image, or an iterable of images and folders. An image is a JPEG, PNG, BMP, GIF or WebP file, or "
            "an array: uint8 pixels (h, w, c), which are resized and normalized, or float values like the model's "
            "input; or an image of Pillow"
        ),
    ]
    model: Any = option(DEFAULT_MODEL, MODEL)


class Classify(Protocol[P]):
    """Type of `classify`, whose result depends on the type of the images."""

    # A string is an iterable of strings too; the first overload takes precedence.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, images: ImageFile | Array, model: Any = ..., *arguments: P.args, **options: P.kwargs
    ) -> ImagePredictions: ...

    @overload
    def __call__(
        self, images: Iterable[ImageFile | Array], model: Any = ..., *arguments: P.args, **options: P.kwargs
    ) -> Classification: ...


def _by_images(options: Callable[P, Any]) -> Callable[[Callable[..., Any]], Classify[P]]:
    """Return a decorator that gives a function the type of `classify`."""
    return lambda function: cast(Any, function)


@_by_images(ClassifyKeywords)
@public
@takes(ClassifyOptions)
def classify(options: ClassifyOptions) -> ImagePredictions | Classification:
    """Classify images.

    Returns:
        The list of `Prediction` of one image, the best first; or a `Classification` of several images.

    Raises:
        UsageError: the model's input takes no images, or a single image is a folder.
        InputError: the image, the model or the label file is missing or broken.
    """
    images = options.images
    if not isinstance(images, str | os.PathLike | np.ndarray) and not is_pillow_image(images):
        return _classify(options)
    if isinstance(images, str | os.PathLike) and Path(images).is_dir():
        raise UsageError(f"{os.fspath(images)!r} is a folder", hint="pass a list: classify([folder])")
    single: Any = images
    classification = _classify(replace(options, images=[single]))
    classification.check()
    return classification[0]


@public
@takes(ClassifyOptions)
def classify_images(options: ClassifyOptions) -> Classification:
    """Classify images, and collect the images that cannot be decoded instead of stopping there.

    Raises:
        UsageError: the model's input takes no images, or no image is given.
        InputError: a folder, the model or the label file is missing or broken.
        EvaluationInterrupted: Ctrl-C, with the predictions so far.
    """
    return _classify(options)


def _classify(options: ClassifyOptions) -> Classification:
    """Classify images; see `classify_images`."""
    session_options = options.options.with_(
        precision=options.precision, intra_op=options.intra_op, inter_op=options.inter_op
    )
    sources, skipped_files = _find_samples(options.images)
    loaded = as_model(options.model, random_weights=options.random_weights, offline=options.offline)
    start = perf_counter()
    opened = open_model(
        loaded,
        options.runtime,
        session_options,
        input_layer=options.input_layer,
        output_layer=options.output_layer,
    )
    opened_seconds = perf_counter() - start
    with opened.session as session:
        classifier = Classifier(
            session,
            infer_preprocessing(session.inputs[0], opened.basis, options.preprocessing),
            opened.read_labels(None if options.labels is None else expand_user(options.labels)),
            order=opened.label_order,
            top=options.top,
        )
        samples = [
            source if isinstance(source, Sample) else _sample_of_image(index, source, classifier.preprocessing.channels)
            for index, source in enumerate(sources)
        ]
        for warning in _warnings(loaded, opened, classifier, skipped_files):
            options.on_message(warning)
        results: list[ImagePredictions | RejectedImage] = []

        def classification() -> Classification:
            return Classification(
                loaded.name,
                session.runtime,
                tuple(result for result in results if isinstance(result, ImagePredictions)),
                tuple(result for result in results if isinstance(result, RejectedImage)),
                session.inputs[0].name,
                session.outputs[0].name,
                classifier.preprocessing,
                classifier.labels,
                opened_seconds,
                loaded.has_random_weights,
                skipped_files,
                session.skipped,
            )

        try:
            for result in classifier.classify(samples):
                results.append(result)
                options.on_image(result)
        except KeyboardInterrupt:
            raise EvaluationInterrupted(classification()) from None
        return classification()


def _find_samples(images: Any) -> tuple[list[Any], int]:
    """Return a sample for each image file and array, images of Pillow, and the number of other files in the folders.

    Raises:
        UsageError: a value is not an image, there is no image, or a source is a web address.
        InputError: a source does not exist, or a folder has no image.
    """
    if isinstance(images, Mapping | Model | bytes) or not isinstance(images, Iterable):
        raise UsageError(
            f"images is {type_name(images)}, and must be an image or an iterable of images",
            hint="the images come first: classify(images, model)",
        )
    samples: list[Any] = []
    skipped_files = 0
    for index, image in enumerate(images):
        if is_pillow_image(image):
            samples.append(image)
        elif hasattr(image, "__array__"):
            samples.append(Sample(f"array {index}", arrays={"": to_array(image)}))
        elif isinstance(image, str | os.PathLike):
            files = find_images([image])
            samples += files.samples
            skipped_files += files.skipped_files
        else:
            raise UsageError(
                f"image {index} is {type_name(image)}, and must be a path, an array or an image of Pillow",
                hint="classify(images, model) takes one image or a list of images",
            )
    if not samples:
        raise UsageError("no image is given", hint="quantkit classify IMAGE...")
    return samples, skipped_files


def _sample_of_image(index: int, image: Any, channels: int) -> Sample:
    name = str(getattr(image, "filename", "")) or f"image {index}"
    return Sample(name, arrays={"": pixels_of(image, name, channels)})


def _warnings(model: Model, opened: OpenedModel, classifier: Classifier, skipped_files: int) -> Iterator[str]:
    """Yield the messages that the user needs before the predictions."""
    if skipped_files:
        yield (
            f"skipped {skipped_files} files that are not images"
            if skipped_files > 1
            else ("skipped 1 file that is not an image")
        )
    if model.has_random_weights:
        yield f"{model.name}: {RANDOM_WEIGHTS_NOTE}"
    if not classifier.labels.are_known:
        owner = opened.card.labels.card or opened.card.name if opened.card else ""
        remedy = f"quantkit models fetch {owner} downloads them" if owner else "pass --labels FILE"
        yield f"no labels found for this model, class indices are shown; {remedy}"
    if classifier.normalizes and classifier.preprocessing.origin is Origin.ASSUMED:
        yield describe_assumption(classifier.preprocessing)
