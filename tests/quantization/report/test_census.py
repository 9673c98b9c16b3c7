from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.ir.text import from_text
from quantkit.quantization import Scheme, annotate
from quantkit.quantization.report.census import census, executed_int8_fractions

TEXT = """
inputs: x
outputs: y
x = Placeholder[<?x4>]()
w = Const[4x6]()
v = Const[6x3]()
m = MatMul(x, w, T=float)
r = Relu(m, T=float)
y = MatMul(r, v, T=float)
"""


def test_macs_of_a_dynamic_batch_are_those_of_one_example() -> None:
    graph = from_text(TEXT)
    plan = annotate(graph, Scheme(keep_float=("y",)))
    counts = census(graph, plan, graph.with_(dialect="onnx"))
    assert (counts.int8_macs, counts.float_macs) == (24, 18)
    assert counts.table == {"MatMul": (1, 1), "Relu": (1, 0)}
    (fallback,) = counts.float_fallbacks
    assert (fallback.name, fallback.reason) == ("y", "the scheme keeps it in float")
    assert counts.boundaries == 2


def test_ops_with_unknown_macs_are_counts() -> None:
    """A product of two computed matrices, one of unknown size."""
    graph = from_text("""
    inputs: x
    outputs: y
    x = Placeholder[<?x4>]()
    w = Const[4x6]()
    m = MatMul(x, w, T=float)
    axis = Const[int32]([0])
    positions = Where(m, T=float)
    rows = GatherNd(m, positions, Tindices=int64, Tparams=float)
    column = ExpandDims(rows, axis, T=float, Tdim=int32)
    y = BatchMatMulV2(column, column, T=float, adj_x=true)
    """)
    plan = annotate(graph, Scheme.for_target("tensorflow"))
    counts = census(graph, plan, graph)
    assert dict(counts.unknown_macs) == {"BatchMatMulV2": 1}
    assert counts.to_json()["unknown_macs"] == {"BatchMatMulV2": 1}
    assert counts.int8_fraction == 1


def test_boundaries_of_litert_are_counts_in_the_plan() -> None:
    graph = from_text(TEXT)
    plan = annotate(graph, Scheme.for_target("litert", keep_float=("y",)))
    assert census(graph, plan, graph).boundaries == 2


@pytest.mark.engine
def test_int8_nodes_of_an_open_session_are_those_of_a_separate_compilation(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    samples = np.random.default_rng(0).uniform(0, 1, (4, 16, 16, 1)).astype(np.float32)
    result = qk.quantize("digits", samples, runs=0, output=tmp_path / "digits.onnx")
    quantized = qk.load(tmp_path / "digits.onnx").graph
    with qk.open_session(tmp_path / "digits.onnx", "openvino") as session:
        nodes = session.int8_nodes
    assert nodes is not None
    compiled = executed_int8_fractions(quantized, ["openvino"])
    assert executed_int8_fractions(quantized, ["openvino"], session_nodes={"openvino": nodes}) == compiled
    assert executed_int8_fractions(quantized, ["openvino"], session_nodes={"openvino": frozenset()}) == {
        "openvino": 0.0
    }
    assert result.report.census.executed["openvino"] == compiled["openvino"] > 0


@pytest.mark.engine
def test_a_product_that_openvino_fuses_with_the_next_quantization_is_int8() -> None:
    pytest.importorskip("openvino")
    graph = from_text("""
    dialect: onnx
    inputs: x
    outputs: y
    x = Placeholder[8x16]()
    w = Constant[16x32]()
    b = Constant[32]()
    g = Gemm(x, w, b)
    shape = Constant[int64]([1, 8, 4, 8])
    r = Reshape(g, shape)
    k = Constant[8x8x3x3]()
    y = Conv(r, k, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    """)
    samples = np.random.default_rng(0).normal(size=(4, 8, 16)).astype(np.float32)
    result = qk.quantize(graph, list(samples), runs=0)
    assert result.report.census.executed["openvino"] == 1


SIZES = {
    "batch of the image": ("sizes = Concat(batch, tokens, size, axis=0)\nt = Reshape(x, sizes, allowzero=1)", 458_752),
    "inferred number of tokens": (
        "sizes = Concat(batch, rest, size, axis=0)\nt = Reshape(x, sizes, allowzero=1)",
        458_752,
    ),
    "class token": (
        "sizes = Concat(batch, tokens, size, axis=0)\nr = Reshape(x, sizes, allowzero=1)\none = Constant[int64]([1])\n"
        "wide = Concat(batch, one, size, axis=0)\nclass = Constant[1x1x48]()\n"
        "c = Expand(class, wide)\nt = Concat(c, r, axis=1)",
        465_920,
    ),
    "rows by arithmetic": (
        "zero = Constant[int64](0)\ncount = Constant[int64](64)\nn = Gather(batch, zero)\nm = Mul(n, count)\n"
        "one = Constant[int64]([1])\nrows = Reshape(m, one, allowzero=1)\nsizes = Concat(rows, size, axis=0)\n"
        "t = Reshape(x, sizes, allowzero=1)",
        458_752,
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_macs_after_sizes_of_exporters_are_known(name: str) -> None:
    nodes, macs = SIZES[name]
    graph = from_text(f"""
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[?x3x32x32]()
        batch = Shape(x, start=0, end=1)
        tokens = Constant[int64]([64])
        rest = Constant[int64]([-1])
        size = Constant[int64]([48])
        w = Constant[48x64]()
        v = Constant[64x64]()
        {nodes}
        h = MatMul(t, w)
        r2 = Relu(h)
        y = MatMul(r2, v)
    """)
    assert qk.summarize(graph).macs == macs
    plan = annotate(graph, Scheme.for_target("onnx"))
    assert census(graph, plan, graph).int8_fraction == 1
