"""Let no node wait for another without reading it."""

from quantkit.ir.graph import SWITCHES, Graph
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms.registry import transform


@transform
def remove_control_dependencies(graph: Graph) -> Outcome:
    """Drop all control inputs: at inference most of them only guard assertions and updates.

    Before:  y = Relu(x, ^check)
    After:   y = Relu(x)

    Options: none.

    Skips when no node waits for another, and, in graphs with Switches, for nodes that are computed from constants
    alone: by waiting they know their branch or loop.

    Example:
        remove_control_dependencies
        inputs: x
        outputs: y
        x = Placeholder[2]()
        check = CheckNumerics(x, message=bad)
        y = Neg(x, ^check)
    """
    bound = _bound_by_waiting(graph)
    changes = tuple(node.name for node in graph.nodes.values() if node.controls and node.name not in bound)
    skips = tuple(
        Skip(f"by waiting for {node.controls[0]} it knows which branch or loop it is in", name)
        for name, node in graph.nodes.items()
        if node.controls and name in bound
    )
    gone = frozenset(changes)
    nodes = (node.with_(controls=()) if node.name in gone else node for node in graph.nodes.values())
    return Outcome(graph.with_nodes(nodes) if changes else graph, changes, skips)


def _bound_by_waiting(graph: Graph) -> set[str]:
    """Nodes that read nothing but constants, where nodes may be dead."""
    found: set[str] = set()
    if not SWITCHES.isdisjoint(graph.op_counts):
        for name in graph.order:
            if found.issuperset(edge.node for edge in graph[name].inputs) and "Placeholder" not in graph[name].op:
                found.add(name)
    return found
