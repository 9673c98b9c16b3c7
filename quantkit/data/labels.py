"""Which words belong to which of a network's numbers.

A class is known by its id: the index of its number in the graph's output. Words are for people, and two
ImageNet classes are both called "crane". The same thousand classes are numbered in two ways, in which no
class has the same number, so that a label file of the one makes every answer of the other wrong:

    order              numbers   giant panda   tench   kit fox
    ilsvrc2012            1008           169     449         1   ids of the 2012 challenge; the 2015 graph
    synsets_after_0       1001           389       1       279   sorted by WordNet id after a background class
    synsets               1000           388       0       278   sorted by WordNet id
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from quantkit.errors import InputError

LABEL_MAP_FILE = "imagenet_2012_challenge_label_map_proto.pbtxt"
WORDS_FILE = "imagenet_synset_to_human_label_map.txt"


class Order(Enum):
    """How the classes of a graph or a label file are numbered."""

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
    Order.OWN: "in an order of its own",
}
_NUMBERS = {Order.ILSVRC2012: 1008, Order.SYNSETS_AFTER_0: 1001, Order.SYNSETS: 1000}

# Classes by which an order is recognised: WordNet id, first words, id in the 2012 challenge, rank among
# the sorted synsets.
_LANDMARKS = (
    ("n01440764", "tench", 449, 0),
    ("n01514859", "hen", 384, 8),
    ("n02119789", "kit fox", 1, 278),
    ("n02510455", "giant panda", 169, 388),
    ("n03255030", "dumbbell", 1000, 543),
    ("n03763968", "military uniform", 866, 652),
)
# Lists differ in spelling and some are damaged; by chance not even two landmarks stand where an order has them.
_LANDMARKS_NEEDED = 4

_WORDNET_ID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Labels:
    """The classes of a network by id.

    Attributes:
        words: what each class is called; ids without an entry name nothing.
        wordnet: WordNet id of each class, where known.
        order: how the classes are numbered.
        length: how many numbers were listed, counting from 0.
        source: the file they came from, or nothing.
    """

    words: Mapping[int, str] = field(default_factory=dict)
    wordnet: Mapping[int, str] = field(default_factory=dict)
    order: Order = Order.OWN
    length: int = 0
    source: str = ""

    @property
    def are_known(self) -> bool:
        """Whether there are words at all."""
        return bool(self.words)

    def name(self, class_id: int) -> str:
        """Words for people: the class's own, or its number.

        >>> Labels({1: "tench, Tinca tinca"}, length=2).name(1)
        'tench, Tinca tinca'
        >>> Labels().name(7)
        'class 7'
        >>> Labels({1: "tench"}, length=2).name(0)
        '(names nothing)'
        """
        if not self.are_known:
            return f"class {class_id}"
        return self.words.get(class_id) or "(names nothing)"

    def check(self, num_outputs: int, order: Order | None = None) -> None:
        """Refuse labels that can not be those of a graph.

        Args:
            num_outputs: how many numbers the graph gives for a picture.
            order: how the graph's classes are numbered, where known; None: judged by `num_outputs`.

        Raises:
            InputError: the length, or the known order, is another.
        """
        if not self.are_known:
            return
        expected = order or order_of(num_outputs)
        if self.order is Order.OWN:
            if self.length != num_outputs:
                raise InputError(
                    f"this graph gives {num_outputs} numbers; the label file {self.source!r} lists {self.length}: "
                    "the labels belong to another model",
                    hint=_HINTS.get(expected, "a label file has one line for each of the graph's numbers, in order"),
                )
        elif self.order is not expected:
            raise InputError(
                f"this graph gives {num_outputs} numbers{_in_order(expected)}; the label file {self.source!r} "
                f"lists {self.length} {self.order}: every answer would be wrong",
                hint=_HINTS.get(expected, "give the labels this model was trained with"),
            )


_HINTS = {
    Order.ILSVRC2012: f"its labels are {LABEL_MAP_FILE} with {WORDS_FILE} beside it, from inception-2015-12-05.tgz",
    Order.SYNSETS_AFTER_0: "its labels are a list of 1001 lines, 'background' first, then 'tench'",
    Order.SYNSETS: "its labels are a list of 1000 lines, 'tench' first",
}


def order_of(num_outputs: int) -> Order:
    """The order of the ImageNet networks that give so many numbers; `Order.OWN` for any other count.

    >>> order_of(1008).value
    'ilsvrc2012'
    """
    return next((order for order, count in _NUMBERS.items() if count == num_outputs), Order.OWN)


def read_labels(path: Path) -> Labels:
    """Labels of a file or folder, of whatever kind it is.

    Kinds: a list with one class per line (plain words, ``7:words``, ``n01440764 words``, or WordNet ids
    alone); either file of the 2015 pair, with the other beside it; a folder that holds one of these.

    Args:
        path: of the file or folder.

    Raises:
        InputError: missing, empty, not text, or of no known kind.
    """
    if path.is_dir():
        return read_labels(_in_folder(path))
    text = _read_text(path)
    if "target_class" in text and "{" in text:
        return _read_pair(path, path.with_name(WORDS_FILE))
    lines = text.rstrip().splitlines()
    is_dictionary = len(lines) > 1008 and all(_WORDNET_ID.match(line) and "\t" in line for line in lines)
    if is_dictionary:
        if not path.with_name(LABEL_MAP_FILE).exists():
            raise InputError(
                f"{str(path)!r} says what WordNet ids mean, not which of the graph's numbers they are",
                hint=f"put {LABEL_MAP_FILE} beside it",
            )
        return _read_pair(path.with_name(LABEL_MAP_FILE), path)
    return _from_list(lines, path)


def find_labels(folder: Path) -> Path | None:
    """The 2015 pair in a folder, when both files are there: the path of its label map."""
    label_map = folder / LABEL_MAP_FILE
    return label_map if label_map.is_file() and (folder / WORDS_FILE).is_file() else None


def _in_folder(folder: Path) -> Path:
    pair = find_labels(folder)
    if pair is not None:
        return pair
    lists = sorted(file for file in folder.glob("*.txt") if file.is_file())
    if len(lists) != 1:
        what = "several text files" if lists else "no label file"
        raise InputError(f"folder {str(folder)!r} holds {what}", hint="name the label file itself: --labels FILE")
    return lists[0]


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            f"label file {str(path)!r} can not be read: {error.strerror or error}",
            hint="leave out --labels: the labels that came with the model are used",
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


def _read_pair(label_map: Path, words: Path) -> Labels:
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
                f"label map {str(label_map)!r} gives class {class_id} two WordNet ids",
                hint="copy it from the archive again",
            )
    if not wordnet:
        raise InputError(f"label map {str(label_map)!r} has no entries", hint="copy it from the archive again")
    if not words.is_file():
        raise InputError(
            f"label map {str(label_map)!r} gives WordNet ids, and {words.name} is not beside it to say what they mean",
            hint=f"put {words.name} of the same archive into {str(label_map.parent)!r}",
        )
    meanings = _meanings(words)
    named = {class_id: meanings.get(synset, synset) for class_id, synset in wordnet.items()}
    order, _ = _recognise([f"{wordnet.get(class_id, '')} " for class_id in range(max(wordnet) + 1)])
    return Labels(named, wordnet, order, max(wordnet) + 1, str(label_map))


def _from_list(lines: Sequence[str], path: Path) -> Labels:
    entries = [line.strip() for line in lines]
    numbered = [re.fullmatch(rf"{index}\s*:\s*(.*)", entry) for index, entry in enumerate(entries)]
    if all(numbered):
        entries = [match[1] for match in numbered if match]
    order, first = _recognise(entries)
    wordnet: dict[int, str] = {}
    words: dict[int, str] = {}
    meanings = _meanings(path.with_name(WORDS_FILE)) if all(_WORDNET_ID.fullmatch(entry) for entry in entries) else {}
    for class_id, entry in enumerate(entries, first):
        synset = _WORDNET_ID.match(entry)
        if synset:
            wordnet[class_id] = synset[0]
            entry = entry[synset.end() :].strip(" \t,:") or meanings.get(synset[0], synset[0])
        if entry:
            words[class_id] = entry
    return Labels(words, wordnet, order, len(entries) + first, str(path))


def _meanings(dictionary: Path) -> dict[str, str]:
    """Words by WordNet id; empty when the file is not there."""
    if not dictionary.is_file():
        return {}
    split = (line.partition("\t") for line in _read_text(dictionary).splitlines())
    return {synset: meaning.strip() for synset, _, meaning in split}


def _recognise(entries: Sequence[str]) -> tuple[Order, int]:
    """The order of a list, and the id of its first entry.

    >>> _recognise(["cat", "dog"])
    (<Order.OWN: 'own'>, 0)
    """
    # The ids of the 2012 challenge begin with 1: some lists leave out the place of 0.
    kinds = ((Order.ILSVRC2012, 0), (Order.ILSVRC2012, 1), (Order.SYNSETS_AFTER_0, 0), (Order.SYNSETS, 0))
    for order, first in kinds:
        standing = 0
        for synset, words, challenge_id, rank in _LANDMARKS:
            sorted_place = rank + (order is Order.SYNSETS_AFTER_0)
            place = challenge_id - first if order is Order.ILSVRC2012 else sorted_place
            standing += place < len(entries) and _is_landmark(entries[place], synset, words)
        if standing >= _LANDMARKS_NEEDED:
            return order, first
    return Order.OWN, 0


def _is_landmark(entry: str, synset: str, words: str) -> bool:
    if entry.startswith(synset):
        return True
    return entry.partition(",")[0].strip().replace("_", " ").casefold() == words


def _in_order(order: Order) -> str:
    return "" if order is Order.OWN else f" {order}"
