"""``quantkit transforms``: the reference of every transform, from the same docstrings that the code has."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import quantkit.transforms  # noqa: F401  (fills the registry)
from quantkit.errors import CheckError, RecipeError, UsageError
from quantkit.recipes.example import Example, run_example
from quantkit.recipes.named import NAMED, PURPOSES
from quantkit.transforms.plugins import load_installed
from quantkit.transforms.registry import REGISTRY, Option, Transform, find_transform

from ._arguments import add_plugin
from ._render import emit, log

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = (
    "quantkit transforms list",
    "quantkit transforms show fold_batch_norms",
    "quantkit transforms check my_transform --plugin my_transforms.py",
)


def add_arguments(parser: ArgumentParser) -> None:
    """The three subcommands."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|check")
    listing = actions.add_parser("list", help="one line for each transform, and the recipes")
    show = actions.add_parser("show", help="all about one transform, with its example, run")
    show.add_argument("name", help="of the transform")
    check = actions.add_parser("check", help="whether transforms keep what every transform promises")
    check.add_argument("names", nargs="*", help="of the transforms (those of the plugins)")
    for one in (listing, show, check):
        add_plugin(one)


def run(args: Namespace) -> int:
    """List all, show one, or check some."""
    if args.action == "list":
        for problem in load_installed():
            log(args, problem)
        known = [REGISTRY[name] for name in sorted(REGISTRY)]
        recipes = [{"name": name, "purpose": PURPOSES[name], "steps": text} for name, text in NAMED.items()]
        document: dict[str, Any] = {"transforms": [_document(one) for one in known], "recipes": recipes}
        emit(args, "quantkit.transforms/1", document, lambda c: _list(c, known))
        return 0
    if args.action == "show":
        one = find_transform(args.name)
        example = _example(one)
        shown = example.to_json() if isinstance(example, Example) else None
        document = {**_document(one), "example": shown}
        emit(args, "quantkit.transforms/1", document, lambda console: _show(console, one, example))
        return 0
    return _check(args, [find_transform(name) for name in args.names] or args.plugin_transforms)


def _example(transform: Transform) -> Example | str:
    """The example, run; or why there is none."""
    try:
        return run_example(transform)
    except RecipeError as error:
        return error.message


def _check(args: Namespace, transforms: list[Transform]) -> int:
    from quantkit.recipes.contract import check_transform

    if not transforms:
        raise UsageError("no transform is named", hint="quantkit transforms check NAME, or --plugin FILE.py")
    found = {one.name: check_transform(one) for one in transforms}
    document = {
        "transforms": [
            {"name": name, "promises": [{"promise": key, "broken": reason} for key, reason in kept.items()]}
            for name, kept in found.items()
        ]
    }
    emit(args, "quantkit.transforms/1", document, lambda console: _print_promises(console, found))
    broken = [name for name, kept in found.items() if any(kept.values())]
    if broken:
        raise CheckError(
            f"{', '.join(broken)} {'breaks' if len(broken) == 1 else 'break'} a promise",
            hint=f"quantkit transforms show {broken[0]} shows its documentation and runs its example",
        )
    return 0


def _print_promises(console: "Console", found: Mapping[str, Mapping[str, str]]) -> None:
    for name, kept in found.items():
        console.print(name, markup=False)
        for promise, reason in kept.items():
            console.print(f"  {'BROKEN' if reason else 'ok':<7}{promise}", markup=False)
            if reason:
                console.print(f"         {reason}", markup=False)


def _document(transform: Transform) -> dict[str, Any]:
    return {
        "name": transform.name,
        "doc": transform.doc,
        "is_exact": transform.is_exact,
        "is_plugin": not transform.is_built_in,
        "options": [
            {
                "name": option.name,
                "type": option.kind.__name__,
                "choices": list(option.choices),
                "is_list": option.is_list,
                "is_required": option.is_required,
                "default": None if option.is_required else option.default,
            }
            for option in transform.options.values()
        ],
    }


def _list(console: "Console", known: list[Transform]) -> None:
    width = max(len(one.name) for one in known)
    for one in known:
        what = next(iter(one.doc.splitlines()), "")
        console.print(f"{one.name:<{width}}  {what}{'' if one.is_built_in else ' (plugin)'}", markup=False)
    console.print("\nRecipes, by --recipe NAME:", markup=False)
    for name, text in NAMED.items():
        console.print(f"{name:<{width}}  {PURPOSES[name]}\n{'':<{width}}    {text}", markup=False)


def _show(console: "Console", transform: Transform, example: Example | str) -> None:
    console.print(f"{transform.name}\n", markup=False)
    console.print(transform.doc, markup=False)
    console.print(f"\nExample, run now:\n\n{_indented(str(example))}", markup=False)
    console.print("\nSignature:", markup=False)
    for option in transform.options.values():
        console.print(f"    {option.name}={_signature(option)}", markup=False)
    if not transform.options:
        console.print("    no options", markup=False)
    exact = "keep the answers up to rounding of float32" if transform.is_exact else "change the answers by design"
    console.print(f"    ignore_errors=bool, for every transform\n\nIts rewrites {exact}.", markup=False)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def _signature(option: Option) -> str:
    kind = option.type_text + (", may be repeated" if option.is_list else "")
    if option.is_required:
        return f"{kind}; required"
    return f"{kind}; default {option.default_text}" if option.default_text else kind
