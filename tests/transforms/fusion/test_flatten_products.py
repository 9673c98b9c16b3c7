"""Outputs of batched matrix products stay equal as a single product."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_exact_transform, check_linear_work, placeholder

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.ir.text import from_text
from quantkit.runtimes.reference import RUNTIME as REFERENCE
from quantkit.transforms.cleanup.simplify_arithmetic import simplify_arithmetic
from quantkit.transforms.folding.fold_biases import fold_biases
from quantkit.transforms.fusion.flatten_products import flatten_products


@st.composite
def products(draw: st.DrawFn) -> Graph:
    """Return a chain of products of batched matrices with constants of two or three dimensions."""
    batch = tuple(draw(st.lists(st.integers(1, 3), min_size=0, max_size=2)))
    depth = draw(st.integers(1, 4))
    nodes, name = [placeholder((*batch, 3, depth))], "x"
    for number in range(draw(st.integers(1, 3))):
        width, is_transposed = draw(st.integers(1, 4)), draw(st.booleans())
        shape = (width, depth) if is_transposed else (depth, width)
        extra = (1,) if draw(st.booleans()) and batch else ()
        values = np.random.default_rng(number).standard_normal((*extra, *shape)).astype(np.float32)
        attrs: dict[str, Attr] = {"T": DType.FLOAT, "adj_x": False, "adj_y": is_transposed}
        nodes += [
            constant(f"w{number}", values),
            Node(f"product{number}", "BatchMatMulV2", (Edge(name), Edge(f"w{number}")), attrs=attrs),
        ]
        name, depth = f"product{number}", width
    return Graph.of(nodes, ["x"], [name])


@given(products())
def test_outputs_of_products_stay_equal(graph: Graph) -> None:
    check_exact_transform(flatten_products, graph)


def test_dynamic_batch_is_the_unknown_size_of_reshape() -> None:
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[<?x20x16>]()
        w = Const[16x4]()
        y = BatchMatMulV2(x, w, T=float)
        """
    )
    flat = flatten_products(graph)
    assert flat["y/product"].op == "MatMul"
    assert flat["y/sizes"].value.array.tolist() == [-1, 20, 4]


def test_two_unknown_sizes_are_computed() -> None:
    """The number and the length of sequences are unknown."""
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[<?x?x16>]()
        w = Const[16x4]()
        y = BatchMatMulV2(x, w, T=float)
        """
    )
    flat = flatten_products(graph)
    assert flat["y/product"].op == "MatMul"
    feeds = {"x": np.ones((2, 3, 16), np.float32)}
    for name, expected in REFERENCE.open(graph).run(feeds).items():
        np.testing.assert_allclose(REFERENCE.open(flat).run(feeds)[name], expected, rtol=1e-6)


def test_biases_follow_their_products() -> None:
    """A projection of attention: a product, split into heads, and a bias per head."""
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[<?x20x16>]()
        w = Const[16x8]()
        shape = Const[int32]([-1, 20, 2, 4])
        b = Const[2x4]()
        many = BatchMatMulV2(x, w, T=float)
        heads = Reshape(many, shape, T=float, Tshape=int32)
        y = AddV2(heads, b, T=float)
        """
    )
    flat = fold_biases(simplify_arithmetic(flatten_products(graph)))
    assert flat["y"].op == "Reshape"
    assert flat[flat["y"].inputs[0].node].op == "BiasAdd"
    assert flat["y/bias"].value.shape == (8,)


def test_flatten_products_runs_in_linear_time() -> None:
    def chain(length: int) -> Graph:
        nodes, source = [placeholder((2, 3, 4)), constant("w", np.eye(4, dtype=np.float32))], "x"
        for number in range(length):
            name = f"product{number}"
            nodes.append(Node(name, "BatchMatMulV2", (Edge(source), Edge("w")), attrs={"T": DType.FLOAT}))
            source = name
        return Graph.of(nodes, ["x"], [source])

    assert flatten_products(chain(3)).op_counts["MatMul"] == 3
    check_linear_work(flatten_products, chain)
