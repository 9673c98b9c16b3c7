"""``quantkit summarize_graph``: TensorFlow's tool of that name, called as it was; `summarize` tells more."""

from argparse import Namespace

from . import summarize
from .summarize import add_arguments

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = ("quantkit summarize_graph --in_graph=graph.pb --print_structure=true",)


def run(args: Namespace) -> int:
    """Summarize in the old words."""
    args.classic = True
    return summarize.run(args)
