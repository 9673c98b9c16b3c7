"""Tests of backport_concatv2."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_exact_transform, placeholder

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.transforms.metadata.backport_concatv2 import backport_concatv2


@given(
    st.lists(st.sampled_from(["x", "y0", "y1"]), min_size=2, max_size=4),
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from([0, 1, -1]),
)
def test_outputs_stay_and_axis_comes_first(operands: list[str], dtype: type, axis: int) -> None:
    attrs = {"T": DType.FLOAT, "N": len(operands), "Tidx": DType.of(dtype)}
    nodes = [
        placeholder((2, 3)),
        Node("y0", "Relu", (Edge("x"),), attrs={"T": DType.FLOAT}),
        Node("y1", "Neg", (Edge("x"),), attrs={"T": DType.FLOAT}),
        constant("axis", dtype(axis)),
        Node("joined", "ConcatV2", (*map(Edge, operands), Edge("axis")), ("y1",), attrs),
    ]
    graph = Graph.of(nodes, ["x"], ["joined"])
    check_exact_transform(backport_concatv2, graph)
    after = backport_concatv2(graph)["joined"]
    assert (after.op, after.inputs[1:], after.controls) == ("Concat", tuple(map(Edge, operands)), ("y1",))
    assert "Tidx" not in after.attrs
