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
from quantkit.data.inference import find_origin
from quantkit.data.preparation import describe_rates
from quantkit.evaluation.accuracy import require_images
from quantkit.evaluation.opened_model import describe_assumption
from quantkit.evaluation.random_inputs import pair_inputs, random_feeds
from quantkit.ir.graph import Edge
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.model import Model
from quantkit.progress import OnMessage
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo.cards import ModelCard, list_cards


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
        cards = [_card(model, infos) for model, infos in zip(self._models, (first, second), strict=True)]
        # Two versions of one model have the same preprocessing: a model without a card uses the card of the other.
        scalings = (
            model.find_scaling(infos[0].name) for model, infos in zip(self._models, (first, second), strict=True)
        )
        basis = cards[0] or cards[1] or next(filter(None, scalings), None)
        # Arrays have the input names of the first version.
        partners = pair_inputs(first, second)
        renamed = [replace(partner, name=name) for name, partner in partners.items()]
        pipelines = [
            InputPipeline.of(infos, self._dataset, own or basis, self._preprocessing)
            for infos, own in zip((first, renamed), cards, strict=True)
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


def _card(model: Model, inputs: Sequence[TensorInfo]) -> ModelCard | None:
    """Return the card of a model, or the card with the same input and output."""
    if model.card is not None or len(inputs) != 1:
        return model.card
    output = str(Edge.parse(model.graph.outputs[0].node.removesuffix(":0")))
    return find_origin(inputs[0], TensorInfo(output, DType.FLOAT, Shape(None)), list_cards())
