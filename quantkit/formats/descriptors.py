"""Protobuf message classes from a table of field names, numbers and types.

Each schema has its own descriptor pool. Reading a file therefore needs no generated code and cannot conflict with
generated code of other packages. Fields outside the table survive as unknown fields of the binary form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from quantkit.errors import InputError
from quantkit.formats.wire import Buffer

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")
}


@dataclass(frozen=True, eq=False)
class Schema:
    """Protobuf messages of one format.

    Attributes:
        package: protobuf package of the messages.
        messages: one message per line, ``Name: field number type, ...``; a line that begins with two spaces continues
            the previous one. ``*`` marks a repeated field, ``map<key,value>`` a map, ``?`` a member of the oneof
            ``value``.
        enums: value names and their numbers by enum name.
    """

    package: str
    messages: str
    enums: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    _classes: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def message_class(self, name: str) -> Any:
        """Return the protobuf class of a message of the table."""
        if name not in self._classes:
            descriptor = self._pool.FindMessageTypeByName(f"{self.package}.{name}")
            self._classes[name] = message_factory.GetMessageClass(descriptor)
        return self._classes[name]

    def parse(self, name: str, data: Buffer) -> Any:
        """Parse a message.

        Raises:
            InputError: the bytes are not such a message.
        """
        try:
            return self.message_class(name).FromString(bytes(data))
        except DecodeError:
            raise InputError(f"a {name} message is broken") from None

    @cached_property
    def _pool(self) -> descriptor_pool.DescriptorPool:
        file = descriptor_pb2.FileDescriptorProto(
            name=f"quantkit/{self.package}.proto", package=self.package, syntax="proto3"
        )
        for name, numbers in self.enums.items():
            enum = file.enum_type.add(name=name)
            for value, number in numbers.items():
                enum.value.add(name=value, number=number)
        for line in self.messages.replace(",\n  ", ", ").strip().splitlines():
            name, _, fields = line.partition(": ")
            message = file.message_type.add(name=name)
            for field_text in fields.split(", "):
                self._add_field(message, *field_text.split())
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        return pool

    def _add_field(self, message: Any, name: str, number: str, kind: str) -> None:
        descriptor = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if kind.startswith("map<"):
            entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
            entry.options.map_entry = True
            key_kind, value_kind = kind[4:-1].split(",")
            self._add_field(entry, "key", "1", key_kind)
            self._add_field(entry, "value", "2", value_kind)
            descriptor.label = _Field.LABEL_REPEATED
            descriptor.type, descriptor.type_name = _Field.TYPE_MESSAGE, f".{self.package}.{message.name}.{entry.name}"
            return
        if kind.startswith("?"):
            if not message.oneof_decl:
                message.oneof_decl.add(name="value")
            descriptor.oneof_index = 0
        elif kind.startswith("*"):
            descriptor.label = _Field.LABEL_REPEATED
        kind = kind.lstrip("?*")
        if kind in _SCALARS:
            descriptor.type = _SCALARS[kind]
        else:
            descriptor.type = _Field.TYPE_ENUM if kind in self.enums else _Field.TYPE_MESSAGE
            descriptor.type_name = f".{self.package}.{kind}"
