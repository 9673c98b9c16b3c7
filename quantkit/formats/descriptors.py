"""Protobuf classes from a table of fields: field numbers are facts, and a table holds them.

Each schema has a descriptor pool of its own, so that reading a file needs nobody's generated code and can
not clash with any that is loaded. Fields that are not listed survive as unknown fields of the binary form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    word: getattr(_Field, f"TYPE_{word.upper()}")
    for word in ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")
}


@dataclass(frozen=True, eq=False)
class Schema:
    """The messages of one format.

    Attributes:
        package: protobuf package of the messages.
        messages: one per line, ``Name: field number kind, ...``, where a line that begins with two spaces goes
            on; ``*`` marks a repeated field, ``map<key,value>`` a map, ``?`` a member of the message's oneof
            (called ``value``).
        enums: number of each word, by name of the enum.
    """

    package: str
    messages: str
    enums: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    _classes: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def message_class(self, name: str) -> Any:
        """The protobuf class of a message of the table."""
        if name not in self._classes:
            found = self._pool.FindMessageTypeByName(f"{self.package}.{name}")
            self._classes[name] = message_factory.GetMessageClass(found)
        return self._classes[name]

    @cached_property
    def _pool(self) -> descriptor_pool.DescriptorPool:
        file = descriptor_pb2.FileDescriptorProto(
            name=f"quantkit/{self.package}.proto", package=self.package, syntax="proto3"
        )
        for name, numbers in self.enums.items():
            enum = file.enum_type.add(name=name)
            for word, number in numbers.items():
                enum.value.add(name=word, number=number)
        for line in self.messages.replace(",\n  ", ", ").strip().splitlines():
            name, _, fields = line.partition(": ")
            message = file.message_type.add(name=name)
            for one in fields.split(", "):
                self._add_field(message, *one.split())
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        return pool

    def _add_field(self, message: Any, name: str, number: str, kind: str) -> None:
        made = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if kind.startswith("map<"):
            entry = message.nested_type.add(name="".join(word.capitalize() for word in name.split("_")) + "Entry")
            entry.options.map_entry = True
            for place, (part, what) in enumerate(zip(("key", "value"), kind[4:-1].split(","), strict=True), start=1):
                self._add_field(entry, part, str(place), what)
            made.label = _Field.LABEL_REPEATED
            made.type, made.type_name = _Field.TYPE_MESSAGE, f".{self.package}.{message.name}.{entry.name}"
            return
        if kind.startswith("?"):
            if not message.oneof_decl:
                message.oneof_decl.add(name="value")
            made.oneof_index = 0
        elif kind.startswith("*"):
            made.label = _Field.LABEL_REPEATED
        kind = kind.lstrip("?*")
        if kind in _SCALARS:
            made.type = _SCALARS[kind]
        else:
            made.type = _Field.TYPE_ENUM if kind in self.enums else _Field.TYPE_MESSAGE
            made.type_name = f".{self.package}.{kind}"
