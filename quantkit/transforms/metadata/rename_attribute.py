"""Give an attribute another name."""

from quantkit.errors import RecipeError
from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def rename_attribute(
    graph: Graph,
    *,
    old_attribute_name: tuple[str, ...] = (),
    new_attribute_name: tuple[str, ...] = (),
    op_name: tuple[str, ...] = (),
) -> Outcome:
    """Move the value of an attribute to another name, on all nodes or on those of one type.

    A value that the new name had before is replaced.

    Before:  y = Squeeze(x, axis=[1])
    After:   y = Squeeze(x, squeeze_dims=[1])

    Options:
        old_attribute_name: the name it has.
        new_attribute_name: the name it gets.
        op_name: only on nodes of this type, the first that is given; ``*`` or nothing: on all.

    Skips when no node has the attribute.

    Raises:
        RecipeError: one of the names is not given exactly once.

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
    kind = op_name[0] if op_name else "*"
    hit = {node.name for node in graph.nodes.values() if old in node.attrs and kind in ("*", node.op)}

    def moved(node: Node) -> Node:
        kept = {key: value for key, value in node.attrs.items() if key not in (old, new)}
        return node.with_(attrs={**kept, new: node.attrs[old]})

    nodes = (moved(node) if node.name in hit else node for node in graph.nodes.values())
    changes = tuple(one for one in graph.nodes if one in hit)
    return Outcome(graph.with_nodes(nodes) if hit else graph, changes)
