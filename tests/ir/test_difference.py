from typing import Any

from quantkit.ir.difference import differences
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType


def test_differences_have_the_sentences_of_compare_graphs() -> None:
    graph = Graph.of([Node("x", "Placeholder"), Node("y", "Relu", (Edge("x"),), attrs={"T": DType.FLOAT, "_note": 1})])
    other = {node.name: node for node in graph.nodes.values()}

    def difference(**changes: Any) -> str:
        return next(differences(graph.with_nodes({**other, "y": other["y"].with_(**changes)}.values()), graph), "")

    assert list(differences(graph, graph)) == []
    assert difference(attrs={"T": DType.FLOAT}) == ""
    assert difference(op="Elu") == "Node named 'y' has op 'Elu' that is not expected 'Relu'"
    assert difference(device="/gpu:0") == "Node named 'y' has device '/gpu:0' that is not expected ''"
    assert difference(controls=("x",)) == "Node named 'y' has inputs 'x, ^x' that don't match expected 'x'"
    assert (
        difference(attrs={"T": DType.HALF})
        == "Node named 'y' has attr 'T' with value: half that does not match expected: float"
    )
    assert list(differences(graph.with_nodes([other["x"]]), graph)) == ["Did not find expected node 'y'"]
    assert list(differences(graph, graph.with_nodes([other["x"]]))) == ["Found unexpected node 'y'"]
