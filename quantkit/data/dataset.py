"""Datasets: images or arrays with labels, read one sample at a time.

    FileDataset      images in files or TFRecord files, which are decoded on first use; arrays in NumPy files
    ArrayDataset     rows of arrays
    StreamDataset    elements of any iterable: generators, tf.data, PyTorch DataLoader

Samples of files and arrays come in the order of the SHA-256 of their names: every machine takes the
same subset, and the first N samples mix the classes of a sorted folder. Samples of streams keep
their order.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from quantkit.arguments import type_name
from quantkit.data.array_files import (
    LABEL_NAMES,
    SAMPLES_HINT,
    holds_samples,
    read_arrays,
    split_labels,
    stack_samples,
)
from quantkit.data.images import read_bytes
from quantkit.data.zipped_rows import ZippedRows
from quantkit.errors import InputError, UsageError
from quantkit.formats.tfrecord import Features, parse_example, read_record
from quantkit.ir.tensor import Array, Shape
from quantkit.ops.shape_rules import join_shapes

# Features of a tf.train.Example that hold its encoded image.
IMAGE_FEATURES = ("image/encoded", "image")
# Features of a tf.train.Example that hold its label; WordNet ids come before class numbers, whose
# order differs.
LABEL_FEATURES = ("image/class/synset", "image/class/label", "label", "image/class/text")
# Source of arrays that the caller passes.
ARRAYS = "arrays"
# Number of samples whose shapes show that the shapes of a dataset vary.
FIRST_SAMPLES = 16


@dataclass(frozen=True, eq=False)
class Sample:
    """One image, or one row of each array.

    Attributes:
        name: file name, or index of the row.
        label: WordNet id, class number or class name; empty if the label is not known.
        path: file of the image or the arrays, or TFRecord file; None for rows of arrays.
        offset: byte offset of the record in its TFRecord file; None for another file.
        arrays: row of each array by name; None for images, and for arrays in a file that is not read yet.
    """

    name: str
    label: str = ""
    path: Path | None = None
    offset: int | None = None
    arrays: Mapping[str, Array] | None = None

    def __str__(self) -> str:
        return (
            self.name if self.path is None else str(self.path) + (f" ({self.name})" if self.offset is not None else "")
        )

    def read_features(self) -> Features:
        """Read the features of the sample's record.

        Raises:
            InputError: the record is damaged, or is not a ``tf.train.Example``.
        """
        if self.path is None or self.offset is None:
            raise UsageError(f"sample {self.name} is not a record")
        return parse_example(read_record(self.path, self.offset), f"record {self.name}")

    def read_image(self) -> bytes:
        """Read the encoded image.

        Raises:
            InputError: the file cannot be read, the record is damaged, or it contains no image.
        """
        if self.offset is None:
            return read_bytes(self.path or Path(self.name))
        image = encoded_image(self.read_features())
        if image is None:
            raise InputError(f"record {self.name} contains no image", hint=f"features {' or '.join(IMAGE_FEATURES)}")
        return image


class Dataset(ABC):
    """Samples of one source, in a fixed order.

    Attributes:
        source: description of the source, for messages.
        skipped_files: number of files in a folder that are not images.
    """

    source: str
    skipped_files: int = 0

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of samples; None if it is known only after the last sample."""

    @abstractmethod
    def read(self, rank: int | None = None) -> Iterator[Sample]:
        """Read the samples in order.

        Args:
            rank: number of dimensions of the model's input, batch included; elements of a stream
                with one dimension less are single samples.

        Raises:
            InputError: a record is damaged, or an element is not an array.
            UsageError: a stream that can be read once was read before.
        """

    @abstractmethod
    def example(self, rank: int | None = None) -> Mapping[str, Array]:
        """Return the arrays of the first sample by name; empty for images."""

    def shapes(self, rank: int | None = None) -> Mapping[str, Shape]:
        """Return the shape of each array of a sample by name; sizes that differ between the samples are unknown."""
        shapes = {name: Shape(array.shape) for name, array in self.example(rank).items()}
        for sample in self.read(rank) if self.may_differ else ():
            arrays = sample.arrays or {}
            for name in shapes.keys() & arrays.keys():
                shapes[name] = join_shapes(shapes[name], Shape(arrays[name].shape))
        return shapes

    @property
    def may_differ(self) -> bool:
        """True if the arrays may have another shape in each sample, and can be read again."""
        return False

    def varies(self, rank: int | None = None) -> bool:
        """Return True if the first samples have arrays of different shapes.

        Args:
            rank: rank for `read`.
        """
        if not self.may_differ:
            return False
        shapes = self.subset(FIRST_SAMPLES, keep_order=True).shapes(rank)
        return not all(shape.is_known for shape in shapes.values())

    @abstractmethod
    def subset(self, limit: int | None = None, skip: int = 0, *, keep_order: bool = False) -> Self:
        """Return a part of the dataset, the same one on every machine.

        Args:
            limit: maximum number of samples, or None.
            skip: number of samples to skip at the beginning.
            keep_order: keep the samples in their present order.

        Raises:
            UsageError: no sample is left.
        """

    @abstractmethod
    def part(self, start: int, stop: int) -> Self:
        """Return consecutive samples as a value that is small when it is pickled.

        Raises:
            UsageError: the number of samples is not known.
        """

    @property
    def holds_images(self) -> bool:
        """True if the samples are encoded images."""
        return False


@dataclass(frozen=True)
class FileDataset(Dataset):
    """Images in files, arrays in NumPy files of one sample each, or images or arrays in TFRecord files.

    Attributes:
        samples: samples in order; those of records and NumPy files get their labels and arrays when they are read.
        holds_arrays: True for arrays of numbers, False for images.
        classes: names of the folders that hold the samples, sorted, unless one of them is a class number.
    """

    source: str
    samples: tuple[Sample, ...]
    skipped_files: int = 0
    holds_arrays: bool = False
    classes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.samples)

    @property
    def holds_images(self) -> bool:
        return not self.holds_arrays

    @property
    def may_differ(self) -> bool:
        return self.holds_arrays

    def read(self, rank: int | None = None) -> Iterator[Sample]:
        names = self.example(rank).keys()
        for sample in self.samples:
            content = self._read(sample, rank)
            if content.arrays is not None and content.arrays.keys() != names:
                raise InputError(
                    f"{sample.name} of {self.source} has other arrays than the first sample: "
                    f"{', '.join(content.arrays)}, not {', '.join(names)}",
                    hint="write the same arrays for each sample",
                )
            yield content

    def example(self, rank: int | None = None) -> Mapping[str, Array]:
        return _without_batch_axis(self._first_arrays, rank, self.samples[0]) if self.holds_arrays else {}

    def _read(self, sample: Sample, rank: int | None) -> Sample:
        """Return a sample with its label and its arrays, if it is not an image in a file."""
        if sample.offset is not None:
            features = sample.read_features()
            arrays = feature_arrays(features, sample.name) if self.holds_arrays else None
            return replace(sample, label=record_label(features, sample.name), arrays=arrays)
        if not self.holds_arrays:
            return sample
        arrays, label = read_sample_arrays(sample.path or Path(sample.name))
        return replace(sample, label=sample.label or label, arrays=_without_batch_axis(arrays, rank, sample))

    @cached_property
    def _first_arrays(self) -> Mapping[str, Array]:
        return self._read(self.samples[0], None).arrays or {}

    def subset(self, limit: int | None = None, skip: int = 0, *, keep_order: bool = False) -> Self:
        samples = list(self.samples)
        if not keep_order:
            samples.sort(key=lambda sample: (name_digest(sample.name), str(sample.path)))
        return replace(self, samples=_slice(samples, limit, skip, self.source))

    def part(self, start: int, stop: int) -> Self:
        return replace(self, samples=self.samples[start:stop])


@dataclass(frozen=True, eq=False)
class ArrayDataset(Dataset):
    """Rows of arrays.

    Attributes:
        arrays: arrays by name, each (n, ...), (n,) arrays, or `ZippedRows`; the name is empty for an array without one.
        labels: label of each row, by index.
        rows: indices of the rows that belong to the dataset, in order.
    """

    source: str
    arrays: Mapping[str, Any]
    labels: Sequence[str] | Mapping[int, str]
    rows: Sequence[int]
    skipped_files: int = field(default=0, init=False)

    @classmethod
    def of(cls, arrays: Array | Mapping[str, Array], labels: Any = None, source: str = ARRAYS) -> Self:
        """Make a dataset of arrays.

        Args:
            arrays: (n, ...), or such arrays by input name; every sample has the value of a scalar. Samples of different
                shapes are an array (n,) of arrays.
            labels: (n,) class numbers or names, or (n, k) one-hot rows; None if they are not known.
            source: description of the source, for messages.

        Raises:
            InputError: an array does not hold numbers or text, labels are not UTF-8, there is no
                row, or the numbers of rows differ.
        """
        values_by_name = {
            name: _check_values(array, f"the array {name!r} of {source}" if name else source)
            for name, array in (arrays if isinstance(arrays, Mapping) else {"": arrays}).items()
        }
        texts = None if labels is None else label_texts(np.asarray(labels), source)
        counts = {len(array) for array in values_by_name.values() if array.ndim} | ({len(texts)} if texts else set())
        if len(counts) != 1 or 0 in counts:
            raise InputError(
                f"{source} has no rows, or arrays of different lengths",
                hint=f"the first dimension of each array counts the samples; {SAMPLES_HINT}",
            )
        num_rows = counts.pop()
        rows_by_name = {
            name: array if array.ndim else np.broadcast_to(array, num_rows) for name, array in values_by_name.items()
        }
        return cls(source, rows_by_name, texts or [""] * num_rows, range(num_rows))

    @property
    def size(self) -> int:
        return len(self.rows)

    @property
    def may_differ(self) -> bool:
        return any(array.dtype.kind == "O" for array in self.arrays.values() if not isinstance(array, Mapping))

    def read(self, rank: int | None = None) -> Iterator[Sample]:
        for row in self.rows:
            yield Sample(
                str(row), self.labels[row], arrays={name: _row(array, row) for name, array in self.arrays.items()}
            )

    def example(self, rank: int | None = None) -> Mapping[str, Array]:
        return {name: _row(array, self.rows[0]) for name, array in self.arrays.items()}

    def labeled_by(self, outputs: Iterable[str]) -> Self:
        """Return the rows with the labels of an array that has the name of an output; else unchanged."""
        name = next((name for name in outputs if name in self.arrays), None)
        if name is None:
            return self
        texts = label_texts(np.stack([_row(self.arrays[name], row) for row in self.rows]), self.source)
        return replace(self, labels=dict(zip(self.rows, texts, strict=True)))

    def subset(self, limit: int | None = None, skip: int = 0, *, keep_order: bool = False) -> Self:
        rows = list(self.rows) if keep_order else sorted(self.rows, key=lambda row: name_digest(str(row)))
        selected = _slice(rows, limit, skip, self.source)
        arrays = {
            name: array.select(selected) if isinstance(array, ZippedRows) else array
            for name, array in self.arrays.items()
        }
        return replace(self, arrays=arrays, rows=selected)

    def part(self, start: int, stop: int) -> Self:
        rows = list(self.rows[start:stop])
        arrays = {name: {row: _row(array, row) for row in rows} for name, array in self.arrays.items()}
        return replace(self, arrays=arrays, labels={row: self.labels[row] for row in rows}, rows=rows)


@dataclass(frozen=True, eq=False)
class StreamDataset(Dataset):
    """Elements of an iterable, read one by one.

    Attributes:
        open: returns a new iterator over the elements: arrays (n, ...), arrays by input name, or
            (inputs, labels).
        limit: maximum number of samples, or None.
        skip: number of samples to skip at the beginning.
    """

    source: str
    open: Callable[[], Iterator[Any]]
    limit: int | None = None
    skip: int = 0
    skipped_files: int = field(default=0, init=False)

    @property
    def size(self) -> None:
        return None

    def read(self, rank: int | None = None) -> Iterator[Sample]:
        stop = None if self.limit is None else self.skip + self.limit
        return islice(self._samples(self.open(), rank), self.skip, stop)

    def example(self, rank: int | None = None) -> Mapping[str, Array]:
        sample = next(self._samples(iter([self._first_element]), rank), None)
        return (sample.arrays if sample else None) or {}

    @property
    def may_differ(self) -> bool:
        return not isinstance(self.open, OneTimeStream)  # only its first element can be read again

    def subset(self, limit: int | None = None, skip: int = 0, *, keep_order: bool = False) -> Self:
        left = None if self.limit is None else max(self.limit - skip, 0)
        limits = [number for number in (limit, left) if number is not None]
        if limits and min(limits) < 1:
            raise _empty_error(self.source)
        return replace(self, limit=min(limits) if limits else None, skip=self.skip + skip)

    def part(self, start: int, stop: int) -> Self:
        raise UsageError(
            f"{self.source} is read once and in order, and cannot be divided among processes",
            hint="give files, or arrays in memory",
        )

    @cached_property
    def _first_element(self) -> Any:
        for element in self.open():
            return element
        raise UsageError(f"{self.source} has no elements", hint="give at least one array")

    def _samples(self, elements: Iterable[Any], rank: int | None) -> Iterator[Sample]:
        number = 0
        for element in elements:
            for arrays, label in _rows_of(element, rank, self.source):
                yield Sample(str(number), label, arrays=arrays)
                number += 1


class OneTimeStream:
    """Elements of an iterator, which can be read once, after a look at the first one."""

    def __init__(self, iterator: Iterator[Any], source: str) -> None:
        self._iterator = iterator
        self._source = source
        self._first: list[Any] = []
        self._is_exhausted = False

    def __call__(self) -> Iterator[Any]:
        """Return an iterator over the elements.

        Raises:
            UsageError: the elements were read before.
        """
        if self._is_exhausted:
            raise UsageError(
                f"{self._source} can be read only once, and a second pass is needed",
                hint="give a list, or a function that returns a new iterator",
            )
        yield from self._first
        for element in self._iterator:
            if not self._first:
                self._first.append(element)
            yield element
            self._is_exhausted = True


def encoded_image(features: Features) -> bytes | None:
    """Return the encoded image of an example; None if the example has no image."""
    values = next((features[key] for key in IMAGE_FEATURES if key in features), None)
    return values[0] if isinstance(values, list) and values else None


def feature_arrays(features: Features, name: str) -> dict[str, Array]:
    """Return the features of real numbers, each in the shape of its ``KEY/shape``, if any, and single byte strings.

    Args:
        features: features of a record.
        name: name of the record, for messages.

    Raises:
        InputError: a feature does not have the shape of its ``KEY/shape``.
    """
    arrays = {}
    for key, value in features.items():
        if isinstance(value, list):
            if len(value) == 1 and key not in LABEL_FEATURES:
                arrays[key] = np.array(value[0], object)
        elif value.dtype == np.float32:
            shape = features.get(f"{key}/shape")
            try:
                arrays[key] = value if shape is None else value.reshape([int(size) for size in shape])
            except (ValueError, OverflowError):
                raise InputError(
                    f"record {name}: the {value.size} values of {key!r} do not fit its shape {list(shape or ())}",
                    hint="write the shape of each array with the array",
                ) from None
    return arrays


def record_label(features: Features, name: str) -> str:
    """Return the label of an example; empty if the example has no label.

    Raises:
        InputError: the label is not UTF-8.
    """
    values = next((features[key] for key in LABEL_FEATURES if key in features and len(features[key])), None)
    return "" if values is None else label_text(values[0], f"record {name}")


def label_text(label: Any, source: str) -> str:
    """Return a label as text: decoded bytes, or the digits of a number.

    Raises:
        InputError: the label is bytes that are not UTF-8.
    """
    try:
        return label.decode() if isinstance(label, bytes) else str(label)
    except UnicodeDecodeError:
        raise InputError(f"{source}: the label {bytes(label)!r} is not UTF-8", hint="write labels in UTF-8") from None


def label_texts(labels: Array, source: str) -> list[str]:
    """Return the labels of several rows as texts.

    Args:
        labels: (n,) class numbers or names, or (n, k) one-hot rows; of other values, for example
            masks (n, h, w), the texts are empty.
        source: description of the data, for messages.

    Raises:
        InputError: the labels are a single value or empty, or are not UTF-8.
    """
    _check_characters(labels, f"the labels of {source}")
    if labels.ndim == 0 or 0 in labels.shape:
        raise InputError(
            f"the labels of {source} have the shape {_shape_text(labels)}",
            hint="labels are (n,) class numbers or names, or (n, k) one-hot rows",
        )
    if labels.ndim > 2:
        return [""] * len(labels)
    if labels.ndim == 2:
        labels = labels[:, 0] if labels.shape[1] == 1 else labels.argmax(axis=1)
    return [label_text(label, source) for label in labels]


def to_array(value: Any) -> Array:
    """Convert an array, a tensor of TensorFlow or PyTorch, or nested numbers to a NumPy array.

    A list of arrays of different shapes becomes an array of these arrays.

    Raises:
        UsageError: the value does not hold numbers.
    """
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):  # PyTorch; TensorFlow's tensors have a deprecated method `cpu`
        value = value.detach().cpu()
    try:
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except ValueError:  # a list of arrays of different shapes
        array = stack_samples([to_array(item) for item in value])
    if not _holds_values(array):
        raise UsageError(f"{type_name(value)} is not an array", hint="give arrays of numbers")
    return array


def _holds_values(array: Array) -> bool:
    """Return True if the elements of an array are numbers, texts or bytes, or arrays of them."""
    kind = array.dtype.kind
    if holds_samples(array):
        return all(map(_holds_values, array))
    is_raw = kind == "V" and array.dtype.names is None
    is_text = kind == "O" and all(isinstance(value, str | bytes) for value in array.flat)
    return kind in "biufcSU" or array.dtype.name == "bfloat16" or is_raw or is_text


def _check_values(array: Any, name: str) -> Any:
    """Return an array of numbers or texts, in the byte order of this machine.

    Raises:
        InputError: the elements of the array are something else, for example records or dates.
    """
    if not _holds_values(array):
        raise InputError(
            f"{name} holds {array.dtype.name} elements, which are not numbers", hint="write arrays of numbers"
        )
    if isinstance(array, ZippedRows):
        return array
    if holds_samples(array):
        return stack_samples([_check_values(sample, name) for sample in array])
    _check_characters(array, name)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _check_characters(array: Array, name: str) -> None:
    """Check that the texts of an array consist of characters; NumPy stores and reads any 32-bit number.

    Raises:
        InputError: a text has a number that is not a character.
    """
    if array.dtype.kind != "U" or not array.size:
        return
    characters = np.ascontiguousarray(array).reshape(-1).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    if np.any((characters > sys.maxunicode) | ((characters >= 0xD800) & (characters < 0xE000))):
        raise InputError(f"{name} holds texts that are not Unicode", hint="write texts in UTF-8")


def _rows_of(element: Any, rank: int | None, source: str) -> Iterator[tuple[dict[str, Array], str]]:
    """Split an element of a stream into rows with their labels.

    Args:
        element: arrays (n, ...), or one row; with or without labels.
        rank: number of dimensions of the first input; None if it is not known, 0 if each element is one row.
        source: description of the stream, for messages.

    Raises:
        InputError: the arrays have no rows, or different lengths.
    """
    labels = None
    if isinstance(element, tuple | list) and len(element) in (2, 3):  # (inputs, labels[, weights])
        element, labels = element[0], to_array(element[1])
    elif isinstance(element, tuple | list) and len(element) == 1:
        element = element[0]
    values_by_name = element if isinstance(element, Mapping) else {"": element}
    arrays = {name: to_array(value) for name, value in values_by_name.items()}
    if labels is None:
        arrays, labels = split_labels(arrays)
    first = next(iter(arrays.values()), None)
    has_one_label = labels is not None and labels.ndim == 0
    if has_one_label or rank == 0 or (first is not None and first.ndim in (0, -1 if rank is None else rank - 1)):
        yield arrays, "" if labels is None else label_texts(labels[None], source)[0]
        return
    batch = ArrayDataset.of(arrays, labels, f"an element of {source}")
    for sample in batch.read():
        yield dict(sample.arrays or {}), sample.label


def read_sample_arrays(path: Path) -> tuple[dict[str, Array], str]:
    """Return the arrays of a NumPy file of one sample by name, and its label; empty if the file has no label.

    Raises:
        InputError: the file is broken, or holds something else than numbers and texts.
    """
    content = read_arrays(path, by_row=False)
    arrays = content if isinstance(content, Mapping) else {"": content}
    names = [name for name in arrays if name.lower() in LABEL_NAMES and arrays[name].size == 1 < len(arrays)]
    values = {
        name: _check_values(array, f"the array {name!r} of {path}" if name else str(path))
        for name, array in arrays.items()
        if name not in names[:1]
    }
    if not values:
        raise InputError(f"{path} holds no arrays", hint="write it with numpy.savez")
    return values, label_text(arrays[names[0]].reshape(-1)[0], str(path)) if names else ""


def _without_batch_axis(arrays: Mapping[str, Array], rank: int | None, sample: Sample) -> Mapping[str, Array]:
    """Return the arrays of a NumPy file of one sample without a batch axis of size 1.

    Args:
        arrays: arrays of the sample.
        rank: rank for `Dataset.read`.
        sample: the sample; records have no batch axis.
    """
    has_batch_axis = rank and sample.offset is None and any(array.ndim == rank for array in arrays.values())
    if not has_batch_axis or any(array.shape[:1] != (1,) for array in arrays.values()):
        return arrays
    return {name: array[0] for name, array in arrays.items()}


def _row(array: Array, index: int) -> Array:
    """Return a row of an array; an object of an array of objects keeps its type."""
    row = array[index]
    return row if isinstance(row, np.ndarray) else np.asarray(row, object if array.dtype.kind == "O" else None)


def name_digest(name: str) -> bytes:
    """Return the SHA-256 of the name of a sample, by which samples are sorted."""
    return sha256(name.encode(errors="surrogateescape")).digest()  # file names may hold any bytes


def _slice(ordered: Sequence[Any], limit: int | None, skip: int, source: str) -> tuple[Any, ...]:
    selected = ordered[skip:] if limit is None else ordered[skip : skip + limit]
    if not selected:
        raise _empty_error(source, len(ordered))
    return tuple(selected)


def _shape_text(array: Array) -> str:
    return "x".join(map(str, array.shape)) or "()"


def _empty_error(source: str, size: int | None = None) -> UsageError:
    samples = "no sample" if size is None else f"none of the {size} samples"
    return UsageError(f"{samples} of {source} is left", hint="skip fewer samples, or raise the limit")
