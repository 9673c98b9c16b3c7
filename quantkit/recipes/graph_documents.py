"""Documents of the graphs before and after a run: every node, with its difference."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from quantkit.errors import GraphError
from quantkit.ir.difference import attribute_text, difference
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes

# State of a node: same, changed or gone in the graph before; same, changed or new in the graph after.
SAME, CHANGED, REMOVED, NEW = "same", "changed", "gone", "new"
EMPTY = Graph.of(())
# Maximum number of characters of an attribute; attributes of usual graphs are shorter.
MAX_CHARACTERS = 400


def graph_documents(before: Graph, after: Graph) -> dict[str, Any]:
    """Return all nodes of two graphs as JSON values, with the difference of each node from the other graph.

    Raises:
        GraphError: a graph is not well formed.
    """
    return {"before": _graph(before, after, REMOVED), "after": _graph(after, before, NEW)}


def function_bodies(graph: Graph) -> dict[str, Graph]:
    """Return the bodies of the functions of a graph by name, without those that cannot be decoded."""
    bodies = {}
    for name in graph.library:
        with suppress(GraphError):
            bodies[name] = graph.library[name].graph
    return bodies


def _graph(graph: Graph, other: Graph, state: str) -> dict[str, Any]:
    """Return one graph; ``state`` is that of nodes that the other graph does not have."""
    others = function_bodies(other)
    return {
        "inputs": list(map(str, graph.inputs)),
        "outputs": list(map(str, graph.outputs)),
        "op_counts": dict(graph.op_counts),
        "nodes": _nodes(graph, other, state),
        "functions": {
            name: _nodes(body, others.get(name, EMPTY), state) for name, body in function_bodies(graph).items()
        },
    }


def _nodes(graph: Graph, other: Graph, state: str) -> list[dict[str, Any]]:
    shapes = infer_shapes(graph)
    num_outputs: dict[str, int] = {}
    for edge in shapes:
        num_outputs[edge.node] = max(num_outputs.get(edge.node, 0), edge.port + 1)
    return [_node(node, other, state, shapes, num_outputs.get(node.name, 0)) for node in graph.nodes.values()]


def _node(node: Node, other: Graph, state: str, shapes: Mapping[Edge, Shape], num_outputs: int) -> dict[str, Any]:
    counterpart = other.nodes.get(node.name)
    change = "" if counterpart is None or counterpart is node else difference(node, counterpart)
    outputs = [shape for port in range(num_outputs) if (shape := shapes.get(Edge(node.name, port))) is not None]
    return {
        "name": node.name,
        "op": node.op,
        "inputs": list(map(str, node.inputs)),
        "controls": list(node.controls),
        "shapes": [str(shape) for shape in outputs or [UNKNOWN]],
        "attributes": {key: attribute_text(node.attrs[key])[:MAX_CHARACTERS] for key in sorted(node.attrs)},
        "device": node.device,
        "fate": state if counterpart is None else CHANGED if change else SAME,
        "difference": change[:MAX_CHARACTERS],
    }
