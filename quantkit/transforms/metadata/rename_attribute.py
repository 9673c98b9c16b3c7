"""Rename an attribute."""

from quantkit.errors import RecipeError
from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome, rewrite_nodes
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def rename_attribute(
    graph: Graph,
    *,
    old_attribute_name: tuple[str, ...] = (),
    new_attribute_name: tuple[str, ...] = (),
    op_name: tuple[str, ...] = (),
) -> Outcome:
    """Rename an attribute of all nodes, or of the nodes of one op type.

    An existing attribute with the new name is replaced.

    Before:  y = Squeeze(x, axis=[1])
    After:   y = Squeeze(x, squeeze_dims=[1])

    Options:
        old_attribute_name: current name.
        new_attribute_name: new name.
        op_name: op type of the nodes; only the first value is used (default: ``*``, all nodes).

    Skips nodes without the attribute.

    Raises:
        RecipeError: the old or the new name is not given exactly once.

    Example:
        rename_attribute(op_name=Squeeze, old_attribute_name=_axis, new_attribute_name=squeeze_dims)
        inputs: x
        outputs: y
        x = Placeholder[2x1]()
        y = Squeeze(x, _axis=[1])
    """
    if len(old_attribute_name) != 1 or len(new_attribute_name) != 1:
        raise RecipeError(
            "rename_attribute expects exactly one 'old_attribute_name' and one 'new_attribute_name' argument, e.g."
            " rename_attribute(old_attribute_name=foo, new_attribute_name=bar)"
        )
    [old], [new] = old_attribute_name, new_attribute_name
    op_type = op_name[0] if op_name else "*"

    def rename(node: Node) -> list[Node] | None:
        if old not in node.attrs or op_type not in ("*", node.op):
            return None
        others = {key: value for key, value in node.attrs.items() if key not in (old, new)}
        return [node.with_(attrs={**others, new: node.attrs[old]})]

    return rewrite_nodes(graph, rename)
