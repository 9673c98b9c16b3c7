"""Say where nodes are to run."""

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.registry import transform


@transform
def set_device(graph: Graph, *, device: str = "", if_default: bool = False) -> Outcome:
    """Set the device of every node.

    Before:  y = Relu(x)
    After:   y = Relu(x) @"/cpu:0"

    Options:
        device: as TensorFlow writes it, e.g. ``set_device(device="/device:GPU:0")``; nothing: the engine chooses.
        if_default: leave nodes alone that have a device (false).

    Skips when every node has the device, or with if_default some device.

    Example:
        set_device(device="/cpu:0")
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = Neg(x) @"/device:GPU:0"
    """
    hit = {node.name for node in graph.nodes.values() if node.device != device and not (if_default and node.device)}
    nodes = (node.with_(device=device) if node.name in hit else node for node in graph.nodes.values())
    changes = tuple(name for name in graph.nodes if name in hit)
    return Outcome(graph.with_nodes(nodes) if hit else graph, changes)
