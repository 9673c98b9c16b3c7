"""TFRecord files: records of bytes, and the examples of TensorFlow in them.

    uint64 length, uint32 checksum of the length, the bytes, uint32 checksum of the bytes       all little-endian

A checksum is a CRC-32C, turned by 15 bits and with a constant added, so that checksums of records that hold checksums
stay good ones.
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
# These bytes bring a register that begins at 0 to all ones, which is what a CRC-32C begins at.
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

# Bytes as they are; numbers as float32 or int64, (n,).
Features = Mapping[str, list[bytes] | Array]


def is_tfrecord(path: Path) -> bool:
    """Whether a file says by its name or its first bytes that it holds records."""
    if ".tfrecord" in path.name.lower():
        return True
    try:
        with path.open("rb") as file:
            start = file.read(_HEADER.size)
    except OSError:
        return False
    return len(start) == _HEADER.size and _HEADER.unpack(start)[1] == masked_checksum(start[:8])


def record_offsets(path: Path) -> list[int]:
    """Where the records of a file begin; what is in them is not read.

    Raises:
        InputError: the file can not be read, is compressed, damaged or cut short.
    """
    found: list[int] = []
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(2) == _GZIP:
                raise InputError(f"{path} is compressed", hint="unpack it first: gunzip")
            end = 0
            while end < size:
                found.append(end)
                file.seek(end)
                end += _HEADER.size + _length(file.read(_HEADER.size), path, end) + _CHECKSUM.size
    except OSError as error:
        raise _unreadable(path, error) from None
    if not found or end > size:
        what = f"is cut short in record {len(found) - 1}" if found else "is empty"
        raise InputError(f"{path} {what}", hint="copy or download it again")
    return found


def read_record(path: Path, offset: int) -> bytes:
    """The bytes of the record that begins at a place of a file.

    Raises:
        InputError: the file can not be read, or the record is damaged.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            length = _length(file.read(_HEADER.size), path, offset)
            data, checksum = file.read(length), file.read(_CHECKSUM.size)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != masked_checksum(data):
        raise _damaged(path, offset)
    return data


def parse_example(data: bytes, name: str) -> Features:
    """The features of a ``tf.train.Example``.

    Args:
        data: a record.
        name: of the record, for messages.

    Raises:
        InputError: it is none.
    """
    from google.protobuf.message import DecodeError

    example = _SCHEMA.message_class("Example")()
    try:
        example.ParseFromString(data)
    except DecodeError:
        raise InputError(f"{name} is no tf.train.Example", hint="write records with tf.train.Example") from None
    return {key: _values(feature) for key, feature in example.features.feature.items()}


def _values(feature: Any) -> list[bytes] | Array:
    if feature.HasField("float_list"):
        return np.array(feature.float_list.value, np.float32)
    if feature.HasField("int64_list"):
        return np.array(feature.int64_list.value, np.int64)
    return list(feature.bytes_list.value)


def masked_checksum(data: bytes) -> int:
    """The checksum that the file holds for these bytes."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of some bytes.

    The register is linear in what it has seen: parts of equal length are taken through it side by side, and then
    joined, the earlier one moved on by as many zeros as the later one is long.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    values = np.frombuffer(_ALL_ONES + data, np.uint8)
    lanes = 1 << max((len(values).bit_length() - 3) // 2, 0)
    steps = -(-len(values) // lanes)
    padded = np.zeros(lanes * steps, np.uint8)
    padded[len(padded) - len(values) :] = values  # zeros before everything leave a register at 0
    # 32 more lanes begin with one bit each and see zeros: where they end says how any register moves on.
    fed = np.zeros((steps, lanes + 32), np.uint8)
    fed[:, :lanes] = padded.reshape(lanes, steps).T
    registers = np.concatenate([np.zeros(lanes, np.uint32), _BITS])
    for row in fed:
        registers = _TABLE[(registers ^ row) & 0xFF] ^ (registers >> 8)
    parts, moved = registers[:lanes], registers[lanes:]
    while len(parts) > 1:
        parts, moved = _moved(parts[::2], moved) ^ parts[1::2], _moved(moved, moved)
    return int(parts[0]) ^ 0xFFFFFFFF


def _moved(registers: npt.NDArray[np.uint32], moved: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Registers (n,) behind a row of zeros, given where each single bit (32,) ends there."""
    has_bit = (registers[:, None] & _BITS) != 0
    return np.asarray(np.bitwise_xor.reduce(np.where(has_bit, moved, np.uint32(0)), axis=1))


def _table() -> npt.NDArray[np.uint32]:
    table: npt.NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return table


_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
_TABLE = _table()


def _length(header: bytes, path: Path, offset: int) -> int:
    if len(header) < _HEADER.size:
        raise InputError(f"{path} is cut short at byte {offset}", hint="copy or download it again")
    length, checksum = _HEADER.unpack(header)
    if checksum != masked_checksum(header[:8]):
        raise _damaged(path, offset)
    return int(length)


def _damaged(path: Path, offset: int) -> InputError:
    return InputError(
        f"the record at byte {offset} of {path} is damaged: its checksum is another",
        hint="copy or download it again",
    )


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} can not be read: {(error.strerror or 'unknown error').lower()}")
