"""`Graph` as a mapping of nodes."""

from collections.abc import Mapping

import pytest

from quantkit.errors import UsageError
from quantkit.ir.graph import Edge, Graph, Node, constant

# The file lists the sum before the nodes that it depends on.
GRAPH = Graph.of(
    [
        Node("sum", "AddN", (Edge("split"), Edge("split", 1), Edge("split", 1))),
        Node("x", "Placeholder"),
        constant("axis", 0),
        Node("split", "Split", (Edge("axis"), Edge("x"))),
        Node("relu", "Relu", (Edge("split"),), ("sum",)),
    ],
    ["x"],
    ["relu"],
)


def test_a_graph_is_a_mapping_in_topological_order() -> None:
    assert isinstance(GRAPH, Mapping)
    assert tuple(GRAPH) == tuple(GRAPH.keys()) == GRAPH.order
    assert list(GRAPH).index("split") < list(GRAPH).index("sum") < list(GRAPH).index("relu")
    assert [node.name for node in GRAPH.values()] == list(GRAPH)
    assert dict(GRAPH) == dict(GRAPH.nodes)
    assert GRAPH.get("nothing") is None
    with pytest.raises(KeyError):
        GRAPH["nothing"]


def test_consumers_are_unique_and_exclude_control_dependencies() -> None:
    assert [node.name for node in GRAPH.consumers("split")] == ["sum", "relu"]
    assert [node.name for node in GRAPH.consumers(Edge("split", 1))] == ["sum"]
    assert GRAPH.consumers("sum") == ()
    assert GRAPH.consumers("relu") == ()
    with pytest.raises(UsageError, match="node 'splti' is not in the graph") as caught:
        GRAPH.consumers("splti")
    assert "split" in caught.value.hint


def test_op_counts_begin_with_the_most_frequent_op() -> None:
    twice = GRAPH.with_nodes([*GRAPH.nodes.values(), Node("again", "Relu", (Edge("relu"),))])
    assert next(iter(twice.op_counts.items())) == ("Relu", 2)
    assert sum(twice.op_counts.values()) == len(twice) == 6


def test_equal_graphs_compare_all_their_fields() -> None:
    assert Graph(GRAPH.nodes, GRAPH.inputs, GRAPH.outputs) == GRAPH
    assert GRAPH.with_endpoints(None, ["sum"]) != GRAPH
    assert dict(GRAPH.nodes) != GRAPH


@pytest.mark.parametrize(
    ("text", "edge"),
    [
        ("split:1", Edge("split", 1)),
        ("split:00", Edge("split")),
        ("y:0:2", Edge("y:0", 2)),
        ("split:", Edge("split:")),
        (":1", Edge(":1")),
        ("a:\u0661", Edge("a:\u0661")),
        ("a:" + "9" * 5000, Edge("a:" + "9" * 5000)),
        ("", Edge("")),
    ],
)
def test_only_digits_after_the_last_colon_are_an_output_index(text: str, edge: Edge) -> None:
    assert Edge.parse(text) == edge
    assert Edge.parse(edge.reference) == edge


def test_the_name_of_a_node_goes_before_an_output_index() -> None:
    nodes = [Node("y", "Split"), Node("y:1", "Relu", (Edge("y"),))]
    graph = Graph.of(nodes, ["y"], ["y:1", "y:2"], dialect="onnx")
    assert graph.outputs == graph.with_endpoints(None, ["y:1", "y:2"]).outputs == (Edge("y:1"), Edge("y", 2))
    assert [edge.reference for edge in (Edge("y:1"), Edge("y", 1))] == ["y:1:0", "y:1"]
