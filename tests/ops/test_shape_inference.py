"""Inferred shapes, compared with computed outputs, and MACs."""

import numpy as np
import pytest

from quantkit.ir.graph import Edge
from quantkit.ir.tensor import Shape
from quantkit.ir.text import from_text
from quantkit.ops.macs import count_macs
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.runtimes import open_session

# The shapes of all tensors can be inferred.
GRAPHS = {
    "shape arithmetic": """
        x = Placeholder[2x3x4]()
        sizes = Shape(x, T=float)
        zero = Const[int32]([0])
        one = Const[int32]([1])
        first = StridedSlice(sizes, zero, one, one, Index=int32, T=int32, shrink_axis_mask=1)
        twelve = Const[int32](12)
        target = Pack(first, twelve, N=2, T=int32)
        flat = Reshape(x, target, T=float)
        rank = Rank(x, T=float)
        count = Size(x, T=float)
        half = FloorDiv(count, first, T=int32)
        many = ExpandDims(half, zero0, T=int32)
        zero0 = Const[int32](0)
        value = Const(3.0)
        filled = Fill(many, value, T=float)
    """,
    "slices": """
        x = Placeholder[2x6x4]()
        begin = Const[int32]([0, 1, 0])
        size = Const[int32]([2, -1, 3])
        cut = Slice(x, begin, size, T=float, Index=int32)
        axes = Const[int32]([1])
        back = ReverseV2(cut, axes, T=float)
        parts = Unpack(back, T=float, num=5, axis=1)
        ids = Const[int32]([[0, 1], [2, 0]])
        axis = Const[int32](2)
        taken = GatherV2(cut, ids, axis, Tparams=float, Tindices=int32)
        every = Const[int32]([2, 2, 1])
        end = Const[int32]([9, 9, 9])
        strided = StridedSlice(x, begin, end, every, Index=int32, T=float, begin_mask=1, end_mask=7)
    """,
    "einsum": """
        x = Placeholder[2x3x4]()
        w = Const[4x5]()
        product = Einsum(x, w, T=float, N=2, equation="abc,cd->abd")
        to = Const[int32]([3, 2, 3, 5])
        wide = BroadcastTo(product, to, T=float, Tidx=int32)
    """,
    "batch matmul": """
        x = Placeholder[5x1x3x4]()
        w = Const[2x6x3]()
        product = BatchMatMulV2(x, w, T=float, adj_x=true, adj_y=true)
    """,
    "layers": """
        x = Placeholder[1x6x6x4]()
        w = Const[3x3x2x6]()
        grouped = Conv2D(x, w, T=float, padding=VALID, strides=[1, 1, 1, 1])
        sizes = Const[int32]([1, 8, 8, 4])
        v = Const[2x2x4x6]()
        up = Conv2DBackpropInput(sizes, v, grouped, T=float, padding=SAME, strides=[1, 2, 2, 1])
    """,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_inferred_shapes_equal_output_shapes(name: str) -> None:
    graph = from_text("inputs: x\n" + GRAPHS[name])
    shapes = infer_shapes(graph)
    edges = [
        Edge(node.name, port)
        for node in graph.nodes.values()
        for port in range(len(output_dtypes(node)))
        if node.name != "x"
    ]
    x = np.random.default_rng(0).normal(size=shapes[Edge("x")].sizes).astype(np.float32)
    with open_session(graph.with_endpoints(None, edges), "reference") as session:
        outputs = session.run({"x": x})
    assert {str(edge): shapes[edge].sizes for edge in edges} == {key: value.shape for key, value in outputs.items()}


@pytest.mark.parametrize(
    ("layer", "shape", "count"),
    [
        ("Conv2D(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1])", "3x3x4x8", 36 * 8 * 9 * 4),
        ("Conv2D(x, w, T=float, padding=SAME, strides=[1, 2, 2, 1])", "3x3x4x8", 9 * 8 * 9 * 4),
        ("Conv2D(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1])", "3x3x2x8", 36 * 8 * 9 * 2),
        ("_FusedConv2D(x, w, b, T=float, padding=VALID, strides=[1, 1, 1, 1])", "3x3x4x8", 16 * 8 * 9 * 4),
        ("DepthwiseConv2dNative(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1])", "3x3x4x2", 36 * 8 * 9),
        ("FusedPadConv2D(x, p, w, T=float, padding=VALID, strides=[1, 1, 1, 1])", "3x3x4x8", 36 * 8 * 9 * 4),
        (
            "QuantizedConv2DWithBiasAndReluAndRequantize(x, w, b, padding=VALID, strides=[1, 1, 1, 1], "
            "padding_list=[0, 0, 1, 1, 1, 1, 0, 0])",
            "3x3x4x8",
            36 * 8 * 9 * 4,
        ),
        ("_FusedQuantizedConv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])", "3x3x4x8", 36 * 8 * 9 * 4),
        ("Conv2DBackpropInput(s, w, x, T=float, padding=SAME, strides=[1, 2, 2, 1])", "3x3x8x4", 36 * 4 * 9 * 8),
        ("Conv2DBackpropFilter(x, s, x, T=float, padding=SAME, strides=[1, 2, 2, 1])", "3x3x8x4", 0),
        ("Relu(x, T=float)", "1", 0),
        ("PartitionedCall(x)", "1", None),
    ],
)
def test_macs_of_layers(layer: str, shape: str, count: int | None) -> None:
    graph = from_text(
        f"x = Placeholder[1x6x6x4]()\nw = Const[{shape}]()\nb = Const[8]()\ns = Const[int32]([1, 12, 12, 8])\n"
        f"p = Const[int32]([[0, 0], [1, 1], [1, 1], [0, 0]])\ny = {layer}"
    )
    assert count_macs(graph["y"], infer_shapes(graph)) == count


@pytest.mark.parametrize(
    ("layer", "first", "second", "count"),
    [
        ("MatMul(x, w, T=float)", "3x4", "4x5", 3 * 4 * 5),
        ("MatMul(x, w, T=float, transpose_b=true)", "3x4", "5x4", 3 * 4 * 5),
        ("MatMul(x, w, T=float, transpose_a=true)", "4x3", "4x5", 3 * 4 * 5),
        ("_FusedMatMul(x, w, T=float)", "3x4", "4x5", 3 * 4 * 5),
        ("_QuantizedMatMul(x, w)", "3x4", "4x5", 3 * 4 * 5),
        ("BatchMatMulV2(x, w, T=float)", "2x3x4", "2x4x5", 2 * 3 * 4 * 5),
        ("BatchMatMulV2(x, w, T=float, adj_x=true, adj_y=true)", "2x4x3", "5x4", 2 * 3 * 4 * 5),
        ('Einsum(x, w, T=float, N=2, equation="abc,cde->abde")', "2x3x4", "4x5x6", 2 * 3 * 4 * 5 * 6),
        ('Einsum(x, w, T=float, N=2, equation="...c,cd->...d")', "2x3x4", "4x5", 2 * 3 * 4 * 5),
        ("Conv3D(x, w, T=float, padding=SAME, strides=[1, 1, 2, 1, 1])", "1x4x4x4x2", "2x2x2x2x3", 32 * 3 * 8 * 2),
        ("MatMul(x, w, T=float)", "?x4", "4x5", None),
    ],
)
def test_macs_of_matrix_products(layer: str, first: str, second: str, count: int | None) -> None:
    graph = from_text(f"x = Placeholder[{first}]()\nw = Const[{second}]()\ny = {layer}")
    assert count_macs(graph["y"], infer_shapes(graph)) == count


@pytest.mark.parametrize(
    ("window", "shape", "output"),
    [
        ("ksize=[1, 2, 3, 1, 1], strides=[1, 1, 2, 1, 1], padding=SAME", "?x4x7x5x2", (None, 4, 4, 5, 2)),
        ("ksize=[1, 2, 3, 1, 1], strides=[1, 1, 2, 1, 1], padding=VALID", "?x4x7x5x2", (None, 3, 3, 5, 2)),
        (
            "ksize=[1, 1, 2, 2, 2], strides=[1, 1, 2, 2, 2], padding=VALID, data_format=NCDHW",
            "1x2x4x?x8",
            (1, 2, 2, None, 4),
        ),
    ],
)
def test_shapes_of_pooled_volumes(window: str, shape: str, output: tuple[int | None, ...]) -> None:
    for op in ("MaxPool3D", "AvgPool3D"):
        shapes = infer_shapes(from_text(f"x = Placeholder[{shape}]()\ny = {op}(x, T=float, {window})"))
        assert shapes[Edge("y")].dims == output, op


def test_unknown_sizes_stay_unknown() -> None:
    graph = from_text(
        "x = Placeholder[?x4]()\nsizes = Shape(x, T=float)\ny = Fill(sizes, v, T=float)\nv = Const(1.0)\n"
        "rank = Rank(x, T=float)"
    )
    shapes = infer_shapes(graph)
    assert shapes[Edge("sizes")].sizes == (2,)
    assert shapes[Edge("y")].dims == (None, 4)
    assert shapes[Edge("rank")].sizes == ()


def test_computed_sizes_leave_the_rank_known() -> None:
    graph = from_text("""
        inputs: x, n, sizes
        outputs: y, z
        x = Placeholder[2x512]()
        n = Placeholder[2](dtype=int64)
        sizes = Placeholder[3](dtype=int64)
        zero = Const[int64]([0, 0])
        one = Const[int64]([1, 1])
        y = StridedSlice(x, zero, n, one, T=float, Index=int64, begin_mask=1, end_mask=1)
        args = BroadcastArgs(n, sizes, T=int64)
        z = BroadcastTo(y, args, T=float, Tidx=int64)
    """)
    shapes = infer_shapes(graph)
    assert shapes[Edge("y")] == Shape((2, None))
    assert shapes[Edge("z")] == Shape((None, None, None))


def test_a_node_without_its_inputs_has_no_shape() -> None:
    assert Edge("y") not in infer_shapes(from_text("x = Placeholder[2x3]()\ny = Reshape(x)"))
