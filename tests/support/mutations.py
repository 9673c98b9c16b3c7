"""Seeded mutations of valid files: damage by disks and networks, and malicious lengths and nesting."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from quantkit.formats.wire import encode_varint, header

Random = np.random.Generator
Mutation = Callable[[bytes, Random], bytes]
# Lengths and counts that exceed the memory, 32 bits, or 63 bits (negative as int64).
HUGE_NUMBERS = tuple(
    encode_varint(number) for number in (1 << 31, (1 << 32) - 1, (1 << 40), (1 << 63), (1 << 64) - 1, 0, 1)
)
MAX_DEPTH = 3000
# Paths of recursive message fields: NodeDef.attr ... func.attr, subgraphs, types.
NESTED_FIELDS = (
    (1, 5, 2, 10, 2, 2),
    (1, 5, 2, 1, 9, 2, 2),
    (2, 1, 3, 5, 2, 8, 15, 3),
    (7, 1, 5, 6),
    (7, 11),
    (5, 1, 2),
)
TOKENS = (
    "{",
    "}",
    "[",
    "]",
    '"',
    "'",
    ":",
    "=",
    ",",
    "\n",
    "\\",
    "-",
    "1e999",
    "nan",
    "null",
    "true",
    "99999999999999999999",
)


def _random_position(data: bytes, random: Random) -> int:
    return int(random.integers(0, max(len(data), 1)))


def flip_bits(data: bytes, random: Random) -> bytes:
    """Flip up to eight bits."""
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 9))):
        changed[_random_position(data, random)] ^= 1 << int(random.integers(0, 8))
    return bytes(changed)


def truncate(data: bytes, random: Random) -> bytes:
    return data[: _random_position(data, random)]


def splice(data: bytes, random: Random) -> bytes:
    """Copy a piece of the file to another position; overwrite or insert."""
    start, target = _random_position(data, random), _random_position(data, random)
    piece = data[start : start + int(random.integers(1, 200))]
    return data[:target] + piece + data[target + len(piece) * int(random.integers(0, 2)) :]


def cut_out(data: bytes, random: Random) -> bytes:
    """Remove a piece from the middle."""
    start = _random_position(data, random)
    return data[:start] + data[start + int(random.integers(1, 100)) :]


def insert_huge_number(data: bytes, random: Random) -> bytes:
    """Replace a byte by a huge number, which can become a length or a count."""
    position = _random_position(data, random)
    return data[:position] + HUGE_NUMBERS[int(random.integers(0, len(HUGE_NUMBERS)))] + data[position + 1 :]


def change_wire_type(data: bytes, random: Random) -> bytes:
    """Change the wire type of bytes that can be field tags."""
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 4))):
        position = _random_position(data, random)
        changed[position] = changed[position] & ~7 | int(random.integers(0, 8))
    return bytes(changed)


def nest_messages(data: bytes, random: Random) -> bytes:
    """Add messages nested up to thousands of levels, before or after the file."""
    path = NESTED_FIELDS[int(random.integers(0, len(NESTED_FIELDS)))]
    inner = data[: int(random.integers(0, 50))]
    for level in range(int(random.integers(2, MAX_DEPTH))):
        inner = header(path[-1 - level % len(path)], len(inner)) + inner
    return inner + data if random.integers(0, 2) else data + inner


def insert_token(data: bytes, random: Random) -> bytes:
    """Insert a token of a text format, or replace characters by it."""
    position = _random_position(data, random)
    token = TOKENS[int(random.integers(0, len(TOKENS)))].encode()
    return data[:position] + token + data[position + int(random.integers(0, 3)) :]


def nest_text(data: bytes, random: Random) -> bytes:
    """Insert brackets nested up to thousands of levels."""
    opened, closed = ((b"[", b"]"), (b'{"a":', b"}"), (b"node {", b"}"), (b"attr { value { func { ", b"}}}"))[
        int(random.integers(0, 4))
    ]
    depth = int(random.integers(2, MAX_DEPTH))
    position = _random_position(data, random)
    if random.integers(0, 2):
        opened, closed = b"[", b"]"
        data = data[:position] + b"\ndeep = \n"  # where a value of TOML is expected
        position = len(data) - 1
    return data[:position] + opened * depth + closed * int(random.integers(0, depth + 1)) + data[position:]


BINARY: tuple[Mutation, ...] = (
    flip_bits,
    flip_bits,
    truncate,
    splice,
    splice,
    cut_out,
    insert_huge_number,
    insert_huge_number,
    change_wire_type,
    nest_messages,
)
TEXT: tuple[Mutation, ...] = (
    flip_bits,
    truncate,
    splice,
    splice,
    cut_out,
    insert_token,
    insert_token,
    insert_token,
    nest_text,
)


def mutate_files(files: Sequence[bytes], mutations: Sequence[Mutation], count: int, seed: int) -> Iterator[bytes]:
    """Yield valid files with one to three mutations each; equal seeds yield equal files."""
    random = np.random.default_rng(seed)
    for number in range(count):
        data = files[number % len(files)]
        for _ in range(int(random.integers(1, 4))):
            data = mutations[int(random.integers(0, len(mutations)))](data, random) or b"\0"
        yield data


def overwrite(path: Path, data: bytes) -> None:
    """Replace the contents in place: ext4 flushes a file to the disk if it is truncated before it is written."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
