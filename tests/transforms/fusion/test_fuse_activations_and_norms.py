"""Fused activations and norms: equal outputs in ONNX Runtime, each opset, and near-matches that stay."""

import numpy as np
import pytest

from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.runtimes import find_runtime, open_session
from quantkit.transforms.fusion.fuse_activations_and_norms import fuse_activations_and_norms

X = np.random.default_rng(0).normal(0, 2, (2, 3, 8)).astype(np.float32)
RUNTIME = "onnxruntime" if find_runtime("onnxruntime").available().ok else "reference"
HEADER = """
    dialect: onnx
    inputs: x
    outputs: y
    x = Placeholder[2x3x8]()
    half = Constant(0.5)
    one = Constant(1.0)
    root = Constant(1.4142135)
    inverse = Constant(0.70710677)
    three = Constant(3.0)
    zero = Constant(0.0)
    six = Constant(6.0)
    sixth = Constant(0.16666667)
    slopes = Constant([-0.25, 0.5, -0.125, 0.0, 0.25, 1.0, -1.0, 0.5])
    blocks = Constant[4x1x1x8]()
    axes = Constant([[[[0.5]]]])
"""
# Op after fusion, the opset that has it, and the nodes before.
FORMS = {
    "gelu": ("Gelu", 20, "a = Div(x, root); b = Erf(a); c = Add(b, one); d = Mul(x, c); y = Mul(d, half)"),
    "gelu, half first": (
        "Gelu",
        20,
        "a = Mul(inverse, x); b = Erf(a); c = Add(one, b); d = Mul(x, half); y = Mul(d, c)",
    ),
    "gelu, half last": (
        "Gelu",
        20,
        "a = Mul(x, inverse); b = Erf(a); c = Add(b, one); d = Mul(half, c); y = Mul(x, d)",
    ),
    "hard sigmoid": ("HardSigmoid", 13, "a = Add(x, three); b = Clip(a, zero, six); y = Mul(b, sixth)"),
    "hard swish": ("HardSwish", 14, "a = HardSigmoid(x, alpha=0.16666667, beta=0.5); y = Mul(x, a)"),
    "hard swish by division": (
        "HardSwish",
        14,
        "a = Add(three, x); b = Clip(a, zero, six); c = Mul(b, x); y = Div(c, six)",
    ),
    "prelu of keras": ("PRelu", 7, "a = Relu(x); b = Neg(x); c = Relu(b); d = Mul(slopes, c); y = Add(a, d)"),
    "leaky relu": ("LeakyRelu", 7, "a = Mul(half, x); y = Max(x, a)"),
    "mish": ("Mish", 18, "a = Softplus(x); b = Tanh(a); y = Mul(x, b)"),
}
# Constants or operands that differ from the form.
NEAR_MATCHES = {
    "other divisor": "a = Div(x, six); b = Erf(a); c = Add(b, one); d = Mul(x, c); y = Mul(d, half)",
    "other operand": "n = Neg(x); a = Div(n, root); b = Erf(a); c = Add(b, one); d = Mul(x, c); y = Mul(d, half)",
    "other bounds": "a = Add(x, three); b = Clip(a, one, six); y = Div(b, six)",
    "divided by the clip": "a = Add(x, three); b = Clip(a, three, six); y = Div(six, b)",
    "wider slopes": "a = Relu(x); b = Neg(x); c = Relu(b); d = Mul(blocks, c); y = Add(a, d)",
    "further axes": "a = Mul(axes, x); y = Max(x, a)",
    "no fraction": "a = Mul(three, x); y = Max(x, a)",
    "other tensor": "a = Softplus(x); b = Tanh(a); n = Neg(x); y = Mul(n, b)",
}


def graph_of(nodes: str, opset: int) -> Graph:
    header = onnx.header({"y": (DType.FLOAT, Shape(X.shape))}, opset=opset)
    text = from_text(HEADER + "\n".join(nodes.split(";")))
    used = {edge.node for node in text.nodes.values() for edge in node.inputs} | {"x", "y"}
    return text.with_(extra=header).with_nodes(node for node in text.nodes.values() if node.name in used)


@pytest.mark.parametrize("name", FORMS)
def test_form_is_fused_from_its_opset_on(name: str) -> None:
    op, opset, nodes = FORMS[name]
    before = graph_of(nodes, opset)
    after = fuse_activations_and_norms(before)
    assert after["y"].op == op
    assert sum(not node.is_constant for node in after.nodes.values()) == 2
    with open_session(before, RUNTIME) as session, open_session(after, RUNTIME) as session_after:
        expected, actual = session.run({"x": X})["y"], session_after.run({"x": X})["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    if op != "HardSigmoid":
        assert op not in fuse_activations_and_norms(graph_of(nodes, opset - 1)).op_counts


def test_slopes_of_prelu_have_the_rank_of_the_input() -> None:
    """OpenVINO applies a slope of rank 1 to the second axis."""
    _, opset, nodes = FORMS["prelu of keras"]
    graph = fuse_activations_and_norms(graph_of(nodes, opset))
    slope = graph.constant_of(graph["y"].inputs[1])
    assert slope is not None
    assert len(slope.shape) == X.ndim


@pytest.mark.parametrize("name", NEAR_MATCHES)
def test_near_match_stays(name: str) -> None:
    graph = graph_of(NEAR_MATCHES[name], 20)
    assert fuse_activations_and_norms(graph) == graph


def test_shared_inner_tensor_stays() -> None:
    _, opset, nodes = FORMS["mish"]
    graph = graph_of(nodes, opset)
    shared = graph.with_endpoints(None, ["y", "b"])
    assert fuse_activations_and_norms(shared) == shared
