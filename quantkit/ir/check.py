"""The invariants of a graph, in one list."""

from quantkit.errors import GraphError, did_you_mean
from quantkit.ir.graph import Graph


def verify(graph: Graph, *, blame: str = "") -> None:
    """Check what every transform must keep: names resolve, the ends exist, and the nodes can run one after another.

    Args:
        graph: what to check.
        blame: the transform that just ran, for the message.

    Raises:
        GraphError: naming the first node that reads what is not there, or nodes that wait for each other.
    """
    after = f"after {blame}, " if blame else ""
    nodes = graph.nodes
    for node in nodes.values():
        for name in node.sources:
            if name not in nodes:
                raise GraphError(
                    f"{after}node {node.name!r} ({node.op}) reads {name!r}, which is not in the graph",
                    hint=did_you_mean(name, nodes)
                    or "run strip_unused_nodes first, or add the missing node to --outputs",
                )
    for edge in (*graph.inputs, *graph.outputs):
        if edge.node not in nodes:
            raise GraphError(
                f"{after}{edge.node!r}, an input or output of the graph, does not exist",
                hint=did_you_mean(edge.node, nodes),
            )
    try:
        _ = graph.order
    except GraphError as error:
        raise GraphError(f"{after}{error.message}", error.hint) from None
