"""Tests of rename_op."""

from edited_graphs import check_edit, edited_graphs
from hypothesis import given

from quantkit.ir.graph import Graph
from quantkit.transforms.metadata.rename_op import rename_op


@given(edited_graphs())
def test_only_op_type_changes(graph: Graph) -> None:
    after = check_edit(rename_op, graph, old_op_name=("Mul",), new_op_name=("Multiply",))
    for name, node in graph.nodes.items():
        assert after[name] == node.with_(op="Multiply" if node.op == "Mul" else node.op)
