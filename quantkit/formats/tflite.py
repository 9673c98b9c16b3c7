"""Signatures of LiteRT models: names of the inputs and outputs, which callers use.

A ``.tflite`` file is a flatbuffer: its first four bytes are the offset of the table ``Model``, and all other offsets
are relative and point forward. A table has a signed offset to its vtable, which holds the position of each field.

    before   root, "TFL3", ..., Model, ...
    after    root, "TFL3", Model with signature_defs, padding, ..., unused Model, ...

All other bytes move by a multiple of `ALIGNMENT`, so that weights stay aligned.
"""

from collections.abc import Mapping, Sequence
from struct import pack, pack_into, unpack_from

HEADER = 8
ALIGNMENT = 64
# Indices of the fields in the tables.
VERSION, SUBGRAPHS, SIGNATURES, MODEL_FIELDS = 0, 2, 7, 8
INPUTS, OUTPUTS = 1, 2


def endpoint_indices(model: bytes) -> tuple[list[int], list[int]]:
    """Return the tensor indices of the inputs and of the outputs of a ``.tflite`` file's first graph."""
    (root,) = unpack_from("<I", model)
    graphs = _target(model, _fields(model, root)[SUBGRAPHS])
    fields = _fields(model, _target(model, graphs + 4))
    inputs, outputs = (_integers(model, fields.get(number)) for number in (INPUTS, OUTPUTS))
    return inputs, outputs


def with_signature(model: bytes, key: str, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> bytes:
    """Return a ``.tflite`` file with one signature.

    Args:
        model: content of the file.
        key: name of the signature.
        inputs: tensor indices of the inputs, by name.
        outputs: tensor indices of the outputs, by name.
    """
    (root,) = unpack_from("<I", model)
    fields = _fields(model, root)
    present = sorted({*fields, SIGNATURES} & set(range(MODEL_FIELDS)))
    block = bytearray(model[:HEADER])
    slots = _add_table(block, present)
    pack_into("<I", block, 0, slots[present[0]] - 4)
    _link(block, slots[SIGNATURES], _add_signatures(block, key, inputs, outputs))
    _pad(block, ALIGNMENT, HEADER)
    shift = len(block) - HEADER
    for number in present:
        if number == VERSION:
            block[slots[number] : slots[number] + 4] = model[fields[number] : fields[number] + 4]
        elif number != SIGNATURES:
            _link(block, slots[number], _target(model, fields[number]) + shift)
    return bytes(block) + model[HEADER:]


# Reading


def _fields(model: bytes, table: int) -> dict[int, int]:
    """Return the positions of a table's fields by number."""
    vtable = table - unpack_from("<i", model, table)[0]
    (size,) = unpack_from("<H", model, vtable)
    offsets = unpack_from(f"<{size // 2 - 2}H", model, vtable + 4)
    return {number: table + offset for number, offset in enumerate(offsets) if offset}


def _target(model: bytes, position: int) -> int:
    """Return the position that the offset at a position points to."""
    return int(position + unpack_from("<I", model, position)[0])


def _integers(model: bytes, position: int | None) -> list[int]:
    if position is None:
        return []
    vector = _target(model, position)
    (size,) = unpack_from("<I", model, vector)
    return list(unpack_from(f"<{size}i", model, vector + 4))


# Writing


def _add_signatures(block: bytearray, key: str, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> int:
    """Append a vector of one SignatureDef; return its position."""
    vector = _add_vector(block, 1)
    input_field, output_field, key_field = 0, 1, 2
    slots = _add_table(block, (input_field, output_field, key_field))
    _link(block, vector + 4, slots[input_field] - 4)
    for field, indices in ((input_field, inputs), (output_field, outputs)):
        _link(block, slots[field], _add_tensor_maps(block, indices))
    _link(block, slots[key_field], _add_text(block, key))
    return vector


def _add_tensor_maps(block: bytearray, indices: Mapping[str, int]) -> int:
    """Append a vector of tables of a name and a tensor index; return its position."""
    vector = _add_vector(block, len(indices))
    name_field, index_field = 0, 1
    for number, (name, index) in enumerate(indices.items()):
        slots = _add_table(block, (name_field, index_field))
        _link(block, vector + 4 + 4 * number, slots[name_field] - 4)
        pack_into("<I", block, slots[index_field], index)
        _link(block, slots[name_field], _add_text(block, name))
    return vector


def _add_table(block: bytearray, numbers: Sequence[int]) -> dict[int, int]:
    """Append a table of empty fields of four bytes; return their positions by number; the first follows the start."""
    count = max(numbers) + 1
    slots = {number: 4 + 4 * index for index, number in enumerate(numbers)}
    vtable = pack("<HH", 4 + 2 * count, 4 + 4 * len(numbers))
    vtable += pack(f"<{count}H", *(slots.get(number, 0) for number in range(count)))
    _pad(block, 4, -len(vtable))
    start = len(block)
    block += vtable
    table = len(block)
    block += pack("<i", table - start) + bytes(4 * len(numbers))
    return {number: table + offset for number, offset in slots.items()}


def _add_vector(block: bytearray, count: int) -> int:
    """Append a vector of empty offsets; return its position."""
    _pad(block, 4)
    position = len(block)
    block += pack("<I", count) + bytes(4 * count)
    return position


def _add_text(block: bytearray, text: str) -> int:
    _pad(block, 4)
    position = len(block)
    data = text.encode()
    block += pack("<I", len(data)) + data + b"\0"
    return position


def _link(block: bytearray, position: int, target: int) -> None:
    """Set the offset at a position to a later position."""
    pack_into("<I", block, position, target - position)


def _pad(block: bytearray, size: int, remainder: int = 0) -> None:
    """Append zeros until the length has a remainder modulo a size."""
    block += bytes((remainder - len(block)) % size)
