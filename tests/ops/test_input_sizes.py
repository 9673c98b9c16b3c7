"""Sizes of dynamic inputs come from the weights that they must match, else they are small."""

from itertools import islice

import pytest

from quantkit.ir.tensor import Shape
from quantkit.ir.text import from_text
from quantkit.ops.input_sizes import MAX_ELEMENTS, choose_input_shapes, find_fixed_sizes
from quantkit.ops.shape_inference import infer_shapes

ONNX, TENSORFLOW = "dialect: onnx\n", ""
CASES = {
    "product": (ONNX, "x = Placeholder[?x?x?]()\nw = Constant[64x32]()\ny = MatMul(x, w)", {"x": (2, 8, 64)}),
    "transposed": (
        ONNX,
        "x = Placeholder[?x?x?]()\nw = Constant[64x32]()\nt = Transpose(x, perm=[0, 2, 1])\ny = MatMul(t, w)",
        {"x": (2, 64, 8)},
    ),
    "norm": (ONNX, "x = Placeholder[?x?x?]()\ng = Constant[64]()\ny = LayerNormalization(x, g, g)", {"x": (2, 8, 64)}),
    "broadcast": (ONNX, "x = Placeholder[?x?x?]()\nb = Constant[7x1]()\ny = Add(x, b)", {"x": (2, 7, 8)}),
    "groups": (
        ONNX,
        "x = Placeholder[?x?x?x?]()\nw = Constant[8x2x3x3]()\ny = Conv(x, w, group=4, kernel_shape=[3, 3])",
        {"x": (2, 8, 32, 64)},
    ),
    "flattened image": (
        ONNX,
        "x = Placeholder[?x?x?x?]()\nw = Constant[8x3x3x3]()\nc = Conv(x, w, strides=[2, 2], pads=[1, 1, 1, 1])\n"
        "f = Flatten(c)\nv = Constant[2048x10]()\ny = Gemm(f, v)",
        {"x": (2, 3, 32, 32)},
    ),
    "sequence and state": (
        ONNX,
        "x = Placeholder[?x?x?]()\nh = Placeholder[?x?x?]()\nw = Constant[1x48x10]()\nr = Constant[1x48x16]()\n"
        "b = Constant[1x96]()\nl = Constant[int32 0]()\ny = GRU(x, w, r, b, l, h, hidden_size=16)",
        {"x": (2, 8, 10), "h": (1, 8, 16)},
    ),
    "equal inputs": (
        ONNX,
        "x = Placeholder[?x?]()\nh = Placeholder[?x?]()\ns = Mul(x, h)\nw = Constant[5x3]()\ny = MatMul(s, w)",
        {"x": (2, 5), "h": (2, 5)},
    ),
    "maximum": (
        ONNX,
        "x = Placeholder[?x?]()\nt = Constant[1x512]()\ns = Shape(x)\nzero = Constant[int64]([0])\n"
        "one = Constant[int64]([1])\nend = Slice(s, one, zero_end, zero)\nzero_end = Constant[int64]([2])\n"
        "p = Slice(t, zero, end, one)\ny = Add(x, p)",
        {"x": (2, 8)},
    ),
    "TensorFlow product": (
        TENSORFLOW,
        "x = Placeholder[?x?]()\nw = Const[32x64]()\ny = MatMul(x, w, T=float, transpose_b=true)",
        {"x": (2, 64)},
    ),
    "TensorFlow convolution": (
        TENSORFLOW,
        "x = Placeholder[?x?x?x?]()\nw = Const[3x3x5x8]()\ny = Conv2D(x, w, strides=[1, 1, 1, 1], padding=SAME)",
        {"x": (2, 32, 64, 5)},
    ),
    "prime": (ONNX, "x = Placeholder[?x?]()\nw = Constant[11x13]()\ny = MatMul(x, w)", {"x": (2, 11)}),
    "nothing to match": (ONNX, "x = Placeholder[?x?x?]()\ny = Relu(x)", {"x": (2, 8, 16)}),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_match_the_weights(name: str) -> None:
    dialect, text, expected = CASES[name]
    graph = from_text(f"{dialect}inputs: {', '.join(expected)}\noutputs: y\n{text}")
    shapes = {edge: infer_shapes(graph)[edge] for edge in graph.inputs}
    sizes = next(choose_input_shapes(graph, shapes))
    assert {edge.node: shape.sizes for edge, shape in sizes.items()} == expected


def test_inputs_stay_small_and_other_sizes_follow() -> None:
    graph = from_text("dialect: onnx\ninputs: x\noutputs: y\nx = Placeholder[?x?x?x?x?]()\ny = Relu(x)")
    shapes = list(choose_input_shapes(graph, {graph.inputs[0]: Shape((None,) * 5)}))
    num_elements = [shape.sizes[0] * shape.sizes[1] ** 2 for (shape,) in (each.values() for each in shapes)]
    assert max(num_elements) <= MAX_ELEMENTS
    assert len(shapes) == len(set(map(str, shapes))) > 3


def test_known_sizes_are_kept() -> None:
    graph = from_text("dialect: onnx\ninputs: x\noutputs: y\nx = Placeholder[3x4]()\ny = Relu(x)")
    (shapes,) = islice(choose_input_shapes(graph, {graph.inputs[0]: Shape((3, 4))}), 5)
    assert shapes[graph.inputs[0]].sizes == (3, 4)


HEADS = "s = Constant[int64]([-1, 12, 4, 8])\nx = Relu(ids)\nr = Reshape(x, s)\n"
FIXED_CASES = {
    "length in a Reshape": (
        "?x?x32",
        f"{HEADS}f = Constant[int64]([-1, 12, 32])\nj = Reshape(r, f)\ny = Add(j, x)",
        "?x12x32",
    ),
    "batch in a Reshape": (
        "?x?x32",
        "s = Constant[int64]([6, -1, 32])\nr = Reshape(ids, s)\ny = Add(r, ids)",
        "6x?x32",
    ),
    "batch and length": (
        "?x?x32",
        "t = Transpose(ids, perm=[1, 0, 2])\ns = Constant[int64]([12, 24, 8])\nr = Reshape(t, s)\n"
        "b = Constant[int64]([12, 6, 32])\nj = Reshape(r, b)\ny = Add(t, j)",
        "6x12x32",
    ),
    "length of an Expand": (
        "?x?x32",
        "o = Constant[1x1x32]()\ns = Constant[int64]([1, 12, 32])\np = Expand(o, s)\ny = Add(ids, p)",
        "?x12x32",
    ),
    "positions": ("?x?x32", "p = Constant[1x12x32]()\ny = Add(ids, p)", "?x12x32"),
    "patches of an image": (
        "?x3x?x?",
        "w = Constant[8x3x16x16]()\nc = Conv(ids, w, strides=[16, 16], kernel_shape=[16, 16])\n"
        "s = Constant[int64]([0, 8, -1])\nr = Reshape(c, s)\np = Constant[1x8x196]()\ny = Add(r, p)",
        "?x3x224x224",
    ),
    "channels of weights": ("?x?x?", "w = Constant[32x4]()\ny = MatMul(ids, w)", "?x?x32"),
    "nothing": ("?x?x32", "s = Constant[int64]([0, -1, 4, 8])\ny = Reshape(ids, s)", None),
    "multiples of 4": ("?x?x32", "s = Constant[int64]([0, -1, 4, 32])\ny = Reshape(ids, s)", None),
}


@pytest.mark.parametrize("name", FIXED_CASES)
def test_sizes_that_the_graph_fixes(name: str) -> None:
    shape, nodes, expected = FIXED_CASES[name]
    graph = from_text(f"dialect: onnx\ninputs: ids\noutputs: y\nids = Placeholder[{shape}]()\n{nodes}")
    declared = {edge: infer_shapes(graph)[edge] for edge in graph.inputs}
    fixed = find_fixed_sizes(graph, declared)
    assert {edge.node: str(shape) for edge, shape in fixed.items()} == ({} if expected is None else {"ids": expected})
    shapes = next(choose_input_shapes(graph, declared))
    assert all(shape.accepts(shapes[edge].sizes) for edge, shape in fixed.items())
    of_weights = find_fixed_sizes(graph, declared, of_weights=True)
    assert of_weights == (fixed if name == "channels of weights" else {})
    few = find_fixed_sizes(graph, declared, max_nodes=3 * len(graph))  # not enough to try several sizes
    assert few in ({}, fixed)
