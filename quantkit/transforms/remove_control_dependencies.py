"""Let no node wait for another without reading it."""

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.registry import transform


@transform
def remove_control_dependencies(graph: Graph) -> Outcome:
    """Drop all control inputs: at inference most of them only guard assertions and updates.

    Before:  y = Relu(x, ^check)
    After:   y = Relu(x)

    Options: none.

    Declines when no node waits for another.

    Example:
        remove_control_dependencies
        inputs: x
        outputs: y
        x = Placeholder[2]()
        check = CheckNumerics(x, message=bad)
        y = Neg(x, ^check)
    """
    changes = tuple(node.name for node in graph.nodes.values() if node.controls)
    nodes = (node.with_(controls=()) if node.controls else node for node in graph.nodes.values())
    return Outcome(graph.with_nodes(nodes) if changes else graph, changes)
