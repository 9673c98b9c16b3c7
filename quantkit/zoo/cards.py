"""Model cards: facts about known models, available before a download, in TOML files.

The dataclasses define the format: a key of the file is a field, a table is a nested dataclass, a
list of tables is a tuple of dataclasses. An unknown, missing or ill-typed key is an error that
names the key.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from quantkit.errors import InputError, UnavailableError, UsageError, did_you_mean
from quantkit.ir.tensor import DType

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

Record = TypeVar("Record")
Order = Literal["ilsvrc2012", "synsets_after_0", "synsets", "own"]
Resize = Literal["bilinear", "bilinear_half_pixel"]
Crop = Literal["none", "central", "square"]


@dataclass(frozen=True)
class Archive:
    """Published archive with the files of a model.

    Attributes:
        urls: mirrors of the same file, in the order of preference.
        num_bytes: size of the archive; None if it is not published.
        sha256: digest in hexadecimal; empty if it is not published, so that the members are
            verified instead.
    """

    urls: tuple[str, ...]
    num_bytes: int | None = None
    sha256: str = ""


@dataclass(frozen=True)
class Member:
    """File of an archive, or of the installation if the card has no archive.

    Attributes:
        name: path inside the archive.
        num_bytes, sha256: as in `Archive`.
        urls: mirrors of the file itself, used if the archive is unavailable.
    """

    name: str
    num_bytes: int | None = None
    sha256: str = ""
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorCard:
    """Input or output: edge, element type, and shape with the batch first (-1 for any size)."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PreprocessingCard:
    """Preprocessing of images: crop, resize, then ``(pixels - mean) / std``.

    Attributes:
        height, width: size of the input in pixels.
        channels: 3 (red, green, blue) or 1 (grayscale).
        mean, std: a scalar, or a value per channel, in units of 8-bit pixels.
        resize: ``bilinear`` as TensorFlow's ``ResizeBilinear``; ``bilinear_half_pixel`` with
            half-pixel centers.
        crop: crop before resizing: ``none``, ``central`` (87.5 % of each side) or ``square`` (the
            largest one).
    """

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3
    resize: Resize = "bilinear"
    crop: Crop = "none"


@dataclass(frozen=True)
class LabelsCard:
    """Labels of the class scores.

    Attributes:
        order: ``ilsvrc2012``: the 1000 class ids of that challenge, 0 and ids above 1000 are
            unused; ``synsets_after_0``: 0 is background, then the 1000 WordNet ids in sorted order;
            ``synsets``: without background; ``own``: as `names` has them.
        files: members with the names.
        card: another card whose archive has `files`; empty if this card's archive has them.
        names: class names in order, for few classes.
    """

    order: Order
    files: tuple[str, ...] = ()
    card: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownPrediction:
    """Known prediction of a model: class and probability of an image."""

    image: str
    class_id: int
    label: str
    probability: float | None = None


@dataclass(frozen=True)
class Accuracy:
    """Published accuracy in [0, 1], and its dataset."""

    data: str
    top1: float
    top5: float | None = None


@dataclass(frozen=True)
class ModelCard:
    """Facts about a known model.

    Attributes:
        name: name of the card in commands.
        title, description: texts for the user.
        license: SPDX identifier of the weights.
        homepage: page of the publication.
        graph: member with the graph.
        members: files that are kept in the cache.
        inputs, outputs: inputs and outputs of the graph for classification.
        preprocessing: preprocessing of images.
        num_classes: number of class scores.
        labels: labels of the class scores.
        recipe: transforms that make the graph ready for inference, in the classic grammar.
        archive: published archive; None if the model is part of the installation.
        jpeg_input: input that takes the content of a JPEG file; empty if the graph has no decoder.
        predictions, accuracy: known results.
    """

    name: str
    title: str
    description: str
    license: str
    graph: str
    members: tuple[Member, ...]
    inputs: tuple[TensorCard, ...]
    outputs: tuple[TensorCard, ...]
    preprocessing: PreprocessingCard
    num_classes: int
    labels: LabelsCard
    recipe: str
    homepage: str = ""
    archive: Archive | None = None
    jpeg_input: str = ""
    predictions: tuple[KnownPrediction, ...] = ()
    accuracy: Accuracy | None = None

    @property
    def is_bundled(self) -> bool:
        return self.archive is None

    def member(self, name: str) -> Member:
        """Return the member with a name, which must exist."""
        return next(member for member in self.members if member.name == name)


@cache
def list_cards() -> tuple[ModelCard, ...]:
    """List the installed cards in the order of their names.

    Raises:
        InputError: a card cannot be read.
    """
    entries = sorted(
        (file for file in model_files().iterdir() if file.name.endswith(".toml") and file.name.count(".") == 1),
        key=lambda file: file.name,
    )
    cards = []
    for entry in entries:
        card = read_card(entry.read_text(encoding="utf-8"), entry.name)
        if f"{card.name}.toml" != entry.name:
            raise InputError(f"{entry.name}: name is {card.name!r}", hint=f"rename the file to {card.name}.toml")
        cards.append(card)
    return tuple(cards)


def find_card(name: str) -> ModelCard:
    """Find the card with a name.

    Raises:
        UsageError: the card does not exist; the hint suggests the nearest names.
    """
    cards = {card.name: card for card in list_cards()}
    if name not in cards:
        hint = did_you_mean(name, cards) or f"the cards are {', '.join(cards)}"
        raise UsageError(f"there is no model card {name!r}", hint)
    return cards[name]


def model_files() -> "Traversable":
    """Return the folder of cards and bundled models: the installed one, else that of the repository.

    Python that is started in the root of the repository imports its folder ``quantkit``, which does not contain it.

    Raises:
        UnavailableError: there is no such folder.
    """
    from importlib.resources import files

    try:
        return files("quantkit.models")
    except ModuleNotFoundError:
        folder = Path(__file__).parents[2] / "models"
        if folder.is_dir():
            return folder
        raise UnavailableError(
            f"{folder.parent / 'quantkit'} has no model cards",
            hint="start Python in another folder, or run 'pip install -e .' in the repository",
        ) from None


def read_card(text: str, source: str) -> ModelCard:
    """Read a card.

    Args:
        text: content of the TOML file.
        source: name of the file, for messages.

    Raises:
        InputError: the text is not TOML, or a key is unknown, missing or wrong.
    """
    card = parse_table(ModelCard, text, source)
    for contradiction in _contradictions(card):
        raise InputError(f"{source}: {contradiction}", hint="models/README.md explains every key")
    return card


def parse_table(kind: type[Record], text: str, source: str) -> Record:
    """Parse TOML as a dataclass, whose fields define the keys.

    Raises:
        InputError: the text is not TOML, or a key is unknown, missing or ill-typed.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}", hint="models/README.md shows the format") from None
    except RecursionError:
        raise InputError(f"{source} is nested too deeply", hint="models/README.md shows the format") from None
    return _parse_table(kind, table, source)


def _parse_table(kind: type[Record], table: Any, location: str) -> Record:
    """Parse a TOML table as a dataclass, whose field types define the types of the keys."""
    if not isinstance(table, dict):
        raise InputError(f"{location}: expected a table, found {table!r}")
    fields_by_name = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields_by_name:
            hint = did_you_mean(key, fields_by_name) or f"keys: {', '.join(fields_by_name)}"
            raise InputError(f"{location}: unknown key {key!r}", hint)
    for key, field in fields_by_name.items():
        if key not in table and field.default is MISSING:
            raise InputError(f"{location}: {key} is missing", hint="models/README.md explains every key")
    hints = get_type_hints(kind)
    return kind(**{key: _parse_value(hints[key], value, f"{location}: {key}") for key, value in table.items()})


def _parse_value(hint: Any, value: Any, location: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return _parse_value(next(kind for kind in arguments if kind is not NoneType), value, location)
    if origin is tuple:
        values = value if isinstance(value, list) else [value]
        return tuple(_parse_value(arguments[0], item, f"{location}[{index}]") for index, item in enumerate(values))
    if origin is Literal:
        return _parse_choice(str, arguments, value, location)
    if isinstance(hint, type) and is_dataclass(hint):
        return _parse_table(hint, value, location)
    if issubclass(hint, Enum):
        return _parse_choice(hint, tuple(member.value for member in hint), value, location)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise InputError(f"{location}: expected {hint.__name__}, found {value!r}")
    return value


def _parse_choice(kind: Callable[[Any], Any], choices: tuple[str, ...], value: Any, location: str) -> Any:
    if value not in choices:
        hint = did_you_mean(str(value), choices) or "models/README.md explains every key"
        raise InputError(f"{location}: {value!r} is not one of {', '.join(choices)}", hint)
    return kind(value)


def _contradictions(card: ModelCard) -> list[str]:
    """Describe the errors that involve several keys: references, digests, counts."""
    names = [member.name for member in card.members]
    files: list[Archive | Member] = [*card.members, *([card.archive] if card.archive else [])]
    urls = [url for file in files for url in file.urls]
    digests = [file.sha256 for file in files if file.sha256]
    labels = card.labels
    rules = {
        f"name {card.name!r} is not lower-case letters, digits and _": not re.fullmatch(r"[a-z0-9_]+", card.name),
        f"graph {card.graph!r} is not among the members": card.graph not in names,
        "two members have one name": len(set(names)) < len(names),
        "the archive has no urls": card.archive is not None and not card.archive.urls,
        "a sha256 is not 64 hexadecimal digits": not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests),
        "a url is neither http nor https": not all(url.startswith(("http://", "https://")) for url in urls),
        f"preprocessing.channels is {card.preprocessing.channels}, neither 1 nor 3": card.preprocessing.channels
        not in (1, 3),
        "preprocessing.std has a zero": 0 in card.preprocessing.std,
        "labels has neither files nor names": not (labels.files or labels.names),
        f"labels.names has {len(labels.names)} names for {card.num_classes} classes": bool(labels.names)
        and len(labels.names) != card.num_classes,
        "a file of labels is not among the members": not labels.card and not set(labels.files) <= set(names),
    }
    return [sentence for sentence, is_broken in rules.items() if is_broken]
