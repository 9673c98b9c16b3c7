"""Tests of remove_control_dependencies."""

from edited_graphs import check_edit, edited_graphs
from hypothesis import given

from quantkit.ir.graph import Graph
from quantkit.transforms.cleanup.remove_control_dependencies import remove_control_dependencies


@given(edited_graphs())
def test_only_control_dependencies_are_removed(graph: Graph) -> None:
    after = check_edit(remove_control_dependencies, graph)
    assert list(after.nodes.values()) == [node.with_(controls=()) for node in graph.nodes.values()]
