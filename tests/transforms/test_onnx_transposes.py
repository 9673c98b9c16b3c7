"""Removal of transposes around elementwise ops of ONNX graphs: fewer of them, and equal outputs."""

import numpy as np
import pytest

from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text
from quantkit.recipes import rewrite
from quantkit.runtimes import find_runtime
from quantkit.transforms.onnx._transposes import remove_transposes

INPUTS = {
    "a": np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32),
    "b": np.random.default_rng(1).normal(size=(2, 3, 4, 5)).astype(np.float32),
}
HEADER = """
    dialect: onnx
    inputs: a, b
    outputs: {outputs}
    a = Placeholder[2x3x4x5]()
    b = Placeholder[2x3x4x5]()
    s = Transpose(a, perm=[0, 2, 3, 1])
    t = Transpose(b, perm=[0, 2, 3, 1])
    channels = Constant([1.0, -2.0, 3.0])
    columns = Constant([[[1.0], [2.0], [3.0], [4.0], [5.0]]])
    two = Constant(2.0)
"""


def graph_of(body: str, outputs: str = "y") -> Graph:
    return from_text(HEADER.format(outputs=outputs) + body)


def run(graph: Graph) -> list[np.ndarray]:
    with find_runtime("reference").open(graph) as session:
        return list(session.run({info.name: INPUTS[info.name] for info in session.inputs}).values())


@pytest.mark.parametrize(
    ("body", "transposes"),
    [
        ("x = Add(s, channels)\n    r = Relu(x)\n    y = Transpose(r, perm=[0, 3, 1, 2])", 0),
        ("x = Mul(columns, s)\n    r = Pow(x, two)\n    y = Transpose(r, perm=[0, 3, 1, 2])", 0),
        ("x = Add(s, t)\n    y = Transpose(x, perm=[0, 3, 1, 2])", 0),
        ("x = Add(s, t)\n    r = Neg(x)\n    y = Identity(r)", 1),
        ("x = Sub(s, t)\n    axes = Constant[int64]([1, 2])\n    y = ReduceMean(x, axes, keepdims=0)", 0),
        ("x = Sub(s, t)\n    axes = Constant[int64]([1, 3])\n    y = ReduceSum(x, axes, keepdims=0)", 0),
        ("x = Sub(s, t)\n    y = ReduceMax(x, keepdims=0)", 1),
        (
            "x = Abs(s)\n    pads = Constant[int64]([0, 1, 2, 0, 0, 3, 0, 0])\n    p = Pad(x, pads)\n"
            "    y = Transpose(p, perm=[0, 3, 1, 2])",
            0,
        ),
    ],
)
def test_transposes_disappear_and_outputs_stay(body: str, transposes: int) -> None:
    before = graph_of(body)
    after = remove_transposes(before).graph
    assert after.op_counts.get("Transpose", 0) == transposes
    assert after.op_counts.get("Transpose", 0) < before.op_counts["Transpose"]
    for expected, actual in zip(run(before), run(after), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "body",
    [
        "x = Relu(s)\n    y = Identity(x)",  # one transpose before or after
        "other = Transpose(b, perm=[0, 3, 2, 1])\n    x = Transpose(other, perm=[0, 1, 3, 2])\n    y = Mul(s, x)",
        "y = Add(s, t)",  # an output keeps its name and its axes
        "bad = Transpose(b, perm=[0, 2, 2, 1])\n    x = Relu(bad)\n    y = Transpose(x, perm=[0, 3, 1, 2])",
        "wide = Constant[1x1x1x1x3]([1.0, 2.0, 3.0])\n    x = Add(s, wide)\n    y = Identity(x)",
    ],
)
def test_graphs_stay_where_no_transpose_would_disappear(body: str) -> None:
    outcome = remove_transposes(graph_of(body))
    assert not outcome.changes
    assert outcome.graph.op_counts == graph_of(body).op_counts


def test_unused_transposes_disappear() -> None:
    unused = "u = Transpose(b, perm=[0, 2, 3, 1])\n    v = Neg(u)\n    w = Transpose(v, perm=[0, 3, 1, 2])\n"
    body = f"x = Relu(s)\n    y = Transpose(x, perm=[0, 3, 1, 2])\n    {unused}"
    assert "Transpose" not in remove_transposes(graph_of(body)).graph.op_counts


def test_the_limits_of_a_clip_keep_their_shape() -> None:
    low = "low = Constant([-0.5])"
    before = graph_of(f"{low}\n    x = Clip(s, low)\n    y = Transpose(x, perm=[0, 3, 1, 2])")
    after = remove_transposes(before).graph
    assert "Transpose" not in after.op_counts
    assert after["low"].value.shape == (1,)


def test_a_transpose_with_other_consumers_stays() -> None:
    before = graph_of("x = Add(s, t)\n    y = Transpose(x, perm=[0, 3, 1, 2])\n    z = Softmax(s, axis=3)", "y, z")
    after = remove_transposes(before).graph
    assert after.op_counts["Transpose"] == 1
    for expected, actual in zip(run(before), run(after), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_batch_norms_and_pads_of_channels_last_layers_fold() -> None:
    """A convolution of an exported Keras model has transposes between itself, its batch norm and its pad."""
    graph = from_text("""
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[2x4x5x3]()
        pads = Constant[int64]([0, 1, 1, 0, 0, 1, 1, 0])
        p = Pad(x, pads)
        c = Transpose(p, perm=[0, 3, 1, 2])
        w = Constant[2x3x1x1]([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        z = Conv(c, w)
        n = Transpose(z, perm=[0, 2, 3, 1])
        scale = Constant([0.5, 2.0])
        offset = Constant([1.0, -1.0])
        m = Mul(n, scale)
        o = Add(m, offset)
        r = Relu(o)
        q = Transpose(r, perm=[0, 3, 1, 2])
        y = Conv(q, v)
        v = Constant[1x2x1x1]([1.0, -1.0])
    """)
    after = rewrite(graph, "inference")
    assert {op: count for op, count in after.op_counts.items() if op not in ("Constant", "Placeholder")} == {
        "Transpose": 1,
        "Conv": 2,
        "Relu": 1,
    }
    values = np.random.default_rng(2).normal(size=(2, 4, 5, 3)).astype(np.float32)
    with find_runtime("reference").open(graph) as first, find_runtime("reference").open(after) as second:
        np.testing.assert_allclose(second.run(values)["y"], first.run(values)["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("order", "transposes"), [("0, 3, 1, 2", 0), ("0, 1, 3, 2", 1)])
def test_transposes_that_move_only_axes_of_size_one_become_a_reshape(order: str, transposes: int) -> None:
    """A pool of Keras along lines is one over columns, between convolutions over rows."""
    graph = from_text(f"""
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[?x3x1x5]()
        last = Transpose(x, perm=[0, 2, 3, 1])
        row = Constant[int64]([1])
        column = Constant[int64]([2])
        line = Squeeze(last, row)
        image = Unsqueeze(line, column)
        y = Transpose(image, perm=[{order}])
    """)
    after = rewrite(graph, "simplify_arithmetic")
    assert after.op_counts.get("Transpose", 0) == transposes
    values = np.random.default_rng(0).normal(size=(2, 3, 1, 5)).astype(np.float32)
    with find_runtime("reference").open(graph) as first, find_runtime("reference").open(after) as second:
        np.testing.assert_array_equal(second.run(values)["y"], first.run(values)["y"])
