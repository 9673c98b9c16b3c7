"""Write out what an op assumes where a node says nothing."""

from quantkit.errors import GraphError, did_you_mean
from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome
from quantkit.ops.tensorflow.signatures import find_op, op_names
from quantkit.transforms.registry import transform


@transform
def add_default_attributes(graph: Graph) -> Outcome:
    """Give every node the attributes that its op has a default for and that it lacks.

    Old graphs were written before some attributes existed; transforms that copy attributes need them.

    Before:  y = Conv2D(x, w) {strides: 1 1 1 1, padding: SAME}
    After:   y = Conv2D(x, w) {strides: 1 1 1 1, padding: SAME, data_format: NHWC, dilations: 1 1 1 1, ...}

    Options: none.

    Skips when an op is neither known nor a function of the graph's library: that is an error.

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
                    hint=did_you_mean(node.op, op_names()) or "a custom op: leave add_default_attributes out",
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
