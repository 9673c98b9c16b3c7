"""Tests of obfuscate_names."""

import re

import pytest
from edited_graphs import check_edit, edited_graphs
from hypothesis import given
from rewritten_graphs import check_linear_work

from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.transforms.metadata.obfuscate_names import obfuscate_names, to_base_62


@given(edited_graphs())
def test_endpoints_keep_their_names_and_others_become_short(graph: Graph) -> None:
    after = check_edit(obfuscate_names, graph)
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    names = [new for old, new in zip(graph.nodes, after.nodes, strict=True) if old not in graph.endpoint_names]
    assert names == [to_base_62(number) for number in range(len(names))]
    renamed = dict(zip(graph.nodes, after.nodes, strict=True))
    for old, new in renamed.items():
        assert [edge.node for edge in after[new].inputs] == [renamed[edge.node] for edge in graph[old].inputs]
        assert [edge.port for edge in after[new].inputs] == [edge.port for edge in graph[old].inputs]
        assert after[new].controls == tuple(renamed[name] for name in graph[old].controls)


def test_outputs_with_port_keep_their_names() -> None:
    """Check the fix of the classic tool, which renames the node of the output ``split:1``."""
    graph = Graph.of([Node("x", "Placeholder"), Node("split", "Split", (Edge("x"),))], ["x:0"], ["split:1"])
    assert obfuscate_names(graph) == graph


def test_digits_of_base_62() -> None:
    names = [to_base_62(number) for number in range(64)]
    assert "".join(names[:62]) == "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert names[62:] == ["10", "11"]


def test_missing_input_is_rejected_with_message_of_classic_tool() -> None:
    graph = Graph.of([Node("y", "Relu", (Edge("x"),))])
    with pytest.raises(GraphError, match=re.escape("No node named x for input to y")):
        obfuscate_names(graph)


def test_transform_runs_in_linear_time() -> None:
    def chain(length: int) -> Graph:
        nodes = [Node("x", "Placeholder")]
        nodes += [Node(f"n{number}", "Relu", (Edge(f"n{number - 1}" if number else "x"),)) for number in range(length)]
        return Graph.of(nodes, ["x"], [nodes[-1].name])

    check_linear_work(obfuscate_names, chain)
