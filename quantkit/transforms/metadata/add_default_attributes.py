"""Add the default values of missing attributes."""

from quantkit.errors import GraphError, did_you_mean
from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome
from quantkit.ops.tensorflow.signatures import find_op, op_names
from quantkit.transforms.registry import transform


@transform
def add_default_attributes(graph: Graph) -> Outcome:
    """Add the attributes for which an op has a default to every node that lacks them.

    Old graphs lack attributes that were added to an op later; transforms that copy attributes need
    them.

    Before:  y = Conv2D(x, w) {strides: 1 1 1 1, padding: SAME}
    After:   y = Conv2D(x, w) {strides: 1 1 1 1, padding: SAME, data_format: NHWC, dilations: 1 1 1 1, ...}

    Options: none.

    Skips no node.

    Raises:
        GraphError: an op type is unknown and is not a function of the graph's library.

    Example:
        add_default_attributes
        inputs: x
        outputs: y
        x = Placeholder[1x4x4x3]()
        w = Const[3x3x3x4]()
        y = Conv2D(x, w, strides=[1, 1, 1, 1], padding=SAME)
    """
    changes: list[str] = []
    nodes: list[Node] = []
    for node in graph.nodes.values():
        definition = find_op(node.op)
        if definition is None:
            if node.op not in graph.library:
                raise GraphError(
                    f"Op type not registered '{node.op}' in binary (node {node.name!r})",
                    hint=did_you_mean(node.op, op_names()) or "custom op: omit add_default_attributes",
                )
            nodes.append(node)
            continue
        missing = {
            key: attr.default
            for key, attr in definition.attrs.items()
            if attr.default is not None and key not in node.attrs
        }
        if missing:
            changes.append(f"{node.name} ({node.op}): {', '.join(missing)}")
        nodes.append(node.with_(attrs={**node.attrs, **missing}) if missing else node)
    return Outcome(graph.with_nodes(nodes), tuple(changes))
