"""Samples of a comparison: seeded random inputs, or a dataset that is prepared for both versions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from time import perf_counter
from typing import Protocol

import numpy as np

from quantkit.data import (
    Dataset,
    InputPipeline,
    InputTimes,
    Preprocessing,
    PreprocessingOptions,
    prepare_samples,
)
from quantkit.data.inference import unify_bases
from quantkit.data.preparation import describe_rates
from quantkit.errors import UsageError
from quantkit.evaluation.accuracy import require_images
from quantkit.evaluation.opened_model import describe_assumption
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.limits import check_size
from quantkit.model import Model
from quantkit.progress import OnMessage
from quantkit.runtimes.random_inputs import Sizes, find_random_inputs, random_arrays
from quantkit.runtimes.session import Session, TensorInfo

Feeds = Mapping[str, Array]

# Sizes of the patches of a random image, and the contrast of each size.
PATCHES = ((64, 0.45), (16, 0.35), (4, 0.15), (1, 0.05))
# Normalization between uint8 and float inputs: (x - 128) / 128.
MEAN = STD = np.float32(128)
# Axes of images with channels last or first, in the other layout.
_LAYOUTS = ((0, 2, 3, 1), (0, 3, 1, 2))


class ComparisonSamples(Protocol):
    """Samples of a comparison.

    Attributes:
        total: number of samples; None if it is not known.
        are_random: True for random inputs.
        rejected: message by name of each image that could not be decoded.
        preprocessing: preprocessing of images; None for arrays and random inputs.
    """

    total: int | None
    are_random: bool
    rejected: dict[str, str]
    preprocessing: Preprocessing | None

    def feeds(self, first: Session, second: Session) -> Iterator[tuple[Feeds, Feeds]]:
        """Yield the feeds of both versions for each sample.

        Args:
            first, second: sessions of the versions.
        """
        ...


class RandomSamples:
    """Seeded random inputs that both versions accept.

    Image inputs get patches instead of noise; if one version takes uint8, the other gets normalized pixels.

    Args:
        graph: graph of the first version, which determines dynamic sizes.
        total: number of samples.
        seed: seed of the values.
    """

    are_random = True

    def __init__(self, graph: Graph, total: int, seed: int) -> None:
        self.total: int | None = total
        self.rejected: dict[str, str] = {}
        self.preprocessing: Preprocessing | None = None
        self._graph = graph
        self._seed = seed

    def feeds(self, first: Session, second: Session) -> Iterator[tuple[Feeds, Feeds]]:
        partners = pair_inputs(first.inputs, second.inputs)
        infos = [_common_info(info, partners[info.name]) for info in first.inputs]

        def draw(index: int, sizes: Sizes, integers: tuple[int, int]) -> tuple[Feeds, Feeds]:
            random = np.random.default_rng((self._seed, index))
            images = {info.name: _random_images(random, info, sizes[info.name]) for info in infos if _is_image(info)}
            arrays = random_arrays(infos, self._seed + index, feeds=images, sizes=sizes, integers=integers)
            return (
                {info.name: _fit(arrays[info.name], info) for info in first.inputs},
                {partner.name: _fit(arrays[name], partner) for name, partner in partners.items()},
            )

        def run(sizes: Sizes, integers: tuple[int, int]) -> tuple[Sizes, tuple[int, int]]:
            for session, feeds in zip((first, second), draw(0, sizes, integers), strict=True):
                session.run(feeds)
            return sizes, integers

        # A batch of one sample, if the graph accepts it.
        choice = find_random_inputs(self._graph, infos, run, batch_sizes=(1, 2))
        for index in range(self.total or 0):
            yield draw(index, *choice)


class DatasetSamples:
    """Samples of a dataset, prepared for both versions."""

    are_random = False

    def __init__(
        self,
        dataset: Dataset,
        models: Sequence[Model],
        preprocessing: PreprocessingOptions,
        on_message: OnMessage,
    ) -> None:
        self.total = dataset.size
        self.rejected: dict[str, str] = {}
        self.preprocessing: Preprocessing | None = None
        self._dataset = dataset
        self._models = models
        self._preprocessing = preprocessing
        self._on_message = on_message

    def feeds(self, first: Session, second: Session) -> Iterator[tuple[Feeds, Feeds]]:
        bases = [
            model.find_basis(infos, [_output_info(model)])
            for model, infos in zip(self._models, (first.inputs, second.inputs), strict=True)
        ]
        # Arrays have the input names of the first version.
        partners = pair_inputs(first.inputs, second.inputs)
        renamed = [replace(partner, name=name) for name, partner in partners.items()]
        pipelines = [
            InputPipeline.of(infos, self._dataset, basis, self._preprocessing)
            for infos, basis in zip((first.inputs, renamed), unify_bases(bases), strict=True)
        ]
        self.preprocessing = pipelines[0].applied
        if pipelines[0].is_assumed:
            self._on_message(describe_assumption(pipelines[0]))
        times, start, count = InputTimes(), perf_counter(), 0
        samples = prepare_samples(self._dataset.read(pipelines[0].rank), pipelines, self.rejected, times=times)
        for _, (sample, other_sample) in samples:
            count += 1
            other_feeds = pipelines[1].stack([other_sample])
            yield (
                pipelines[0].stack([sample]),
                {partner.name: other_feeds[name] for name, partner in partners.items()},
            )
        if not count and self.rejected:
            require_images(self.rejected)
        if count and self._dataset.holds_images:
            rates = times.rates(count, perf_counter() - start)
            self._on_message(f"compared: {describe_rates(rates)}")


def _output_info(model: Model) -> TensorInfo:
    """Return the first output of a model, with its name in model cards."""
    return TensorInfo(str(Edge.parse(model.graph.outputs[0].node.removesuffix(":0"))), DType.FLOAT, Shape(None))


def pair_inputs(first: Sequence[TensorInfo], second: Sequence[TensorInfo]) -> dict[str, TensorInfo]:
    """Return the input of the second version for each input of the first: by name, else by position.

    Raises:
        UsageError: the numbers of inputs differ.
    """
    if len(first) != len(second):
        raise UsageError(
            f"one version has {len(first)} inputs and the other {len(second)}", hint="select them with --inputs"
        )
    by_name = {info.name: info for info in second}
    if all(info.name in by_name for info in first):
        return {info.name: by_name[info.name] for info in first}
    return {info.name: partner for info, partner in zip(first, second, strict=True)}


def _common_info(info: TensorInfo, partner: TensorInfo) -> TensorInfo:
    """Return an input of the first version with the sizes that only the second one fixes; uint8 if one is uint8."""
    dtype = DType.UINT8 if partner.dtype is DType.UINT8 else info.dtype
    dims, others = info.shape.dims, partner.shape.dims
    if dims is None or others is None:
        return replace(info, dtype=dtype, shape=partner.shape if dims is None else info.shape)
    layouts = [others, *(tuple(others[axis] for axis in order) for order in _LAYOUTS if len(others) == 4)]
    for sizes in layouts:
        if len(sizes) == len(dims) and all(
            None in pair or pair[0] == pair[1] for pair in zip(dims, sizes, strict=True)
        ):
            dims = tuple(size or other for size, other in zip(dims, sizes, strict=True))
            break
    return replace(info, dtype=dtype, shape=Shape(dims))


def _is_image(info: TensorInfo) -> bool:
    dims = info.shape.dims or ()
    has_values = info.dtype.is_float or info.dtype is DType.UINT8
    return has_values and len(dims) == 4 and bool({1, 3} & {dims[1], dims[3]})


def _random_images(random: np.random.Generator, info: TensorInfo, sizes: Sequence[int]) -> Array:
    """Return images of nested patches in [-1, 1], whose statistics are closer to those of images than noise.

    Args:
        random: generator of the patches.
        info: input that takes the images, as floats or as uint8 pixels.
        sizes: (n, h, w, c) or (n, c, h, w); the smaller one of the axes 1 and 3 counts the channels.
    """
    check_size(f"random values of input {info.name!r} of shape {info.shape} have", 8 * prod(sizes))
    channels = 1 if sizes[1] < sizes[3] else 3
    images = np.zeros(sizes)
    for size, contrast in PATCHES:
        counts = [count if axis in (0, channels) else -(-count // size) for axis, count in enumerate(sizes)]
        patches = random.uniform(-contrast, contrast, counts)
        for axis in {1, 2, 3} - {channels}:
            patches = np.repeat(patches, size, axis).take(range(sizes[axis]), axis)
        images += patches
    if info.dtype is DType.UINT8:
        pixels: Array = np.rint(images * STD + MEAN).clip(0, 255).astype(np.uint8)
        return pixels
    return images.astype(info.dtype.numpy)


def _fit(array: Array, info: TensorInfo) -> Array:
    """Convert an array to the type and axes of an input.

    Raises:
        UsageError: the input takes floats and that of the other version integers other than pixels, or the reverse.
    """
    if array.dtype == np.uint8 and info.dtype.is_float:
        array = (array.astype(np.float32) - MEAN) / STD
    if DType.of(array.dtype).is_float != info.dtype.is_float:
        raise UsageError(f"input {info.name!r} takes {info.dtype.value}, not {array.dtype}", hint="pass --data")
    if array.ndim == 4 and not info.shape.accepts(array.shape):
        candidates = (array.transpose(order) for order in _LAYOUTS)
        array = next((candidate for candidate in candidates if info.shape.accepts(candidate.shape)), array)
    return np.ascontiguousarray(array, info.dtype.numpy)
