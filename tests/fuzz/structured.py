"""Seeded mutations of the structure of a file: fields of messages, values of JSON and TOML, headers of arrays.

Mutations of bytes (`mutations`) mostly end in the parser; these reach the code after it.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

Random = np.random.Generator
Mutation = Callable[[bytes, Random], bytes]

INTEGERS = (0, 1, -1, 2, 7, 63, 64, 65, 255, 1 << 16, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -1e38, float("inf"), float("-inf"), float("nan"))
# Names with control characters, of absurd length, and of files and functions of Python.
TEXTS = (
    "",
    "^",
    "x",
    "y:1",
    "x:999",
    "\x1b[2J",
    "a/" * 200,
    "../../etc/passwd",
    "/dev/zero",
    "__class__",
    "é\u202e",
    "%n",
)
JSON_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    1e999,
    1 << 80,
    "",
    "\x1b[2J",
    "float",
    [],
    {},
    [[]],
    {"a": {}},
    [None],
    "nan",
)
TOML_VALUES = (
    "0",
    "-1",
    "1e999",
    "nan",
    "true",
    '""',
    '"\\u001b[2J"',
    "[]",
    "{}",
    "[[1]]",
    "99999999999999999999",
    "1979-05-27",
)
HEADER_VALUES = (
    ("<f4", "|O", "<U5", "|S3", "|V8", "<M8[s]", "<f2", "<c8", ">f8", "|b1", "<i8", "x", "<f999", "(2,3)<f4"),
    ("()", "(0,)", "(1,)", "(-1,)", "(1, 2, 3)", "(99999999999,)", "(" + "1, " * 70 + ")", "(2.5,)", "None", "('a',)"),
)


def choose(random: Random, values: Any) -> Any:
    """Return a random element of a sequence."""
    return values[int(random.integers(0, len(values)))]


def message_mutation(message_class: Callable[[], Any]) -> Mutation:
    """Return a mutation that changes one to four fields of a protobuf message, at any depth."""

    def mutate(data: bytes, random: Random) -> bytes:
        message = message_class()
        try:
            message.ParseFromString(data)
        except DecodeError:
            return data
        for _ in range(int(random.integers(1, 5))):
            _mutate_message(message, random, 0)
        try:
            return message.SerializeToString(deterministic=True) or data
        except (DecodeError, ValueError):  # a text that is not UTF-8
            return data

    return mutate


def _mutate_message(message: Any, random: Random, depth: int) -> None:
    fields = message.ListFields()
    descriptors = list(message.DESCRIPTOR.fields)
    if not descriptors or (fields and depth > 12):
        return
    if not fields or random.random() < 0.1:
        field, value = choose(random, descriptors), None
    else:
        field, value = choose(random, fields)
    is_message = field.type == field.TYPE_MESSAGE
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _mutate_map(getattr(message, field.name), field, random, depth)
    elif field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
        _mutate_list(getattr(message, field.name), field, random, depth)
    elif is_message and (value is None or random.random() < 0.9):
        _mutate_message(getattr(message, field.name), random, depth + 1)
    elif is_message:
        message.ClearField(field.name)
    else:
        _assign(lambda new: setattr(message, field.name, new), field, value, random)


def _mutate_map(entries: Any, field: Any, random: Random, depth: int) -> None:
    keys = sorted(entries, key=str)
    value_field = field.message_type.fields_by_name["value"]
    if not keys or random.random() < 0.05:
        return
    key = choose(random, keys)
    if random.random() < 0.15:
        del entries[key]
    elif value_field.type == value_field.TYPE_MESSAGE:
        _mutate_message(entries[key], random, depth + 1)
    else:
        _assign(lambda new: entries.__setitem__(key, new), value_field, entries[key], random)


def _mutate_list(items: Any, field: Any, random: Random, depth: int) -> None:
    is_message = field.type == field.TYPE_MESSAGE
    action = random.random()
    if not len(items) or action < 0.1:
        if is_message:
            copy = choose(random, items) if len(items) else None
            new = items.add()
            if copy is not None:
                new.CopyFrom(copy)
        else:
            _assign(items.append, field, None, random)
    elif action < 0.2:
        del items[int(random.integers(0, len(items)))]
    elif action < 0.25 and is_message:
        first, second = choose(random, items), choose(random, items)
        first.CopyFrom(second)
    elif is_message:
        _mutate_message(choose(random, items), random, depth + 1)
    else:
        position = int(random.integers(0, len(items)))
        _assign(lambda new: items.__setitem__(position, new), field, items[position], random)


def _assign(set_value: Callable[[Any], object], field: Any, value: Any, random: Random) -> None:
    """Set a scalar field to an odd value; values outside the range of the field change nothing."""
    kind = field.cpp_type
    new: Any
    if kind == field.CPPTYPE_STRING and field.type == field.TYPE_BYTES:
        new = bytes(value or b"")
        new = choose(random, (b"", b"\xff\xfe", new[:-1], new + b"\0", new * 2, b"\x1b]0;x\x07", b"SAME", b"NCHW"))
    elif kind == field.CPPTYPE_STRING:
        new = choose(random, (*TEXTS, (value or "") + "x", (value or "x")[:-1]))
    elif kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        new = choose(random, FLOATS)
    elif kind == field.CPPTYPE_BOOL:
        new = not value
    elif kind == field.CPPTYPE_ENUM:
        new = int(random.integers(0, 40))
    else:
        new = choose(random, (*INTEGERS, (value or 0) + 1, (value or 0) - 1))
    try:
        set_value(new)
    except (ValueError, TypeError):
        return


def mutate_json(data: bytes, random: Random) -> bytes:
    """Replace, remove or rename values of a JSON document at any depth."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    for _ in range(int(random.integers(1, 4))):
        _mutate_value(document, random)
    return json.dumps(document).encode()


def _mutate_value(value: Any, random: Random) -> None:
    while isinstance(value, dict | list) and value:
        key = choose(random, list(value) if isinstance(value, dict) else range(len(value)))
        if isinstance(value[key], dict | list) and value[key] and random.random() < 0.85:
            value = value[key]
            continue
        action = random.random()
        if action < 0.15:
            del value[key]
        elif action < 0.25 and isinstance(value, dict):
            value[choose(random, TEXTS)] = value.pop(key)
        else:
            value[key] = deepcopy(choose(random, JSON_VALUES))
        return


def mutate_toml(data: bytes, random: Random) -> bytes:
    """Replace a value or a key of a TOML document."""
    text = data.decode(errors="replace")
    values = list(re.finditer(r"= *(.+)$", text, re.MULTILINE))
    keys = list(re.finditer(r"^\[*(\w+)", text, re.MULTILINE))
    match = choose(random, values if random.random() < 0.8 or not keys else keys) if values else None
    if match is None:
        return data
    new = choose(random, TOML_VALUES) if match in values else choose(random, ("x", "op", "step", "__class__"))
    changed: str = text[: match.start(1)] + new + text[match.end(1) :]
    return changed.encode()


def mutate_header(data: bytes, random: Random) -> bytes:
    """Change the type or the shape in the header of a ``.npy`` file."""
    if data[:6] != b"\x93NUMPY" or len(data) < 12:
        return data
    end = 10 + int.from_bytes(data[8:10], "little")
    header = data[10:end].decode("latin-1")
    number = int(random.integers(0, 2))
    pattern = (r"'descr': '[^']*'", r"'shape': \([^)]*\)")[number]
    name, value = ("descr", "shape")[number], choose(random, HEADER_VALUES[number])
    value = repr(value) if number == 0 else value
    changed = re.sub(pattern, lambda _: f"'{name}': {value}", header).encode("latin-1")
    return data[:8] + len(changed).to_bytes(2, "little") + changed + data[end:]


def pack(contents: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive without times: equal contents give equal bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return out.getvalue()


def member_mutation(mutation: Mutation) -> Mutation:
    """Return a mutation of one member of a zip archive, which stays valid itself."""

    def mutate(data: bytes, random: Random) -> bytes:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as old:
                contents = {name: old.read(name) for name in old.namelist()}
        except Exception:  # zipfile raises many types on a broken file
            return data
        if not contents:
            return data
        changed = choose(random, list(contents))
        mutants: dict[str, bytes] = {}
        for name, content in contents.items():
            is_renamed = name == changed and random.random() < 0.1
            entry = choose(random, [text for text in TEXTS if text]) if is_renamed else name
            mutants[entry] = mutation(content, random) if name == changed else content
        return pack(mutants)

    return mutate


def choose_lines(data: bytes, random: Random) -> bytes:
    """Replace a line of a list file by an odd one, or change its order."""
    lines = data.splitlines()
    odd = (
        b"",
        b"/dev/zero",
        b"\xff\xfe",
        b"missing.png 3",
        b"# a comment",
        b"\x1b[2J.png",
        b"." * 5000,
        b"/",
        b"~nouser/a.png",
    )
    if lines:
        lines[int(random.integers(0, len(lines)))] = choose(random, odd)
    return b"\n".join(lines)
