"""An Einsum that is a projection equals the product that replaces it, with any number of unknown sizes."""

import numpy as np
import pytest

import quantkit as qk
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes import open_session

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("equation", "dims", "weights"),
    [
        ("abc,cde->abde", (None, 4, 8), (8, 2, 3)),
        ("abc,cde->abde", (None, None, 8), (8, 2, 3)),
        ("abcd,cde->abe", (None, None, 2, 4), (2, 4, 6)),
        ("ab,bc->ac", (3, 4), (4, 5)),
    ],
)
def test_projections_become_one_product(equation: str, dims: tuple[int | None, ...], weights: tuple[int, ...]) -> None:
    graph = Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(dims)}),
            constant("w", RANDOM.normal(size=weights).astype(np.float32)),
            Node(
                "y", "Einsum", (Edge("x"), Edge("w")), attrs={"T": DType.FLOAT, "N": 2, "equation": equation.encode()}
            ),
        ],
        [Edge("x")],
        [Edge("y")],
    )
    after = qk.transform(graph, "flatten_products").graph
    assert after.op_counts["MatMul"] == 1
    assert "Einsum" not in after.op_counts
    x = RANDOM.normal(size=[size or 5 for size in dims]).astype(np.float32)
    with open_session(after, "reference") as session:
        (result,) = session.run({"x": x}).values()
    np.testing.assert_allclose(result, np.einsum(equation, x, graph["w"].value.array), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["abc,dce->abde", "abc,cde->abed", "abc,bcd->abd", "aac,cde->aade"])
def test_other_equations_stay(equation: str) -> None:
    graph = Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((4, 4, 4))}),
            constant("w", RANDOM.normal(size=(4, 4, 4)).astype(np.float32)),
            Node(
                "y", "Einsum", (Edge("x"), Edge("w")), attrs={"T": DType.FLOAT, "N": 2, "equation": equation.encode()}
            ),
        ],
        [Edge("x")],
        [Edge("y")],
    )
    assert qk.transform(graph, "flatten_products").graph.op_counts["Einsum"] == 1
