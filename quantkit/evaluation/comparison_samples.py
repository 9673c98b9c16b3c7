"""Samples of a comparison: seeded random inputs, or a dataset that is prepared for both versions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

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
from quantkit.evaluation.accuracy import require_images
from quantkit.evaluation.opened_model import describe_assumption
from quantkit.evaluation.random_inputs import pair_inputs, random_feeds
from quantkit.ir.graph import Edge
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.model import Model
from quantkit.progress import OnMessage
from quantkit.runtimes.session import TensorInfo


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

    def feeds(
        self, first: Sequence[TensorInfo], second: Sequence[TensorInfo]
    ) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Array]]]:
        """Yield the feeds of both versions for each sample."""
        ...


class RandomSamples:
    """Seeded random inputs."""

    are_random = True

    def __init__(self, total: int, seed: int) -> None:
        self.total: int | None = total
        self.rejected: dict[str, str] = {}
        self.preprocessing: Preprocessing | None = None
        self._seed = seed

    def feeds(
        self, first: Sequence[TensorInfo], second: Sequence[TensorInfo]
    ) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Array]]]:
        return random_feeds(first, second, self.total or 0, self._seed)


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

    def feeds(
        self, first: Sequence[TensorInfo], second: Sequence[TensorInfo]
    ) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Array]]]:
        bases = [
            model.find_basis(infos, [_output_info(model)])
            for model, infos in zip(self._models, (first, second), strict=True)
        ]
        # Arrays have the input names of the first version.
        partners = pair_inputs(first, second)
        renamed = [replace(partner, name=name) for name, partner in partners.items()]
        pipelines = [
            InputPipeline.of(infos, self._dataset, basis, self._preprocessing)
            for infos, basis in zip((first, renamed), unify_bases(bases), strict=True)
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
