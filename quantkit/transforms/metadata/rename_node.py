"""Give a node another name."""

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms._names import names_in_subgraphs, rename_nodes
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def rename_node(graph: Graph, *, old_node_name: tuple[str, ...] = (), new_node_name: tuple[str, ...] = ()) -> Outcome:
    """Give a node another name, wherever it is written: inputs, waits, colocations, inputs and outputs of the graph.

    Before:  super/deep/output = Relu(x)
    After:   output = Relu(x)

    Options:
        old_node_name: the name it has, e.g. ``rename_node(old_node_name=super/deep/output, new_node_name=output)``.
        new_node_name: the name it gets.

    Skips when no node has the old name.

    Raises:
        RecipeError: one of the names is not given exactly once.
        GraphError: a node has the new name, or a subgraph of an ONNX graph refers to the old one.

    Example:
        rename_node(old_node_name=super/deep/split, new_node_name=parts)
        inputs: x
        outputs: y
        x = Placeholder[4]()
        axis = Const[int32](0)
        super/deep/split = Split(axis, x, num_split=2)
        y = Neg(super/deep/split:1)
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
    if old in names_in_subgraphs(graph):
        raise GraphError(f"{old} can not be renamed: a loop or branch refers to it by name")
    return Outcome(rename_nodes(graph, {old: new}), (f"{old} -> {new}",))
