"""Rewrites of ONNX graphs in double and half: ONNX Runtime has kernels for the nodes that they write."""

import numpy as np
import pytest

from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ir.text import from_text
from quantkit.quantization.targets.onnx.fused_gates import fuse_gates
from quantkit.recipes import rewrite
from quantkit.runtimes import find_runtime, open_session

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed"),
]
RANDOM = np.random.default_rng(0)
CONSTANTS = {
    **dict(zip(("half", "one", "two", "three", "zero", "six"), (0.5, 1, 2, 3, 0, 6), strict=True)),
    **dict(zip(("sixth", "e", "root"), (1 / 6, 1e-5, 2**0.5), strict=True)),
    "w": RANDOM.standard_normal((6, 6)),
    "v": RANDOM.uniform(0.5, 1, 6),
    "filters": RANDOM.standard_normal((6, 6, 1, 1)),
}
LAYER_NORM = """a = ReduceMean(x, axes=[-1]); b = Sub(x, a); c = Mul(b, b); d = ReduceMean(c, axes=[-1]); s = Add(d, e);
    f = Sqrt(s); g = Div(b, f); h = Mul(g, v); y = Add(h, v)"""
FORMS = {
    "hard sigmoid": "a = Add(x, three); b = Clip(a, zero, six); y = Div(b, six)",
    "hard sigmoid by product": "a = Add(three, x); b = Clip(a, zero, six); y = Mul(sixth, b)",
    "hard swish": "a = Add(x, three); b = Clip(a, zero, six); c = Mul(x, b); y = Div(c, six)",
    "hard swish from sigmoid": "a = Add(x, three); b = Clip(a, zero, six); c = Div(b, six); y = Mul(x, c)",
    "gelu": "a = Div(x, root); b = Erf(a); c = Add(b, one); d = Mul(x, c); y = Mul(d, half)",
    "mish": "a = Softplus(x); b = Tanh(a); y = Mul(x, b)",
    "layer norm": LAYER_NORM,
    "quotient": "a = Exp(x); b = Reciprocal(a); y = Mul(x, b)",
    "negation": "a = Neg(x); b = Exp(x); y = Add(b, a)",
    "product with bias": "a = MatMul(x, w); b = Mul(a, v); y = Add(b, v)",
    "normalized product": "a = Gemm(x, w, v); y = BatchNormalization(a, v, v, v, v)",
    "power": "a = Pow(x, two); b = Max(a); c = Relu(b); y = Relu(c)",
    "normalized convolution": "i = Unsqueeze(x, axes=[2, 3]); a = Conv(i, filters); "
    "y = BatchNormalization(a, v, v, v, v)",
}


def graph_of(nodes: str, dtype: DType) -> Graph:
    opset = 12 if "Unsqueeze" in nodes else 17
    text = from_text("dialect: onnx\ninputs: x\noutputs: y\nx = Placeholder[4x6]()\n" + nodes.replace(";", "\n"))
    names = {edge.node for node in text.nodes.values() for edge in node.inputs if edge.node not in text}
    values = {name: Tensor.of(np.asarray(CONSTANTS[name], dtype.numpy)) for name in sorted(names)}
    constants = [Node(name, "Constant", attrs={"value": value}) for name, value in values.items()]
    inputs = text["x"].with_attrs(dtype=dtype)
    rest = [node for node in text.nodes.values() if node.name != "x"]
    return text.with_nodes([inputs, *constants, *rest]).with_(
        extra=onnx.header({"y": (dtype, Shape(None))}, opset=opset)
    )


@pytest.mark.parametrize("dtype", [DType.DOUBLE, DType.HALF])
@pytest.mark.parametrize("name", FORMS)
def test_a_graph_that_runs_still_runs(name: str, dtype: DType) -> None:
    graph = graph_of(FORMS[name], dtype)
    x = np.asarray(RANDOM.standard_normal((4, 6)), dtype.numpy)
    try:
        with open_session(graph, "onnxruntime") as session:
            expected = session.run({"x": x})["y"]
    except UnavailableError as error:
        pytest.skip(error.message)
    with open_session(rewrite(graph, "inference"), "onnxruntime") as session:
        actual = session.run({"x": x})["y"]
    assert actual.dtype == dtype.numpy
    np.testing.assert_allclose(actual, expected, rtol=1e-6 if dtype is DType.DOUBLE else 1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["hard sigmoid", "hard swish from sigmoid"])
def test_half_is_fused_and_double_is_not(name: str) -> None:
    counts = [len(rewrite(graph_of(FORMS[name], dtype), "inference")) for dtype in (DType.HALF, DType.DOUBLE)]
    assert counts[0] < counts[1]


@pytest.mark.parametrize("dtype", [DType.DOUBLE, DType.HALF, DType.FLOAT])
def test_silu_becomes_one_op_only_with_a_kernel(dtype: DType) -> None:
    fused = fuse_gates(graph_of("a = Sigmoid(x); y = Mul(x, a)", dtype))
    assert (fused["y"].op == "com.microsoft.QuickGelu") == (dtype is not DType.DOUBLE)
    with open_session(fused, "onnxruntime") as session:
        assert session.run({"x": np.ones((4, 6), dtype.numpy)})["y"].dtype == dtype.numpy
