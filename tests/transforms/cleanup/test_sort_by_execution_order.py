"""Tests of sort_by_execution_order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.transforms.plugins import find_transform

sort_by_execution_order = find_transform("sort_by_execution_order")


@given(st.data())
def test_every_node_follows_its_producers(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    nodes = []
    for number in range(count):
        producers = data.draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        nodes.append(Node(f"n{number}", "AddN", tuple(Edge(f"n{producer}") for producer in sorted(producers))))
    graph = Graph.of(data.draw(st.permutations(nodes)))
    after = sort_by_execution_order(graph)
    names: set[str] = set()
    for node in after.nodes.values():
        assert all(edge.node in names for edge in node.inputs)
        names.add(node.name)
    assert after == graph


def test_order_is_that_of_classic_tool() -> None:
    """Check the order of a stack: of the ready nodes, the last one that became ready comes first."""
    graph = Graph.of(
        [
            Node("a", "Placeholder"),
            Node("b", "Placeholder"),
            Node("c", "Relu", (Edge("a"),)),
            Node("d", "Relu", (Edge("b"),)),
            Node("e", "Add", (Edge("c"), Edge("d"))),
        ]
    )
    assert list(sort_by_execution_order(graph).nodes) == ["b", "d", "a", "c", "e"]


def test_loop_is_sorted_from_its_merge() -> None:
    graph = Graph.of(
        [
            Node("start", "Enter"),
            Node("merge", "Merge", (Edge("start"), Edge("next"))),
            Node("next", "NextIteration", (Edge("merge"),)),
        ]
    )
    assert list(sort_by_execution_order(graph).nodes) == ["start", "merge", "next"]


def test_cycle_is_rejected() -> None:
    graph = Graph.of([Node("a", "Relu", (Edge("b"),)), Node("b", "Relu", (Edge("a"),))])
    with pytest.raises(GraphError, match="2 nodes depend on each other in a cycle"):
        sort_by_execution_order(graph)


def test_missing_node_is_rejected() -> None:
    with pytest.raises(GraphError, match="node 'a' has input 'bb', which is not in the graph") as caught:
        sort_by_execution_order(Graph.of([Node("a", "Relu", (Edge("bb"),)), Node("bbb", "Placeholder")]))
    assert "bbb" in caught.value.hint
