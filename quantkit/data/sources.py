"""Sources of data: from a path, an array or an iterable to a `Dataset`."""

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.arguments import expand_user, public, require_natural, require_positive, type_name, without_none
from quantkit.data.array_files import ARRAY_SUFFIXES, group_samples, read_arrays, split_labels
from quantkit.data.dataset import (
    IMAGE_FEATURES,
    ArrayDataset,
    Dataset,
    FileDataset,
    OneTimeStream,
    Sample,
    StreamDataset,
    encoded_image,
    feature_arrays,
    to_array,
)
from quantkit.errors import InputError, UsageError, did_you_mean
from quantkit.formats.kinds import check_regular
from quantkit.formats.tfrecord import is_tfrecord, record_offsets

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".dib", ".gif", ".webp"})
# Kinds of data files, for help texts and hints.
DATA_KINDS = (
    "a folder of images or of .npy or .npz files of one sample each, flat or with one folder per class, a list file, "
    ".npz, .npy or TFRecord files"
)
_WORDNET_ID = re.compile(r"(n\d{8})(?!\d)")


@public
def as_dataset(
    value: Any, limit: int | None = None, skip: int = 0, *, keep_order: bool = False, inputs: Container[str] = ()
) -> Dataset:
    """Return the `Dataset` of any value that holds data.

    Args:
        value: one of
            - a path: a folder of images, or of ``.npy`` or ``.npz`` files of one sample each, flat or with
              one folder per class; an image; a list file with ``path [label]`` on each line, relative to
              the list; ``.npz`` or ``.npy`` arrays, with or without an array ``labels``; TFRecord files of
              ``tf.train.Example``: a file, a folder, or a pattern as ``train-*``;
            - a list of paths of images and folders, or of ``.npy`` or ``.npz`` files of one sample each;
            - an array (n, ...), or such arrays by input name; samples of different shapes are a list of
              arrays by input name, and in an ``.npz`` file arrays ``x_0``, ``x_1``, ... for the input ``x``;
            - a tuple (inputs, labels) of arrays; labels are class numbers, names or one-hot rows;
            - an iterable of arrays (n, ...), of arrays by input name, or of (inputs, labels): a
              list, a generator, a ``tf.data.Dataset``, a PyTorch ``DataLoader``; elements of single
              samples have no axis n;
            - a function that returns an iterator over such elements;
            - a `Dataset`.
        limit: maximum number of samples, or None.
        skip: number of samples to skip at the beginning.
        keep_order: take files and arrays in their own order instead of the fixed random one.
        inputs: names of the model's inputs: arrays of a file with these names hold rows, not single samples.

    Raises:
        InputError: the data does not exist, is broken or holds no samples.
        UsageError: `value` has another type, or no sample is left.
    """
    require_positive(**without_none(limit=limit))
    require_natural(skip=skip)
    return _dataset(value, inputs).subset(limit, skip, keep_order=keep_order)


@public
def find_images(sources: Iterable[str | os.PathLike[str]]) -> FileDataset:
    """Find the images of files and folders, in the order of the sources.

    Args:
        sources: image files of any name, and folders, whose images are sorted by path.

    Raises:
        UsageError: a source is a web address.
        InputError: a source does not exist, or a folder cannot be read or contains no images.
    """
    samples: list[Sample] = []
    skipped = 0
    for source in sources:
        path = _local_path(source)
        if path.is_dir():
            dataset = _folder_dataset(path, *list_files(path))
            samples += dataset.samples
            skipped += dataset.skipped_files
        else:
            samples.append(Sample(path.name, _wordnet_id(path.name), path))
    count = "1 image" if len(samples) == 1 else f"{len(samples)} images"
    return FileDataset(count, tuple(samples), skipped)


def list_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """List the images of a folder and its other files, at any depth, sorted by path.

    Raises:
        InputError: the folder, or one in it, cannot be read.
    """

    def reject(error: OSError) -> None:
        raise InputError(
            f"folder {str(error.filename or folder)!r} cannot be read: {(error.strerror or 'unknown error').lower()}",
            hint="choose a readable folder",
        ) from None

    images: list[Path] = []
    others: list[Path] = []
    for parent, _, names in os.walk(folder, onerror=reject):
        for name in names:
            if os.path.isfile(os.path.join(parent, name)):
                is_image = os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
                (images if is_image else others).append(Path(parent, name))
    for files in (images, others):
        files.sort(key=lambda file: file.parts)
    return images, others


def _dataset(value: Any, inputs: Container[str]) -> Dataset:
    if isinstance(value, Dataset):
        return value
    if isinstance(value, str | os.PathLike):
        return _read_path(value, inputs)
    if isinstance(value, Mapping):
        return ArrayDataset.of(*split_labels({name: to_array(array) for name, array in value.items()}))
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return ArrayDataset.of(to_array(value))
    if _is_inputs_and_labels(value):
        inputs, labels = value
        arrays = {
            name: to_array(array) for name, array in (inputs if isinstance(inputs, Mapping) else {"": inputs}).items()
        }
        return ArrayDataset.of(arrays, to_array(labels))
    if isinstance(value, list | tuple) and value and all(isinstance(path, str | os.PathLike) for path in value):
        paths = [Path(os.path.expanduser(path)) for path in value]
        if all(path.suffix.lower() in ARRAY_SUFFIXES for path in paths):
            return FileDataset(f"{len(paths)} files", _array_samples(paths), holds_arrays=True)
        return find_images(value)
    name = f"the {type(value).__name__}"
    if isinstance(value, Iterator):
        return StreamDataset(name, OneTimeStream(value, name))
    if hasattr(value, "as_numpy_iterator"):  # tf.data
        return StreamDataset(name, value.as_numpy_iterator)
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return StreamDataset(name, lambda: iter(value))
    if callable(value):
        return StreamDataset(f"the function {getattr(value, '__name__', name)}", _check_result(value))
    raise UsageError(
        f"{type_name(value)} is not a dataset",
        hint=f"give {DATA_KINDS}, arrays, or an iterable of arrays",
    )


def _is_inputs_and_labels(value: Any) -> bool:
    """Return True for a tuple of inputs and as many labels or one-hot rows.

    Raises:
        UsageError: the number of class numbers differs from that of the inputs.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    inputs, labels = value
    inputs = next(iter(inputs.values()), None) if isinstance(inputs, Mapping) else inputs
    if isinstance(inputs, list) and inputs and all(np.ndim(sample) for sample in inputs):  # of any shapes
        inputs = to_array(inputs)
    if not hasattr(inputs, "shape") or (not isinstance(labels, Sequence | np.ndarray) and not hasattr(labels, "shape")):
        return False
    shape, labels = np.shape(to_array(inputs)), to_array(labels)
    if labels.ndim == 1 and len(shape) > 1 and shape[0] != len(labels):
        raise UsageError(
            f"the tuple has {shape[0]} inputs and {len(labels)} labels", hint="give one label for each input"
        )
    return labels.ndim in (1, 2) and shape[:1] == labels.shape[:1]


def _check_result(function: Callable[[], Any]) -> Callable[[], Iterator[Any]]:
    """Return a function that checks that the result of another one can be iterated."""

    def open_stream() -> Iterator[Any]:
        elements = function()
        if not isinstance(elements, Iterable):
            raise UsageError(
                f"the function returned a {type(elements).__name__}, not an iterator",
                hint="return an iterator of arrays",
            )
        return elements.as_numpy_iterator() if hasattr(elements, "as_numpy_iterator") else iter(elements)

    return open_stream


def find_data(source: str | os.PathLike[str]) -> tuple[Path, list[Path]]:
    """Return the path of data, and the files of records that match it if it is a pattern.

    Raises:
        InputError: the data does not exist, or is a pipe or device.
    """
    path, name = Path(os.path.expanduser(source)), os.fspath(source)
    check_regular(path)
    if os.path.exists(path):
        return path, []
    if records := _match_records(path):
        return path, records
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    raise InputError(f"{name} does not exist", hint=did_you_mean(path.name, siblings) or f"data is {DATA_KINDS}")


def _read_path(source: str | os.PathLike[str], inputs: Container[str]) -> Dataset:
    (path, records), name = find_data(source), os.fspath(source)
    if records:
        return _read_records(name, records)
    if path.is_dir():
        images, others = list_files(path)
        if not images and (arrays := [file for file in others if file.suffix.lower() in ARRAY_SUFFIXES]):
            samples, skipped = _array_samples(arrays, path), len(others) - len(arrays)
            return FileDataset(str(path), samples, skipped, holds_arrays=True, classes=_class_names(samples, path))
        if not images and (records := [file for file in others if is_tfrecord(file)]):
            return _read_records(name, records)
        return _folder_dataset(path, images, others)
    if path.suffix.lower() in ARRAY_SUFFIXES:
        arrays = read_arrays(path)
        if not isinstance(arrays, Mapping):
            return ArrayDataset.of(arrays, source=str(path))
        return ArrayDataset.of(*split_labels(group_samples(arrays, inputs)), str(path))
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return FileDataset(str(path), (Sample(path.name, _wordnet_id(path.name), path),))
    if is_tfrecord(path):
        return _read_records(name, [path])
    return _read_list(path)


def _folder_dataset(folder: Path, images: Sequence[Path], others: Sequence[Path]) -> FileDataset:
    """Return the images of a folder.

    Args:
        folder: folder.
        images, others: its files.

    Raises:
        InputError: the folder contains no images.
    """
    if not images:
        raise InputError(
            f"folder {str(folder)!r} contains no images",
            hint=f"add images ({', '.join(sorted(IMAGE_SUFFIXES))}), or .npy or .npz files, or give another folder"
            + (f": this one has {len(others)} other files" if others else ""),
        )
    samples = tuple(Sample(file.name, label_of(file.relative_to(folder).parts), file) for file in images)
    return FileDataset(str(folder), samples, len(others), classes=_class_names(samples, folder))


def _array_samples(files: Iterable[Path], folder: Path | None = None) -> tuple[Sample, ...]:
    """Return the samples of NumPy files of one sample each.

    Args:
        files: the files.
        folder: folder whose subfolders are classes; None for files without labels.

    Raises:
        InputError: a file does not exist.
    """
    return tuple(
        Sample(file.name, "" if folder is None else label_of(file.relative_to(folder).parts), _local_path(file))
        for file in files
    )


def label_of(parts: Sequence[str]) -> str:
    """Return the WordNet id in the name of a file or its folder, else the name of the folder, from a path's parts."""
    *parents, name = parts
    return _wordnet_id(name) or (_wordnet_id(parents[-1]) or parents[-1] if parents else "")


def _class_names(samples: Iterable[Sample], folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the folders of samples; empty if one is a class number, or missing."""
    parents = [(sample.path or folder).relative_to(folder).parts[:-1] for sample in samples]
    names = sorted({parts[-1] for parts in parents if parts})
    return () if not all(parents) or any(name.isdecimal() for name in names) else tuple(names)


def _wordnet_id(name: str) -> str:
    match = _WORDNET_ID.match(name)
    return match[1] if match else ""


def _read_list(path: Path) -> FileDataset:
    if path.suffix == ".py":
        raise InputError(
            f"{path} is a Python file, not data",
            hint=f"data profile and data optimize take {path}:FUNCTION; other commands take the data itself",
        )
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is neither an image nor a list of images",
            hint="a list file has a path on each line, and a label after it if known",
        ) from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {(error.strerror or 'unknown error').lower()}", hint="choose a readable file"
        ) from None
    entries = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    samples = tuple(_entry(path, number, line) for number, line in entries if line and not line.startswith("#"))
    if not samples:
        raise InputError(f"the list {path} is empty", hint="write a path on each line")
    are_arrays = {(sample.path or path).suffix.lower() in ARRAY_SUFFIXES for sample in samples}
    if len(are_arrays) > 1:
        raise InputError(f"the list {path} names images and arrays", hint="write one list for each")
    return FileDataset(str(path), samples, holds_arrays=are_arrays.pop())


def _entry(path: Path, number: int, line: str) -> Sample:
    """Parse a line ``path [label]``; a path with spaces is the longest one that exists."""
    parts = re.split(r"(\s+)", line)
    for end in range(len(parts), 0, -2):
        image = path.parent / expand_user("".join(parts[:end]))
        if image.is_file():
            return Sample(image.name, "".join(parts[end + 1 :]) or _wordnet_id(image.name), image)
    raise InputError(
        f"line {number} of {path} names {parts[0]!r}, which does not exist",
        hint="paths are relative to the folder of the list",
    )


def _match_records(path: Path) -> list[Path]:
    """List the TFRecord files that match a pattern such as ``train-*``."""
    if not set("*?[") & set(path.name) or not path.parent.is_dir():
        return []
    return sorted(file for file in path.parent.glob(path.name) if is_tfrecord(file))


def _read_records(source: str, files: Iterable[Path]) -> FileDataset:
    """Find the records of TFRecord files: images if the first record holds one, else arrays.

    Empty files count only if all files are empty, because each sample of a shard may be damaged.

    Raises:
        InputError: a record is damaged, or the first one holds no image, real numbers or byte string.
    """
    files = list(files)
    filled = [file for file in files if not file.exists() or file.stat().st_size]
    samples = tuple(
        Sample(f"{file.name}#{number}", path=file, offset=offset)
        for file in filled or files
        for number, offset in enumerate(record_offsets(file))
    )
    if not samples:
        raise InputError(f"{source} holds no records", hint="write at least one tf.train.Example")
    features = samples[0].read_features()
    holds_arrays = encoded_image(features) is None
    if holds_arrays and not feature_arrays(features, samples[0].name):
        raise InputError(
            f"the records of {source} hold neither images, real numbers nor single byte strings, "
            f"but {', '.join(sorted(features))}",
            hint=f"images are read from the features {' and '.join(IMAGE_FEATURES)}, as JPEG or PNG",
        )
    return FileDataset(source, samples, holds_arrays=holds_arrays)


def _local_path(source: str | os.PathLike[str]) -> Path:
    text = os.fspath(source)
    scheme, separator, _ = text.partition("://")
    if separator and scheme.isalpha() and len(scheme) > 1:
        raise UsageError(f"{text!r} is a web address", hint="download the image first, then name the file")
    path = Path(os.path.expanduser(source))
    if not os.path.exists(path):
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"image {text!r} does not exist", hint=did_you_mean(path.name, siblings) or "check the path")
    return path
