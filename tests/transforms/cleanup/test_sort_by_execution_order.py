"""Orders in which nodes can run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.transforms.registry import find_transform

sort_by_execution_order = find_transform("sort_by_execution_order")


@given(st.data())
def test_every_node_stands_behind_what_it_reads(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    nodes = []
    for number in range(count):
        reads = data.draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        nodes.append(Node(f"n{number}", "AddN", tuple(Edge(f"n{one}") for one in sorted(reads))))
    graph = Graph.of(data.draw(st.permutations(nodes)))
    made = sort_by_execution_order(graph)
    seen: set[str] = set()
    for node in made.nodes.values():
        assert all(edge.node in seen for edge in node.inputs)
        seen.add(node.name)
    assert made == graph


def test_the_order_is_the_classic_one() -> None:
    """A stack: of the nodes that could run, the one that was ready last runs first."""
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


def test_a_loop_goes_through_its_merge() -> None:
    graph = Graph.of(
        [
            Node("start", "Enter"),
            Node("merge", "Merge", (Edge("start"), Edge("next"))),
            Node("next", "NextIteration", (Edge("merge"),)),
        ]
    )
    assert list(sort_by_execution_order(graph).nodes) == ["start", "merge", "next"]


def test_a_cycle_is_named() -> None:
    graph = Graph.of([Node("a", "Relu", (Edge("b"),)), Node("b", "Relu", (Edge("a"),))])
    with pytest.raises(GraphError, match="2 nodes depend on each other in a cycle"):
        sort_by_execution_order(graph)


def test_a_missing_node_is_named() -> None:
    with pytest.raises(GraphError, match="node 'a' has input 'bb', which is not in the graph") as caught:
        sort_by_execution_order(Graph.of([Node("a", "Relu", (Edge("bb"),)), Node("bbb", "Placeholder")]))
    assert "bbb" in caught.value.hint
