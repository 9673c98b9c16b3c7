"""Rename a node."""

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.graph import Graph
from quantkit.ir.names import is_tensorflow_name
from quantkit.ir.rewrite import Outcome
from quantkit.transforms._names import names_in_subgraphs, rename_nodes
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def rename_node(graph: Graph, *, old_node_name: tuple[str, ...] = (), new_node_name: tuple[str, ...] = ()) -> Outcome:
    """Rename a node, also in inputs, control dependencies, colocations, and graph inputs and outputs.

    Before:  super/deep/output = Relu(x)
    After:   output = Relu(x)

    Options:
        old_node_name: current name, for example
            ``rename_node(old_node_name=super/deep/output, new_node_name=output)``.
        new_node_name: new name.

    Skips graphs without a node of the old name.

    Raises:
        RecipeError: the old or the new name is not given exactly once, or TensorFlow rejects the new one.
        GraphError: the new name is in use, or a subgraph of an ONNX graph refers to the old name.

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
            hint="write rename_node(old_node_name=OLD, new_node_name=NEW)",
        )
    [old], [new] = old_node_name, new_node_name
    if graph.dialect == "tensorflow" and not is_tensorflow_name(new):
        raise RecipeError(f"rename_node: TensorFlow rejects the name {new!r}", hint="write a name such as layer/output")
    if new in graph:
        raise GraphError(f"A node is alreading using {new}as name.", hint=f"rename the node {new!r} first")
    if old not in graph:
        return Outcome(graph)
    if old in names_in_subgraphs(graph):
        raise GraphError(f"cannot rename {old!r}: a loop or branch refers to the node by name")
    return Outcome(rename_nodes(graph, {old: new}), (f"{old} -> {new}",))
