"""Data that a word names: pictures of a folder, a list or records, or tensors of a NumPy file or of records."""

import os
import re
from pathlib import Path

import numpy as np

from quantkit.data.records import find_records
from quantkit.data.samples import Data, Sample
from quantkit.errors import InputError, did_you_mean
from quantkit.formats.tfrecord import is_tfrecord

PICTURE_ENDINGS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".dib", ".gif", ".webp"})
ARRAY_ENDINGS = frozenset({".npz", ".npy"})
KINDS = "a folder, flat or one for each class, a list file, .npz, .npy or TFRecord files"
LABEL_KEYS = frozenset({"labels", "label", "y", "classes", "targets"})
_WORDNET_ID = re.compile(r"(n\d{8})(?!\d)")


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
        return find_records(str(source), matching, limit, skip)
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(
            f"{os.fspath(source)} does not exist",
            hint=did_you_mean(path.name, siblings) or f"data is {KINDS}",
        )
    if path.is_dir():
        pictures, others = files_of(path)
        if not pictures and (records := [file for file in others if is_tfrecord(file)]):
            return find_records(str(source), records, limit, skip)
        found = _folder(path)
    elif path.suffix.lower() in ARRAY_ENDINGS:
        found = _arrays(path)
    elif path.suffix.lower() in PICTURE_ENDINGS:
        found = Data(str(path), (Sample(path.name, _wordnet_id(path.name), path),))
    elif is_tfrecord(path):
        return find_records(str(source), [path], limit, skip)
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
        raise InputError(
            f"{path} can not be read: {(error.strerror or 'unknown error').lower()}",
            hint="choose a file that you may read",
        ) from None
    entries = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    samples = tuple(_entry(path, number, line) for number, line in entries if line and not line.startswith("#"))
    if not samples:
        raise InputError(f"the list {path} is empty", hint="write a path on each line")
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
