"""Set the device of all nodes."""

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.registry import transform


@transform
def set_device(graph: Graph, *, device: str = "", if_default: bool = False) -> Outcome:
    """Set the device of every node.

    Before:  y = Relu(x)
    After:   y = Relu(x) @"/cpu:0"

    Options:
        device: TensorFlow device string, for example ``set_device(device="/device:GPU:0")``
            (default: empty, the runtime selects the device).
        if_default: change only nodes without a device (default: false).

    Skips nodes that have the device, and with if_default nodes that have any device.

    Example:
        set_device(device="/cpu:0")
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = Neg(x) @"/device:GPU:0"
    """
    changed = {node.name for node in graph.nodes.values() if node.device != device and not (if_default and node.device)}
    nodes = (node.with_(device=device) if node.name in changed else node for node in graph.nodes.values())
    changes = tuple(name for name in graph.nodes if name in changed)
    return Outcome(graph.with_nodes(nodes) if changed else graph, changes)
