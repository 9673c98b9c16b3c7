"""Registries of named objects: the built-in ones, and those that installed distributions add.

A distribution adds an object through an entry point whose group is the registry's and whose value is the object:

    [project.entry-points."quantkit.runtimes"]
    toy = "toy_runtime:RUNTIME"

A plugin that cannot be loaded, or whose name is taken, is skipped with a reason; the other objects stay available.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from quantkit.errors import QuantkitError, UnavailableError, UsageError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Named(Protocol):
    """Object with a name."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """Objects of one kind by name; entry points are searched when a name is not built in.

    Args:
        noun: singular noun of the objects in messages: ``runtime``.
        kind: class of the objects, or its reference ``module:name``, which is imported on first use.
        built_in: the objects of this package, whose names are distinct, or their references by name.
        check: function that raises `UsageError` for a plugin's object with a wrong field, or its reference.
    """

    def __init__(
        self,
        noun: str,
        kind: type[Any] | str,
        built_in: Iterable[T] | Mapping[str, str],
        check: Callable[[T], None] | str = lambda value: None,
    ) -> None:
        self.noun = noun
        self.group = f"quantkit.{noun}s"
        self._kind = kind
        self._check = check
        self._built_in: dict[str, T | str] = (
            dict(built_in) if isinstance(built_in, Mapping) else {value.name: value for value in built_in}
        )
        self._plugins: dict[str, T] | None = None
        self._problems: list[tuple[str, str]] = []

    def objects(self) -> Mapping[str, T]:
        """Return all objects by name: the built-in ones in their order, then those of plugins."""
        return MappingProxyType(
            {**{name: self._load_built_in(name) for name in self._built_in}, **self._load_plugins()}
        )

    def problems(self) -> tuple[str, ...]:
        """Return a sentence for each plugin that was skipped."""
        self._load_plugins()
        return tuple(text for _, text in self._problems)

    def plugin_problems(self) -> Mapping[str, str]:
        """Return the sentence for each plugin that was skipped, by the name of its entry point."""
        self._load_plugins()
        return dict(self._problems)

    def find(self, name: str) -> T:
        """Return the object of a name.

        Raises:
            UsageError: the name is not registered; the hint suggests similar names.
            UnavailableError: a plugin of that name was skipped.
        """
        if name in self._built_in:
            return self._load_built_in(name)
        names = self.objects()
        if name in names:
            return names[name]
        for plugin, problem in self._problems:
            if plugin == name:
                raise UnavailableError(problem, hint="repair or uninstall the plugin")
        article = "an" if self.noun[0] in "aeiou" else "a"
        hint = did_you_mean(name, names) or f"use one of {', '.join(names)}"
        raise UsageError(f"{name!r} is not {article} {self.noun}", hint="; ".join((hint, *self.problems())))

    def _load_built_in(self, name: str) -> T:
        value: T = resolve(self._built_in[name])
        self._built_in[name] = value
        return value

    def _load_plugins(self) -> dict[str, T]:
        if self._plugins is None:
            from importlib.metadata import entry_points

            self._plugins = {}
            origins = dict.fromkeys(self._built_in, "quantkit")
            for entry in sorted(entry_points(group=self.group)):
                origin = f"{entry.value} of {entry.dist.name}" if entry.dist else entry.value
                try:
                    value = self._load(entry)
                    check_fields(value, {"name": ("a name", is_text)})
                    resolve(self._check)(value)
                    if value.name in origins:
                        raise UsageError(f"the name {value.name!r} is registered by {origins[value.name]}")
                except (Exception, SystemExit) as error:
                    problem = f"{self.noun} plugin {origin} cannot be loaded: {_describe(error)}"
                    self._problems.append((entry.name, problem))
                else:
                    origins[value.name] = origin
                    self._plugins[value.name] = value
        return self._plugins

    def _load(self, entry: "EntryPoint") -> T:
        value: T = entry.load()
        kind = resolve(self._kind)
        if not isinstance(value, kind):
            raise UsageError(f"the value is of type {type(value).__name__}, not {kind.__name__}")
        return value


def import_modules(package: str) -> None:
    """Import the modules of a package, which register themselves; those with a private name are left to the others."""
    for module in iter_modules(import_module(package).__path__, f"{package}."):
        if not module.name.rpartition(".")[2].startswith("_"):
            import_module(module.name)


def resolve(value: Any) -> Any:
    """Return the object of a reference ``module:name``; any other value is unchanged."""
    if not isinstance(value, str):
        return value
    module, _, name = value.partition(":")
    return getattr(import_module(module), name)


def is_text(value: Any) -> bool:
    """Return True for a text that is not empty."""
    return isinstance(value, str) and bool(value)


def is_texts(value: Any, allowed: Iterable[str] | None = None) -> bool:
    """Return True for a tuple of texts.

    Args:
        value: value of a field.
        allowed: allowed texts; None if all.
    """
    if not isinstance(value, tuple) or not all(map(is_text, value)):
        return False
    return allowed is None or set(value) <= set(allowed)


# Description of the allowed values of a field, and a function that returns True for them.
FieldRule = tuple[str, Callable[[Any], bool]]
BOOLEAN: FieldRule = ("True or False", lambda value: isinstance(value, bool))
FUNCTION: FieldRule = ("a function", callable)
TITLE: FieldRule = ("a noun phrase", is_text)


def check_fields(value: object, rules: Mapping[str, FieldRule]) -> None:
    """Check the fields of an object; those of a dataclass with the type bool need no rule.

    Args:
        value: object of a plugin.
        rules: rule by name of the field.

    Raises:
        UsageError: a field is missing, or its value is not allowed; the message names the field and the allowed values.
    """
    booleans = {each.name: BOOLEAN for each in fields(value) if each.type is bool} if is_dataclass(value) else {}
    for name, (allowed, is_allowed) in (booleans | dict(rules)).items():
        if not hasattr(value, name):
            raise UsageError(f"the field {name!r} is missing; the allowed value is {allowed}")
        field = getattr(value, name)
        if not is_allowed(field):
            raise UsageError(f"the field {name!r} has the value {field!r}; the allowed value is {allowed}")


def _describe(error: BaseException) -> str:
    """Return the message of an error with the line of the file that raised it."""
    if isinstance(error, QuantkitError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {text}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {text}" if frames else text
