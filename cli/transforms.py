"""``quantkit transforms``: reference of the transforms, from their docstrings."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import quantkit.transforms  # noqa: F401  (fills the registry)
from quantkit.errors import CheckError, UsageError
from quantkit.transforms.plugins import find_transform, load_installed
from quantkit.transforms.registry import REGISTRY, Option, Transform

from ._arguments import add_plugin
from ._render import emit, log

if TYPE_CHECKING:
    from quantkit.recipes.contract import PromiseCheck
    from quantkit.recipes.example import Example

SCHEMA = "quantkit.transforms/2"
EXAMPLES = (
    "quantkit transforms list",
    "quantkit transforms show fold_batch_norms",
    "quantkit transforms check my_transform --plugin my_transforms.py",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the three subcommands."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|check")
    listing = actions.add_parser("list", help="list the transforms and the recipes")
    show = actions.add_parser("show", help="print the documentation of a transform and run its examples")
    show.add_argument("name", help="name of the transform")
    check = actions.add_parser("check", help="run the transform contract checks")
    check.add_argument("names", nargs="*", help="names of transforms (default: those of --plugin)")
    for action in (listing, show, check):
        add_plugin(action)


def run(args: Namespace) -> int:
    """List, show or check transforms."""
    if args.action == "list":
        return _list(args)
    if args.action == "show":
        return _show(args, find_transform(args.name))
    return _check(args, [find_transform(name) for name in args.names] or args.plugin_transforms)


def _list(args: Namespace) -> int:
    from quantkit.recipes.named import named_recipes

    for problem in load_installed():
        log(args, problem)
    transforms = [REGISTRY[name] for name in sorted(REGISTRY)]
    recipes = named_recipes().values()
    width = max(len(transform.name) for transform in transforms)
    lines = []
    for transform in transforms:
        summary = next(iter(transform.doc.splitlines()), "")
        lines += _in_columns(transform.name, f"{summary}{'' if transform.is_built_in else ' (plugin)'}", width)
    lines += ["", "Recipes, by --recipe NAME:"]
    for recipe in recipes:
        lines += [*_in_columns(recipe.name, recipe.purpose, width), *_in_columns("", f"  {recipe}", width)]
    document = {
        "transforms": [transform.to_json() for transform in transforms],
        "recipes": [{"name": recipe.name, "purpose": recipe.purpose, "steps": str(recipe)} for recipe in recipes],
    }
    emit(args, SCHEMA, document, "\n".join(lines))
    return 0


def _in_columns(name: str, text: str, width: int) -> list[str]:
    """Return a name and a text next to it, in lines of at most 80 characters."""
    return fill(text, 80, initial_indent=f"{name:<{width}}  ", subsequent_indent=" " * (width + 4)).splitlines()


def _show(args: Namespace, transform: Transform) -> int:
    from quantkit.recipes.example import run_examples

    examples = run_examples(transform) if transform.examples else ()
    document = {**transform.to_json(), "examples": [example.to_json() for example in examples]}
    text = "\n".join(_describe(transform, examples))
    emit(args, SCHEMA, document, text)
    return 0


def _describe(transform: Transform, examples: "Sequence[Example]") -> Iterator[str]:
    yield f"{transform.name}\n"
    yield transform.doc
    for example in examples:
        yield "\nExample, run now:\n"
        yield from (f"    {line}".rstrip() for line in str(example).splitlines())
    if not examples:
        yield f"\n{transform.name} has no example."
    yield "\nSignature:"
    yield from (f"    {option.name}={_signature(option)}" for option in transform.options.values())
    if not transform.options:
        yield "    no options"
    yield "    ignore_errors=bool, for every transform\n"
    if transform.is_exact:
        yield "The model outputs stay equal up to float32 rounding."
    else:
        yield "The model outputs change by design."


def _signature(option: Option) -> str:
    kind = option.type_text + (", may be repeated" if option.is_list else "")
    if option.is_required:
        return f"{kind}; required"
    return f"{kind}; default {option.default_text}" if option.default_text else kind


def _check(args: Namespace, transforms: list[Transform]) -> int:
    from quantkit.recipes.contract import Status, check_transform

    if not transforms:
        raise UsageError("no transform is named", hint="quantkit transforms check NAME, or --plugin FILE.py")
    checks = {transform.name: check_transform(transform) for transform in transforms}
    document = {
        "transforms": [
            {"name": name, "promises": [check.to_json() for check in promises]} for name, promises in checks.items()
        ]
    }
    text = "\n".join(_describe_checks(checks))
    emit(args, SCHEMA, document, text)
    for status, verb in ((Status.BROKEN, "breaks"), (Status.NOT_EXERCISED, "does not exercise")):
        failures = [(name, check) for name, promises in checks.items() for check in promises if check.status is status]
        for name, check in failures:
            others = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
            raise CheckError(f"{name} {verb} the promise {check.promise!r}{others}: {check.reason}", hint=check.hint)
    return 0


def _describe_checks(checks: "Mapping[str, Sequence[PromiseCheck]]") -> Iterator[str]:
    for name, promises in checks.items():
        yield name
        for check in promises:
            yield f"  {check.status.value:<15}{check.promise}"
            if check.reason:
                yield f"  {'':<15}  {check.reason}"
