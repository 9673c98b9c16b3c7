"""``quantkit compare_graphs``: TensorFlow's tool of that name, called as it was; `compare` compares answers, too."""

from argparse import Namespace

from . import compare
from .compare import add_arguments

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = ("quantkit compare_graphs before.pb after.pb",)


def run(args: Namespace) -> int:
    """Compare nodes, and tell the first difference: exit code 1."""
    args.structure = args.classic = True
    return compare.run(args)
