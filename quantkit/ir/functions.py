"""Functions of a graph, decoded on first access.

A node calls a function by name (`FunctionName`, in an attribute or as its op type); the `Library` of the graph has the
definition. The body of a function is a graph: one ``_Arg`` node for each argument, and the results as outputs.
Because a graph has a library, this module cannot import `Graph`: the type variable ``Body`` stands for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from quantkit.ir.tensor import DType

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True)
class FunctionName:
    """Attribute value that names a function.

    Attributes:
        name: name of the function.
        extra: attributes of the call, serialized as in the file; empty for most calls.
    """

    name: str
    extra: bytes = b""


@dataclass(frozen=True)
class Function(Generic[Body]):
    """Function of the library.

    Attributes:
        name: name that nodes call it by.
        graph: body; its inputs are ``_Arg`` nodes with the names of the arguments, its outputs the results.
        results: element type of each result by name, in the order of the body's outputs (None if the file has no
            type).
        controls: nodes that run with every call, even if no result needs them, by control output name.
        attrs: attributes by name.
        extra: all other fields of the file, serialized.
    """

    name: str
    graph: Body
    results: Mapping[str, DType | None]
    controls: Mapping[str, str] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    extra: bytes = b""


@dataclass(frozen=True)
class StoredFunction(Generic[Body]):
    """Function that is not decoded yet.

    Attributes:
        data: serialized function.
        load: decoder; its arguments are the name, the library (other functions of it may be op types in the body)
            and the attributes of the call.
        is_open: True if the element types depend on the attributes of the call, so that each call has its own body.
    """

    data: bytes
    load: "Callable[[str, Library[Body], Mapping[str, Any]], Function[Body]]" = field(compare=False)
    is_open: bool = field(default=False, compare=False)


class Library(Mapping[str, Function[Body]], Generic[Body]):
    """Functions by name.

    Args:
        entries: decoded or stored functions by name.
        gradients: name of the gradient function by function name.
        extra: all other fields of the file, serialized.

    Attributes:
        entries: decoded or stored functions; only the reader of the format decodes a `StoredFunction` entry.
    """

    def __init__(
        self,
        entries: Mapping[str, Function[Body] | StoredFunction[Body]] | None = None,
        gradients: Mapping[str, str] | None = None,
        extra: bytes = b"",
    ) -> None:
        self.entries = dict(entries or {})
        self.gradients = dict(gradients or {})
        self.extra = extra
        self._decoded: dict[str, Function[Body]] = {}

    def __getitem__(self, name: str) -> Function[Body]:
        """Return the function of a name.

        Raises:
            KeyError: the library has no such function.
            GraphError: the function cannot be decoded, or its types depend on the attributes of the call.
        """
        return self.bound(name, {})

    def bound(self, name: str, attrs: Mapping[str, Any]) -> Function[Body]:
        """Return the function of a name with the attributes of a call.

        Raises:
            KeyError: the library has no such function.
            GraphError: the function cannot be decoded, or the attributes do not determine its types.
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
        """Return True if the types of a function depend on the attributes of the call."""
        entry = self.entries[name]
        return isinstance(entry, StoredFunction) and entry.is_open

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
        """Return the library with functions added; existing functions of the same names are replaced."""
        added = {function.name: function for function in functions}
        return self._copy({**self.entries, **added}, self.gradients)

    def without(self, names: Iterable[str]) -> "Library[Body]":
        """Return the library without some functions and their gradients."""
        removed = frozenset(names)
        entries = {name: entry for name, entry in self.entries.items() if name not in removed}
        gradients = {name: gradient for name, gradient in self.gradients.items() if name not in removed}
        return self._copy(entries, gradients)

    def _copy(
        self, entries: Mapping[str, Function[Body] | StoredFunction[Body]], gradients: Mapping[str, str]
    ) -> "Library[Body]":
        """Return a library with other entries that shares the functions decoded so far."""
        library = Library(entries, gradients, self.extra)
        unchanged = (name for name in self._decoded if entries.get(name) is self.entries[name])
        library._decoded = {name: self._decoded[name] for name in unchanged}
        return library


def function_names(attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of all functions in attribute values and in lists of them."""
    values = (item for value in attrs.values() for item in (value if isinstance(value, tuple) else (value,)))
    return tuple(item.name for item in values if isinstance(item, FunctionName))
