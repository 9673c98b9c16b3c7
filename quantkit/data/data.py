"""Data that a command line names: pictures of a folder, a list or records, or tensors of a NumPy file or of records.

Samples come in the order of the SHA-256 of their names. So every machine takes the same ones, and the first N of
them are a fair part of all: classes are mixed however the folder is sorted.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np

from quantkit.errors import InputError, UsageError, did_you_mean
from quantkit.formats.tfrecord import Features, is_tfrecord, parse_example, read_record, record_offsets
from quantkit.ir.tensor import Array

PICTURE_ENDINGS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".dib", ".gif", ".webp"})
ARRAY_ENDINGS = frozenset({".npz", ".npy"})
KINDS = "a folder, flat or one for each class, a list file, .npz, .npy or TFRecord files"
LABEL_KEYS = frozenset({"labels", "label", "y", "classes", "targets"})
# Features of an example: its encoded picture, and what it shows. WordNet ids go before numbers, whose order differs.
PICTURE_FEATURES = ("image/encoded", "image")
LABEL_FEATURES = ("image/class/synset", "image/class/label", "label", "image/class/text")
_WORDNET_ID = re.compile(r"(n\d{8})(?!\d)")


@dataclass(frozen=True)
class Sample:
    """One picture, or one row of tensors.

    Attributes:
        name: of the file, or the number of the row.
        label: what folder, list or file name says it shows: a WordNet id, a class number or words; empty: nothing.
        path: of the picture, or of the TFRecord file it is in; None: a row of the data's arrays.
        offset: where its record begins in that file.
    """

    name: str
    label: str = ""
    path: Path | None = None
    offset: int | None = None

    @property
    def features(self) -> Features:
        """What its record holds.

        Raises:
            InputError: the record is damaged or no ``tf.train.Example``.
        """
        assert self.path is not None, "rows have no record"
        assert self.offset is not None, "files have no record"
        return parse_example(read_record(self.path, self.offset), f"record {self.name}")

    @property
    def encoded(self) -> bytes:
        """The encoded picture of its record.

        Raises:
            InputError: the record is damaged, or holds no picture.
        """
        found = _picture(self.features)
        if found is None:
            raise InputError(f"record {self.name} holds no picture", hint=f"features {' or '.join(PICTURE_FEATURES)}")
        return found


@dataclass(frozen=True)
class Data:
    """What models are fed.

    Attributes:
        source: as it was named.
        samples: in order.
        arrays: tensors by name, whose rows the samples are; empty: the samples are pictures.
        skipped: files of the folder that are no pictures.
    """

    source: str
    samples: tuple[Sample, ...]
    arrays: Mapping[str, Array] = field(default_factory=dict)
    skipped: int = 0

    @classmethod
    def of(cls, arrays: Array | Mapping[str, Array], labels: Array | None = None, source: str = "arrays") -> Self:
        """Tensors at hand.

        Args:
            arrays: (n, ...), or several of them by name of the input.
            labels: (n,) class numbers or words.
            source: what to call them.

        Raises:
            InputError: there are none, or their first dimensions differ.
        """
        named = dict(arrays) if isinstance(arrays, Mapping) else {"": arrays}
        counts = {len(array) if array.ndim else 0 for array in (*named.values(), *([] if labels is None else [labels]))}
        if not named or len(counts) != 1 or 0 in counts:
            raise InputError(f"{source} holds no rows, or not as many of each", hint="the first dimension counts them")
        words = [""] * counts.pop() if labels is None else [_text(label) for label in labels]
        return cls(source, tuple(Sample(str(row), word) for row, word in enumerate(words)), named)

    def __len__(self) -> int:
        return len(self.samples)

    def part(self, limit: int | None = None, skip: int = 0) -> Self:
        """Some of the samples, the same ones everywhere.

        Args:
            limit: how many at most; None: all that are left.
            skip: how many of the first to leave out.

        Raises:
            UsageError: nothing is left.
        """
        chosen = sorted(self.samples, key=lambda sample: (sha256(sample.name.encode()).digest(), str(sample.path)))
        chosen = chosen[skip:] if limit is None else chosen[skip : skip + limit]
        if not chosen:
            raise UsageError(
                f"nothing is left of the {len(self)} samples of {self.source}", hint="skip fewer, or take more than 0"
            )
        return replace(self, samples=tuple(chosen))

    def rows(self, name: str, samples: Iterable[Sample]) -> Array:
        """Rows of one of the arrays, (samples, ...)."""
        return np.asarray(self.arrays[name][[int(sample.name) for sample in samples]])


def find_data(source: str | os.PathLike[str], limit: int | None = None, skip: int = 0) -> Data:
    """The data that a word names.

    Args:
        source: a folder of pictures, flat or with a folder for each class; one picture; a text file with
            ``path [label]`` on each line, paths beginning at the file's folder; tensors in an ``.npy`` or ``.npz``
            file, the latter with or without ``labels``; or TFRecord files of ``tf.train.Example``: one, a folder of
            them, or a pattern such as ``train-*``, with encoded pictures or else numbers, and perhaps labels.
        limit: how many samples at most; None: all.
        skip: how many of the first to leave out.

    Raises:
        InputError: it does not exist, or holds no data.
        UsageError: nothing is left of it.
    """
    path = Path(source).expanduser()
    if not path.exists() and (matching := _matching(path)):
        return _records(str(source), matching, limit, skip)
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(
            f"{os.fspath(source)} does not exist",
            hint=did_you_mean(path.name, siblings) or f"data is {KINDS}",
        )
    if path.is_dir():
        pictures, others = files_of(path)
        if not pictures and (records := [file for file in others if is_tfrecord(file)]):
            return _records(str(source), records, limit, skip)
        found = _folder(path)
    elif path.suffix.lower() in ARRAY_ENDINGS:
        found = _arrays(path)
    elif path.suffix.lower() in PICTURE_ENDINGS:
        found = Data(str(path), (Sample(path.name, _wordnet_id(path.name), path),))
    elif is_tfrecord(path):
        return _records(str(source), [path], limit, skip)
    else:
        found = _list(path)
    return found.part(limit, skip)


def files_of(folder: Path) -> tuple[list[Path], list[Path]]:
    """The pictures of a folder and its other files, at any depth, sorted by path.

    Raises:
        InputError: the folder, or one in it, can not be read.
    """

    def refuse(error: OSError) -> None:
        raise InputError(
            f"folder {str(error.filename or folder)!r} can not be read: {(error.strerror or 'unknown error').lower()}",
            hint="choose a folder that you may read",
        ) from None

    files = sorted(
        file
        for inside, _, names in os.walk(folder, onerror=refuse)
        for name in names
        if (file := Path(inside, name)).is_file()
    )
    pictures = [file for file in files if file.suffix.lower() in PICTURE_ENDINGS]
    return pictures, [file for file in files if file.suffix.lower() not in PICTURE_ENDINGS]


def pictures_of(folder: Path) -> tuple[list[Path], int]:
    """The pictures of a folder, and how many other files it holds.

    Raises:
        InputError: it can not be read, or holds no pictures.
    """
    pictures, others = files_of(folder)
    if not pictures:
        raise InputError(
            f"folder {str(folder)!r} holds no pictures",
            hint=f"looked for {', '.join(sorted(PICTURE_ENDINGS))} among {len(others)} files",
        )
    return pictures, len(others)


def _folder(folder: Path) -> Data:
    pictures, skipped = pictures_of(folder)
    samples = tuple(Sample(file.name, _label_of(file, folder), file) for file in pictures)
    return Data(str(folder), samples, skipped=skipped)


def _label_of(file: Path, folder: Path) -> str:
    """The WordNet id that the file's name or its class's folder begins with, or else that folder's name."""
    inside = file.relative_to(folder).parts[:-1]
    return _wordnet_id(file.name) or (_wordnet_id(inside[-1]) or inside[-1] if inside else "")


def _wordnet_id(name: str) -> str:
    found = _WORDNET_ID.match(name)
    return found[1] if found else ""


def _list(path: Path) -> Data:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is neither a picture nor a list of them",
            hint="a list is text with a path on each line, and a label behind it where one is known",
        ) from None
    except OSError as error:
        raise InputError(f"{path} can not be read: {error.strerror}") from None
    entries = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    samples = tuple(_entry(path, number, line) for number, line in entries if line and not line.startswith("#"))
    if not samples:
        raise InputError(f"the list {path} is empty")
    return Data(str(path), samples)


def _entry(path: Path, number: int, line: str) -> Sample:
    """A line ``path [label]``; a path may hold spaces, so the longest one that exists counts."""
    words = re.split(r"(\s+)", line)
    for end in range(len(words), 0, -2):
        picture = path.parent / Path("".join(words[:end])).expanduser()
        if picture.is_file():
            return Sample(picture.name, "".join(words[end + 1 :]) or _wordnet_id(picture.name), picture)
    raise InputError(
        f"line {number} of {path} names {words[0]!r}, which does not exist", hint="paths begin at the list's folder"
    )


def _arrays(path: Path) -> Data:
    try:
        if path.suffix.lower() == ".npy":
            return Data.of(np.load(path, mmap_mode="r"), source=str(path))
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path} can not be read as NumPy's: {str(error).splitlines()[0]}", hint="write it with numpy.savez"
        ) from None
    key = next((name for name in arrays if name.lower() in LABEL_KEYS and arrays[name].ndim == 1), None)
    labels = arrays.pop(key) if key is not None and len(arrays) > 1 else None
    return Data.of(arrays, labels, str(path))


def _matching(path: Path) -> list[Path]:
    """The TFRecord files that a pattern such as ``train-*`` stands for."""
    if not set("*?[") & set(path.name) or not path.parent.is_dir():
        return []
    return sorted(file for file in path.parent.glob(path.name) if is_tfrecord(file))


def _records(source: str, files: Iterable[Path], limit: int | None, skip: int) -> Data:
    """The chosen records, only these of which are read: pictures where they hold some, else their numbers."""
    samples = tuple(
        Sample(f"{file.name}#{number}", path=file, offset=offset)
        for file in files
        for number, offset in enumerate(record_offsets(file))
    )
    chosen = Data(source, samples).part(limit, skip)
    if _picture(chosen.samples[0].features) is not None:
        return replace(chosen, samples=tuple(replace(one, label=_label(one.features)) for one in chosen.samples))
    examples = [one.features for one in chosen.samples]
    labels = np.array(list(map(_label, examples)))
    return Data.of(_numbers(source, examples), labels if labels.any() else None, source)


def _picture(features: Features) -> bytes | None:
    found = next((features[key] for key in PICTURE_FEATURES if key in features), None)
    return found[0] if isinstance(found, list) and found else None


def _label(features: Features) -> str:
    values = next((features[key] for key in LABEL_FEATURES if key in features and len(features[key])), None)
    return "" if values is None else _text(values[0])


def _numbers(source: str, examples: Sequence[Features]) -> dict[str, Array]:
    """Features that hold real numbers, (n, ...), each with its ``KEY/shape`` where there is one.

    Raises:
        InputError: there is none, or they differ in size.
    """
    found: dict[str, Array] = {}
    for key, value in examples[0].items():
        if isinstance(value, list) or value.dtype != np.float32:
            continue
        rows = [example[key] for example in examples if key in example]
        if len(rows) != len(examples) or len({len(row) for row in rows}) != 1:
            raise InputError(f"feature {key!r} of {source} has not the same size in all records")
        stacked = np.array(rows)
        shape = examples[0].get(f"{key}/shape")
        found[key] = stacked if shape is None else stacked.reshape(len(rows), *(int(size) for size in shape))
    if not found:
        raise InputError(
            f"the records of {source} hold neither pictures nor real numbers, but {', '.join(sorted(examples[0]))}",
            hint=f"pictures are read from the features {' and '.join(PICTURE_FEATURES)}, as JPEG or PNG",
        )
    return found


def _text(label: Any) -> str:
    return label.decode() if isinstance(label, bytes) else str(label)
