"""Checks of arguments before any work.

`public` rejects unknown keywords. Every other check takes arguments by name and raises `UsageError`
with the name, the value and the allowed values:

    require_positive(runs=runs, batch=batch)
    require_fraction(**without_none(max_drop=max_drop))
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import CO_VARARGS, CO_VARKEYWORDS, unwrap
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from quantkit.errors import UsageError, did_you_mean

Function = TypeVar("Function", bound=Callable[..., Any])
# Maximum time of an argument: a year.
MAX_SECONDS = 8760 * 3600
_SECONDS_IN = {"": 1, "s": 1, "m": 60, "h": 3600}


def public(function: Function) -> Function:
    """Make a function of the public interface reject unknown keywords; used as a decorator.

    Args:
        function: function or method; its keywords are its parameters, and those of the
            `TypedDict` that ``**options: Unpack[...]`` names. A class stands for its constructor.

    Raises:
        UsageError: in a call with an unknown keyword; the hint has the nearest one.

    >>> @public
    ... def resize(image, *, height=299, width=299): ...
    >>> resize(None, hieght=8)
    Traceback (most recent call last):
    quantkit.errors.UsageError: resize() has no argument 'hieght'
    """
    if isinstance(function, type):
        constructed: Any = function
        constructed.__init__ = public(constructed.__init__)
        return function
    accepted = keywords_of(function)
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        for keyword in keywords:
            if keyword not in accepted:
                near = did_you_mean(keyword, accepted)
                raise UsageError(
                    f"{name}() has no argument {keyword!r}", hint=near or f"help({name}) lists the arguments"
                )
        return function(*arguments, **keywords)

    return cast(Function, call)


def keywords_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the keyword arguments of a function or class, in order.

    Those of the `TypedDict` that ``**options: Unpack[...]`` names are included.

    >>> keywords_of(without_none), keywords_of(parse_percentage)
    ((), ('value', 'name'))
    """
    constructed: Any = function
    if (signature := getattr(function, "__signature__", None)) is not None:
        return tuple(signature.parameters)
    function = unwrap(constructed.__init__ if isinstance(function, type) else function)
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    keywords = code.co_varnames[code.co_posonlyargcount : count]
    if code.co_flags & CO_VARKEYWORDS:
        options = function.__annotations__.get(code.co_varnames[count + bool(code.co_flags & CO_VARARGS)])
        keywords += tuple(name for each in get_args(options) for name in each.__annotations__)
    return keywords


def without_none(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are not None.

    >>> without_none(limit=None, batch=8)
    {'batch': 8}
    """
    return {name: value for name, value in arguments.items() if value is not None}


@dataclass(frozen=True)
class Requirement:
    """Check of each of its keyword arguments.

    Attributes:
        is_valid: check of one value.
        allowed: valid values, for the message.
        hint: remedy, with ``{name}`` for the name of the argument.
        shows_value: True if the message has the wrong text or number, False if it has its type.
    """

    is_valid: Callable[[Any], bool]
    allowed: str
    hint: str
    shows_value: bool = True

    def __call__(self, **arguments: Any) -> None:
        """Check all arguments.

        Raises:
            UsageError: an argument is not valid.
        """
        for name, value in arguments.items():
            if not self.is_valid(value):
                has_value = self.shows_value and isinstance(value, str | int | float | None)
                shown = repr(value) if has_value else type_name(value)
                raise UsageError(f"{name} is {shown}, and must be {self.allowed}", hint=self.hint.format(name=name))


def _is_integer(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and isfinite(value)


def _are_numbers(value: Any) -> bool:
    numbers = _as_list(value)
    return bool(numbers) and all(map(_is_number, numbers))


def _as_list(value: Any) -> list[Any]:
    """Return the values of a list, tuple or array, and any other value in a list."""
    values = value.tolist() if hasattr(value, "tolist") else value
    return list(values) if isinstance(values, list | tuple) else [values]


require_natural = Requirement(
    lambda value: _is_integer(value) and value >= 0, "a whole number from 0", "for example {name}=0"
)
require_positive = Requirement(
    lambda value: _is_integer(value) and 1 <= value <= sys.maxsize, "a whole number from 1", "for example {name}=1"
)
require_number = Requirement(_is_number, "a finite number", "for example {name}=1.0")
require_ratio = Requirement(
    lambda value: _is_number(value) and value >= 0, "a number from 0", "for example {name}=0.01"
)
require_numbers = Requirement(_are_numbers, "a finite number, or a list of finite numbers", "for example {name}=1.0")
require_divisors = Requirement(
    lambda value: _are_numbers(value) and 0 not in _as_list(value),
    "a number other than 0, or a list of such numbers",
    "for example {name}=128.0",
)
require_fraction = Requirement(
    lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1", "for example {name}=0.01"
)
require_flag = Requirement(lambda value: isinstance(value, bool), "True or False", "for example {name}=True")
require_text = Requirement(lambda value: isinstance(value, str), "a str", "pass one name as {name}", shows_value=False)
require_names = Requirement(
    lambda value: isinstance(value, Iterable) and not isinstance(value, bytes | dict),
    "a list of names",
    'for example {name}=["NAME"]',
    shows_value=False,
)
require_callable = Requirement(
    callable, "a function", "pass a function with one parameter, or omit {name}", shows_value=False
)


def as_numbers(value: float | Sequence[float] | None) -> float | tuple[float, ...] | None:
    """Return a number unchanged, and a sequence of numbers as a tuple; a sequence of one number as this number.

    >>> as_numbers([123.68, 116.78, 103.94])
    (123.68, 116.78, 103.94)
    >>> as_numbers(128)
    128
    """
    if value is None or isinstance(value, int | float):
        return value
    numbers = tuple(map(float, _as_list(value)))
    return numbers[0] if len(numbers) == 1 else numbers


def require_path(**arguments: Any) -> None:
    """Check that each argument is a path: a string or a `pathlib.Path`.

    Raises:
        UsageError: an argument is not.
    """
    for name, value in arguments.items():
        if not isinstance(value, str | os.PathLike) or not str(value):
            wrong = "an empty path" if isinstance(value, str) else type_name(value)
            raise UsageError(
                f"{name} is {wrong}, and must be a path",
                hint=f"pass a str or a pathlib.Path as {name}",
            )


def as_shapes(shapes: Any) -> dict[str, tuple[int, ...]]:
    """Return the sizes of inputs by name, given as a dict, as pairs, or not at all.

    Raises:
        UsageError: the value does not contain positive integers by name.
    """
    try:
        sizes_of = {name: tuple(sizes) for name, sizes in dict(shapes or {}).items()}
    except (TypeError, ValueError):
        raise UsageError(
            f"input_shapes is {type_name(shapes)}, and must be a dict", hint='{"x": (1, 224, 224, 3)}'
        ) from None
    for name, sizes in sizes_of.items():
        require_positive(**{f"input_shapes[{name!r}][{index}]": size for index, size in enumerate(sizes)})
    return sizes_of


def require_choice(choices: Iterable[Any], **arguments: Any) -> None:
    """Check that each argument is one of the choices.

    Raises:
        UsageError: an argument is not.
    """
    allowed = list(choices)
    for name, value in arguments.items():
        if value not in allowed:
            near = did_you_mean(value, allowed) if isinstance(value, str) else ""
            raise UsageError(
                f"{name} is {value!r}, and must be one of {', '.join(map(str, allowed))}",
                hint=near or f"for example {name}={allowed[0]!r}",
            )


def parse_duration(value: Any, name: str = "the time") -> float:
    """Return a positive time in seconds.

    Args:
        value: number of seconds, or a text such as ``90s``, ``10m`` or ``1h``.
        name: name of the argument, for the message.

    Raises:
        UsageError: the value is not a positive time.

    >>> parse_duration("2m")
    120.0
    """
    seconds = 0.0
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value)
        seconds = float(match[1]) * _SECONDS_IN[match[2]] if match else 0.0
    elif _is_number(value):
        seconds = float(value)
    if not 0 < seconds <= MAX_SECONDS:
        raise UsageError(
            f"{name} is {value!r}, and must be a time such as 90s or 10m, up to {MAX_SECONDS // 3600}h",
            hint="a plain number counts seconds",
        )
    return seconds


def require_duration(**arguments: Any) -> None:
    """Check that each argument is a positive time: a number of seconds, or a text such as ``90s``.

    Raises:
        UsageError: an argument is not.
    """
    for name, value in arguments.items():
        parse_duration(value, name)


def parse_percentage(value: Any, name: str) -> float:
    """Return a fraction between 0 and 1.

    Args:
        value: fraction, or a text such as ``2%``.
        name: name of the argument, for the message.

    Raises:
        UsageError: the value is not such a fraction.

    >>> parse_percentage("2%", "interval_width"), parse_percentage(0.05, "interval_width")
    (0.02, 0.05)
    """
    fraction = 0.0
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", value)
        fraction = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    elif _is_number(value):
        fraction = float(value)
    if not 0 < fraction < 1:
        raise UsageError(f"{name} is {value!r}, and must be a fraction such as 0.02 or 2%", hint="for example 2%")
    return fraction


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home folder in place of ``~`` or ``~USER``; an unknown user stays, as in a shell.

    >>> expand_user("~missing-user/model.pb")
    PosixPath('~missing-user/model.pb')
    """
    return Path(os.path.expanduser(path))


def as_names(value: Any) -> tuple[Any, ...] | None:
    """Return names as a tuple; a single name counts as a list of one, None stays None.

    >>> as_names("softmax"), as_names(["Mul", "Add"]), as_names(None)
    (('softmax',), ('Mul', 'Add'), None)
    """
    return None if value is None else (value,) if isinstance(value, str) else tuple(value)


def type_name(value: Any) -> str:
    """Return the type of a value with its article.

    >>> type_name(3), type_name("digits"), type_name(None)
    ('an int', 'a str', 'None')
    """
    name = type(value).__name__
    if value is None:
        return "None"
    return f"an {name}" if name[0].lower() in "aeiou" or name.startswith("ndarray") else f"a {name}"
