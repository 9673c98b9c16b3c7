"""Splicing out: readers, waiters, ports and ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.transforms.registry import find_transform

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


def test_readers_read_through_a_chain_with_its_port() -> None:
    graph = remove_nodes(chain(), op=("Identity", "CheckNumerics"))
    assert graph["end"].inputs == (Edge("split", 1),)
    assert set(graph.nodes) == {"x", "split", "end", "waiter"}


def test_whoever_waited_waits_for_what_came_before() -> None:
    graph = remove_nodes(chain(), op=("Identity", "CheckNumerics"))
    assert graph["waiter"].controls == ("split",)
    assert graph["end"].controls == (), "it reads split already"


def test_control_dependencies_of_the_removed_are_kept() -> None:
    """The original loses them: a CheckNumerics that was waited for would no longer run."""
    graph = remove_nodes(chain(), op=("Identity",))
    assert graph["end"].controls == ("check",)
    assert graph["waiter"].controls == ("split", "check")


def test_ends_stay() -> None:
    outcome = remove_nodes.outcome(chain(outputs=("two",)), op=("Identity",))
    assert "two" in outcome.graph
    assert [str(skip) for skip in outcome.skips] == ["two: it is an input or output of the graph"]


def test_several_inputs_need_permission() -> None:
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


def test_an_op_whose_other_outputs_are_read_stays() -> None:
    graph = Graph.of(
        [Node("x", "Placeholder"), Node("t", "TopKV2", (Edge("x"),)), Node("y", "Relu", (Edge("t", 1),))], ["x"], ["y"]
    )
    outcome = remove_nodes.outcome(graph, op=("TopKV2",))
    assert outcome.graph == graph
    assert "its output 1 is read" in outcome.skips[0].reason


def test_it_needs_an_op() -> None:
    with pytest.raises(RecipeError, match="at least one 'op'"):
        remove_nodes.apply(chain(), {})
    with pytest.raises(RecipeError, match="max_inputs must be at least 1"):
        remove_nodes(chain(), op=("Identity",), max_inputs=0)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs of passing and other nodes, with ports and controls."""
    nodes = [Node("n0", "Placeholder")]
    for number in range(1, draw(st.integers(2, 15))):
        before = st.integers(0, number - 1)
        edges = tuple(Edge(f"n{draw(before)}") for _ in range(draw(st.integers(1, 2))))
        controls = tuple({f"n{draw(before)}" for _ in range(draw(st.integers(0, 2)))})
        op = draw(st.sampled_from(["Identity", "Relu", "CheckNumerics"]))
        nodes.append(Node(f"n{number}", op, edges[:1] if op != "Relu" else edges, controls))
    return Graph.of(nodes, ["n0"], [nodes[-1].name])


def needed_before(graph: Graph, name: str) -> set[str]:
    """Every node that must run before this one."""
    found: set[str] = set()
    stack = [name]
    while stack:
        node = graph[stack.pop()]
        for source in (*(edge.node for edge in node.inputs), *node.controls):
            if source not in found:
                found.add(source)
                stack.append(source)
    return found


@given(graphs())
def test_what_ran_before_still_runs_before(graph: Graph) -> None:
    made = remove_nodes(graph, op=("Identity", "CheckNumerics"))
    verify(made)
    assert made.order
    for name in made.nodes:
        assert needed_before(made, name) == needed_before(graph, name) & set(made.nodes)
    assert remove_nodes(made, op=("Identity", "CheckNumerics")) == made
