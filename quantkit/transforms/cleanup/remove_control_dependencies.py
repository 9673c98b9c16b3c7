"""Remove control dependencies."""

from quantkit.ir.graph import SWITCHES, Graph
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms.registry import transform


@transform
def remove_control_dependencies(graph: Graph) -> Outcome:
    """Remove all control dependencies; at inference most of them only order assertions and updates.

    Before:  y = Relu(x, ^check)
    After:   y = Relu(x)

    Options: none.

    Skips nodes that are computed from constants alone in graphs with Switches: their control
    dependencies assign them to a branch or loop.

    Example:
        remove_control_dependencies
        inputs: x
        outputs: y
        x = Placeholder[2]()
        check = CheckNumerics(x, message=bad)
        y = Neg(x, ^check)
    """
    bound = _find_bound_by_controls(graph)
    changes = tuple(node.name for node in graph.nodes.values() if node.controls and node.name not in bound)
    skips = tuple(
        Skip(f"control dependency on {node.controls[0]} assigns the node to its branch or loop", name)
        for name, node in graph.nodes.items()
        if node.controls and name in bound
    )
    changed = frozenset(changes)
    nodes = (node.with_(controls=()) if node.name in changed else node for node in graph.nodes.values())
    return Outcome(graph.with_nodes(nodes) if changes else graph, changes, skips)


def _find_bound_by_controls(graph: Graph) -> set[str]:
    """Return the nodes that depend on constants alone, in graphs where nodes may be dead."""
    bound: set[str] = set()
    if not SWITCHES.isdisjoint(graph.op_counts):
        for name in graph.order:
            if bound.issuperset(edge.node for edge in graph[name].inputs) and "Placeholder" not in graph[name].op:
                bound.add(name)
    return bound
