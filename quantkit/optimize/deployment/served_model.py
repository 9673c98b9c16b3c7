"""Model file as a server sees it: inputs, outputs, preprocessing, labels, and one sample with its outputs."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quantkit.arguments import public
from quantkit.data.inference import infer_preprocessing
from quantkit.data.inputs import ImageInput, takes_images
from quantkit.data.labels import Labels
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import GraphError, UsageError
from quantkit.evaluation.classification import classify_images
from quantkit.evaluation.opened_model import OpenedModel, open_model
from quantkit.formats.kinds import kind_of
from quantkit.ir.tensor import Array, DType
from quantkit.model import Model, load
from quantkit.runtimes.random_inputs import find_random_inputs, random_arrays
from quantkit.runtimes.runtime import ISA_VARIABLE, ISAS
from quantkit.runtimes.session import RuntimeVersion, SessionOptions, TensorInfo

# Element types in the inference protocol version 2, without those that its JSON form does not hold.
DATATYPES = {
    **{dtype: f"FP{8 * dtype.num_bytes}" for dtype in (DType.FLOAT, DType.DOUBLE)},
    **{dtype: f"INT{8 * dtype.num_bytes}" for dtype in (DType.INT8, DType.INT16, DType.INT32, DType.INT64)},
    **{dtype: f"UINT{8 * dtype.num_bytes}" for dtype in (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)},
    DType.QINT8: "INT8",
    DType.QUINT8: "UINT8",
    DType.QINT32: "INT32",
    DType.BOOL: "BOOL",
}
# Height and width in pixels, and number of colored squares in a row, of the image in a folder.
EXAMPLE_SIZE, EXAMPLE_SQUARES = (240, 320), 6


@public
def check_name(name: str) -> None:
    """Check the name of a model in a server.

    Raises:
        UsageError: servers do not accept the name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII):
        raise UsageError(f"{name!r} is not a name of a model in a server", hint="use letters, digits, '_', '-' and '.'")


@dataclass(frozen=True)
class Deployment:
    """Model file with its name, runtime and settings in a server.

    Attributes:
        file: ``.onnx``, ``.tflite`` or ``.pb`` file, or SavedModel folder.
        name: name of the model in the server: letters, digits, ``_``, ``-`` and ``.``.
        runtime: name of the runtime.
        options: threads and precision.
        streams: calls at the same time (throughput); None for one call at a time (latency).
        environment: environment variables of the server.

    Raises:
        UsageError: the name has other characters, or the options name a GPU.
    """

    file: Path
    name: str
    runtime: str
    options: SessionOptions = field(default_factory=SessionOptions)
    streams: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.options.gpu_index is not None:
            raise UsageError("the folders of servers are for the CPU", hint="use --device cpu")

    @property
    def session_options(self) -> SessionOptions:
        """Options of a session in a process with `variables`."""
        return replace(self.options, streams=self.streams or self.options.streams, isa=None)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the server, with the limit of the instruction set."""
        isa = self.options.isa
        return {**({ISA_VARIABLE: ISAS[isa][0]} if isa else {}), **self.environment}


@dataclass(frozen=True)
class ServedModel:
    """Model with the facts that a folder states.

    Attributes:
        deployment: file, runtime and settings.
        kind: kind of the file.
        runtime: runtime that computed ``expected``.
        signature: name of the signature of a SavedModel; empty for other files.
        inputs, outputs: inputs and outputs by the names that callers use.
        image_input: form of the images; None if the inputs take arrays.
        preprocessing: preprocessing of the images.
        scores: name of the output with a score for each class; None without one.
        labels: class labels; may be empty.
        image: PNG file of the sample; None if the inputs take arrays.
        sample: array of the sample for each input.
        expected: outputs for the sample.
    """

    deployment: Deployment
    kind: str
    runtime: RuntimeVersion
    signature: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    image_input: ImageInput | None
    preprocessing: Preprocessing | None
    scores: str | None
    labels: Labels
    image: bytes | None
    sample: tuple[Array, ...]
    expected: tuple[Array, ...]

    @property
    def name(self) -> str:
        """Name of the model in the server."""
        return self.deployment.name

    @property
    def has_dynamic_batch(self) -> bool:
        """True if the first dimension of every input and output is dynamic."""
        shapes = [info.shape.dims for info in (*self.inputs, *self.outputs)]
        return all(dims and dims[0] is None for dims in shapes)

    @property
    def label_names(self) -> list[str]:
        """Name of each class, in order; empty without labels."""
        return [" ".join(self.labels.name(index).split()) for index in range(self.labels.length)]


class _Sample(NamedTuple):
    """Inputs and outputs of one run, and the facts about images if the input takes them."""

    feeds: dict[str, Array]
    results: dict[str, Array]
    image: bytes | None = None
    image_input: ImageInput | None = None
    preprocessing: Preprocessing | None = None
    scores: str = ""
    labels: Labels = Labels()


def read_model(deployment: Deployment) -> ServedModel:
    """Read the facts about a model from its file, and compute the outputs of a sample.

    Raises:
        UsageError: an input or output has an element type that servers do not exchange as JSON.
        InputError: the file is missing or broken.
        UnavailableError: the runtime is not installed or cannot run the file.
    """
    model = load(deployment.file)
    opened = open_model(model, deployment.runtime, deployment.session_options, has_all_outputs=True)
    with opened.session as session:
        for info in (*session.inputs, *session.outputs):
            if info.dtype not in DATATYPES:
                raise UsageError(
                    f"{info.name!r} takes {info.dtype.value}, which servers do not exchange as JSON",
                    hint="write the model with inputs and outputs of float32, integers or uint8 pixels",
                )
        sample = None
        if len(session.inputs) == 1 and takes_images(session.inputs[0]):
            with suppress(GraphError):  # of dynamic sizes that the graph rejects
                sample = _run_image(opened, deployment)
        sample = sample or _run_random(opened)
    names = _signature_names(model)
    inputs, outputs = (
        tuple(replace(info, name=names.get(info.name, info.name)) for info in infos)
        for infos in (session.inputs, session.outputs)
    )
    return ServedModel(
        deployment,
        kind_of(deployment.file),
        session.runtime,
        model.signature.name if model.signature else "",
        inputs,
        outputs,
        sample.image_input,
        sample.preprocessing,
        names.get(sample.scores, sample.scores) if sample.scores else None,
        sample.labels,
        sample.image,
        tuple(sample.feeds[info.name] for info in session.inputs),
        tuple(sample.results[info.name] for info in session.outputs),
    )


def _run_image(opened: OpenedModel, deployment: Deployment) -> _Sample:
    """Return an image, and the outputs that an opened model computes from it.

    Raises:
        GraphError: the graph rejects the size of the image.
    """
    from PIL import Image

    (info,) = opened.session.inputs
    form, image = ImageInput.of(info), _example_image()
    preprocessing = infer_preprocessing(info, opened.basis)
    scores, labels = "", Labels()
    with suppress(UsageError):  # no output has a score for each class
        example: Any = Image.open(BytesIO(image))
        classified = classify_images(
            [example], opened.model, runtime=deployment.runtime, options=deployment.session_options
        )
        preprocessing, labels, scores = classified.preprocessing, classified.labels, classified.output
    pixels = form.decode(image, "example", preprocessing.channels)
    feeds = {info.name: form.stack([form.prepare(pixels, preprocessing)])}
    results = opened.session.run(feeds)
    count = len(feeds[info.name]) if form.has_batch_axis else 1
    if scores not in results or not _has_class_scores(results[scores], count):
        scores, labels = "", Labels()
    return _Sample(feeds, results, image, form, preprocessing, scores, labels)


def _signature_names(model: Model) -> dict[str, str]:
    """Return the names in the signature of a SavedModel by edge; empty for other files."""
    if model.signature is None:
        return {}
    return {
        str(edge): name for edges in (model.signature.inputs, model.signature.outputs) for name, edge in edges.items()
    }


def _has_class_scores(output: Array, count: int) -> bool:
    """Return True if an output has more than one value for each image along one axis.

    Args:
        output: output of the model.
        count: number of images in its batch.

    >>> _has_class_scores(np.zeros((2, 10, 1, 1)), 2), _has_class_scores(np.zeros((1, 85, 20)), 1)
    (True, False)
    """
    return 1 < output.size / count == max(output.shape[1:] or output.shape, default=0)


def _run_random(opened: OpenedModel) -> _Sample:
    """Return random inputs, and the outputs that an opened model computes from them."""
    session = opened.session

    def run(sizes: Mapping[str, tuple[int, ...]] = {}, integers: tuple[int, int] = (0, 2)) -> _Sample:
        feeds = random_arrays(session.inputs, sizes=sizes, integers=integers)
        return _Sample(feeds, session.run(feeds))

    if not opened.model.has_readable_graph:
        return run()
    graph = opened.model.graph if isinstance(opened.runnable, Path) else opened.runnable
    return find_random_inputs(graph, session.inputs, run)


def _example_image() -> bytes:
    """Return a PNG file with smooth random colors."""
    from PIL import Image

    squares = np.random.default_rng(0).integers(0, 256, (EXAMPLE_SQUARES, EXAMPLE_SQUARES, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(squares).resize(EXAMPLE_SIZE[::-1], Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()
