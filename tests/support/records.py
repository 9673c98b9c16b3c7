"""TFRecord files and examples for tests, written without TensorFlow."""

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from quantkit.formats import tfrecord
from quantkit.ir.tensor import Array


def write_records(path: Path, records: Iterable[bytes]) -> Path:
    """Write a TFRecord file and return its path."""
    with path.open("wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            for part in (length, record):
                file.write(part + struct.pack("<I", tfrecord.masked_checksum(part)))
    return path


def example(**features: list[bytes] | Array) -> bytes:
    """Return a serialized ``tf.train.Example``; ``__`` in a name stands for ``/``."""
    message = tfrecord._SCHEMA.message_class("Example")()
    for name, values in features.items():
        feature = message.features.feature[name.replace("__", "/")]
        if isinstance(values, list):
            feature.bytes_list.value.extend(values)
        elif values.dtype == np.float32:
            feature.float_list.value.extend(values.tolist())
        else:
            feature.int64_list.value.extend(values.tolist())
    return bytes(message.SerializeToString())
