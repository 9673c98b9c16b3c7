"""CRC-32C (Castagnoli) of many byte strings at once, in NumPy.

The register of a CRC is linear in its input: blocks of equal length are processed in parallel, two bytes at a time, and
the register of each block is then advanced by the bytes that follow it and combined by exclusive or:

    register(a + b) = advance(register(a), length of b) ^ register(b)

To advance a register is to multiply it by a fixed matrix of bits, which four tables of 256 entries represent.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

Registers = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
# These bytes change a register of 0 to all ones, the initial value of a CRC-32C.
_ALL_ONES = bytes.fromhex("54641f64")
_MIN_BLOCK, _MAX_BLOCK = 8, 256
# Number of blocks whose registers stay in the cache of the processor.
_GROUP = 8192
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


def crc32c(data: bytes) -> int:
    """Compute the CRC-32C of bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    return int(crc32c_of_each([data])[0])


def crc32c_of_each(values: Sequence[bytes]) -> Registers:
    """Compute the CRC-32C of each of several byte strings.

    Returns:
        (n,) uint32.
    """
    if not values:
        return np.zeros(0, np.uint32)
    lengths = np.array([len(value) + len(_ALL_ONES) for value in values])
    block = _block_length(int(lengths.sum()))
    counts = -(-lengths // block)
    # Zeros at the beginning leave a register of 0 unchanged: they align the end of each value with the end of a block.
    padding = counts * block - lengths
    pieces = (piece for value, zeros in zip(values, padding, strict=True) for piece in (bytes(zeros), _ALL_ONES, value))
    registers = _compute_registers(np.frombuffer(b"".join(pieces), np.uint8).reshape(-1, block))
    ends = np.cumsum(counts)
    following = np.repeat(ends, counts) - 1 - np.arange(len(registers))
    for bit in range(int(following.max()).bit_length()):
        selected = np.flatnonzero(following >> bit & 1)
        registers[selected] = _apply(_advance_by(block << bit), registers[selected])
    combined = np.bitwise_xor.reduceat(registers, ends - counts)
    return np.asarray(combined ^ np.uint32(0xFFFFFFFF))


def _block_length(total: int) -> int:
    """Return a power of two near the square root of the number of bytes: few steps for short values."""
    return min(max(1 << (total.bit_length() // 2), _MIN_BLOCK), _MAX_BLOCK)


def _compute_registers(blocks: npt.NDArray[np.uint8]) -> Registers:
    """Return the register after each block (b, length), from a register of 0."""
    groups = (blocks[start : start + _GROUP] for start in range(0, len(blocks), _GROUP))
    return np.concatenate([_compute_group(group) for group in groups])


def _compute_group(blocks: npt.NDArray[np.uint8]) -> Registers:
    columns = np.ascontiguousarray(blocks.view("<u2").T)
    table = _table_of_pairs()
    registers = np.zeros(len(blocks), np.uint32)
    low, high = registers.view("<u2")[::2], registers.view("<u2")[1::2]
    indices = np.zeros(len(blocks), np.intp)
    for column in columns:
        np.bitwise_xor(low, column, out=indices, casting="unsafe")
        rest = high.astype(np.uint32)
        table.take(indices, out=registers, mode="clip")
        registers ^= rest
    return registers


@cache
def _table_of_pairs() -> Registers:
    """Return the register after each pair of bytes, by the pair as a little-endian number."""
    table = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return table


@cache
def _advance_by(num_bytes: int) -> Registers:
    """Return the tables (4, 256) that advance a register by a power of two of zero bytes."""
    if num_bytes == 1:
        images = _BITS
        for _ in range(8):
            images = (images >> np.uint32(1)) ^ (images & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    else:
        half = _advance_by(num_bytes // 2)
        images = _apply(half, _apply(half, _BITS))
    values = np.arange(256)
    tables = np.zeros((4, 256), np.uint32)
    for position in range(4):
        for bit in range(8):
            tables[position] ^= np.where(values >> bit & 1, images[8 * position + bit], np.uint32(0))
    return tables


def _apply(tables: Registers, registers: Registers) -> Registers:
    octets = np.ascontiguousarray(registers, "<u4").view(np.uint8).reshape(-1, 4)
    result: Registers = tables[0].take(octets[:, 0])
    for position in range(1, 4):
        result ^= tables[position].take(octets[:, position])
    return result
