"""The functions of a graph, decoded when they are asked for.

A node may name a function (`FunctionName`, in an attribute or as its op); the `Library` of the graph holds what it
does. The body of a function is a graph itself: one ``_Arg`` node for each argument, and the results as its outputs.
A graph has a library, so what a graph is, this module does not know: ``Body`` stands for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from quantkit.ir.tensor import DType

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True)
class FunctionName:
    """An attribute that names a function.

    Attributes:
        name: of the function.
        extra: attributes it is called with, as the file holds them; hardly any call has some.
    """

    name: str
    extra: bytes = b""


@dataclass(frozen=True)
class Function(Generic[Body]):
    """A function of the library.

    Attributes:
        name: what nodes call it.
        graph: the body: its inputs are ``_Arg`` nodes with the names of the arguments, its outputs the results.
        results: element type of each result (None where the file gives none) by the name it has, in the order of
            the body's outputs.
        controls: nodes that run with every call, whether or not a result needs them, by the name given to that.
        attrs: attributes by name.
        extra: what else the file says of it, as the format holds it.
    """

    name: str
    graph: Body
    results: Mapping[str, DType | None]
    controls: Mapping[str, str] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    extra: bytes = b""


@dataclass(frozen=True)
class Stored(Generic[Body]):
    """A function that nobody has looked into yet.

    Attributes:
        data: as the file holds it.
        load: decodes it; it is given the library, whose other functions it may call as ops, and attributes of a call.
        is_open: whether it leaves to calls of which types it is, and is another function for each.
    """

    data: bytes
    load: "Callable[[str, Library[Body], Mapping[str, Any]], Function[Body]]" = field(compare=False)
    is_open: bool = field(default=False, compare=False)


class Library(Mapping[str, Function[Body]], Generic[Body]):
    """Functions by name.

    Args:
        entries: functions, or what a file holds of them.
        gradients: name of the function that computes the gradient, by function.
        extra: what else the file says, as the format holds it.

    Attributes:
        entries: functions, or what a file holds of them; only the format that made it looks inside.
    """

    def __init__(
        self,
        entries: Mapping[str, Function[Body] | Stored[Body]] | None = None,
        gradients: Mapping[str, str] | None = None,
        extra: bytes = b"",
    ) -> None:
        self.entries = dict(entries or {})
        self.gradients = dict(gradients or {})
        self.extra = extra
        self._decoded: dict[str, Function[Body]] = {}

    def __getitem__(self, name: str) -> Function[Body]:
        """The function of a name.

        Raises:
            KeyError: there is none.
            GraphError: it is of a kind that is not understood, or leaves to calls of which types it is.
        """
        return self.bound(name, {})

    def bound(self, name: str, attrs: Mapping[str, Any]) -> Function[Body]:
        """The function that a call makes of a name and these attributes.

        Raises:
            KeyError: there is none of that name.
            GraphError: it is of a kind that is not understood, or the attributes leave something open.
        """
        entry = self.entries[name]
        if isinstance(entry, Function):
            return entry
        if entry.is_open:
            return entry.load(name, self, attrs)
        if name not in self._decoded:
            self._decoded[name] = entry.load(name, self, {})
        return self._decoded[name]

    def is_open(self, name: str) -> bool:
        """Whether a function leaves to calls of which types it is."""
        entry = self.entries[name]
        return isinstance(entry, Stored) and entry.is_open

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Library) and (self.entries, self.gradients, self.extra) == (
            other.entries,
            other.gradients,
            other.extra,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Library({', '.join(self.entries)})"

    def with_(self, *functions: Function[Body]) -> "Library[Body]":
        """The library with functions added, or replaced where one has the name."""
        added = {function.name: function for function in functions}
        return self._again({**self.entries, **added}, self.gradients)

    def without(self, names: Iterable[str]) -> "Library[Body]":
        """The library without some functions, and without their gradients."""
        gone = frozenset(names)
        entries = {name: entry for name, entry in self.entries.items() if name not in gone}
        gradients = {name: gradient for name, gradient in self.gradients.items() if name not in gone}
        return self._again(entries, gradients)

    def _again(
        self, entries: Mapping[str, Function[Body] | Stored[Body]], gradients: Mapping[str, str]
    ) -> "Library[Body]":
        """The library with other entries; what was decoded needs not be decoded again."""
        made = Library(entries, gradients, self.extra)
        made._decoded = {name: one for name, one in self._decoded.items() if entries.get(name) is self.entries[name]}
        return made


def called(attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the functions that attributes name, in lists or alone."""
    values = (one for value in attrs.values() for one in (value if isinstance(value, tuple) else (value,)))
    return tuple(one.name for one in values if isinstance(one, FunctionName))
