"""Samples of TFRecord files: encoded pictures, or else numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from quantkit.data.samples import PICTURE_FEATURES, Data, Sample, label_text, picture_in
from quantkit.errors import InputError
from quantkit.formats.tfrecord import Features, record_offsets
from quantkit.ir.tensor import Array

# Features that tell what an example shows. WordNet ids go before numbers, whose order differs.
LABEL_FEATURES = ("image/class/synset", "image/class/label", "label", "image/class/text")


def find_records(source: str, files: Iterable[Path], limit: int | None = None, skip: int = 0) -> Data:
    """The chosen records, only these of which are read: pictures where they hold some, else their numbers.

    Args:
        source: what to call them.
        files: TFRecord files of ``tf.train.Example``.
        limit: how many samples at most; None: all.
        skip: how many of the first to leave out.

    Raises:
        InputError: a record is damaged, or they hold neither pictures nor numbers.
        UsageError: nothing is left of them.
    """
    samples = tuple(
        Sample(f"{file.name}#{number}", path=file, offset=offset)
        for file in files
        for number, offset in enumerate(record_offsets(file))
    )
    chosen = Data(source, samples).part(limit, skip)
    if picture_in(chosen.samples[0].features) is not None:
        return replace(chosen, samples=tuple(replace(one, label=_label(one.features)) for one in chosen.samples))
    examples = [one.features for one in chosen.samples]
    labels = np.array(list(map(_label, examples)))
    return Data.of(_numbers(source, examples), labels if labels.any() else None, source)


def _label(features: Features) -> str:
    values = next((features[key] for key in LABEL_FEATURES if key in features and len(features[key])), None)
    return "" if values is None else label_text(values[0])


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
            raise InputError(
                f"feature {key!r} of {source} has not the same size in all records",
                hint="pad or cut it as the records are written",
            )
        stacked = np.array(rows)
        shape = examples[0].get(f"{key}/shape")
        found[key] = stacked if shape is None else stacked.reshape(len(rows), *(int(size) for size in shape))
    if not found:
        raise InputError(
            f"the records of {source} hold neither pictures nor real numbers, but {', '.join(sorted(examples[0]))}",
            hint=f"pictures are read from the features {' and '.join(PICTURE_FEATURES)}, as JPEG or PNG",
        )
    return found
