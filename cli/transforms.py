"""``quantkit transforms``: reference of the transforms, from their docstrings."""

from argparse import ArgumentParser, Namespace

import quantkit.transforms  # noqa: F401  (fills the registry)
from quantkit.errors import UsageError
from quantkit.transforms.plugins import find_transform, load_installed

from ._arguments import add_plugin
from ._render import emit, log

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
    from quantkit.recipes import reference

    if args.action == "list":
        for problem in load_installed():
            log(args, problem)
        emit(args, reference.list_transforms())
    elif args.action == "show":
        emit(args, reference.document_transform(find_transform(args.name)))
    else:
        transforms = [find_transform(name) for name in args.names] or args.plugin_transforms
        if not transforms:
            raise UsageError("no transform is named", hint="quantkit transforms check NAME, or --plugin FILE.py")
        report = reference.check_transforms(transforms)
        emit(args, report)
        report.check()
    return 0
