"""A trace with the graph before and after it as one document of plain values."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from quantkit.errors import GraphError
from quantkit.ir.difference import attribute_text, difference
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.recipes.recipe import Recipe
from quantkit.recipes.trace import Trace

SCHEMA = "quantkit.trace/1"
# What became of a node: in the graph before it is same, changed or gone; in the graph after same, changed or new.
SAME, CHANGED, GONE, NEW = "same", "changed", "gone", "new"
NOTHING = Graph.of(())
# Letters of an attribute that are written; no attribute of a usual graph has more.
LONGEST = 400


def trace_document(name: str, recipe: Recipe, before: Graph, after: Graph, trace: Trace) -> dict[str, Any]:
    """What a run did, and both graphs with every node, as JSON knows it.

    Args:
        name: of the model.
        recipe: what was applied.
        before: the graph it was applied to.
        after: the graph that came of it.
        trace: what each step did.

    Raises:
        GraphError: a graph is not well formed.
    """
    return {
        "schema": SCHEMA,
        "model": name,
        "recipe": str(recipe),
        "steps": trace.to_json(),
        "before": _graph(before, after, GONE),
        "after": _graph(after, before, NEW),
    }


def bodies(graph: Graph) -> dict[str, Graph]:
    """The functions of a graph, by name; those that can not be opened have nothing to show."""
    found = {}
    for name in graph.library:
        with suppress(GraphError):
            found[name] = graph.library[name].graph
    return found


def _graph(graph: Graph, other: Graph, alone: str) -> dict[str, Any]:
    others = bodies(other)
    return {
        "inputs": list(map(str, graph.inputs)),
        "outputs": list(map(str, graph.outputs)),
        "op_counts": dict(graph.op_counts),
        "nodes": _nodes(graph, other, alone),
        "functions": {name: _nodes(body, others.get(name, NOTHING), alone) for name, body in bodies(graph).items()},
    }


def _nodes(graph: Graph, other: Graph, alone: str) -> list[dict[str, Any]]:
    shapes = infer_shapes(graph)
    return [_node(node, other, alone, shapes) for node in graph.nodes.values()]


def _node(node: Node, other: Graph, alone: str, shapes: Mapping[Edge, Shape]) -> dict[str, Any]:
    twin = other.nodes.get(node.name)
    what = "" if twin is None or twin is node else difference(node, twin)
    ports = [shape for port in range(8) if (shape := shapes.get(Edge(node.name, port))) is not None]
    return {
        "name": node.name,
        "op": node.op,
        "inputs": list(map(str, node.inputs)),
        "controls": list(node.controls),
        "shapes": [str(shape) for shape in ports or [UNKNOWN]],
        "attributes": {key: attribute_text(node.attrs[key])[:LONGEST] for key in sorted(node.attrs)},
        "device": node.device,
        "fate": alone if twin is None else CHANGED if what else SAME,
        "difference": what[:LONGEST],
    }
