"""Class labels: names by class id, in the three orders of ImageNet.

The id of a class is the index of its score in the output. Names are not unique: ImageNet has two
classes named "crane". The same thousand classes are ordered in two ways, and no class has the same
id in both, so that a label file of one order makes every prediction of the other wrong:

    order               scores   giant panda   tench   kit fox
    ilsvrc2012            1008           169     449         1   ids of the 2012 challenge; the 2015 graph
    synsets_after_0       1001           389       1       279   sorted by WordNet id after a background class
    synsets               1000           388       0       278   sorted by WordNet id
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Self

from quantkit.errors import InputError
from quantkit.formats.documents import check_structure
from quantkit.formats.kinds import check_regular

LABEL_MAP_FILE = "imagenet_2012_challenge_label_map_proto.pbtxt"
NAMES_FILE = "imagenet_synset_to_human_label_map.txt"


class Order(Enum):
    """Order of the classes of a model or a label file."""

    ILSVRC2012 = "ilsvrc2012"
    SYNSETS_AFTER_0 = "synsets_after_0"
    SYNSETS = "synsets"
    OWN = "own"

    def __str__(self) -> str:
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    Order.ILSVRC2012: "in the order of the 2015 release",
    Order.SYNSETS_AFTER_0: "in the order of the sorted synsets after a background class",
    Order.SYNSETS: "in the order of the sorted synsets",
    Order.OWN: "in a different order",
}
_NUM_CLASSES = {Order.ILSVRC2012: 1008, Order.SYNSETS_AFTER_0: 1001, Order.SYNSETS: 1000}

# Classes that identify an order: WordNet id, first name, id in the 2012 challenge, rank among the
# sorted synsets.
_LANDMARKS = (
    ("n01440764", "tench", 449, 0),
    ("n01514859", "hen", 384, 8),
    ("n02119789", "kit fox", 1, 278),
    ("n02510455", "giant panda", 169, 388),
    ("n03255030", "dumbbell", 1000, 543),
    ("n03763968", "military uniform", 866, 652),
)
# Label files differ in spelling, and some are damaged; two landmarks do not match an order by
# chance.
_LANDMARKS_NEEDED = 4

_WORDNET_ID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Labels:
    """Classes of a model by id.

    Attributes:
        names: name of each class; ids without a name are unused.
        wordnet: WordNet id of each class, if known.
        order: order of the classes.
        length: number of class ids, from 0.
        source: file of the labels; empty if there is no file.
    """

    names: Mapping[int, str] = field(default_factory=dict)
    wordnet: Mapping[int, str] = field(default_factory=dict)
    order: Order = Order.OWN
    length: int = 0
    source: str = ""

    @classmethod
    def of_folders(cls, names: Sequence[str], num_classes: int | None, source: str) -> Self:
        """Return the labels of one folder per class, in sorted order, as torchvision and Keras number them.

        Args:
            names: sorted names of the folders.
            num_classes: number of classes of the model; of another number of folders, the labels are empty.
            source: the folder that contains them.
        """
        if not names or len(names) != num_classes:
            return cls()
        return cls(dict(enumerate(names)), {}, Order.OWN, len(names), f"the {len(names)} folders of {source}, sorted")

    def to_json(self) -> dict[str, Any]:
        """Return names, WordNet ids and order as JSON values, for `from_json`."""
        names, wordnet = ([texts.get(index) for index in range(self.length)] for texts in (self.names, self.wordnet))
        return {"names": names, "order": self.order.value, **({"wordnet": wordnet} if self.wordnet else {})}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], source: str) -> Self:
        """Return the labels of JSON values.

        Args:
            document: value of `to_json`.
            source: file that holds the value.

        Raises:
            KeyError, ValueError: the values are not labels.
        """
        check_structure(document, {"names": [str | None], "order": str}, "labels")
        check_structure(wordnet := document.get("wordnet", []), [str | None], "labels['wordnet']")
        lists = (document["names"], wordnet)
        names, ids = ({index: text for index, text in enumerate(texts) if text} for texts in lists)
        return cls(names, ids, Order(document["order"]), len(document["names"]), source)

    @property
    def are_known(self) -> bool:
        """True if there are any names."""
        return bool(self.names)

    def name(self, class_id: int) -> str:
        """Return the name of a class for display; its id if the labels are not known.

        >>> Labels({1: "tench, Tinca tinca"}, length=2).name(1)
        'tench, Tinca tinca'
        >>> Labels().name(7)
        'class 7'
        >>> Labels({1: "tench"}, length=2).name(0)
        '(unused)'
        """
        if not self.are_known:
            return f"class {class_id}"
        return self.names.get(class_id) or "(unused)"

    def fits(self, num_outputs: int, order: Order | None = None) -> bool:
        """Return True if the labels match a model; see `check`."""
        if self.order is Order.OWN:
            return self.length == num_outputs
        return self.order is (order or order_of(num_outputs))

    def check(self, num_outputs: int, order: Order | None = None) -> None:
        """Check that the labels match a model.

        Args:
            num_outputs: number of class scores of the model.
            order: order of the model's classes; if None it follows from `num_outputs`.

        Raises:
            InputError: the length or the order differs.
        """
        if not self.are_known or self.fits(num_outputs, order):
            return
        expected = order or order_of(num_outputs)
        if self.order is Order.OWN:
            raise InputError(
                f"the model has {num_outputs} class scores; the label file {self.source!r} has {self.length}: "
                "the labels belong to another model",
                hint=_HINTS.get(expected, "a label file has one line per class score, in order"),
            )
        raise InputError(
            f"the model has {num_outputs} class scores{_order_text(expected)}; the label file {self.source!r} "
            f"has {self.length} {self.order}: every prediction would be wrong",
            hint=_HINTS.get(expected, "give the labels that the model was trained with"),
        )


_HINTS = {
    Order.ILSVRC2012: f"use {LABEL_MAP_FILE} with {NAMES_FILE} in its folder, from inception-2015-12-05.tgz",
    Order.SYNSETS_AFTER_0: "use a label file of 1001 lines: 'background', then 'tench'",
    Order.SYNSETS: "use a label file of 1000 lines that begins with 'tench'",
}


def order_of(num_outputs: int) -> Order:
    """Return the ImageNet order with a number of class scores; `Order.OWN` otherwise.

    >>> order_of(1008).value
    'ilsvrc2012'
    """
    return next((order for order, count in _NUM_CLASSES.items() if count == num_outputs), Order.OWN)


def read_labels(path: Path) -> Labels:
    """Read the labels of a file or folder.

    Formats: a list with one class per line (``name``, ``7:name``, ``n01440764 name``, or a WordNet
    id); either file of the 2015 release, with the other in the same folder; a folder with one of
    these.

    Args:
        path: file or folder.

    Raises:
        InputError: the file does not exist, is empty, is not text, or has an unknown format.
    """
    if path.is_dir():
        return read_labels(_in_folder(path))
    text = _read_text(path)
    if "target_class" in text and "{" in text:
        return _read_label_map(path, path.with_name(NAMES_FILE))
    lines = text.rstrip().splitlines()
    is_dictionary = len(lines) > 1008 and all(_WORDNET_ID.match(line) and "\t" in line for line in lines)
    if is_dictionary:
        if not path.with_name(LABEL_MAP_FILE).exists():
            raise InputError(
                f"{str(path)!r} maps WordNet ids to names, but not to class ids",
                hint=f"copy {LABEL_MAP_FILE} to the same folder",
            )
        return _read_label_map(path.with_name(LABEL_MAP_FILE), path)
    return _from_list(lines, path)


def find_labels(folder: Path) -> Path | None:
    """Return the 2015 label map of a folder; None unless both files of the release exist."""
    label_map = folder / LABEL_MAP_FILE
    return label_map if label_map.is_file() and (folder / NAMES_FILE).is_file() else None


def _in_folder(folder: Path) -> Path:
    pair = find_labels(folder)
    if pair is not None:
        return pair
    lists = sorted(file for file in folder.glob("*.txt") if file.is_file())
    if len(lists) != 1:
        content = "several text files" if lists else "no label file"
        raise InputError(f"folder {str(folder)!r} has {content}", hint="name the label file itself: --labels FILE")
    return lists[0]


def _read_text(path: Path) -> str:
    check_regular(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            f"label file {str(path)!r} cannot be read: {error.strerror or error}",
            hint="remove --labels to use the labels of the model",
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"label file {str(path)!r} is not text", hint="labels are text with one class per line, in UTF-8"
        ) from None
    if not text.strip():
        raise InputError(f"label file {str(path)!r} is empty", hint="copy it from the archive again")
    if text.lstrip()[:15].lower().startswith(("<!doctype", "<html")):
        raise InputError(f"label file {str(path)!r} is a web page", hint="the download saved an error page: try again")
    return text


def _read_label_map(label_map: Path, names_file: Path) -> Labels:
    wordnet: dict[int, str] = {}
    for entry in re.findall(r"entry\s*\{([^}]*)\}", _read_text(label_map)):
        number = re.search(r"target_class:\s*(\d+)", entry)
        synset = re.search(r'target_class_string:\s*"([^"]*)"', entry)
        if number is None or synset is None:
            raise InputError(
                f"label map {str(label_map)!r} has an entry without class or WordNet id: {entry.strip()!r}",
                hint="copy it from the archive again",
            )
        class_id = int(number[1])
        if wordnet.setdefault(class_id, synset[1]) != synset[1]:
            raise InputError(
                f"label map {str(label_map)!r} assigns two WordNet ids to class {class_id}",
                hint="copy it from the archive again",
            )
    if not wordnet:
        raise InputError(f"label map {str(label_map)!r} has no entries", hint="copy it from the archive again")
    if not names_file.is_file():
        raise InputError(
            f"label map {str(label_map)!r} has WordNet ids, and {names_file.name} with their names is missing",
            hint=f"copy {names_file.name} of the same archive to {str(label_map.parent)!r}",
        )
    names_by_synset = _read_names(names_file)
    names = {class_id: names_by_synset.get(synset, synset) for class_id, synset in wordnet.items()}
    order, _ = _recognize_order([f"{wordnet.get(class_id, '')} " for class_id in range(max(wordnet) + 1)])
    return Labels(names, wordnet, order, max(wordnet) + 1, str(label_map))


def _from_list(lines: Sequence[str], path: Path) -> Labels:
    entries = [line.strip() for line in lines]
    numbered = [re.fullmatch(rf"{index}\s*:\s*(.*)", entry) for index, entry in enumerate(entries)]
    if all(numbered):
        entries = [match[1] for match in numbered if match]
    order, first = _recognize_order(entries)
    wordnet: dict[int, str] = {}
    names: dict[int, str] = {}
    names_by_synset = (
        _read_names(path.with_name(NAMES_FILE)) if all(_WORDNET_ID.fullmatch(entry) for entry in entries) else {}
    )
    for class_id, entry in enumerate(entries, first):
        synset = _WORDNET_ID.match(entry)
        if synset:
            wordnet[class_id] = synset[0]
            entry = entry[synset.end() :].strip(" \t,:") or names_by_synset.get(synset[0], synset[0])
        if entry:
            names[class_id] = entry
    return Labels(names, wordnet, order, len(entries) + first, str(path))


def _read_names(dictionary: Path) -> dict[str, str]:
    """Read names by WordNet id; empty if the file does not exist."""
    if not dictionary.is_file():
        return {}
    split = (line.partition("\t") for line in _read_text(dictionary).splitlines())
    return {synset: meaning.strip() for synset, _, meaning in split}


def _recognize_order(entries: Sequence[str]) -> tuple[Order, int]:
    """Return the order of a label file, and the id of its first entry.

    >>> _recognize_order(["cat", "dog"])
    (<Order.OWN: 'own'>, 0)
    """
    # The ids of the 2012 challenge begin with 1: some label files omit the line of id 0.
    kinds = ((Order.ILSVRC2012, 0), (Order.ILSVRC2012, 1), (Order.SYNSETS_AFTER_0, 0), (Order.SYNSETS, 0))
    for order, first in kinds:
        matches = 0
        for synset, name, challenge_id, rank in _LANDMARKS:
            sorted_index = rank + (order is Order.SYNSETS_AFTER_0)
            index = challenge_id - first if order is Order.ILSVRC2012 else sorted_index
            matches += index < len(entries) and _is_landmark(entries[index], synset, name)
        if matches >= _LANDMARKS_NEEDED:
            return order, first
    return Order.OWN, 0


def _is_landmark(entry: str, synset: str, name: str) -> bool:
    if entry.startswith(synset):
        return True
    return entry.partition(",")[0].strip().replace("_", " ").casefold() == name


def _order_text(order: Order) -> str:
    return "" if order is Order.OWN else f" {order}"
