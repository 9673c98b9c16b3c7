"""Batch size of a graph's inputs."""

from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Shape


def with_batch_one(graph: Graph) -> Graph:
    """Return a graph whose inputs have batch size 1 instead of a dynamic batch."""
    nodes = []
    for node in graph.nodes.values():
        shape = node.attrs.get("shape")
        if node.op == "Placeholder" and isinstance(shape, Shape) and shape.dims and shape.dims[0] is None:
            node = node.with_attrs(shape=Shape((1, *shape.dims[1:])))
        nodes.append(node)
    return graph.with_nodes(nodes)
