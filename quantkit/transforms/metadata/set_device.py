"""Set the device of all nodes."""

from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome, rewrite_nodes
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

    def change(node: Node) -> list[Node] | None:
        stays = node.device == device or (if_default and node.device)
        return None if stays else [node.with_(device=device)]

    return rewrite_nodes(graph, change)
