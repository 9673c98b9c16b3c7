"""``quantkit summarize_graph``: the flags and the output of TensorFlow's tool; `summarize` is the present command."""

from argparse import Namespace

from . import summarize
from .summarize import add_arguments

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = ("quantkit summarize_graph --in_graph=graph.pb --print_structure=true",)


def run(args: Namespace) -> int:
    """Print the output of the tool."""
    args.classic = True
    return summarize.run(args)
