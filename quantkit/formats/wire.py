"""Protobuf wire format: iteration over the fields of a message without copying.

The bytes of large tensors stay in the file while all other fields are parsed.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from quantkit.errors import InputError
from quantkit.formats.kinds import open_file

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

Buffer = memoryview | bytes
# Size limit of a message: a protobuf reader rejects a larger one.
MAX_BYTES = (1 << 31) - 1


class TooLargeError(InputError):
    """Complete file that is larger than its format allows."""


def fields(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the fields of a message.

    Args:
        data: bytes of the file.
        start, end: position of the message in bytes.

    Yields:
        (number, wire type, start of the field, start of its value, end of its value), in bytes.

    Raises:
        InputError: a field is incomplete, or the bytes are not a message.
    """
    position = start
    while position < end:
        begin = position
        tag, position = varint(data, position, end)
        kind = tag & 7
        if tag < 8:
            raise InputError(f"no protobuf field starts at byte {begin}")
        if kind == LENGTH:
            length, position = varint(data, position, end)
            value, position = position, position + length
        elif kind == VARINT:
            value = position
            _, position = varint(data, position, end)
        elif kind in (FIXED32, FIXED64):
            value, position = position, position + (4 if kind == FIXED32 else 8)
        else:
            raise InputError(f"no protobuf field starts at byte {begin}")
        if position > end:
            raise InputError(f"the field at byte {begin} ends {position - end} bytes after the end of its message")
        yield tag >> 3, kind, begin, value, position


def split(data: Buffer, start: int, end: int, *numbers: int) -> tuple[dict[int, list[tuple[int, int]]], bytes]:
    """Separate the length-delimited fields with some numbers from the other fields of a message.

    Args:
        data: bytes of the file.
        start, end: position of the message in bytes.
        numbers: field numbers.

    Returns:
        Start and end of each value by field number, and the bytes of all other fields.

    Raises:
        InputError: a field is incomplete, or the bytes are not a message.
    """
    values: dict[int, list[tuple[int, int]]] = {number: [] for number in numbers}
    rest: list[Buffer] = []
    for number, kind, begin, first, last in fields(data, start, end):
        if number in values and kind == LENGTH:
            values[number].append((first, last))
        else:
            rest.append(data[begin:last])
    return values, b"".join(rest)


def varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Decode a variable-length integer; return (value, position after it).

    Raises:
        InputError: the integer does not end before ``end``, or has more than 64 bits.
    """
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise InputError(f"the file is truncated or broken at byte {position}")


def encode_varint(value: int) -> bytes:
    r"""Encode a non-negative integer as a variable-length integer.

    >>> encode_varint(300)
    b'\xac\x02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def header(number: int, length: int) -> bytes:
    """Return tag and length of a length-delimited field."""
    return encode_varint(number << 3 | LENGTH) + encode_varint(length)


def map_file(path: Path) -> mmap.mmap:
    """Map a file, whose bytes are read on first access.

    Raises:
        InputError: the file is empty, or cannot be read.
        TooLargeError: the file is larger than a protobuf message can be.
    """
    size = path.stat().st_size
    if not size:
        with open_file(path) as file:
            has_content = bool(file.read(1))  # files of /proc have size 0
        if has_content:
            raise InputError("the file has no size", hint="copy its content to a regular file")
        raise InputError("the file is empty")
    if size > MAX_BYTES:
        raise TooLargeError(
            f"the file has {size / 1e9:.2f} GB; the limit of a graph in one file is 2.15 GB",
            hint="save an ONNX model with external data: onnx.save(model, path, save_as_external_data=True)",
        )
    with open_file(path) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
