"""Check of the fields of a target that a plugin registers."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from quantkit.errors import UsageError
from quantkit.quantization.scheme import Scheme, parse_field
from quantkit.quantization.targets.base import DIALECTS, Target
from quantkit.registry import check_fields, is_texts
from quantkit.runtimes import runtimes


def check_definition(target: Target) -> None:
    """Check the fields of a target, so that no later step fails on them.

    Raises:
        UsageError: a field is missing or has a value that is not allowed; the message names the
            field and the allowed values.
    """
    scheme_fields = [field.name for field in fields(Scheme) if field.name != "target"]
    prescribed = (*scheme_fields, "weights.dtype", "activations.dtype")
    names = ", ".join(scheme_fields)
    check_fields(
        target,
        {
            "name": ("a Python identifier", lambda value: value.isidentifier()),
            "dialect": (" or ".join(map(repr, DIALECTS)), lambda value: value in DIALECTS),
            "suffixes": ("a tuple of lower-case suffixes such as ('.onnx',)", _are_suffixes),
            "runtimes": (
                f"a tuple of at least one of {', '.join(runtimes())}",
                lambda value: bool(value) and is_texts(value, runtimes()),
            ),
            "defaults": (f"a mapping with keys of {names}", lambda value: isinstance(value, Mapping)),
            "fixed": (
                f"a tuple of {names}",
                lambda value: is_texts(value, prescribed),
            ),
        },
    )
    for name, value in target.defaults.items():
        _check_default(name, value, scheme_fields)


def _are_suffixes(value: Any) -> bool:
    return (
        bool(value)
        and is_texts(value)
        and all(len(suffix) > 1 and suffix[0] == "." and suffix == suffix.lower() for suffix in value)
    )


def _check_default(name: str, value: object, scheme_fields: list[str]) -> None:
    if name not in scheme_fields:
        raise UsageError(f"the field 'defaults' has the key {name!r}; the allowed keys are {', '.join(scheme_fields)}")
    try:
        parse_field(name, value)
    except UsageError as error:
        raise UsageError(f"the field 'defaults': {error.message}", hint=error.hint) from None
