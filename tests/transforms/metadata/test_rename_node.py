"""Tests of rename_node."""

import pytest
from edited_graphs import edited_graphs
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph, Node
from quantkit.ir.text import to_text
from quantkit.transforms.metadata.rename_node import rename_node


@given(edited_graphs(), st.data())
def test_new_name_replaces_old_one_in_all_references(graph: Graph, data: st.DataObject) -> None:
    old = data.draw(st.sampled_from(list(graph.nodes)))
    copy = Graph.of(graph.nodes.values(), graph.inputs, graph.outputs)
    after = rename_node(graph, old_node_name=(old,), new_node_name=("quite/new",))
    verify(after)
    assert graph == copy
    assert old not in after
    assert list(after.nodes) == ["quite/new" if name == old else name for name in graph.nodes]
    assert rename_node(after, old_node_name=("quite/new",), new_node_name=(old,)) == graph
    assert to_text(after).count("quite/new") >= 1


def test_names_that_tensorflow_rejects_are_rejected() -> None:
    graph = Graph.of([Node("a", "NoOp")])
    with pytest.raises(RecipeError, match="TensorFlow rejects the name 'a:0'"):
        rename_node(graph, old_node_name=("a",), new_node_name=("a:0",))
    renamed = rename_node(graph.with_(dialect="onnx"), old_node_name=("a",), new_node_name=("a:0",))
    assert list(renamed.nodes) == ["a:0"]


@given(edited_graphs())
def test_name_in_use_is_rejected_even_if_old_name_is_missing(graph: Graph) -> None:
    with pytest.raises(GraphError, match="A node is alreading using xas name"):
        rename_node(graph, old_node_name=("absent",), new_node_name=("x",))
