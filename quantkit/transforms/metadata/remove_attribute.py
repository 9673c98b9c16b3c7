"""Delete an attribute."""

from quantkit.errors import RecipeError
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def remove_attribute(graph: Graph, *, attribute_name: tuple[str, ...] = (), op_name: tuple[str, ...] = ()) -> Outcome:
    """Delete an attribute from all nodes, or from those of one type.

    Before:  y = Relu(x, _note="seen")
    After:   y = Relu(x)

    Options:
        attribute_name: the attribute, e.g. ``remove_attribute(attribute_name=_output_shapes)``.
        op_name: only from nodes of this type; ``*`` or nothing: from all.

    Skips when no node has the attribute.

    Raises:
        RecipeError: it is not given exactly once, or several op_name are.

    Example:
        remove_attribute(attribute_name=_note)
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = Relu(x, _note=seen)
    """
    if len(attribute_name) != 1:
        raise RecipeError(
            "remove_attribute expects exactly one 'attribute_name' argument, e.g."
            " remove_attribute(op_name=Mul, attribute_name=foo)"
        )
    if len(op_name) > 1:
        raise RecipeError(f"remove_attribute expects a single op_name argument, but found {len(op_name)}")
    [name] = attribute_name
    kind = op_name[0] if op_name else "*"
    hit = {node.name for node in graph.nodes.values() if name in node.attrs and kind in ("*", node.op)}
    nodes = (node.with_attrs(**{name: None}) if node.name in hit else node for node in graph.nodes.values())
    changes = tuple(one for one in graph.nodes if one in hit)
    return Outcome(graph.with_nodes(nodes) if hit else graph, changes)
