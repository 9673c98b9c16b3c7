"""Tests of set_device."""

import pytest
from edited_graphs import check_edit, edited_graphs
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import RecipeError
from quantkit.ir.graph import Graph
from quantkit.recipes import parse
from quantkit.transforms.metadata.set_device import set_device


@given(edited_graphs(), st.booleans())
def test_device_is_set_on_selected_nodes(graph: Graph, if_default: bool) -> None:
    after = check_edit(set_device, graph, device="/cpu:0", if_default=if_default)
    for name, node in graph.nodes.items():
        is_unchanged = if_default and node.device
        assert after[name] == (node if is_unchanged else node.with_(device="/cpu:0"))


def test_invalid_boolean_is_rejected_with_message_of_classic_tool() -> None:
    with pytest.raises(RecipeError, match="Couldn't interpret the if_default argument as a boolean:yes"):
        parse('set_device(device="/cpu:0", if_default=yes)')
