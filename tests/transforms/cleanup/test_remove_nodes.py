"""Tests of remove_nodes: consumers, control dependencies, ports and endpoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.transforms.plugins import find_transform

remove_nodes = find_transform("remove_nodes")


def chain(*, outputs: tuple[str, ...] = ("end",)) -> Graph:
    return Graph.of(
        [
            Node("x", "Placeholder"),
            Node("split", "Split", (Edge("x"),)),
            Node("check", "CheckNumerics", (Edge("split", 1),)),
            Node("one", "Identity", (Edge("split", 1),), controls=("check",)),
            Node("two", "Identity", (Edge("one"),)),
            Node("end", "Relu", (Edge("two"),)),
            Node("waiter", "NoOp", controls=("two",)),
        ],
        ["x"],
        outputs,
    )


def test_consumer_of_chain_is_connected_to_port_of_first_input() -> None:
    graph = remove_nodes(chain(), op=("Identity", "CheckNumerics"))
    assert graph["end"].inputs == (Edge("split", 1),)
    assert set(graph.nodes) == {"x", "split", "end", "waiter"}


def test_control_dependency_moves_to_input_of_removed_node() -> None:
    graph = remove_nodes(chain(), op=("Identity", "CheckNumerics"))
    assert graph["waiter"].controls == ("split",)
    assert graph["end"].controls == (), "split is a data input"


def test_control_dependencies_of_removed_node_move_to_consumers() -> None:
    """Check the fix of the classic tool, which drops them: the CheckNumerics would not run."""
    graph = remove_nodes(chain(), op=("Identity",))
    assert graph["end"].controls == ("check",)
    assert graph["waiter"].controls == ("split", "check")


def test_graph_outputs_stay() -> None:
    outcome = remove_nodes.outcome(chain(outputs=("two",)), op=("Identity",))
    assert "two" in outcome.graph
    assert [str(skip) for skip in outcome.skips] == ["two: the node is a graph input or output"]


def test_max_inputs_allows_nodes_with_several_inputs() -> None:
    graph = Graph.of(
        [
            Node("a", "Placeholder"),
            Node("b", "Placeholder"),
            Node("m", "Pick", (Edge("b"), Edge("a"))),
            Node("y", "Relu", (Edge("m"),)),
        ]
    )
    assert "m" in remove_nodes(graph, op=("Pick",))
    assert remove_nodes(graph, op=("Pick",), max_inputs=2)["y"].inputs == (Edge("b"),)


def test_node_with_used_second_output_stays() -> None:
    graph = Graph.of(
        [Node("x", "Placeholder"), Node("t", "TopKV2", (Edge("x"),)), Node("y", "Relu", (Edge("t", 1),))], ["x"], ["y"]
    )
    outcome = remove_nodes.outcome(graph, op=("TopKV2",))
    assert outcome.graph == graph
    assert outcome.skips[0].reason == "output 1 has consumers"


def test_missing_op_and_invalid_max_inputs_are_rejected() -> None:
    with pytest.raises(RecipeError, match="at least one 'op'"):
        remove_nodes.apply(chain(), {})
    with pytest.raises(RecipeError, match="max_inputs must be at least 1"):
        remove_nodes(chain(), op=("Identity",), max_inputs=0)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Generate graphs of no-op and other nodes with control dependencies."""
    nodes = [Node("n0", "Placeholder")]
    for number in range(1, draw(st.integers(2, 15))):
        before = st.integers(0, number - 1)
        edges = tuple(Edge(f"n{draw(before)}") for _ in range(draw(st.integers(1, 2))))
        controls = tuple({f"n{draw(before)}" for _ in range(draw(st.integers(0, 2)))})
        op = draw(st.sampled_from(["Identity", "Relu", "CheckNumerics"]))
        nodes.append(Node(f"n{number}", op, edges[:1] if op != "Relu" else edges, controls))
    return Graph.of(nodes, ["n0"], [nodes[-1].name])


def upstream(graph: Graph, name: str) -> set[str]:
    """Return the nodes that must run before a node."""
    visited: set[str] = set()
    stack = [name]
    while stack:
        for source in graph[stack.pop()].sources:
            if source not in visited:
                visited.add(source)
                stack.append(source)
    return visited


@given(graphs())
def test_execution_order_of_remaining_nodes_is_preserved(graph: Graph) -> None:
    after = remove_nodes(graph, op=("Identity", "CheckNumerics"))
    verify(after)
    assert after.order
    for name in after.nodes:
        assert upstream(after, name) == upstream(graph, name) & set(after.nodes)
    assert remove_nodes(after, op=("Identity", "CheckNumerics")) == after
