"""Signatures and metadata of LiteRT models: names of the inputs and outputs, and texts of other programs.

A ``.tflite`` file is a flatbuffer: its first four bytes are the offset of the table ``Model``, and all other offsets
are relative and point forward. A table has a signed offset to its vtable, which holds the position of each field.

    before   root, "TFL3", ..., Model, ...
    after    root, "TFL3", Model with other fields, padding, ..., unused Model, ...

All other bytes move by a multiple of `ALIGNMENT`, so that weights stay aligned.
"""

from collections.abc import Callable, Mapping, Sequence
from mmap import mmap
from struct import error, pack, pack_into, unpack_from

from quantkit.errors import InputError

HEADER = 8
ALIGNMENT = 64
# Alignment of the content of buffers in a file.
BUFFER_ALIGNMENT = 16
# Indices of the fields in the tables.
VERSION, SUBGRAPHS, BUFFERS, METADATA, SIGNATURES, MODEL_FIELDS = 0, 2, 4, 6, 7, 8
INPUTS, OUTPUTS = 1, 2

# File whose bytes are read.
Content = bytes | mmap
# Offsets from the new Model to tables of the old file: position of the offset, and position in the old file.
_Links = dict[int, int]


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
    return _with_fields(model, {SIGNATURES: lambda block, _: _add_signatures(block, key, inputs, outputs)})


def with_metadata(model: bytes, name: str, content: bytes) -> bytes:
    """Return a ``.tflite`` file with one more metadata entry, whose content is one more buffer.

    Args:
        model: content of the file.
        name: name of the entry.
        content: content of the buffer.
    """
    buffers, entries = (_tables(model, number) for number in (BUFFERS, METADATA))

    def add_buffers(block: bytearray, links: _Links) -> int:
        vector, slot = _extend_vector(block, buffers, links)
        (data,) = _add_table(block, (0,)).values()
        _link(block, slot, data - 4)
        _pad(block, BUFFER_ALIGNMENT, -4)
        _link(block, data, len(block))
        block += pack("<I", len(content)) + content
        return vector

    def add_entries(block: bytearray, links: _Links) -> int:
        vector, slot = _extend_vector(block, entries, links)
        name_field, buffer_field = 0, 1
        slots = _add_table(block, (name_field, buffer_field))
        _link(block, slot, slots[name_field] - 4)
        pack_into("<I", block, slots[buffer_field], len(buffers))
        _link(block, slots[name_field], _add_text(block, name))
        return vector

    return _with_fields(model, {BUFFERS: add_buffers, METADATA: add_entries})


def read_metadata(model: Content, name: str) -> bytes | None:
    """Return the content of a metadata entry of a ``.tflite`` file; None if there is no such entry.

    Raises:
        InputError: the file is truncated or broken.
    """
    limits = find_metadata(model, name)
    return None if limits is None else bytes(model[slice(*limits)])


def find_metadata(model: Content, name: str) -> tuple[int, int] | None:
    """Return start and end of the content of a metadata entry; None if there is no such entry.

    Raises:
        InputError: the file is truncated or broken.
    """
    try:
        for entry in _tables(model, METADATA):
            fields = _fields(model, entry)
            if 0 in fields and 1 in fields and model[slice(*_limits(model, fields[0]))] == name.encode():
                buffer = _tables(model, BUFFERS)[unpack_from("<I", model, fields[1])[0]]
                return _limits(model, _fields(model, buffer)[0])
    except (error, IndexError, KeyError):
        raise InputError("the file is truncated or broken", hint="convert the model again") from None
    return None


def _with_fields(model: bytes, added: Mapping[int, Callable[[bytearray, _Links], int]]) -> bytes:
    """Return a file whose Model has other fields.

    Args:
        model: content of the file.
        added: function by number of the field, which appends its vector to the new Model and returns its position.
    """
    (root,) = unpack_from("<I", model)
    fields = _fields(model, root)
    present = sorted({*fields, *added} & set(range(MODEL_FIELDS)))
    block = bytearray(model[:HEADER])
    slots = _add_table(block, present)
    pack_into("<I", block, 0, slots[present[0]] - 4)
    links = {slots[n]: _target(model, fields[n]) for n in present if n != VERSION and n not in added}
    for number, add in added.items():
        _link(block, slots[number], add(block, links))
    _pad(block, ALIGNMENT, HEADER)
    shift = len(block) - HEADER
    if VERSION in fields:
        block[slots[VERSION] : slots[VERSION] + 4] = model[fields[VERSION] : fields[VERSION] + 4]
    for position, target in links.items():
        _link(block, position, target + shift)
    return bytes(block) + model[HEADER:]


# Reading


def _fields(model: Content, table: int) -> dict[int, int]:
    """Return the positions of a table's fields by number."""
    vtable = table - unpack_from("<i", model, table)[0]
    (size,) = unpack_from("<H", model, vtable)
    offsets = unpack_from(f"<{size // 2 - 2}H", model, vtable + 4)
    return {number: table + offset for number, offset in enumerate(offsets) if offset}


def _target(model: Content, position: int) -> int:
    """Return the position that the offset at a position points to."""
    return int(position + unpack_from("<I", model, position)[0])


def _tables(model: Content, number: int) -> list[int]:
    """Return the positions of the tables in a vector of the Model."""
    (root,) = unpack_from("<I", model)
    field = _fields(model, root).get(number)
    if field is None:
        return []
    vector = _target(model, field)
    (size,) = unpack_from("<I", model, vector)
    offsets = unpack_from(f"<{size}I", model, vector + 4)
    return [vector + 4 + 4 * index + offset for index, offset in enumerate(offsets)]


def _limits(model: Content, position: int) -> tuple[int, int]:
    """Return start and end of the text or vector of bytes that an offset points to."""
    start = _target(model, position)
    (size,) = unpack_from("<I", model, start)
    if start + 4 + size > len(model):
        raise IndexError(start)
    return start + 4, start + 4 + size


def _integers(model: Content, position: int | None) -> list[int]:
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


def _extend_vector(block: bytearray, tables: Sequence[int], links: _Links) -> tuple[int, int]:
    """Append a vector of tables of the old file and one empty offset; return the positions of vector and offset."""
    vector = _add_vector(block, len(tables) + 1)
    links.update({vector + 4 + 4 * index: table for index, table in enumerate(tables)})
    return vector, vector + 4 + 4 * len(tables)


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
