"""Waits that go."""

from edited_graphs import edit, edited_graphs
from hypothesis import given

from quantkit.ir.graph import Graph
from quantkit.transforms.cleanup.remove_control_dependencies import remove_control_dependencies


@given(edited_graphs())
def test_only_waits_go(graph: Graph) -> None:
    after = edit(remove_control_dependencies, graph)
    assert list(after.nodes.values()) == [node.with_(controls=()) for node in graph.nodes.values()]
