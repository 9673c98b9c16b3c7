"""Names that tell nothing."""

import re

import pytest
from edited_graphs import check_edit, edited_graphs
from hypothesis import given
from rewritten_graphs import check_linear_work

from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.transforms.metadata.obfuscate_names import in_base_62, obfuscate_names


@given(edited_graphs())
def test_ends_keep_their_names_and_all_others_are_short(graph: Graph) -> None:
    after = check_edit(obfuscate_names, graph)
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    names = [new for old, new in zip(graph.nodes, after.nodes, strict=True) if old not in graph.endpoint_names]
    assert names == [in_base_62(number) for number in range(len(names))]
    places = dict(zip(graph.nodes, after.nodes, strict=True))
    for old, new in places.items():
        assert [edge.node for edge in after[new].inputs] == [places[edge.node] for edge in graph[old].inputs]
        assert [edge.port for edge in after[new].inputs] == [edge.port for edge in graph[old].inputs]
        assert after[new].controls == tuple(places[name] for name in graph[old].controls)


def test_outputs_with_a_port_keep_their_names() -> None:
    """The original compares the raw text, and renames the node of ``split:1``."""
    graph = Graph.of([Node("x", "Placeholder"), Node("split", "Split", (Edge("x"),))], ["x:0"], ["split:1"])
    assert obfuscate_names(graph) == graph


def test_digits() -> None:
    words = [in_base_62(number) for number in range(64)]
    assert "".join(words[:62]) == "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert words[62:] == ["10", "11"]


def test_a_missing_input_is_named_as_the_original_names_it() -> None:
    graph = Graph.of([Node("y", "Relu", (Edge("x"),))])
    with pytest.raises(GraphError, match=re.escape("No node named x for input to y")):
        obfuscate_names(graph)


def test_work_grows_linearly() -> None:
    def chain(length: int) -> Graph:
        nodes = [Node("x", "Placeholder")]
        nodes += [Node(f"n{number}", "Relu", (Edge(f"n{number - 1}" if number else "x"),)) for number in range(length)]
        return Graph.of(nodes, ["x"], [nodes[-1].name])

    check_linear_work(obfuscate_names, chain)
