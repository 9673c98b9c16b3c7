"""Attributes that go."""

from edited_graphs import check_edit, edited_graphs
from hypothesis import given
from hypothesis import strategies as st

from quantkit.ir.graph import Graph
from quantkit.transforms.metadata.remove_attribute import remove_attribute


@given(edited_graphs(), st.sampled_from(["*", "Add", "Mul"]))
def test_it_goes_where_asked_and_nothing_else_does(graph: Graph, op: str) -> None:
    after = check_edit(remove_attribute, graph, attribute_name=("note",), op_name=(op,))
    for name, node in graph.nodes.items():
        kept = {key: value for key, value in node.attrs.items() if key != "note" or op not in ("*", node.op)}
        assert after[name] == node.with_(attrs=kept)


@given(edited_graphs())
def test_no_type_is_every_type(graph: Graph) -> None:
    assert remove_attribute(graph, attribute_name=("note",)) == remove_attribute(
        graph, attribute_name=("note",), op_name=("*",)
    )
