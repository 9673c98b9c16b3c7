"""What is known of a model before it is downloaded: a card, read from TOML.

The dataclasses are the format: a key of the file is a field, a table is a nested dataclass, a list of tables is a
tuple of them. An unknown, missing or ill-typed key is refused with its place.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from quantkit.errors import InputError, UsageError, did_you_mean
from quantkit.ir.tensor import DType

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

Made = TypeVar("Made")
Order = Literal["ilsvrc2012", "synsets_after_0", "synsets", "own"]
Resize = Literal["bilinear", "bilinear_half_pixel"]
Crop = Literal["none", "central", "square"]


@dataclass(frozen=True)
class Archive:
    """The published file that carries a model.

    Attributes:
        urls: where it is, first choice first; all name the same bytes.
        num_bytes: its size; None where not published.
        sha256: its digest in hexadecimal; empty where not published, the members are then verified.
    """

    urls: tuple[str, ...]
    num_bytes: int | None = None
    sha256: str = ""


@dataclass(frozen=True)
class Member:
    """One file of an archive, or of the installation where the card has no archive.

    Attributes:
        name: its path inside the archive.
        num_bytes, sha256: as in `Archive`.
        urls: where it can be had as a bare file when the archive can not.
    """

    name: str
    num_bytes: int | None = None
    sha256: str = ""
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorCard:
    """An input or output: its edge, element type, and shape with the batch in front (-1: any)."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PreprocessingCard:
    """How a picture becomes the input: crop, resize, then ``(pixels - mean) / std``.

    Attributes:
        height, width: of the input, in pixels.
        channels: 3 (red, green, blue) or 1 (grey).
        mean, std: one number, or one for each channel, in units of 8-bit pixels.
        resize: ``bilinear`` as TensorFlow's ``ResizeBilinear``; ``bilinear_half_pixel`` with halved pixel centres.
        crop: before resizing: ``none``, ``central`` (87.5 % of each side) or ``square`` (the largest one).
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
    """Which class a number of the output names.

    Attributes:
        order: ``ilsvrc2012``: the 1000 class ids of that challenge, 0 and ids above 1000 name nothing;
            ``synsets_after_0``: 0 is background, then the 1000 WordNet ids in sorted order; ``synsets``: without
            background; ``own``: as `names` has them.
        files: members that hold the words.
        card: the card whose archive has `files`, where this one's has not.
        names: words in class order, for few classes.
    """

    order: Order
    files: tuple[str, ...] = ()
    card: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A known answer: this picture gives this class with this probability."""

    picture: str
    class_id: int
    label: str
    probability: float | None = None


@dataclass(frozen=True)
class Accuracy:
    """Published accuracy, in parts of one, and on which data."""

    data: str
    top1: float
    top5: float | None = None


@dataclass(frozen=True)
class ModelCard:
    """A known model.

    Attributes:
        name: as commands take it.
        title, description: for people.
        license: SPDX identifier of the weights.
        homepage: where they were published.
        graph: the member that holds the graph.
        members: every file that is kept.
        inputs, outputs: ends of the graph for classification.
        preprocessing: from picture to input.
        num_classes: numbers in the output.
        labels: what they name.
        recipe: transforms that make the graph ready for inference, in the classic grammar.
        archive: where it is published; None: it is part of the installation.
        jpeg_input: the input that takes the bytes of a JPEG file, where the graph has a decoder.
        answers, accuracy: known results.
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
    answers: tuple[Answer, ...] = ()
    accuracy: Accuracy | None = None

    @property
    def is_bundled(self) -> bool:
        return self.archive is None

    def member(self, name: str) -> Member:
        """The member of a name, which the card has."""
        return next(one for one in self.members if one.name == name)


@cache
def list_cards() -> tuple[ModelCard, ...]:
    """Every installed card, by name.

    Raises:
        InputError: a card can not be read.
    """
    entries = sorted((one for one in model_files().iterdir() if one.name.endswith(".toml")), key=lambda one: one.name)
    cards = []
    for entry in entries:
        card = read_card(entry.read_text(encoding="utf-8"), entry.name)
        if f"{card.name}.toml" != entry.name:
            raise InputError(f"{entry.name}: name is {card.name!r}", hint=f"call the file {card.name}.toml")
        cards.append(card)
    return tuple(cards)


def find_card(name: str) -> ModelCard:
    """The card of a name.

    Raises:
        UsageError: there is none; the hint names the nearest ones.
    """
    cards = {card.name: card for card in list_cards()}
    if name not in cards:
        hint = did_you_mean(name, cards) or f"the cards are {', '.join(cards)}"
        raise UsageError(f"there is no model card {name!r}", hint)
    return cards[name]


def model_files() -> "Traversable":
    """The installed folder of cards and bundled models."""
    from importlib.resources import files

    return files("quantkit.models")


def read_card(text: str, source: str) -> ModelCard:
    """A card from its TOML text.

    Args:
        text: the file's contents.
        source: its name, for messages.

    Raises:
        InputError: not TOML, or a key is unknown, missing or wrong.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}", hint="models/README.md shows the format") from None
    except RecursionError:
        raise InputError(f"{source} nests deeper than any card", hint="models/README.md shows the format") from None
    card = _made(ModelCard, table, source)
    for wrong in _contradictions(card):
        raise InputError(f"{source}: {wrong}", hint="models/README.md explains every key")
    return card


def _made(kind: type[Made], table: Any, place: str) -> Made:
    """A dataclass from a TOML table; field types say what each key must be."""
    if not isinstance(table, dict):
        raise InputError(f"{place}: expected a table, found {table!r}")
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise InputError(f"{place}: unknown key {key!r}", did_you_mean(key, known) or f"keys: {', '.join(known)}")
    for key, field in known.items():
        if key not in table and field.default is MISSING:
            raise InputError(f"{place}: {key} is missing", hint="models/README.md explains every key")
    hints = get_type_hints(kind)
    return kind(**{key: _value(hints[key], value, f"{place}: {key}") for key, value in table.items()})


def _value(hint: Any, value: Any, place: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return _value(next(one for one in arguments if one is not NoneType), value, place)
    if origin is tuple:
        values = value if isinstance(value, list) else [value]
        return tuple(_value(arguments[0], one, f"{place}[{index}]") for index, one in enumerate(values))
    if origin is Literal:
        return _word(str, arguments, value, place)
    if isinstance(hint, type) and is_dataclass(hint):
        return _made(hint, value, place)
    if issubclass(hint, Enum):
        return _word(hint, tuple(one.value for one in hint), value, place)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise InputError(f"{place}: expected {hint.__name__}, found {value!r}")
    return value


def _word(kind: Callable[[Any], Any], known: tuple[str, ...], value: Any, place: str) -> Any:
    if value not in known:
        hint = did_you_mean(str(value), known) or "models/README.md explains every key"
        raise InputError(f"{place}: {value!r} is not one of {', '.join(known)}", hint)
    return kind(value)


def _contradictions(card: ModelCard) -> list[str]:
    """What no single key can say wrong: references, digests, counts."""
    names = [member.name for member in card.members]
    stored: list[Archive | Member] = [*card.members, *([card.archive] if card.archive else [])]
    urls = [url for one in stored for url in one.urls]
    digests = [one.sha256 for one in stored if one.sha256]
    labels = card.labels
    rules = {
        f"name {card.name!r} is not lower-case letters, digits and _": not re.fullmatch(r"[a-z0-9_]+", card.name),
        f"graph {card.graph!r} is not among the members": card.graph not in names,
        "two members have one name": len(set(names)) < len(names),
        "the archive has no urls": card.archive is not None and not card.archive.urls,
        "a sha256 is not 64 hexadecimal digits": not all(re.fullmatch("[0-9a-f]{64}", one) for one in digests),
        "a url is neither http nor https": not all(one.startswith(("http://", "https://")) for one in urls),
        f"preprocessing.channels is {card.preprocessing.channels}, neither 1 nor 3": card.preprocessing.channels
        not in (1, 3),
        "preprocessing.std has a zero": 0 in card.preprocessing.std,
        "labels has neither files nor names": not (labels.files or labels.names),
        f"labels.names has {len(labels.names)} words for {card.num_classes} classes": bool(labels.names)
        and len(labels.names) != card.num_classes,
        "a file of labels is not among the members": not labels.card and not set(labels.files) <= set(names),
    }
    return [sentence for sentence, is_broken in rules.items() if is_broken]
