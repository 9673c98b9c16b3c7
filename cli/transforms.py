"""``quantkit transforms``: the reference of every transform, from the same docstrings that the code has."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

import quantkit.transforms  # noqa: F401  (fills the registry)
from quantkit.transforms.registry import REGISTRY, Option, Transform, find

from ._render import emit

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = ("quantkit transforms list", "quantkit transforms show fold_batch_norms")


def add_arguments(parser: ArgumentParser) -> None:
    """The two subcommands."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show")
    actions.add_parser("list", help="one line for each transform")
    show = actions.add_parser("show", help="all about one transform")
    show.add_argument("name", help="of the transform")


def run(args: Namespace) -> int:
    """List all, or show one."""
    if args.action == "list":
        known = [REGISTRY[name] for name in sorted(REGISTRY)]
        emit(
            args, "quantkit.transforms/1", {"transforms": [_document(one) for one in known]}, lambda c: _list(c, known)
        )
    else:
        one = find(args.name)
        emit(args, "quantkit.transforms/1", _document(one), lambda console: _show(console, one))
    return 0


def _document(transform: Transform) -> dict[str, Any]:
    return {
        "name": transform.name,
        "doc": transform.doc,
        "is_exact": transform.is_exact,
        "options": [
            {
                "name": option.name,
                "type": option.kind.__name__,
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
        console.print(f"{one.name:<{width}}  {one.doc.splitlines()[0]}", markup=False)


def _show(console: "Console", transform: Transform) -> None:
    console.print(f"{transform.name}\n", markup=False)
    console.print(transform.doc, markup=False)
    console.print("\nSignature:", markup=False)
    for option in transform.options.values():
        console.print(f"    {option.name}={_signature(option)}", markup=False)
    if not transform.options:
        console.print("    no options", markup=False)
    exact = "keep the answers up to rounding of float32" if transform.is_exact else "change the answers by design"
    console.print(f"    ignore_errors=bool, for every transform\n\nIts rewrites {exact}.", markup=False)


def _signature(option: Option) -> str:
    kind = option.kind.__name__ + (", may be repeated" if option.is_list else "")
    if option.is_required:
        return f"{kind}; required"
    return kind if option.default in (None, ()) else f"{kind}; default {option.default}"
