"""Tests of remove_device."""

from edited_graphs import check_edit, edited_graphs
from hypothesis import given

from quantkit.ir.graph import Graph
from quantkit.transforms.metadata.remove_device import remove_device


@given(edited_graphs())
def test_only_devices_are_removed(graph: Graph) -> None:
    after = check_edit(remove_device, graph)
    assert list(after.nodes.values()) == [node.with_(device="") for node in graph.nodes.values()]
