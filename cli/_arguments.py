"""Flags that several commands share, and the functions that parse their values."""

import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from quantkit.arguments import (
    Requirement,
    keywords_of,
    parse_duration,
    parse_percentage,
    require_divisors,
    require_duration,
    require_fraction,
    require_names,
    require_natural,
    require_number,
    require_numbers,
    require_positive,
    require_ratio,
)
from quantkit.errors import UsageError
from quantkit.limits import Limits
from quantkit.options import DeclaredOption, declarations, names_of


def options_of(function: Callable[..., Any], args: Namespace, *omitted: str) -> dict[str, Any]:
    """Return the flags that are keyword arguments of a library function with the same name, with their values.

    Args:
        function: function, or class of values.
        args: parsed arguments of the command.
        omitted: names of keyword arguments that the command gives itself.
    """
    names = set(keywords_of(function)) - {*omitted}
    return {name: value for name, value in vars(args).items() if name in names}


def add_options(
    parser: _ActionsContainer,
    options: type,
    *,
    first: Sequence[str] = (),
    since: str = "",
    until: str = "",
    **changes: dict[str, Any],
) -> None:
    """Add the flags of options, in the order of their declarations; those of `LoadingOptions` are model flags.

    Args:
        parser: parser of the command, or a group of its flags.
        options: class of options.
        first: names of options in front of all others.
        since: name of the first option that is added (default: the first one of the class).
        until: name of the first option that is not added (default: none).
        changes: arguments of ``add_argument`` that differ, by name of the option.
    """
    from quantkit.model.options import LoadingOptions

    excluded = () if options is LoadingOptions else names_of(LoadingOptions)
    declared = {each.name: each for each in declarations(options) if each.name not in excluded}
    names = list(dict.fromkeys((*first, *declared)))
    for name in names[names.index(since) if since else 0 : names.index(until) if until else None]:
        if declared[name].option.help:
            _add_option(parser, declared[name], changes.get(name, {}))


def _add_option(parser: _ActionsContainer, declared: DeclaredOption, changes: dict[str, Any]) -> None:
    option, metavar = declared.option, declared.option.metavar
    keywords: dict[str, Any] = {"help": option.help.replace("%", "%%")}
    if declared.type is bool and not metavar:
        keywords["action"] = "store_true"
    elif declared.type is bool:
        keywords |= _spelled_boolean(default=declared.default)
    elif declared.type == bool | None:
        keywords |= {"type": parse_boolean, "metavar": "true|false", "default": declared.default}
    else:
        keywords |= {
            "choices": tuple(option.choices) or None,
            "metavar": (metavar() if callable(metavar) else metavar) or None,
        }
        is_integer = declared.type in (int, int | None)
        keywords |= {"type": _PARSERS.get(option.check, int if is_integer else None), "dest": declared.name}
        is_required = option.is_required or declared.default is MISSING
        keywords |= {"required": True} if is_required else {"default": declared.default}
    keywords |= _SPECIAL.get(declared.name, {}) | changes
    names = keywords.pop("names", (f"--{declared.name.replace('_', '-')}",))
    parser.add_argument(*names, **keywords)


def add_model_flags(parser: ArgumentParser, parse_endpoints: Callable[[str], object] | None = None) -> None:
    """Add the flags of every command that takes a MODEL: how it is loaded, plugins and libraries of custom ops.

    Args:
        parser: parser of the command.
        parse_endpoints: parser of the values of ``--inputs`` and ``--outputs``; None: `parse_names`.
    """
    from quantkit.model.options import LoadingOptions

    flags = parser.add_argument_group("model")
    endpoints = {"type": parse_endpoints or parse_names, "metavar": "NAMES"}
    add_options(flags, LoadingOptions, inputs=endpoints, outputs=endpoints)
    add_limits(flags)
    add_plugin(flags)
    flags.add_argument(
        "--custom-op-library",
        action="append",
        metavar="FILE",
        help="register this shared library of custom ops in ONNX Runtime; may be repeated",
    )


def add_offline(parser: _ActionsContainer) -> None:
    """Add ``--offline``."""
    from quantkit.model.options import OFFLINE

    parser.add_argument("--offline", action="store_true", help=OFFLINE.help)


def add_limits(parser: _ActionsContainer) -> None:
    """Add the limits of the work that a file can cause; `limits` applies them."""
    default = Limits()
    parser.add_argument(
        "--max-nodes",
        type=parse_positive,
        metavar="N",
        help=f"maximum number of nodes after function calls are inlined (default: {default.max_nodes:,})",
    )
    parser.add_argument(
        "--max-constant-bytes",
        type=parse_positive,
        metavar="BYTES",
        help=f"maximum size of a computed tensor and of all folded constants (default: {default.max_constant_bytes:,})",
    )


def add_plugin(parser: _ActionsContainer) -> None:
    """Add ``--plugin``; the files are run before the command, which gets ``args.plugin_transforms``."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="load extra transforms and Keras objects from this Python file; may be repeated",
    )
    parser.set_defaults(plugin_transforms=[])


def add_output_flags(parser: ArgumentParser) -> None:
    """Add the flags of every command: form and amount of the output."""
    flags = parser.add_argument_group("output")
    flags.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    flags.add_argument("-q", "--quiet", action="store_true", help="print neither progress nor messages")
    flags.add_argument("-v", "--verbose", action="store_true", help="print more details")
    flags.add_argument("--debug", action="store_true", default=SUPPRESS, help="print the traceback of an error")


def add_boolean(parser: ArgumentParser, name: str, text: str) -> None:
    """Add a flag in TensorFlow's three spellings: ``--name``, ``--name=true`` and ``--name=false``."""
    parser.add_argument(name, help=text, **_spelled_boolean(default=False))


def _spelled_boolean(*, default: bool) -> dict[str, Any]:
    return {"nargs": "?", "const": True, "default": default, "type": parse_boolean, "metavar": "true|false"}


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse an input name and its sizes."""
    name, _, sizes = text.rpartition(":")
    if not name or not all(size.isdecimal() and int(size) for size in sizes.split("x")):
        raise ArgumentTypeError(f"{text!r} is not an input with its sizes, such as x:1x3x640x640")
    return name, tuple(map(int, sizes.split("x")))


def parse_names(text: str) -> tuple[str, ...]:
    """Parse comma-separated names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_precisions(text: str) -> tuple[str, ...]:
    """Parse comma-separated members of `PRECISIONS`."""
    from quantkit.runtimes.session import PRECISIONS

    precisions = parse_names(text)
    for precision in precisions:
        if precision not in PRECISIONS:
            raise ArgumentTypeError(f"{precision!r} is not a precision: use {', '.join(PRECISIONS)}")
    if not precisions:
        raise ArgumentTypeError(f"name a precision: {', '.join(PRECISIONS)}")
    return precisions


def parse_boolean(text: str) -> bool:
    """Parse ``true``, ``false``, ``1`` or ``0``."""
    if text.lower() not in ("true", "false", "1", "0"):
        raise ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1")


def _parser(read: Callable[[str], Any], check: Requirement, clause: str) -> Callable[[str], Any]:
    """Return a parser of the values of a flag.

    Args:
        read: parser without bounds.
        check: check of the parsed value, that of the option.
        clause: predicate of the message about a wrong text.
    """

    def parse(text: str) -> Any:
        try:
            value = read(text)
            check(value=value)
        except (ValueError, UsageError):
            raise ArgumentTypeError(f"{text!r} is {clause}") from None
        return value

    return parse


def _read_integer(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _read_number(text: str) -> float:
    if not re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", text):
        raise ValueError(text)
    return float(text)


def _read_numbers(text: str) -> float | tuple[float, ...]:
    numbers = tuple(float(number) for number in text.split(","))
    return numbers if len(numbers) > 1 else numbers[0]


parse_natural = _parser(_read_integer, require_natural, "not a whole number from 0")
parse_positive = _parser(_read_integer, require_positive, "not a whole number from 1")
parse_fraction = _parser(_read_number, require_fraction, "not a fraction such as 0.985")
parse_tolerance = _parser(_read_number, require_fraction, "not a fraction such as 1e-5")
parse_number = _parser(float, require_number, "not a finite number")
parse_ratio = _parser(_read_number, require_ratio, "not a ratio such as 1.5")
parse_seconds = _parser(parse_duration, require_number, "not a time such as 90s or 10m, up to 8760h")
_parse_numbers = _parser(
    _read_numbers, require_numbers, "neither a number nor a list of numbers such as 123.68,116.78,103.94"
)
_parse_divisors = _parser(_parse_numbers, require_divisors, "not a number to divide by")


def _parse_size(text: str) -> int | None:
    """Parse a size in pixels; 0 counts as absent, as in label_image."""
    return parse_natural(text) or None


def parse_interval_width(text: str) -> float:
    """Parse a fraction between 0 and 1, or a percentage such as ``2%``."""
    try:
        return parse_percentage(text, "the width")
    except UsageError as error:
        raise ArgumentTypeError(error.message) from None


# Parser of the text of a flag, by the check of its option; other texts are values.
_PARSERS: Mapping[Callable[..., object] | None, Callable[[str], Any]] = {
    require_duration: parse_seconds,
    require_divisors: _parse_divisors,
    require_fraction: parse_fraction,
    require_names: parse_names,
    require_natural: parse_natural,
    require_number: parse_number,
    require_numbers: _parse_numbers,
    require_positive: parse_positive,
    require_ratio: parse_ratio,
}
# Arguments of ``add_argument`` for options whose flag has another form in every command.
_SPECIAL: Mapping[str, dict[str, Any]] = {
    "input_width": {"type": _parse_size},
    "input_height": {"type": _parse_size},
    "output": {"names": ("-o", "--output")},
    "step_seconds": {"names": ("--step-time",)},
    "input_shapes": {
        "names": ("--input-shape",),
        "type": _parse_shape,
        "action": "append",
        "metavar": "NAME:SIZES",
    },
}
