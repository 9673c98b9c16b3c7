"""Inference of preprocessing and labels from the model card, or else from the model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quantkit.arguments import (
    public,
)
from quantkit.data.input_scaling import InputScaling
from quantkit.data.inputs import ImageInput, image_size, takes_images
from quantkit.data.labels import Labels, Order, find_labels, order_of, read_labels
from quantkit.data.preprocessing import ColorOrder, Origin, Preprocessing
from quantkit.errors import UsageError
from quantkit.ir.graph import Edge
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo.cards import ModelCard
from quantkit.zoo.fetch import label_files

# Source of the preprocessing of a model.
Basis = ModelCard | Preprocessing | InputScaling


@public
@dataclass(frozen=True)
class PreprocessingOptions:
    """Preprocessing as the caller states it; None for values that the caller does not state.

    Attributes:
        height, width: size of the input in pixels.
        mean: mean that is subtracted from the pixels, a scalar or a value per channel.
        std: standard deviation that the pixels are then divided by, a scalar or a value per channel.
        color_order: order of the channels of the input: ``rgb`` or ``bgr``.
    """

    height: int | None = None
    width: int | None = None
    mean: float | tuple[float, ...] | None = None
    std: float | tuple[float, ...] | None = None
    color_order: ColorOrder | None = None


def infer_preprocessing(
    info: TensorInfo,
    basis: Basis | None = None,
    options: PreprocessingOptions = PreprocessingOptions(),
) -> Preprocessing:
    """Infer the preprocessing of an image input.

    The caller's options come first, then the input's own shape, then the card, preprocessing or scaling of
    the model, then the defaults of TensorFlow's label_image: (x - 128) / 128. `Preprocessing.origin` states the source.

    Args:
        info: the input.
        basis: card or preprocessing of the model, or the scaling in its graph.
        options: options of the caller.

    Raises:
        UsageError: the input does not take images, or an option contradicts its shape.
    """
    is_normalized = ImageInput.of(info).is_normalized
    base = _base(basis)
    if replace(options, color_order=None) != PreprocessingOptions():
        # label_image, whose options these are, does not crop.
        base = replace(base, crop="none")
    height, width, channels = image_size(info)
    for name, stated, size in (("height", options.height, height), ("width", options.width, width)):
        if stated and size and stated != size:
            raise UsageError(
                f"--input-{name} is {stated}, and input {info.name!r} has the {name} {size}",
                hint=f"remove --input-{name}: the graph's own is used",
            )
    channels = channels or base.channels
    return Preprocessing(
        height=options.height or height or base.height,
        width=options.width or width or base.width,
        channels=channels,
        mean=_per_channel(base.mean, channels) if options.mean is None else options.mean,
        std=_per_channel(base.std, channels) if options.std is None else options.std,
        resize=base.resize,
        crop=base.crop,
        color_order=options.color_order or base.color_order,
        origin=_origin(base, options, is_normalized=is_normalized),
    )


def unify_bases(bases: Sequence[Basis | None]) -> list[Basis | None]:
    """Return the source of the preprocessing of each version of one model: versions have the same preprocessing.

    A version whose file and card do not state it has that of another version, which states it or scales its input.
    """
    stated = [basis for basis in bases if isinstance(basis, ModelCard | Preprocessing)]
    common = next((basis for basis in (*stated, *bases) if basis is not None), None)
    return [basis if basis in stated else common for basis in bases]


def find_model_labels(card: ModelCard | None, model_path: Path | None, num_classes: int | None) -> Labels:
    """Find the labels of a model: in its card, in the folder of its file, or in the cache.

    Args:
        card: card of the model.
        model_path: file or folder that the model was loaded from.
        num_classes: number of class scores; None if it is not known.

    Returns:
        The labels; empty if there are no labels.

    Raises:
        InputError: a label file is broken.
    """
    if card is not None and card.labels.names:
        names = card.labels.names
        return Labels(dict(enumerate(names)), order=Order(card.labels.order), length=len(names), source=card.name)
    folder = model_path.parent if model_path else None
    if card is not None:
        files = [folder / Path(name).name for name in card.labels.files] if folder else []
        files = files if files and all(path.is_file() for path in files) else list(label_files(card))
        return read_labels(files[0]) if files else Labels()
    label_map = find_labels(folder) if folder and order_of(num_classes or 0) is Order.ILSVRC2012 else None
    return read_labels(label_map) if label_map else Labels()


def find_origin(source: TensorInfo, result: TensorInfo, cards: Iterable[ModelCard]) -> ModelCard | None:
    """Find the card of the known model that a model was transformed or converted from.

    Args:
        source: the input that takes images.
        result: the output with the class scores.
        cards: cards to choose from.

    Returns:
        The card; None if none or several match.
    """
    matches = [card for card in cards if _matches(card, source, result)]
    return matches[0] if len(matches) == 1 else None


def _matches(card: ModelCard, source: TensorInfo, result: TensorInfo) -> bool:
    dims = result.shape.dims
    num_classes = dims[-1] if dims else None
    if Edge.parse(result.name) != Edge.parse(card.outputs[0].name) or num_classes not in (None, card.num_classes):
        return False
    if not takes_images(source):
        return False
    if ImageInput.of(source).form != "resized":
        return True  # the graph resizes and normalizes
    channels = image_size(source)[2]
    has_name = Edge.parse(source.name) == Edge.parse(card.inputs[0].name)
    return has_name and channels in (None, card.preprocessing.channels)


def _base(basis: Basis | None) -> Preprocessing:
    """Return the preprocessing that a basis implies, or the default."""
    if basis is None:
        return Preprocessing(origin=Origin.ASSUMED)
    if isinstance(basis, InputScaling):
        return Preprocessing(mean=basis.mean, std=basis.std, origin=Origin.GRAPH)
    return basis if isinstance(basis, Preprocessing) else _of_card(basis)


def _origin(base: Preprocessing, options: PreprocessingOptions, *, is_normalized: bool) -> Origin:
    if not is_normalized:
        return Origin.GRAPH
    return base.origin if options.mean is options.std is None else Origin.STATED


def _of_card(card: ModelCard) -> Preprocessing:
    stated = card.preprocessing
    mean, std = (numbers[0] if len(numbers) == 1 else numbers for numbers in (stated.mean, stated.std))
    return Preprocessing(
        stated.height, stated.width, stated.channels, mean, std, stated.resize, stated.crop, origin=Origin.CARD
    )


def _per_channel(numbers: float | tuple[float, ...], channels: int) -> float | tuple[float, ...]:
    """Return numbers per channel, averaged if the number of channels differs."""
    return sum(numbers) / len(numbers) if isinstance(numbers, tuple) and len(numbers) != channels else numbers
