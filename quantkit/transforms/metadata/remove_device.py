"""Remove the device of all nodes."""

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, rewrite_nodes
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
    return rewrite_nodes(graph, lambda node: [node.with_(device="")] if node.device else None)
