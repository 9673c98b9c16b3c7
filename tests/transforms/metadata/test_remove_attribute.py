"""Tests of remove_attribute."""

from edited_graphs import check_edit, edited_graphs
from hypothesis import given
from hypothesis import strategies as st

from quantkit.ir.graph import Graph
from quantkit.transforms.metadata.remove_attribute import remove_attribute


@given(edited_graphs(), st.sampled_from(["*", "Add", "Mul"]))
def test_attribute_is_removed_from_nodes_of_one_type(graph: Graph, op: str) -> None:
    after = check_edit(remove_attribute, graph, attribute_name=("note",), op_name=(op,))
    for name, node in graph.nodes.items():
        attrs = {key: value for key, value in node.attrs.items() if key != "note" or op not in ("*", node.op)}
        assert after[name] == node.with_(attrs=attrs)


@given(edited_graphs())
def test_default_op_name_selects_all_nodes(graph: Graph) -> None:
    assert remove_attribute(graph, attribute_name=("note",)) == remove_attribute(
        graph, attribute_name=("note",), op_name=("*",)
    )
