"""Files as disks, networks and fuzzers break them: seeded mutations of good ones."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from quantkit.formats.wire import encode_varint, header

Random = np.random.Generator
Mutation = Callable[[bytes, Random], bytes]
# What a length or a count may claim: more than any memory, more than 32 or 64 bits hold, less than nothing.
BOMBS = tuple(encode_varint(number) for number in (1 << 31, (1 << 32) - 1, (1 << 40), (1 << 63), (1 << 64) - 1, 0, 1))
DEEPEST = 3000
# Fields along which messages hold messages of their own kind: NodeDef.attr ... func.attr, subgraphs, types.
NESTS = ((1, 5, 2, 10, 2, 2), (1, 5, 2, 1, 9, 2, 2), (2, 1, 3, 5, 2, 8, 15, 3), (7, 1, 5, 6), (7, 11), (5, 1, 2))
WORDS = (
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


def _place(data: bytes, random: Random) -> int:
    return int(random.integers(0, max(len(data), 1)))


def flipped(data: bytes, random: Random) -> bytes:
    """Some bits the other way."""
    made = bytearray(data)
    for _ in range(int(random.integers(1, 9))):
        made[_place(data, random)] ^= 1 << int(random.integers(0, 8))
    return bytes(made)


def truncated(data: bytes, random: Random) -> bytes:
    return data[: _place(data, random)]


def spliced(data: bytes, random: Random) -> bytes:
    """A piece of the file in another place of it, in the place of what was there or between it."""
    start, target = _place(data, random), _place(data, random)
    piece = data[start : start + int(random.integers(1, 200))]
    return data[:target] + piece + data[target + len(piece) * int(random.integers(0, 2)) :]


def cut(data: bytes, random: Random) -> bytes:
    """Without a piece of its middle."""
    start = _place(data, random)
    return data[:start] + data[start + int(random.integers(1, 100)) :]


def bombed(data: bytes, random: Random) -> bytes:
    """A number in the place of a byte, which claims what is not there."""
    place = _place(data, random)
    return data[:place] + BOMBS[int(random.integers(0, len(BOMBS)))] + data[place + 1 :]


def retyped(data: bytes, random: Random) -> bytes:
    """Bytes that may begin a field, with another wire type."""
    made = bytearray(data)
    for _ in range(int(random.integers(1, 4))):
        place = _place(data, random)
        made[place] = made[place] & ~7 | int(random.integers(0, 8))
    return bytes(made)


def nested(data: bytes, random: Random) -> bytes:
    """Messages in messages, up to thousands deep, before or behind the file."""
    path = NESTS[int(random.integers(0, len(NESTS)))]
    inner = data[: int(random.integers(0, 50))]
    for level in range(int(random.integers(2, DEEPEST))):
        inner = header(path[-1 - level % len(path)], len(inner)) + inner
    return inner + data if random.integers(0, 2) else data + inner


def reworded(data: bytes, random: Random) -> bytes:
    """Words of text formats where none belong, or in the place of others."""
    place = _place(data, random)
    word = WORDS[int(random.integers(0, len(WORDS)))].encode()
    return data[:place] + word + data[place + int(random.integers(0, 3)) :]


def nested_text(data: bytes, random: Random) -> bytes:
    """Brackets in brackets, up to thousands deep."""
    opened, closed = ((b"[", b"]"), (b'{"a":', b"}"), (b"node {", b"}"), (b"attr { value { func { ", b"}}}"))[
        int(random.integers(0, 4))
    ]
    depth = int(random.integers(2, DEEPEST))
    place = _place(data, random)
    if random.integers(0, 2):
        opened, closed = b"[", b"]"
        data = data[:place] + b"\ndeep = \n"  # where a value of TOML is expected
        place = len(data) - 1
    return data[:place] + opened * depth + closed * int(random.integers(0, depth + 1)) + data[place:]


BINARY: tuple[Mutation, ...] = (flipped, flipped, truncated, spliced, spliced, cut, bombed, bombed, retyped, nested)
TEXT: tuple[Mutation, ...] = (flipped, truncated, spliced, spliced, cut, reworded, reworded, reworded, nested_text)


def mutated(files: Sequence[bytes], mutations: Sequence[Mutation], count: int, seed: int) -> Iterator[bytes]:
    """Good files with one to three mutations each; the same ones for the same seed."""
    random = np.random.default_rng(seed)
    for number in range(count):
        data = files[number % len(files)]
        for _ in range(int(random.integers(1, 4))):
            data = mutations[int(random.integers(0, len(mutations)))](data, random) or b"\0"
        yield data
