"""Known models and their state on this machine, as text and JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from quantkit.errors import InputError
from quantkit.zoo.cache import cache_folder
from quantkit.zoo.cards import KnownPrediction, ModelCard, TensorCard, find_card, list_cards
from quantkit.zoo.fetch import locate

SCHEMA = "quantkit.models/2"


@dataclass(frozen=True)
class KnownModel:
    """Model card with the file of its graph.

    Attributes:
        card: the card.
        path: file of the graph; None if the model is not on this machine.
    """

    card: ModelCard
    path: Path | None

    @property
    def state(self) -> str:
        """State of the model on this machine: ``bundled``, ``cached``, or the size of the download."""
        if self.card.is_bundled:
            return "bundled" if self.path else "missing"
        if self.path:
            return "cached"
        size = self.card.archive.num_bytes if self.card.archive else None
        return f"{size / 1e6:.1f} MB to fetch" if size else "to fetch"

    def require_path(self) -> Path:
        """Return the file of the graph.

        Raises:
            InputError: the model is not on this machine.
        """
        if self.path is None:
            name = self.card.name
            where = "the installation" if self.card.is_bundled else cache_folder() / name
            raise InputError(f"{name} is not in {where}", hint=f"quantkit models fetch {name}")
        return self.path

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **self.values()}

    def values(self) -> dict[str, Any]:
        """Return the card and the path as JSON values."""
        fields = asdict(self.card, dict_factory=_plain)
        return {**fields, "is_bundled": self.card.is_bundled, "path": str(self.path) if self.path else None}

    def __str__(self) -> str:
        card, steps = self.card, self.card.preprocessing
        mean, std = (", ".join(f"{number:g}" for number in numbers) for numbers in (steps.mean, steps.std))
        crop = "" if steps.crop == "none" else f"{steps.crop} crop, "
        rows = {
            "graph": f"{card.graph}, {self.state}",
            "path": str(self.path) if self.path else f"quantkit models fetch {card.name}",
            "input": _describe_tensors(card.inputs) + (f"; JPEG bytes: {card.jpeg_input}" if card.jpeg_input else ""),
            "pixels": f"{crop}{steps.resize} to {steps.height} x {steps.width}, (x - {mean}) / {std}",
            "output": _describe_tensors(card.outputs),
            "classes": f"{card.num_classes} scores, order {card.labels.order}",
            "license": card.license,
            "from": "\n".join(card.archive.urls) if card.archive else "the installation",
            "SHA-256": (card.archive.sha256 or "not published; the members are verified") if card.archive else "",
            "recipe": card.recipe.strip(),
            "known": "\n".join(map(_describe_prediction, card.predictions)),
            "accuracy": _describe_accuracy(card),
            "more": card.homepage,
        }
        lines = [f"{card.name}: {card.title}", f"{card.description.strip()}", ""]
        for name, value in rows.items():
            lines += [f"{name if i == 0 else '':<9} {line}" for i, line in enumerate(value.splitlines())]
        return "\n".join(lines)


@dataclass(frozen=True)
class ModelList:
    """All known models.

    Attributes:
        models: models in the order of their cards.
    """

    models: Sequence[KnownModel]

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "cache": str(cache_folder()), "models": [model.values() for model in self.models]}

    def __str__(self) -> str:
        width = max(len(model.card.name) for model in self.models)
        lines = [f"{model.card.name:<{width}}  {model.state:<16}  {model.card.title}" for model in self.models]
        return "\n".join([*lines, "", f"cache: {cache_folder()}"])


def find_model(name: str) -> KnownModel:
    """Return the model of a card.

    Raises:
        UsageError: no card has this name.
    """
    card = find_card(name)
    return KnownModel(card, locate(card))


def list_models() -> ModelList:
    """Return all known models."""
    return ModelList([KnownModel(card, locate(card)) for card in list_cards()])


def _plain(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value.value if isinstance(value, Enum) else value for key, value in pairs}


def _describe_tensors(tensors: Iterable[TensorCard]) -> str:
    return ", ".join(f"{tensor.name} {tensor.dtype.value} {list(tensor.shape)}" for tensor in tensors)


def _describe_prediction(prediction: KnownPrediction) -> str:
    return f"{prediction.image}: {prediction.label} {prediction.probability or ''}".rstrip()


def _describe_accuracy(card: ModelCard) -> str:
    accuracy = card.accuracy
    if accuracy is None:
        return ""
    top5 = f", top-5 {accuracy.top5:.2%}" if accuracy.top5 is not None else ""
    return f"top-1 {accuracy.top1:.2%}{top5} on {accuracy.data}"
