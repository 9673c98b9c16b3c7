"""What models are fed, as values: samples in order, and the tensors whose rows they may be.

Samples come in the order of the SHA-256 of their names. So every machine takes the same ones, and the first N of
them are a fair part of all: classes are mixed however the folder is sorted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np

from quantkit.errors import InputError, UsageError
from quantkit.formats.tfrecord import Features, parse_example, read_record
from quantkit.ir.tensor import Array

# Features of an example that hold its encoded picture.
PICTURE_FEATURES = ("image/encoded", "image")


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
        found = picture_in(self.features)
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
        words = [""] * counts.pop() if labels is None else [label_text(label) for label in labels]
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


def picture_in(features: Features) -> bytes | None:
    """The encoded picture of an example, where it holds one."""
    found = next((features[key] for key in PICTURE_FEATURES if key in features), None)
    return found[0] if isinstance(found, list) and found else None


def label_text(label: Any) -> str:
    """A label as a word: of bytes the text, of a number its digits."""
    return label.decode() if isinstance(label, bytes) else str(label)
