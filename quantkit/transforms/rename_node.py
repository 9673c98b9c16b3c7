"""Give a node another name."""

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms._names import renamed
from quantkit.transforms.registry import transform


@transform
def rename_node(graph: Graph, *, old_node_name: tuple[str, ...] = (), new_node_name: tuple[str, ...] = ()) -> Outcome:
    """Give a node another name, wherever it is written: inputs, waits, colocations, inputs and outputs of the graph.

    Before:  super/deep/output = Relu(x)
    After:   output = Relu(x)

    Options:
        old_node_name: the name it has, e.g. ``rename_node(old_node_name=super/deep/output, new_node_name=output)``.
        new_node_name: the name it gets.

    Declines when no node has the old name.

    Raises:
        RecipeError: one of the names is not given exactly once.
        GraphError: a node has the new name.
    """
    if len(old_node_name) != 1 or len(new_node_name) != 1:
        raise RecipeError(
            "rename_node expects exactly one 'old_node_name' and one 'new_node_name' argument, e.g."
            " rename_node(old_attribute_name=super/deep/output, new_attribute_name=output)",
            hint="the options are old_node_name and new_node_name",
        )
    [old], [new] = old_node_name, new_node_name
    if new in graph:
        raise GraphError(f"A node is alreading using {new}as name.", hint=f"rename the node {new!r} first")
    if old not in graph:
        return Outcome(graph)
    return Outcome(renamed(graph, {old: new}), (f"{old} -> {new}",))
