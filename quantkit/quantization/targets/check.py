"""Check of the fields of a target that a plugin registers."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from quantkit.errors import QuantkitError, UsageError
from quantkit.quantization.scheme import Scheme, parse_field
from quantkit.quantization.targets.base import BFLOAT16, DIALECTS, FLOAT, Target
from quantkit.recipes import parse
from quantkit.registry import BOOLEAN, TITLE, check_fields, is_text, is_texts
from quantkit.runtimes import runtimes

_PRECISIONS = (FLOAT, BFLOAT16)


def check_definition(target: Target) -> None:
    """Check the fields of a target, so that no later step fails on them.

    Raises:
        UsageError: a field is missing or has a value that is not allowed; the message names the
            field and the allowed values.
    """
    scheme_fields = [field.name for field in fields(Scheme) if field.name != "target"]
    names = ", ".join(scheme_fields)
    text = ("a text", lambda value: isinstance(value, str))
    check_fields(
        target,
        {
            "name": ("a Python identifier", lambda value: value.isidentifier()),
            "title": TITLE,
            "dialect": (" or ".join(map(repr, DIALECTS)), lambda value: value in DIALECTS),
            "suffixes": ("a tuple of lower-case suffixes such as ('.onnx',)", _are_suffixes),
            "writes_folders": BOOLEAN,
            "runtimes": (
                f"a tuple of at least one of {', '.join(runtimes())}",
                lambda value: bool(value) and is_texts(value, runtimes()),
            ),
            "keeps_endpoints": BOOLEAN,
            "defaults": (f"a mapping with keys of {names}", lambda value: isinstance(value, Mapping)),
            "fixed": (f"a tuple of {names}", lambda value: is_texts(value, scheme_fields)),
            "can_split_patterns": BOOLEAN,
            "has_classic_sums": BOOLEAN,
            "layer_recipe": ("a transforms string", is_text),
            "rewrite_recipe": ("a transforms string", is_text),
            "multiplies_u8_by_s8": BOOLEAN,
            "has_host_check": BOOLEAN,
            "fallback_precisions": (
                f"a tuple of {FLOAT!r} and optionally {BFLOAT16!r}, {FLOAT!r} first",
                lambda value: is_texts(value, _PRECISIONS) and value[:1] == (FLOAT,),
            ),
            "runs_bfloat16": BOOLEAN,
            "runs_float16": BOOLEAN,
            "writes_float16": BOOLEAN,
            "thread_advice": ("a text with no fields but {cores} and {runtimes}", _is_thread_advice),
            "weights_only_arithmetic": text,
            "slow_reason": text,
            "faster_target": text,
        },
    )
    for name in ("layer_recipe", "rewrite_recipe"):
        _check_recipe(name, getattr(target, name))
    for name, value in target.defaults.items():
        _check_default(name, value, scheme_fields)


def _are_suffixes(value: Any) -> bool:
    return (
        bool(value)
        and is_texts(value)
        and all(len(suffix) > 1 and suffix[0] == "." and suffix == suffix.lower() for suffix in value)
    )


def _is_thread_advice(value: Any) -> bool:
    if not is_text(value):
        return False
    try:
        return "{" not in value.format(cores=1, runtimes="")
    except (KeyError, IndexError, ValueError):
        return False


def _check_recipe(name: str, text: str) -> None:
    try:
        parse(text)
    except QuantkitError as error:
        raise UsageError(f"the field {name!r} has the value {text!r}: {error.message}", hint=error.hint) from None


def _check_default(name: str, value: object, scheme_fields: list[str]) -> None:
    if name not in scheme_fields:
        raise UsageError(f"the field 'defaults' has the key {name!r}; the allowed keys are {', '.join(scheme_fields)}")
    try:
        parse_field(name, value)
    except UsageError as error:
        raise UsageError(f"the field 'defaults': {error.message}", hint=error.hint) from None
