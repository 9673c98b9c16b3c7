"""Registry of transforms, and the decorator that adds a function or a rule to it.

A transform is a function ``(graph, *, option=default, ...) -> Graph``; its signature is its option schema. It may
return an `Outcome` instead, with its changes and skips. Options are ``int``, ``float``, ``bool``, ``str``, an ``Enum``,
a ``Literal``, a tuple of one of these (an option that may be repeated), and ``| None``.
"""

import inspect
import re
import textwrap
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints, overload

from quantkit.arguments import public
from quantkit.errors import GraphError, QuantkitError, RecipeError, did_you_mean, quoted_error
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, Rule, apply_rules, count_matches
from quantkit.ops.validation import find_invalid_node
from quantkit.transforms._placement import restore_placement

REQUIRED = inspect.Parameter.empty
# A section of a docstring: a recipe of one line, and the graph that the recipe is run on.
EXAMPLE = re.compile(r"^Example:\n((?: {4}.*(?:\n|$)|\n)+)", re.MULTILINE)
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
# Prefix of the module names of ``--plugin`` files; the path follows.
_PLUGINS_FILE = str(Path(__file__).with_name("plugins.py"))
PLUGIN = "quantkit_plugin:"
# Dialects of graphs, and their names in messages.
DIALECTS = {"tensorflow": "TensorFlow", "onnx": "ONNX"}
SUPPORTED = "int, float, bool, str, an Enum, a Literal, tuple[T, ...] of one of these, or T | None"


class OptionError(RecipeError):
    """An option that a transform does not take, or a value that the option does not take.

    Attributes:
        option: name of the option.
    """

    def __init__(self, message: str, hint: str = "", option: str = "") -> None:
        super().__init__(message, hint)
        self.option = option


@dataclass(frozen=True)
class Option:
    """One option of a transform.

    Attributes:
        name: name in recipes.
        kind: type of a single value: ``int``, ``float``, ``bool``, ``str`` or an Enum.
        is_list: True if the option may be repeated.
        default: value of an absent option, or `REQUIRED`.
        choices: allowed values by their text; empty if every value is allowed.
    """

    name: str
    kind: type
    is_list: bool
    default: Any
    choices: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    @property
    def type_text(self) -> str:
        """Type of a single value in documentation: ``int`` or ``NCHW|NHWC``."""
        return "|".join(self.choices) or self.kind.__name__

    @property
    def default_text(self) -> str:
        """Default in documentation; empty if it is absent, None or an empty list."""
        if self.is_required or self.default in (None, ()):
            return ""
        values = self.default if self.is_list else (self.default,)
        return ", ".join(self._text(value) for value in values) or '""'

    def parse(self, texts: tuple[str, ...], transform: str) -> Any:
        """Return the value of the texts that a recipe gives.

        Args:
            texts: one text per occurrence in the recipe.
            transform: name for the message.

        Raises:
            OptionError: the option is repeated but is not a list, or a text is not of its type.
        """
        if self.is_list:
            return tuple(self._parse_text(text, transform) for text in texts)
        if len(texts) != 1:
            raise OptionError(
                f"{transform}: Expected a single '{self.name}' parameter, but found {len(texts)} occurrences",
                hint=f"give {self.name} once",
                option=self.name,
            )
        return self._parse_text(texts[0], transform)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.kind.__name__,
            "choices": list(self.choices),
            "is_list": self.is_list,
            "is_required": self.is_required,
            "default": None if self.is_required else self._to_plain(self.default),
        }

    def check(self, value: Any, transform: str) -> None:
        """Check a Python value against the choices.

        Raises:
            OptionError: the value is not one of the choices.
        """
        if not self.choices or value is None:
            return
        for each in value if self.is_list else (value,):
            if each not in self.choices.values():
                raise self._not_a_choice(str(each), transform)

    def _parse_text(self, text: str, transform: str) -> Any:
        if self.choices:
            if text not in self.choices:
                raise self._not_a_choice(text, transform)
            return self.choices[text]
        if self.kind is str:
            return text
        if self.kind is bool:
            if text in BOOLEANS:
                return BOOLEANS[text]
            raise OptionError(
                f"{transform}: Couldn't interpret the {self.name} argument as a boolean:{text}",
                hint="expected true, false, 0 or 1",
                option=self.name,
            )
        try:
            return self.kind(text)
        except ValueError:
            noun, example = ("a number", "16") if self.kind is int else ("a float number", "0.5")
            raise OptionError(
                f"{transform}: Couldn't interpret the {self.name} argument as {noun}:{text}",
                hint=f"write {self.name}={example}",
                option=self.name,
            ) from None

    def _not_a_choice(self, text: str, transform: str) -> OptionError:
        similar = {choice.lower(): choice for choice in self.choices}.get(text.lower())
        near = f"did you mean {similar!r}?" if similar else did_you_mean(text, self.choices)
        return OptionError(
            f"{transform}: {text!r} is not a value of {self.name}",
            hint=near or "write " + " or ".join(f"{self.name}={choice}" for choice in self.choices),
            option=self.name,
        )

    def _to_plain(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return [self._to_plain(each) for each in value]
        return value.value if isinstance(value, Enum) else value

    def _text(self, value: Any) -> str:
        return next((text for text, choice in self.choices.items() if choice == value), str(value))


class Claim(Protocol):
    """Claim of a transform about the model outputs.

    Attributes:
        name: name of the transform.
        is_exact: True if the outputs stay equal up to float32 rounding.
    """

    @property
    def name(self) -> str: ...
    @property
    def is_exact(self) -> bool: ...


Function = Callable[..., Graph | Outcome]


@dataclass(frozen=True)
class Transform:
    """A named function from graph to graph.

    Attributes:
        name: name in recipes, and of the function.
        function: the function itself.
        options: options by name, in the order of the signature.
        is_exact: True if the outputs stay equal up to float32 rounding.
        services: parameters that the caller provides and no recipe can write (``evaluate``).
        dialects: dialects of the graphs that it can rewrite.
        location: file and line of the definition.
    """

    name: str
    function: Function
    options: Mapping[str, Option]
    is_exact: bool
    services: frozenset[str]
    dialects: tuple[str, ...]
    location: tuple[str, int]

    @property
    def is_built_in(self) -> bool:
        """True if the transform is part of quantkit, False if a plugin adds it."""
        return self.function.__module__.startswith("quantkit.")

    @property
    def doc(self) -> str:
        """Docstring without its examples."""
        return EXAMPLE.sub("", inspect.getdoc(self.function) or "").strip()

    @property
    def examples(self) -> tuple[str, ...]:
        """Texts of the examples: a recipe in the first line, and a graph below it."""
        docstring = inspect.getdoc(self.function) or ""
        return tuple(textwrap.dedent(example).strip() for example in EXAMPLE.findall(docstring))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "doc": self.doc,
            "is_exact": self.is_exact,
            "is_plugin": not self.is_built_in,
            "dialects": list(self.dialects),
            "options": [option.to_json() for option in self.options.values()],
        }

    def __call__(self, graph: Graph, **options: Any) -> Graph:
        return self.outcome(graph, **options).graph

    def outcome(self, graph: Graph, **options: Any) -> Outcome:
        """Apply the transform with options as Python values; see `count_outcome`."""
        return self.count_outcome(graph, **options)[0]

    def count_outcome(self, graph: Graph, **options: Any) -> tuple[Outcome, Mapping[str, int]]:
        """Apply the transform with options as Python values, and count the matches of its own rules.

        Returns:
            The outcome, and the number of matches by rule; rules of transforms that this one calls do not count.

        Raises:
            GraphError: the transform does not support the dialect of the graph.
            RecipeError: an option has a value that is not one of its choices, or a plugin fails.
        """
        if graph.dialect not in self.dialects:
            expected, actual = (DIALECTS.get(dialect, dialect) for dialect in (self.dialects[0], graph.dialect))
            raise GraphError(
                f"{self.name} rewrites {expected} graphs, and the dialect of this graph is {actual}",
                hint=f"transforms for {actual} graphs: {', '.join(names_for(graph.dialect))}",
            )
        for name, value in options.items():
            if name in self.options:
                self.options[name].check(value, self.name)
        with count_matches() as matches:
            result = self._call(graph, options)
        if isinstance(result, Outcome):
            return result._replace(graph=restore_placement(graph, result.graph)), matches
        if not isinstance(result, Graph):
            file, line = self.location
            raise RecipeError(
                f"{self.name} returns {type(result).__name__}: {file}, line {line}",
                hint="return the new graph, or an Outcome",
            )
        return Outcome(restore_placement(graph, result)), matches

    def _call(self, graph: Graph, options: Mapping[str, Any]) -> Any:
        """Call the function; a fault of the graph or of a plugin becomes a message with its location."""
        try:
            return self.function(graph, **options)
        except QuantkitError:
            raise
        except Exception as error:
            if not isinstance(error, NameError) and (fault := find_invalid_node(graph)):
                raise GraphError(f"{self.name}: {fault.message}", fault.hint) from error
            if self.is_built_in:
                raise
            raise RecipeError(
                f"{self.name}: {locate(error, *self.location)}",
                hint="this transform is a plugin: report the error to its author",
            ) from error

    def apply(
        self, graph: Graph, texts: Mapping[str, tuple[str, ...]], services: Mapping[str, Any] | None = None
    ) -> Outcome:
        """Apply the transform with options as recipes write them.

        Args:
            graph: graph to rewrite; it is not changed.
            texts: texts of each option.
            services: values for the parameters of `services`, and others, which are ignored.

        Raises:
            RecipeError: an option is unknown, missing or unreadable.
        """
        values = self.parse_options(texts)
        own = {key: value for key, value in (services or {}).items() if key in self.services}
        return self.outcome(graph, **values, **own)

    def parse_options(self, texts: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
        """Return the option values of a recipe's texts.

        Raises:
            RecipeError: an option is unknown, missing or unreadable.
        """
        for name in texts:
            if name not in self.options:
                # Every transform has the recipe's option ignore_errors.
                names = (*self.options, "ignore_errors")
                raise OptionError(
                    f"{self.name} has no option {name!r}",
                    hint=did_you_mean(name, names) or f"{self.name} has the options {', '.join(names)}",
                    option=name,
                )
        values = {name: self.options[name].parse(option_texts, self.name) for name, option_texts in texts.items()}
        for name, option in self.options.items():
            if option.is_required and not values.get(name):
                raise RecipeError(
                    f"{self.name} expects at least one {name!r} argument",
                    hint=f"quantkit transforms show {self.name} gives an example",
                )
        return values


REGISTRY: dict[str, Transform] = {}


@overload
def transform(function: Function | Rule, /) -> Transform: ...
@overload
def transform(
    *, exact: bool = True, dialects: tuple[str, ...] = ("tensorflow",), services: tuple[str, ...] = ()
) -> Callable[[Function | Rule], Transform]: ...
@public
def transform(
    function: Function | Rule | None = None,
    /,
    *,
    exact: bool = True,
    dialects: tuple[str, ...] = ("tensorflow",),
    services: tuple[str, ...] = (),
) -> Transform | Callable[[Function | Rule], Transform]:
    """Register a function or a rule as a transform of the same name.

    Args:
        function: ``(graph, *, option=default, ...) -> Graph`` or ``-> Outcome``, or a `Rule`, which is applied until
            it no longer matches.
        exact: True if the outputs stay equal up to float32 rounding; ``--verify`` checks it.
        dialects: dialects of the graphs that it can rewrite: ``tensorflow``, ``onnx``.
        services: parameters that are not options: the caller provides their values.

    Raises:
        RecipeError: the name is taken, or recipes cannot write a parameter.
    """
    if function is None:
        return lambda function: _register(function, exact, dialects, services)
    return _register(function, exact, dialects, services)


def names_for(dialect: str) -> tuple[str, ...]:
    """Return the names of the transforms that can rewrite graphs of a dialect."""
    return tuple(sorted(name for name, transform in REGISTRY.items() if dialect in transform.dialects))


def _register(
    definition: Function | Rule, exact: bool, dialects: tuple[str, ...], services: tuple[str, ...]
) -> Transform:
    function = _apply_rule(definition) if isinstance(definition, Rule) else definition
    code = (definition.rewrite if isinstance(definition, Rule) else definition).__code__
    name = function.__name__
    hints = get_type_hints(function)
    options: dict[str, Option] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise RecipeError(
                f"transform {name!r}: parameter {parameter.name!r} must be keyword-only",
                hint="put '*,' after graph",
            )
        if parameter.name not in services:
            options[parameter.name] = _option(name, parameter, hints.get(parameter.name))
    location = (code.co_filename, code.co_firstlineno)
    transform = Transform(name, function, options, exact, frozenset(services), dialects, location)
    other = REGISTRY.get(name)
    if other is not None and other.function.__module__ != function.__module__:
        raise RecipeError(
            f"two transforms are named {name!r}: {_origin(other.function)} and {_origin(function)}",
            hint="rename yours",
        )
    REGISTRY[name] = transform
    return transform


def _apply_rule(rule: Rule) -> Function:
    """Return a function that applies one rule, with the name and the docstring of the rule."""

    def function(graph: Graph) -> Outcome:
        return apply_rules(graph, rule)

    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(function, attribute, getattr(rule.rewrite, attribute))
    return function


def _origin(function: Function) -> str:
    """Return the module of a function; for a plugin, its file."""
    return function.__module__.removeprefix(PLUGIN)


def _option(transform: str, parameter: inspect.Parameter, hint: Any) -> Option:
    """Return the option of a parameter.

    Raises:
        RecipeError: the parameter has no type hint, or recipes cannot write values of the hint.
    """
    if hint is None:
        raise RecipeError(
            f"transform {transform!r}: parameter {parameter.name!r} has no type hint", hint=f"use {SUPPORTED}"
        )
    value_type = _value_type(hint)
    if value_type is None:
        text = hint.__name__ if isinstance(hint, type) else str(hint)
        raise RecipeError(
            f"transform {transform!r}: parameter {parameter.name!r} has the type hint {text}, which is not an option",
            hint=f"use {SUPPORTED}; for a value that the caller provides, @transform(services=({parameter.name!r},))",
        )
    kind, is_list, choices = value_type
    return Option(parameter.name, kind, is_list, parameter.default, choices)


def _value_type(hint: Any) -> tuple[type, bool, Mapping[str, Any]] | None:
    """Return the type of a single value, True for a list, and the choices of a type hint; None if unsupported."""
    arguments = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        hints = [argument for argument in arguments if argument is not NoneType]
        return _value_type(hints[0]) if len(hints) == 1 else None
    if get_origin(hint) is tuple:
        item = _value_type(arguments[0]) if len(arguments) == 2 and arguments[1] is ... else None
        return None if item is None or item[1] else (item[0], True, item[2])
    if get_origin(hint) is Literal:
        kinds = {type(choice) for choice in arguments}
        is_supported = len(kinds) == 1 and kinds <= {int, str}
        return (kinds.pop(), False, {str(choice): choice for choice in arguments}) if is_supported else None
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint, False, {str(member.value): member for member in hint}
    return (hint, False, {}) if hint in (int, float, bool, str) else None


def locate(error: BaseException, file: str, line: int | None = None) -> str:
    """Return the message of an error, with the line of the user's file that raised it.

    Args:
        error: the exception.
        file: file of the user, for example a plugin.
        line: line to name if no frame of the traceback is in ``file``.
    """
    if quoted := quoted_error(str(error)):
        return quoted
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, QuantkitError):
        message = error.message
        if message.startswith(file):
            return message
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file] or ([line] if line else [])
    if lines:
        return f"{file}, line {lines[-1]}: {message}"
    own = [frame for frame in frames if not any(part in frame.filename for part in ("importlib", "<", _PLUGINS_FILE))]
    return f"{own[-1].filename}, line {own[-1].lineno}: {message}" if own else f"{file}: {message}"
