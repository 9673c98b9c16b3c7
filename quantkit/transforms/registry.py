"""The table of transforms, and what makes a function one.

A transform is a function ``(graph, *, option=default, ...) -> Graph``; its signature is its option schema.
It may return an `Outcome` instead, to say what it changed and what it declined. Options are ``int``, ``float``,
``bool``, ``str`` or a tuple of one of these (a repeated option), and ``| None``.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Protocol, Union, get_args, get_origin, get_type_hints, overload

from quantkit.errors import GraphError, QuantkitError, RecipeError, did_you_mean
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.ops.faults import find_fault
from quantkit.transforms._placement import restore_placement

DAMAGED = "the file is damaged, or was written by a tool that knows other ops"
REQUIRED = inspect.Parameter.empty
# The last section of a docstring: a recipe of one line, and the graph it is run on when somebody asks.
EXAMPLE = re.compile(r"^Example:\n((?: {4}.*(?:\n|$)|\n)+)", re.MULTILINE)
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
# What begins the module names of files that ``--plugin`` names; the path follows.
PLUGIN = "quantkit_plugin:"
# What graphs may be written in, and what sentences call it.
DIALECTS = {"tensorflow": "TensorFlow", "onnx": "ONNX"}


class OptionError(RecipeError):
    """An option that a transform does not take, or not so.

    Attributes:
        option: its name.
    """

    def __init__(self, message: str, hint: str = "", option: str = "") -> None:
        super().__init__(message, hint)
        self.option = option


@dataclass(frozen=True)
class Option:
    """One option of a transform.

    Attributes:
        name: as recipes write it.
        kind: ``int``, ``float``, ``bool`` or ``str``.
        is_list: whether it may be repeated.
        default: its value when absent, or `REQUIRED`.
    """

    name: str
    kind: type
    is_list: bool
    default: Any

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    def read(self, words: tuple[str, ...], transform: str) -> Any:
        """The value of the words that a recipe gives.

        Raises:
            RecipeError: repeated although it may not be, or not of its kind.
        """
        if self.is_list:
            return tuple(self._read_one(word, transform) for word in words)
        if len(words) != 1:
            raise OptionError(
                f"{transform}: Expected a single '{self.name}' parameter, but found {len(words)} occurrences",
                hint=f"give {self.name} once",
                option=self.name,
            )
        return self._read_one(words[0], transform)

    def _read_one(self, word: str, transform: str) -> Any:
        if self.kind is str:
            return word
        if self.kind is bool:
            if word in TRUTHS:
                return TRUTHS[word]
            raise OptionError(
                f"{transform}: Couldn't interpret the {self.name} argument as a boolean:{word}",
                hint="expected true, false, 0 or 1",
                option=self.name,
            )
        try:
            return self.kind(word)
        except ValueError:
            noun, example = ("a number", "16") if self.kind is int else ("a float number", "0.5")
            raise OptionError(
                f"{transform}: Couldn't interpret the {self.name} argument as {noun}:{word}",
                hint=f"write {self.name}={example}",
                option=self.name,
            ) from None


class Claim(Protocol):
    """What a check needs to know of a transform: its name, and whether it says that answers stay the same."""

    @property
    def name(self) -> str: ...
    @property
    def is_exact(self) -> bool: ...


Function = Callable[..., Graph | Outcome]


@dataclass(frozen=True)
class Transform:
    """A named function from graph to graph.

    Attributes:
        name: the recipe word, and the function's name.
        function: what it does.
        options: by name, in the order of the signature.
        is_exact: whether the answers stay the same up to rounding of float32 arithmetic.
        services: parameters that the caller provides, not the recipe (``evaluate``).
        dialects: which graphs it can rewrite.
    """

    name: str
    function: Function
    options: Mapping[str, Option]
    is_exact: bool
    services: frozenset[str]
    dialects: tuple[str, ...] = ("tensorflow",)

    @property
    def is_ours(self) -> bool:
        """Whether it is part of quantkit; else a plugin's."""
        return self.function.__module__.startswith("quantkit.")

    @property
    def doc(self) -> str:
        """The docstring without its example."""
        return EXAMPLE.sub("", inspect.getdoc(self.function) or "").strip()

    @property
    def example(self) -> str:
        """A recipe in the first line and the text of a graph below it; nothing where the docstring has none."""
        found = EXAMPLE.search(inspect.getdoc(self.function) or "")
        return textwrap.dedent(found[1]).strip() if found else ""

    def __call__(self, graph: Graph, **options: Any) -> Graph:
        return self.outcome(graph, **options).graph

    def outcome(self, graph: Graph, **options: Any) -> Outcome:
        """Apply it with options as Python values.

        Raises:
            GraphError: the graph is of a dialect that it does not know.
            RecipeError: it is a plugin, and fails.
        """
        if graph.dialect not in self.dialects:
            known, given = (DIALECTS.get(one, one) for one in (self.dialects[0], graph.dialect))
            raise GraphError(
                f"{self.name} rewrites graphs of {known}, and this is one of {given}",
                hint=f"for these there are {', '.join(names_for(graph.dialect))}",
            )
        made = self._made(graph, options)
        if isinstance(made, Outcome):
            return made._replace(graph=restore_placement(graph, made.graph))
        if not isinstance(made, Graph):
            code = self.function.__code__
            raise RecipeError(
                f"{self.name} returns {type(made).__name__}: {code.co_filename}, line {code.co_firstlineno}",
                hint="return the new graph, or an Outcome",
            )
        return Outcome(restore_placement(graph, made))

    def _made(self, graph: Graph, options: Mapping[str, Any]) -> Any:
        """What the function returns; a mistake in a graph or a plugin becomes a sentence that says where."""
        try:
            return self.function(graph, **options)
        except QuantkitError:
            raise
        except Exception as error:
            if not isinstance(error, NameError) and (fault := find_fault(graph)):
                raise GraphError(f"{self.name}: {fault}", hint=DAMAGED) from error
            if self.is_ours:
                raise
            from quantkit.transforms.plugins import where

            said = where(error, self.function.__code__.co_filename)
            raise RecipeError(f"{self.name}: {said}", hint="this transform is a plugin: tell its author") from error

    def apply(
        self, graph: Graph, words: Mapping[str, tuple[str, ...]], services: Mapping[str, Any] | None = None
    ) -> Outcome:
        """Apply it with options as a recipe writes them.

        Raises:
            RecipeError: an option is unknown, missing or unreadable.
        """
        values = self.read(words)
        given = {key: value for key, value in (services or {}).items() if key in self.services}
        return self.outcome(graph, **values, **given)

    def read(self, words: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
        """Option values of a recipe's words.

        Raises:
            RecipeError: an option is unknown, missing or unreadable.
        """
        for name in words:
            if name not in self.options:
                # The last is the recipe's, and each transform has it.
                known = (*self.options, "ignore_errors")
                raise OptionError(
                    f"{self.name} has no option {name!r}",
                    hint=did_you_mean(name, known) or f"its options: {', '.join(known)}",
                    option=name,
                )
        values = {name: self.options[name].read(given, self.name) for name, given in words.items()}
        for name, option in self.options.items():
            if option.is_required and not values.get(name):
                raise RecipeError(
                    f"{self.name} expects at least one {name!r} argument",
                    hint=f"quantkit transforms show {self.name} gives an example",
                )
        return values


REGISTRY: dict[str, Transform] = {}


@overload
def transform(function: Function, /) -> Transform: ...
@overload
def transform(
    *, exact: bool = True, dialects: tuple[str, ...] = ("tensorflow",)
) -> Callable[[Function], Transform]: ...
def transform(
    function: Function | None = None, /, *, exact: bool = True, dialects: tuple[str, ...] = ("tensorflow",)
) -> Transform | Callable[[Function], Transform]:
    """Register a function under its own name.

    Args:
        function: ``(graph, *, option=default, ...) -> Graph`` or ``-> Outcome``.
        exact: whether answers stay the same up to float32 rounding; ``--verify`` holds it to that.
        dialects: which graphs it can rewrite: ``tensorflow``, ``onnx``; it is never given another.

    Raises:
        RecipeError: the name is taken, or a parameter can not be an option.
    """
    if function is None:
        return lambda one: _registered(one, exact, dialects)
    return _registered(function, exact, dialects)


def names_for(dialect: str) -> tuple[str, ...]:
    """The transforms that can rewrite graphs of a dialect."""
    return tuple(sorted(name for name, one in REGISTRY.items() if dialect in one.dialects))


def _registered(function: Function, exact: bool, dialects: tuple[str, ...]) -> Transform:
    name = function.__name__
    options: dict[str, Option] = {}
    services: set[str] = set()
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters[1:]:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise RecipeError(
                f"transform {name!r}: parameter {parameter.name!r} must be keyword-only",
                hint="put '*,' after graph",
            )
        kind = _option_kind(hints.get(parameter.name, str))
        if kind is None:
            services.add(parameter.name)
        else:
            options[parameter.name] = Option(parameter.name, *kind, parameter.default)
    made = Transform(name, function, options, exact, frozenset(services), dialects)
    other = REGISTRY.setdefault(name, made)
    if other is not made and other.function.__module__ != function.__module__:
        raise RecipeError(
            f"two transforms are named {name!r}: {_home(other.function)} and {_home(function)}",
            hint="rename yours",
        )
    REGISTRY[name] = made
    return made


def _home(function: Function) -> str:
    """The module of a function, or the file of a plugin's."""
    return function.__module__.removeprefix(PLUGIN)


def _option_kind(hint: Any) -> tuple[type, bool] | None:
    """(kind, is it a list) of a type hint; None where no recipe can write such a value."""
    if get_origin(hint) in (Union, UnionType):
        kinds = [one for one in get_args(hint) if one is not NoneType]
        return _option_kind(kinds[0]) if len(kinds) == 1 else None
    if get_origin(hint) is tuple:
        return (get_args(hint)[0], True)
    return (hint, False) if hint in (int, float, bool, str) else None


def find(name: str, known: Iterable[str] | None = None) -> Transform:
    """The transform of a name.

    Args:
        name: as recipes write it.
        known: what the hint may suggest; None: all.

    Raises:
        RecipeError: there is none; the hint names the nearest ones.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    from quantkit.transforms.plugins import load_installed

    problems = load_installed()
    if name in REGISTRY:
        return REGISTRY[name]
    near = did_you_mean(name, known or REGISTRY)
    raise RecipeError(
        f"Transform '{name}' not recognized",
        hint=near or (problems[0] if problems else "quantkit transforms list names them all"),
    )
