"""Remove an attribute."""

from quantkit.errors import RecipeError
from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome, rewrite_nodes
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def remove_attribute(graph: Graph, *, attribute_name: tuple[str, ...] = (), op_name: tuple[str, ...] = ()) -> Outcome:
    """Remove an attribute from all nodes, or from the nodes of one op type.

    Before:  y = Relu(x, _note="seen")
    After:   y = Relu(x)

    Options:
        attribute_name: attribute to remove, for example
            ``remove_attribute(attribute_name=_output_shapes)``.
        op_name: op type of the nodes (default: ``*``, all nodes).

    Skips nodes without the attribute.

    Raises:
        RecipeError: attribute_name is not given exactly once, or op_name more than once.

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
    op_type = op_name[0] if op_name else "*"

    def remove(node: Node) -> list[Node] | None:
        has_attribute = name in node.attrs and op_type in ("*", node.op)
        return [node.with_attrs(**{name: None})] if has_attribute else None

    return rewrite_nodes(graph, remove)
