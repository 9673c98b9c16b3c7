"""Rename an op type."""

from quantkit.errors import RecipeError
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, rewrite_nodes
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def rename_op(graph: Graph, *, old_op_name: tuple[str, ...] = (), new_op_name: tuple[str, ...] = ()) -> Outcome:
    """Rename the op type of all nodes of one type; inputs and attributes stay unchanged.

    Before:  y = Mul(a, b)
    After:   y = Multiply(a, b)

    Options:
        old_op_name: current op type.
        new_op_name: new op type.

    Skips nodes of other types.

    Raises:
        RecipeError: the old or the new type is not given exactly once.

    Example:
        rename_op(old_op_name=Add, new_op_name=AddV2)
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = Add(x, x)
    """
    if len(old_op_name) != 1 or len(new_op_name) != 1:
        raise RecipeError(
            "rename_op expects exactly one 'old_op_name' and 'new_op_name' argument, e.g."
            " rename_op(old_op_name=Mul, new_op_name=Multiply)"
        )
    [old], [new] = old_op_name, new_op_name
    return rewrite_nodes(graph, lambda node: [node.with_(op=new)] if node.op == old else None)
