"""Random graphs with devices, control dependencies, ports, attributes and colocations."""

from typing import Any

from hypothesis import strategies as st

from quantkit.ir.check import verify
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.registry import Transform

DEVICES = ("", "", "/cpu:0", "/device:GPU:1")


@st.composite
def edited_graphs(draw: st.DrawFn) -> Graph:
    """Generate nodes with inputs and control dependencies from earlier nodes."""
    nodes = [Node("x", "Placeholder")]
    for number in range(draw(st.integers(1, 10))):
        before = st.sampled_from([node.name for node in nodes])
        attrs: dict[str, Attr] = {}
        if draw(st.booleans()):
            attrs["_class"] = (b"loc:@" + draw(before).encode(), b"other")
        if draw(st.booleans()):
            attrs["note"] = number
        op = draw(st.sampled_from(["Add", "Mul", "Split"]))
        inputs = tuple(Edge(draw(before), draw(st.integers(0, 1))) for _ in range(2))
        controls = tuple(draw(st.sets(before, max_size=2)))
        name = draw(st.sampled_from([f"deep/n{number}", f"n{number}"]))
        nodes.append(Node(name, op, inputs, controls, attrs, draw(st.sampled_from(DEVICES))))
    outputs = draw(st.sets(st.sampled_from([node.name for node in nodes]), min_size=1, max_size=3))
    return Graph.of(nodes, ["x"], [Edge(name, draw(st.integers(0, 1))) for name in sorted(outputs)])


def check_edit(transform: Transform, graph: Graph, **options: Any) -> Graph:
    """Apply a transform; check that it keeps its argument, reports its changes, and is idempotent."""
    copy = Graph.of(graph.nodes.values(), graph.inputs, graph.outputs)
    outcome: Outcome = transform.outcome(graph, **options)
    verify(outcome.graph, blame=transform.name)
    assert graph == copy
    assert bool(outcome.changes) == (outcome.graph != graph)
    again = transform.outcome(outcome.graph, **options)
    assert (again.graph, again.changes) == (outcome.graph, ())
    return outcome.graph
