"""Outputs of clamps stay equal for every order and every bound."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_exact_transform, check_linear_work, placeholder

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.transforms.folding.fold_clamps import fold_clamps


@st.composite
def clamps(draw: st.DrawFn) -> Graph:
    """Return a graph of Maximum, Minimum and Relu nodes."""
    bounds = {"zero": 0.0, "six": 6.0, "minus": -0.5}
    nodes = [placeholder((2, 3)), *(constant(name, np.float32(value)) for name, value in bounds.items())]
    names = ["x"]
    for number in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["Maximum", "Minimum", "Relu", "Scale"]))
        inputs = [draw(st.sampled_from([names[-1], *names]))]
        if kind == "Scale":
            kind, inputs = "Add", [inputs[0], inputs[0]]
        elif kind != "Relu":
            inputs.append(draw(st.sampled_from(["zero", "six", "six", "minus"])))
        if draw(st.booleans()):
            inputs.reverse()
        names.append(f"n{number}")
        nodes.append(Node(names[-1], kind, tuple(map(Edge, inputs)), attrs={"T": DType.FLOAT}))
    return Graph.of(nodes, ["x"], dict.fromkeys([names[-1], draw(st.sampled_from(names[1:]))]))


@given(clamps())
def test_outputs_of_clamps_stay_equal(graph: Graph) -> None:
    check_exact_transform(fold_clamps, graph)


def test_fold_clamps_runs_in_linear_time() -> None:
    def chain(length: int) -> Graph:
        nodes = [placeholder((2, 3)), constant("zero", np.float32(0)), constant("six", np.float32(6))]
        source = "x"
        for number in range(length):
            nodes.append(Node(f"low{number}", "Maximum", (Edge(source), Edge("zero"))))
            nodes.append(Node(f"high{number}", "Minimum", (Edge(f"low{number}"), Edge("six"))))
            source = nodes[-1].name
        return Graph.of(nodes, ["x"], [source])

    assert fold_clamps(chain(3)).op_counts["Relu6"] == 3
    check_linear_work(fold_clamps, chain)
