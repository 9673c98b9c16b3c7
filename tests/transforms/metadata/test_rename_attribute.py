"""Tests of rename_attribute."""

from edited_graphs import check_edit, edited_graphs
from hypothesis import given

from quantkit.ir.graph import Graph
from quantkit.transforms.metadata.rename_attribute import rename_attribute


@given(edited_graphs())
def test_rename_is_reversible(graph: Graph) -> None:
    after = check_edit(rename_attribute, graph, old_attribute_name=("note",), new_attribute_name=("remark",))
    assert [node.attrs.get("remark") for node in after.nodes.values()] == [
        node.attrs.get("note") for node in graph.nodes.values()
    ]
    assert rename_attribute(after, old_attribute_name=("remark",), new_attribute_name=("note",)) == graph


@given(edited_graphs())
def test_existing_attribute_is_replaced(graph: Graph) -> None:
    after = rename_attribute(
        graph, old_attribute_name=("note",), new_attribute_name=("_class",), op_name=("Mul", "Add")
    )
    for name, node in graph.nodes.items():
        is_renamed = node.op == "Mul" and "note" in node.attrs
        assert after[name].attrs.get("_class") == (node.attrs["note"] if is_renamed else node.attrs.get("_class"))
