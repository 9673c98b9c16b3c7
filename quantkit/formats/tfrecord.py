"""TFRecord files and the ``tf.train.Example`` messages in them.

A record has the following little-endian fields:

    uint64 length, uint32 checksum of the length, bytes, uint32 checksum of the bytes

A checksum is a CRC-32C rotated by 15 bits plus a constant, so that checksums of records that contain checksums stay
effective.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantkit.errors import InputError
from quantkit.formats.descriptors import Schema
from quantkit.ir.tensor import Array

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
# These bytes change a register of 0 to all ones, the initial value of a CRC-32C.
_ALL_ONES = bytes.fromhex("54641f64")
_GZIP = b"\x1f\x8b"

_SCHEMA = Schema(
    "quantkit.example",
    """
Example: features 1 Features
Features: feature 1 map<string,Feature>
Feature: bytes_list 1 ?BytesList, float_list 2 ?FloatList, int64_list 3 ?Int64List
BytesList: value 1 *bytes
FloatList: value 1 *float
Int64List: value 1 *int64
""",
)

# A list of bytes, or an array of float32 or int64 with shape (n,).
Features = Mapping[str, list[bytes] | Array]


def is_tfrecord(path: Path) -> bool:
    """Return True if the name or the first bytes of a file are those of a TFRecord file."""
    if ".tfrecord" in path.name.lower():
        return True
    try:
        with path.open("rb") as file:
            start = file.read(_HEADER.size)
    except OSError:
        return False
    return len(start) == _HEADER.size and _HEADER.unpack(start)[1] == masked_checksum(start[:8])


def record_offsets(path: Path) -> list[int]:
    """Return the byte offsets of the records of a file, without reading their content.

    Raises:
        InputError: the file cannot be read, is compressed, damaged or truncated.
    """
    offsets: list[int] = []
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(2) == _GZIP:
                raise InputError(f"{path} is compressed", hint="decompress the file with gunzip")
            end = 0
            while end < size:
                offsets.append(end)
                file.seek(end)
                end += _HEADER.size + _length(file.read(_HEADER.size), path, end) + _CHECKSUM.size
    except OSError as error:
        raise _read_error(path, error) from None
    if not offsets or end > size:
        problem = f"is truncated in record {len(offsets) - 1}" if offsets else "is empty"
        raise InputError(f"{path} {problem}", hint="copy or download the file again")
    return offsets


def read_record(path: Path, offset: int) -> bytes:
    """Read the record at a byte offset of a file.

    Raises:
        InputError: the file cannot be read, or the record is damaged.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            length = _length(file.read(_HEADER.size), path, offset)
            data, checksum = file.read(length), file.read(_CHECKSUM.size)
    except OSError as error:
        raise _read_error(path, error) from None
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != masked_checksum(data):
        raise _checksum_error(path, offset)
    return data


def parse_example(data: bytes, name: str) -> Features:
    """Return the features of a ``tf.train.Example`` by name.

    Args:
        data: record.
        name: name of the record for messages.

    Raises:
        InputError: the record is not a ``tf.train.Example``.
    """
    from google.protobuf.message import DecodeError

    example = _SCHEMA.message_class("Example")()
    try:
        example.ParseFromString(data)
    except DecodeError:
        raise InputError(f"{name} is not a tf.train.Example", hint="write records with tf.train.Example") from None
    return {key: _values(feature) for key, feature in example.features.feature.items()}


def _values(feature: Any) -> list[bytes] | Array:
    if feature.HasField("float_list"):
        return np.array(feature.float_list.value, np.float32)
    if feature.HasField("int64_list"):
        return np.array(feature.int64_list.value, np.int64)
    return list(feature.bytes_list.value)


def masked_checksum(data: bytes) -> int:
    """Return the masked CRC-32C of bytes, as TFRecord files store it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Compute the CRC-32C (Castagnoli) of bytes.

    The register is linear in its input: parts of equal length are processed in parallel lanes and then combined, the
    earlier part advanced by as many zero bytes as the later part is long.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    values = np.frombuffer(_ALL_ONES + data, np.uint8)
    lanes = 1 << max((len(values).bit_length() - 3) // 2, 0)
    steps = -(-len(values) // lanes)
    padded = np.zeros(lanes * steps, np.uint8)
    padded[len(padded) - len(values) :] = values  # leading zeros leave a register of 0 unchanged
    # 32 additional lanes start with one bit each and process zeros: together they advance any register.
    rows = np.zeros((steps, lanes + 32), np.uint8)
    rows[:, :lanes] = padded.reshape(lanes, steps).T
    registers = np.concatenate([np.zeros(lanes, np.uint32), _BITS])
    for row in rows:
        registers = _TABLE[(registers ^ row) & 0xFF] ^ (registers >> 8)
    parts, bit_images = registers[:lanes], registers[lanes:]
    while len(parts) > 1:
        parts, bit_images = _advance(parts[::2], bit_images) ^ parts[1::2], _advance(bit_images, bit_images)
    return int(parts[0]) ^ 0xFFFFFFFF


def _advance(registers: npt.NDArray[np.uint32], bit_images: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Advance registers (n,) by a row of zeros, given the register (32,) that each single bit becomes."""
    has_bit = (registers[:, None] & _BITS) != 0
    return np.asarray(np.bitwise_xor.reduce(np.where(has_bit, bit_images, np.uint32(0)), axis=1))


def _table() -> npt.NDArray[np.uint32]:
    table: npt.NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return table


_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
_TABLE = _table()


def _length(header: bytes, path: Path, offset: int) -> int:
    if len(header) < _HEADER.size:
        raise InputError(f"{path} is truncated at byte {offset}", hint="copy or download the file again")
    length, checksum = _HEADER.unpack(header)
    if checksum != masked_checksum(header[:8]):
        raise _checksum_error(path, offset)
    return int(length)


def _checksum_error(path: Path, offset: int) -> InputError:
    return InputError(
        f"the record at byte {offset} of {path} is damaged: wrong checksum",
        hint="copy or download the file again",
    )


def _read_error(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot read {path}: {(error.strerror or 'unknown error').lower()}")
