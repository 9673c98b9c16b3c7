"""Remove the device of all nodes."""

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.registry import transform


@transform
def remove_device(graph: Graph) -> Outcome:
    """Clear the device of every node, so that the runtime selects it.

    Before:  y = Relu(x) @"/device:GPU:0"
    After:   y = Relu(x)

    Options: none.

    Skips nodes without a device.

    Example:
        remove_device
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = Neg(x) @"/device:GPU:0"
    """
    changes = tuple(node.name for node in graph.nodes.values() if node.device)
    nodes = (node.with_(device="") if node.device else node for node in graph.nodes.values())
    return Outcome(graph.with_nodes(nodes) if changes else graph, changes)
