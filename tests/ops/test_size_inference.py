"""Integers that graphs compute from shapes, and the shapes that follow."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Shape
from quantkit.ir.text import from_text
from quantkit.ops.macs import count_macs
from quantkit.ops.shape_inference import infer
from quantkit.ops.size_inference import compute, scalar, vector
from quantkit.runtimes import open_session

HEAD = """
inputs: x
outputs: y
x = Placeholder[<?x20x16>]()
zero = Const[int32](0)
one = Const[int32]([1])
two = Const[int32]([2])
all = Const[int32]([0])
shape = Shape(x, T=float, out_type=int32)
"""


def infer_output(lines: str) -> object:
    sizes = infer(from_text(HEAD + lines)).sizes.get(Edge("y"))
    return None if sizes is None else sizes.tolist()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("y = Identity(shape, T=int32)", [None, 20, 16]),
        ("y = Prod(shape, all, T=int32, Tidx=int32)", None),
        ("y = StridedSlice(shape, one, two, one, T=int32, Index=int32, shrink_axis_mask=1)", 20),
        ("y = StridedSlice(shape, one, two, one, T=int32, Index=int32, end_mask=1)", [20, 16]),
        ("y = Slice(shape, one, one, T=int32, Index=int32)", [20]),
        ("y = GatherV2(shape, two, zero, Taxis=int32, Tindices=int32, Tparams=int32)", [16]),
        ("s = GatherV2(shape, two, zero, Taxis=int32, Tindices=int32, Tparams=int32)\ny = Mul(s, s, T=int32)", [256]),
        ("s = Prod(shape, all, T=int32, Tidx=int32)\ny = Pack(s, zero, N=2, T=int32)", [None, 0]),
        ("y = ConcatV2(one, shape, zero, N=2, T=int32, Tidx=int32)", [1, None, 20, 16]),
        ("y = Rank(x, T=float)", 3),
        ("c = Cast(shape, SrcT=int32, DstT=int64)\ny = Identity(c, T=int64)", [None, 20, 16]),
    ],
)
def test_integers_computed_from_shapes_are_inferred(lines: str, expected: object) -> None:
    assert infer_output(lines) == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (np.minimum, [None, 2, None]),
        (np.maximum, [None, 4, None]),
        (np.floor_divide, [None, 2, None]),
        (np.remainder, [None, 0, None]),
        (np.subtract, [None, 2, None]),
        (np.multiply, [None, 8, None]),
        (lambda a, b: 0 * a * b, [0, 0, 0]),
        (lambda a, b: np.concatenate([b, a]), [None, 2, 7, None, 4, None]),
    ],
)
def test_a_result_is_known_if_it_depends_on_no_unknown_integer(
    function: Callable[..., np.ndarray], expected: list[int | None]
) -> None:
    (result,) = compute(lambda arrays: [function(*arrays)], [vector([None, 4, None]), vector([None, 2, 7])])
    assert result.tolist() == expected


@pytest.mark.parametrize("size", [0, 1, 4, 640, 70000, 2**27])
@pytest.mark.parametrize("function", [np.floor_divide, lambda a, b: np.fix(a / b).astype(np.int64)])
def test_quotients_with_one_unknown_integer_are_unknown(function: Callable[..., np.ndarray], size: int) -> None:
    (result,) = compute(lambda arrays: [function(*arrays)], [vector([size]), vector([None])])
    assert result.tolist() == [None if size else 0], "0 divided by a number is 0"
    (result,) = compute(lambda arrays: [function(*arrays)], [vector([None]), vector([max(size, 1)])])
    assert result.tolist() == [None]
    (result,) = compute(lambda arrays: [np.maximum(*arrays)], [vector([None]), vector([size])])
    assert result.tolist() == [None]


def test_a_shape_that_depends_on_an_unknown_integer_is_an_error() -> None:
    with pytest.raises(ValueError, match="the shape depends"):
        compute(lambda arrays: [np.arange(abs(np.sum(arrays[0])))], [scalar(None)])


def test_integers_computed_from_data_are_unknown() -> None:
    assert infer_output("y = Cast(shape, SrcT=int32, DstT=float)") is None
    graph = from_text(HEAD + "y = Identity(shape, T=int32)").with_endpoints(["shape"], ["y"])
    assert Edge("y") not in infer(graph).sizes, "the value of an input is unknown"


def test_shapes_of_fill_and_products_are_inferred() -> None:
    graph = from_text(
        HEAD
        + """
        w = Const[3x16x8]()
        ten = Const[int32](10)
        size = StridedSlice(shape, all, one, one, T=int32, Index=int32, shrink_axis_mask=1)
        sizes = Pack(size, ten, ten, N=3, T=int32)
        value = Const[float](0.5)
        filled = Fill(sizes, value, T=float, index_type=int32)
        e = Einsum(x, w, N=2, T=float, equation="abc,dce->abde")
        b = BatchMatMulV2(x, x, T=float, adj_y=true)
        y = Identity(b, T=float)
        """
    )
    shapes = infer(graph).shapes
    assert shapes[Edge("filled")] == Shape((None, 10, 10))
    assert shapes[Edge("e")] == Shape((None, 20, 3, 8))
    assert shapes[Edge("b")] == Shape((None, 20, 20))
    static_graph = graph.with_nodes(
        node.with_attrs(shape=Shape((1, 20, 16))) if node.name == "x" else node for node in graph.nodes.values()
    )
    shapes = infer(static_graph).shapes
    assert count_macs(static_graph["e"], shapes) == 20 * 16 * 3 * 8
    assert count_macs(static_graph["b"], shapes) == 20 * 20 * 16


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_inferred_sizes_equal_computed_sizes(sizes: list[int], data: st.DataObject) -> None:
    """Draw partly unknown shapes, and arithmetic on slices of them."""
    is_dynamic = [data.draw(st.booleans()) for _ in sizes]
    begin = data.draw(st.integers(0, len(sizes) - 1))
    op = data.draw(st.sampled_from(["Prod", "Sum", "Max", "Min"]))
    text = "x".join("?" if is_hidden else str(size) for size, is_hidden in zip(sizes, is_dynamic, strict=True))
    graph = from_text(
        f"""
        inputs: x
        outputs: y
        x = Placeholder[<{text}>]()
        begin = Const[int32]([{begin}])
        rest = Const[int32]([-1])
        all = Const[int32]([0])
        zero = Const[int32](0)
        shape = Shape(x, T=float, out_type=int32)
        part = Slice(shape, begin, rest, T=int32, Index=int32)
        number = {op}(part, all, T=int32, Tidx=int32)
        list = Pack(number, zero, N=2, T=int32)
        y = ConcatV2(list, part, zero, N=2, T=int32, Tidx=int32)
        """
    )
    inferred = infer(graph).sizes[Edge("y")].tolist()
    computed = _run(graph, sizes)
    assert len(inferred) == len(computed)
    assert all(size in (None, result) for size, result in zip(inferred, computed, strict=True))
    assert any(is_dynamic[begin:]) or None not in inferred


def _run(graph: Graph, sizes: list[int]) -> list[int]:
    with open_session(graph, "reference") as session:
        result: list[int] = session.run({"x": np.zeros(sizes, np.float32)})["y"].tolist()
    return result
