"""The invariants of a graph, in one list."""

from quantkit.errors import GraphError, did_you_mean
from quantkit.ir.graph import Graph


def verify(graph: Graph, *, blame: str = "") -> None:
    """Check the invariants: all names resolve, inputs and outputs exist, and the nodes have a topological order.

    Args:
        graph: graph to check.
        blame: name of the transform that ran last, for the message.

    Raises:
        GraphError: an input or output names no node, or the nodes form a cycle; the message names the node.
    """
    after = f"after {blame}, " if blame else ""
    nodes = graph.nodes
    for node in nodes.values():
        for name in node.sources:
            if name not in nodes:
                raise GraphError(
                    f"{after}node {node.name!r} ({node.op}) has input {name!r}, which is not in the graph",
                    hint=did_you_mean(name, nodes)
                    or "run strip_unused_nodes first, or add the missing node to --outputs",
                )
    for edge in (*graph.inputs, *graph.outputs):
        if edge.node not in nodes:
            raise GraphError(
                f"{after}the graph input or output {edge.node!r} does not exist",
                hint=did_you_mean(edge.node, nodes),
            )
    try:
        _ = graph.order
    except GraphError as error:
        raise GraphError(f"{after}{error.message}", error.hint) from None
