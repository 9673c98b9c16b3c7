"""Verification of transforms: the model runs on the same inputs before and after each step."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from quantkit.data import Dataset, InputPipeline, as_dataset, batches
from quantkit.data.pipeline import rank_of
from quantkit.errors import CheckError, GraphError, QuantkitError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType
from quantkit.limits import check_size
from quantkit.model import Model
from quantkit.recipes.outputs import MIN_COSINE, TOLERANCE, compare
from quantkit.runtimes import AUTO, REFERENCE, find_runtime, observing_runtime, open_session
from quantkit.runtimes.session import Session, TensorInfo
from quantkit.transforms.registry import Claim

# Number of samples of a dataset that are run, if the model takes any number.
NUM_SAMPLES = 8
# Largest change of an output, as a fraction of its largest value, that counts as constant.
MIN_CHANGE = 1e-3
# Further random inputs that are tried to change the outputs.
OTHER_INPUTS = 3
# Values of unknown sizes, tried in order until the graph accepts one: many networks need images of a minimum size.
UNKNOWN_SIZES = (1, 32, 256, 512)
# The same for images: TensorFlow accepts images of one pixel, of which the last layers compute no values. An input of
# the rank of images can be weights, for which only 1 may fit.
UNKNOWN_IMAGE_SIZES = (32, 256, 1, 512)
IMAGE_RANK = 4

Opener = Callable[[Graph], Session]
# Function that returns arrays, by name, for some or all inputs.
Feeder = Callable[[tuple[TensorInfo, ...]], Mapping[str, Array]]


@dataclass
class Verifier:
    """Check for `run` that compares the model outputs before and after each step.

    Args:
        open_session: function that opens a graph in a runtime.
        seed: seed of the random inputs.
        tolerance: see `TOLERANCE`.
        feeder: function that returns the inputs; inputs that it does not return are random.
        bounds: range of the random values by input name (default: -1 to 1).
        checks_reaction: run the first graph on further random inputs, to set `warning`.

    Attributes:
        warning: message if the outputs barely depend on the inputs, so that a comparison proves little; else empty.
    """

    open_session: Opener
    seed: int = 0
    tolerance: float = TOLERANCE
    feeder: Feeder | None = None
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    checks_reaction: bool = False
    warning: str = field(default="", init=False)
    feeds: Mapping[str, Array] | None = field(default=None, init=False)
    last: tuple[Graph, Mapping[str, Array]] | None = field(default=None, init=False)

    def __call__(self, before: Graph, after: Graph, transform: Claim) -> str:
        """Compare the outputs of two graphs and return their difference in one line.

        Raises:
            CheckError: the outputs differ by more than the transform may change them, or the new graph cannot be run.
        """
        old = self.last[1] if self.last and self.last[0] is before else self._run(before)[0]
        self.last = (before, old)
        if _compared_fields(after) == _compared_fields(before):
            self.last = (after, old)
            return "the same nodes"
        try:
            new, type_change = self._run(after)
        except QuantkitError as error:
            raise CheckError(f"the graph after {transform.name} cannot be run: {error.message}", error.hint) from error
        result = type_change or compare(old, new, transform, self.tolerance)
        self.last = (after, new)
        return result

    @property
    def terms(self) -> str:
        """Inputs and limits of the check, in one line."""
        data = "the given data" if self.feeder else f"inputs of seed {self.seed}"
        return (
            f"on {data}: exact steps within {self.tolerance:g} of the largest value of each output, "
            f"steps that reduce precision with a cosine of at least {MIN_COSINE:g}"
        )

    def _run(self, graph: Graph) -> tuple[Mapping[str, Array], str]:
        """Return the outputs, and a note if an input has another type than before: such outputs do not compare."""
        note = ""
        with self.open_session(graph) as session:
            for info in session.inputs:
                feed = (self.feeds or {}).get(info.name)
                if feed is not None and info.dtype is not DType.STRING and feed.dtype != info.dtype.numpy:
                    note = f"input {info.name!r} is {info.dtype.value} now: outputs cannot be compared"
            if self.feeds is None or note:
                feeds = self.feeder(session.inputs) if self.feeder else {}
                outputs = self._run_first(session, feeds)
                if self.checks_reaction:
                    self._check_reaction(session, feeds, outputs)
                return outputs, note
            return session.run(self._feeds_of(session)), note

    def _run_first(self, session: Session, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the outputs for the first of the sizes that the graph accepts; choose the feeds."""
        unknown = [info.shape for info in session.inputs if info.name not in feeds and not info.shape.is_known]
        has_images = any(shape.rank == IMAGE_RANK and None in (shape.dims or ())[1:] for shape in unknown)
        *sizes, last = UNKNOWN_IMAGE_SIZES if has_images else UNKNOWN_SIZES
        for size in sizes if unknown else ():
            self.feeds = verification_feeds(session.inputs, self.seed, feeds, size, self.bounds)
            with suppress(GraphError):
                return session.run(self._feeds_of(session))
        self.feeds = verification_feeds(session.inputs, self.seed, feeds, last, self.bounds)
        return session.run(self._feeds_of(session))

    def _check_reaction(self, session: Session, data: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Set `warning` if no output depends noticeably on the random inputs, or on the given samples."""
        self.checks_reaction = False
        if data:
            counts = {len(array) for array in data.values() if array.ndim}
            rows = counts.pop() if len(counts) == 1 else 0
            arrays = [array for array in outputs.values() if array.ndim and len(array) == rows]
            pairs = [(array[:-1], array[1:]) for array in arrays if rows > 1]
            subject = "over the given samples"
        else:
            subject = "with the random inputs"
            try:
                others = [session.run(self._other_feeds(session, number)) for number in range(1, OTHER_INPUTS + 1)]
            except QuantkitError:
                return  # for example a graph that accepts few integers
            pairs = [
                (array, other[name])
                for other in others
                for name, array in outputs.items()
                if array.shape == other[name].shape
            ]
        if pairs and not any(_differs(*pair) for pair in pairs):
            self.warning = (
                f"the outputs barely change {subject}, so that equal outputs prove little: verify with real samples "
                "that differ (--data)"
            )

    def _other_feeds(self, session: Session, number: int) -> dict[str, Array]:
        """Return other random inputs of the same shapes."""
        random, feeds = np.random.default_rng(self.seed + number), self._feeds_of(session)
        return {
            info.name: _random(random, info.dtype, feeds[info.name].shape, self.bounds.get(info.name))
            for info in session.inputs
        }

    def _feeds_of(self, session: Session) -> dict[str, Array]:
        """Return the feeds of the inputs that the graph still has."""
        feeds = self.feeds or {}
        return {info.name: feeds[info.name] for info in session.inputs if info.name in feeds}

    def to_json(self) -> dict[str, Any]:
        """Return inputs and limits of the check as JSON values."""
        return {
            "data": "given" if self.feeder else "seeded",
            "seed": self.seed,
            "tolerance": self.tolerance,
            "min_cosine": MIN_COSINE,
            "warning": self.warning or None,
        }


def make_verifier(
    model: Model,
    graph: Graph,
    *,
    data: Any = None,
    runtime: str | None = None,
    seed: int = 0,
    tolerance: float | None = None,
) -> Verifier:
    """Return the verifier for a graph of a model.

    Args:
        model: model whose preprocessing applies to images.
        graph: graph that will be rewritten.
        data: dataset, see `quantkit.data.as_dataset`; None for random inputs.
        runtime: name of a runtime; None for TensorFlow, for ONNX graphs ONNX Runtime, or the reference runtime
            if it is not installed.
        seed: seed of the random inputs.
        tolerance: see `TOLERANCE`; None for `TOLERANCE`.

    Raises:
        UsageError: the runtime is unknown, or the data cannot be assigned to inputs.
        InputError: the data cannot be read.
    """
    # The runtime of the graph's own format: others would compare their converters as well.
    runtime = runtime or _native_runtime(graph)
    if runtime != AUTO:
        find_runtime(runtime)  # an unknown name is rejected before any work
    feeder = None
    if data is not None:
        dataset = as_dataset(data, NUM_SAMPLES, inputs=model.input_names)

        def feeder(inputs: tuple[TensorInfo, ...]) -> Mapping[str, Array]:
            return feed_dataset(model, dataset, inputs)

    scalings = {str(edge): model.find_scaling(str(edge)) for edge in graph.inputs}
    bounds = {name: (scaling.low, scaling.high) for name, scaling in scalings.items() if scaling is not None}
    return Verifier(
        lambda graph: open_session(graph, runtime),
        seed,
        TOLERANCE if tolerance is None else tolerance,
        feeder,
        bounds,
        checks_reaction=True,
    )


def _native_runtime(graph: Graph) -> str:
    """Return the runtime of the graph's own format; the NumPy runtime if no such runtime is installed."""
    name = observing_runtime(graph.dialect)
    return name if find_runtime(name).available().ok else REFERENCE


def feed_dataset(
    model: Model, dataset: Dataset, inputs: tuple[TensorInfo, ...], num_samples: int = NUM_SAMPLES
) -> Mapping[str, Array]:
    """Return the first batch of a dataset; arrays are assigned to the inputs by name.

    Args:
        model: model whose preprocessing applies to images.
        dataset: the data.
        inputs: inputs of the session.
        num_samples: number of samples, if the model takes any number.

    Raises:
        UsageError: the data cannot be assigned to inputs, or no image can be read.
    """
    arrays = dataset.example(rank_of(inputs))
    matching = tuple(info for info in inputs if info.name in arrays)
    if not matching and (len(inputs) != 1 or len(arrays) > 1):
        raise UsageError(
            f"cannot tell which inputs {dataset.source} feeds",
            hint=f"give an array for each of {', '.join(info.name for info in inputs)}, by input name (.npz)",
        )
    if matching and len(inputs) > 1:
        pipeline = InputPipeline.of_arrays(matching, arrays, dataset.source)
    else:
        pipeline = InputPipeline.of(inputs, dataset, model.find_basis(inputs))
    rejected: dict[str, str] = {}
    size = _num_samples(inputs, num_samples)
    for batch in batches(dataset, pipeline, size, rejected):
        return batch.feeds
    raise UsageError(f"no image of {dataset.source} can be read", hint=next(iter(rejected.values()), ""))


def _num_samples(inputs: tuple[TensorInfo, ...], num_samples: int) -> int:
    dims = inputs[0].shape.dims
    return (dims[0] or num_samples) if dims else 1


def _compared_fields(graph: Graph) -> tuple[Any, ...]:
    """Return the fields that determine the outputs of a graph."""
    return graph.nodes, graph.inputs, graph.outputs, graph.library


def verification_feeds(
    inputs: tuple[TensorInfo, ...],
    seed: int = 0,
    feeds: Mapping[str, Array] | None = None,
    unknown_size: int = 1,
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, Array]:
    """Return random arrays: floats in [-1, 1), uint8 values in 0..255, other integers 0 and 1.

    Args:
        inputs: inputs of the session.
        seed: seed of the random numbers.
        feeds: arrays of the inputs that are not random.
        unknown_size: size of the dimensions that an input does not state.
        bounds: range of the values of float inputs, by name, in place of [-1, 1).

    Raises:
        UsageError: an input takes strings, resources or variants, or its rank is unknown.
        GraphError: the values of an input are larger than the limit of computed tensors.
    """
    random = np.random.default_rng(seed)
    result: dict[str, Array] = {}
    for info in inputs:
        if feeds and info.name in feeds:
            result[info.name] = feeds[info.name]
            continue
        is_numeric = info.dtype not in (DType.STRING, DType.RESOURCE, DType.VARIANT)
        if info.shape.dims is None or not is_numeric:
            kind = "a tensor of unknown rank" if is_numeric else f"{info.dtype.value}s"
            raise UsageError(
                f"cannot generate random values for input {info.name!r}, which takes {kind}",
                hint="give arrays (--data FILE.npz), or choose other --inputs, for example after a decoder",
            )
        shape = tuple(unknown_size if size is None else size for size in info.shape.dims)
        check_size(f"random values of input {info.name!r} of shape {info.shape} have", 8 * prod(shape))
        result[info.name] = _random(random, info.dtype, shape, (bounds or {}).get(info.name))
    return result


def _differs(first: Array, second: Array) -> bool:
    """Return True if two outputs differ by more than a small fraction of their largest value."""
    if first.dtype.kind not in "fiu":
        return not np.array_equal(first, second)
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.abs(first.astype(np.float64) - second.astype(np.float64)).max(initial=0)
        largest = max(np.abs(first).max(initial=0), np.abs(second).max(initial=0))
        return not change <= MIN_CHANGE * largest


def _random(
    random: "np.random.Generator", dtype: DType, shape: tuple[int, ...], bounds: tuple[float, float] | None = None
) -> Array:
    if dtype.is_float:
        low, high = bounds or (-1, 1)
        return random.uniform(low, high, shape).astype(dtype.numpy)
    # Other integers than pixels are often ids of an embedding or masks, for which 0 and 1 are valid.
    high = 256 if dtype in (DType.UINT8, DType.QUINT8) else 2
    return random.integers(0, high, shape).astype(dtype.numpy)
