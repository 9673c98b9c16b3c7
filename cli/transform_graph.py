"""``quantkit transform_graph``: the Graph Transform Tool of 2016, with its flags; the same as `transform`."""

from .transform import add_arguments, run

__all__ = ["EXAMPLES", "add_arguments", "run"]

EXAMPLES = (
    "quantkit transform_graph --in_graph=graph.pb --out_graph=small.pb --inputs=Mul --outputs=softmax "
    "--transforms='strip_unused_nodes fold_constants fold_batch_norms'",
)
