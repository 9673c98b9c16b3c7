"""TFRecord files and the ``tf.train.Example`` messages in them.

A record has the following little-endian fields:

    uint64 length, uint32 checksum of the length, bytes, uint32 checksum of the bytes

A file may be compressed (GZIP or ZLIB). Offsets are those of the decompressed content: single records are read from a
decompressed copy without a name, which ends with the process.

A checksum is a CRC-32C rotated by 15 bits plus a constant, so that checksums of records that contain checksums stay
effective.
"""

import io
import os
import shutil
import struct
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np

from quantkit.errors import InputError
from quantkit.formats.crc32c import crc32c, crc32c_of_each
from quantkit.formats.descriptors import Schema
from quantkit.ir.tensor import Array

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MASK = 0xA282EAD8
_GZIP = b"\x1f\x8b"
# zlib reads the header of either format.
_ANY_FORMAT = 32 + zlib.MAX_WBITS
_BLOCK_BYTES = 1 << 20
# Open decompressed copies: a process may open 1,024 files by default.
MAX_COPIES = 256
# A decompressed copy has one position for all threads.
_LOCK = Lock()
# Size from which a list of records is processed at once.
BATCH_BYTES = 4 << 20

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
        with _open_records(path) as file:
            return _is_header(file.read(_HEADER.size))
    except (OSError, EOFError, zlib.error):
        return False


def compression_of(path: Path) -> str:
    """Return the compression of a TFRecord file as ``tf.data`` names it: ``GZIP``, ``ZLIB``, or an empty string.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(_HEADER.size)
    if _is_header(start) or len(start) < 2:
        return ""
    if start.startswith(_GZIP):
        return "GZIP"
    is_zlib = start[0] & 15 == zlib.DEFLATED and start[0] >> 4 <= 7 and int.from_bytes(start[:2], "big") % 31 == 0
    return "ZLIB" if is_zlib else ""


def _is_header(start: bytes) -> bool:
    return len(start) == _HEADER.size and _HEADER.unpack(start)[1] == masked_checksum(start[:8])


class _DecompressedFile(io.RawIOBase):
    """Content of a GZIP file, with all of its members, or of a ZLIB file.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._stream, self._data = zlib.decompressobj(_ANY_FORMAT), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content:
            if self._stream.eof:
                self._data = self._stream.unused_data or self._file.read(_BLOCK_BYTES)
                if not self._data.startswith(_GZIP):
                    return 0
                self._stream = zlib.decompressobj(_ANY_FORMAT)
            self._data = self._data or self._file.read(_BLOCK_BYTES)
            if not self._data:
                raise EOFError
            content = self._stream.decompress(self._data, len(buffer))
            self._data = self._stream.unconsumed_tail
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def _open_records(path: Path) -> BinaryIO:
    """Open a TFRecord file, which may be compressed."""
    return io.BufferedReader(_DecompressedFile(path), _BLOCK_BYTES) if compression_of(path) else path.open("rb")


@contextmanager
def _open_plain(path: Path) -> Iterator[BinaryIO]:
    """Open a file, or the decompressed copy of a compressed one.

    Raises:
        InputError: the compressed data is truncated or damaged.
        OSError: the file cannot be read, or the copy cannot be written.
    """
    status = path.stat()
    copy = _decompress(path, status.st_mtime_ns, status.st_size, os.getpid())
    if copy is not None:
        with _LOCK:
            copy.file.seek(0)
            yield copy.file
        return
    with path.open("rb") as file:
        yield file


class _Copy:
    """Decompressed copy of a file, which is closed with the last reference to this object.

    Attributes:
        file: the copy, which has no name.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        weakref.finalize(self, file.close)


@lru_cache(MAX_COPIES)
def _decompress(path: Path, modified: int, size: int, process: int) -> _Copy | None:
    """Return the decompressed copy of a file, for one state of the file and one process; None if it is uncompressed."""
    if not compression_of(path):
        return None
    with ExitStack() as stack:
        copy = stack.enter_context(tempfile.TemporaryFile())
        try:
            with _open_records(path) as file:
                shutil.copyfileobj(file, copy, _BLOCK_BYTES)
        except EOFError:
            raise InputError(f"{path} is truncated", hint="copy or download the file again") from None
        except zlib.error as error:
            raise _damaged_error(path, error) from None
        stack.pop_all()  # the cache keeps the copy open
    return _Copy(copy)


def _damaged_error(path: Path, error: zlib.error) -> InputError:
    return InputError(f"{path} has damaged compressed data: {str(error).rpartition(': ')[2]}")


def records_size(path: Path) -> int:
    """Return the number of bytes of the records of a file, decompressed.

    Raises:
        InputError: the file cannot be read, or its compressed data is damaged.
    """
    try:
        with _open_plain(path) as file:
            return file.seek(0, os.SEEK_END)
    except OSError as error:
        raise _read_error(path, error) from None


def record_offsets(path: Path) -> list[int]:
    """Return the byte offsets of the records of a file, without reading their content.

    Raises:
        InputError: the file cannot be read, is damaged or truncated.
    """
    offsets: list[int] = []
    try:
        with _open_plain(path) as file:
            size, end = file.seek(0, os.SEEK_END), 0
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
        with _open_plain(path) as file:
            file.seek(offset)
            length = _length(file.read(_HEADER.size), path, offset)
            data, checksum = file.read(length), file.read(_CHECKSUM.size)
    except OSError as error:
        raise _read_error(path, error) from None
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != masked_checksum(data):
        raise _checksum_error(path, offset)
    return data


def find_damaged_record(path: Path) -> str:
    """Return a description of the first damaged record of a file; empty if every checksum matches.

    The file may be compressed. Offsets are those of its decompressed content.

    Raises:
        InputError: the file is empty or truncated, or the length of a record or the compressed data is damaged.
        OSError: the file cannot be read.
    """
    number = 0
    try:
        with _open_records(path) as file:
            for batch in _batches(file, path):
                checksums = crc32c_of_each([data for _, data, _ in batch])
                for (offset, _, stored), crc in zip(batch, checksums, strict=True):
                    if _CHECKSUM.unpack(stored)[0] != mask_checksum(int(crc)):
                        return f"record {number} at byte {offset} has a wrong checksum"
                    number += 1
    except EOFError:
        raise InputError(f"{path} is truncated in record {number}") from None
    except zlib.error as error:
        raise _damaged_error(path, error) from None
    if not number:
        raise InputError(f"{path} is empty")
    return ""


def _batches(file: BinaryIO, path: Path) -> Iterator[list[tuple[int, bytes, bytes]]]:
    """Yield the byte offset, content and stored checksum of records, several megabytes at a time."""
    batch: list[tuple[int, bytes, bytes]] = []
    offset = num_bytes = 0
    while header := file.read(_HEADER.size):
        length = _length(header, path, offset)
        content = bytearray()  # grows with the data of the file: a damaged length allocates no memory
        while (missing := length + _CHECKSUM.size - len(content)) and (block := file.read(min(missing, _BLOCK_BYTES))):
            content += block
        if missing:
            raise InputError(f"{path} is truncated at byte {offset + _HEADER.size + len(content)}")
        batch.append((offset, bytes(content[:length]), bytes(content[length:])))
        offset += _HEADER.size + length + _CHECKSUM.size
        num_bytes += length
        if num_bytes >= BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


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


def encode_example(features: Features) -> bytes:
    """Serialize features as a ``tf.train.Example``; equal features give equal bytes."""
    example = _SCHEMA.message_class("Example")()
    for name, values in features.items():
        feature = example.features.feature[name]
        if isinstance(values, list):
            feature.bytes_list.value.extend(values)
        elif values.dtype == np.float32:
            feature.float_list.value.extend(values.tolist())
        else:
            feature.int64_list.value.extend(values.tolist())
    return bytes(example.SerializeToString(deterministic=True))


def frame_records(records: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of each record in a TFRecord file: the record with its length and both checksums."""
    lengths = [struct.pack("<Q", len(record)) for record in records]
    checksums = [mask_checksum(int(crc)) for crc in crc32c_of_each([*lengths, *records])]
    packed = [_CHECKSUM.pack(checksum) for checksum in checksums]
    parts = zip(lengths, packed[: len(records)], records, packed[len(records) :], strict=True)
    return [b"".join(part) for part in parts]


def masked_checksum(data: bytes) -> int:
    """Return the masked CRC-32C of bytes, as TFRecord files store it."""
    return mask_checksum(crc32c(data))


def mask_checksum(crc: int) -> int:
    """Return a CRC-32C in the masked form of TFRecord files."""
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


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
