"""Change the type of nodes."""

from quantkit.errors import RecipeError
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def rename_op(graph: Graph, *, old_op_name: tuple[str, ...] = (), new_op_name: tuple[str, ...] = ()) -> Outcome:
    """Change the type of all nodes of one type; inputs and attributes stay as they are.

    Before:  y = Mul(a, b)
    After:   y = Multiply(a, b)

    Options:
        old_op_name: the type they have.
        new_op_name: the type they get.

    Skips when no node has the old type.

    Raises:
        RecipeError: one of the types is not given exactly once.

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
    changes = tuple(node.name for node in graph.nodes.values() if node.op == old)
    nodes = (node.with_(op=new) if node.op == old else node for node in graph.nodes.values())
    return Outcome(graph.with_nodes(nodes) if changes else graph, changes)
