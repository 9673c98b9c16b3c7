"""Conditions of TensorFlow 1, whose Merge may have its inputs in any order."""

import pytest

from quantkit.convert.tensorflow_to_onnx.frames import with_if_nodes
from quantkit.errors import UnavailableError
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text

GRAPH = """
    inputs: x, p
    outputs: y
    x = Placeholder[2]()
    p = Placeholder[](dtype=bool)
    q = LogicalNot(p)
    s = Switch(x, p, T=float)
    if_true = Neg(s:1, T=float)
    if_false = Exp(s, T=float)
    y = Merge(if_false, if_true, T=float, N=2)
"""


def branch_ops(graph: Graph, name: str) -> set[str]:
    """Return the op types of a branch of the node ``y``."""
    branch = graph["y"].attrs[name]
    assert isinstance(branch, FunctionName)
    return set(graph.library[branch.name].graph.op_counts)


@pytest.mark.parametrize("inputs", ["if_false, if_true", "if_true, if_false", "s, if_true", "if_true, s"])
def test_branches_follow_the_ports_of_the_switch(inputs: str) -> None:
    graph = with_if_nodes(from_text(GRAPH.replace("if_false, if_true", inputs)))
    assert graph["y"].op == "StatelessIf"
    assert [str(edge) for edge in graph["y"].inputs] == ["p", "x"]
    assert "Neg" in branch_ops(graph, "then_branch")
    assert "Neg" not in branch_ops(graph, "else_branch")
    assert ("Exp" in branch_ops(graph, "else_branch")) == ("if_false" in inputs)


@pytest.mark.parametrize("inputs", ["s:1, if_false", "if_false, s:1"])
def test_a_branch_may_be_the_result_of_the_switch(inputs: str) -> None:
    graph = with_if_nodes(from_text(GRAPH.replace("if_false, if_true", inputs)))
    assert "Exp" in branch_ops(graph, "else_branch")
    assert "Exp" not in branch_ops(graph, "then_branch")


def test_a_condition_with_two_predicates_is_rejected() -> None:
    text = GRAPH.replace("if_true = Neg(s:1", "t = Switch(x, q, T=float)\n    if_true = Neg(t")
    with pytest.raises(UnavailableError, match=r"structure of tf\.cond"):
        with_if_nodes(from_text(text))
