"""``quantkit compare_graphs``: the flags and the output of TensorFlow's tool; `compare` also compares values."""

from argparse import Namespace

from quantkit.evaluation import compare_structure

from ._loading import model_and_runtime
from ._render import emit
from .compare import add_arguments

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = ("quantkit compare_graphs before.pb after.pb",)


def run(args: Namespace) -> int:
    """Compare nodes and print the first difference, which gives exit code 1."""
    models = [model_and_runtime(args, name)[0] for name in (args.first, args.second)]
    comparison = compare_structure(*models)
    emit(args, comparison, str(comparison).partition("\n")[0])
    return 0 if comparison.are_equal else 1
