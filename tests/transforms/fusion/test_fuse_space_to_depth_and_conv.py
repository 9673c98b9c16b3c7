"""Convolutions of blocks: equal outputs with SpaceToDepth and with strided slices, and graphs that stay."""

import numpy as np
import pytest

from quantkit.ir.graph import Edge, Graph
from quantkit.ir.text import from_text
from quantkit.runtimes import find_runtime, open_session
from quantkit.transforms.fusion.fuse_space_to_depth_and_conv import fuse_space_to_depth_and_conv

X = np.random.default_rng(0).normal(size=(1, 3, 12, 8)).astype(np.float32)
RUNTIME = "onnxruntime" if find_runtime("onnxruntime").available().ok else "reference"
LARGE = 2**63 - 1
HEADER = f"""
    dialect: onnx
    inputs: x
    outputs: y
    x = Placeholder[1x3x12x8]()
    zero = Constant[int64]([0])
    one = Constant[int64]([1])
    two = Constant[int64]([2])
    rows = Constant[int64]([2])
    columns = Constant[int64]([-1])
    last = Constant[int64]([{LARGE}])
    seven = Constant[int64]([7])
    bias = Constant([0.5, -1.0])
"""
SLICES = """
    even = Slice(x, zero, last, rows, two)
    odd = Slice(x, one, last, rows, two)
    a = Slice(even, zero, last, columns, two)
    b = Slice(odd, zero, last, columns, two)
    c = Slice(even, one, last, columns, two)
    d = Slice(odd, one, last, columns, two)
"""
FUSED = {
    "slices": f"{SLICES} blocks = Concat(a, b, c, d, axis=1); y = Conv(blocks, w, pads=[1, 1, 1, 1])",
    "slices in another order": f"{SLICES} blocks = Concat(d, b, a, c, axis=-3); y = Conv(blocks, w, bias)",
    "blocks of two": "blocks = SpaceToDepth(x, blocksize=2); y = Conv(blocks, w, pads=[1, 0, 1, 2], strides=[2, 1])",
    "no padding by name": "blocks = SpaceToDepth(x, blocksize=2); y = Conv(blocks, w, auto_pad=VALID)",
    "blocks of four": "blocks = SpaceToDepth(x, blocksize=4); y = Conv(blocks, v, bias)",
}
OTHER_BLOCKS = {
    "a slice that ends earlier": f"{SLICES.replace('one, last', 'one, seven')} blocks = Concat(a, b, c, d, axis=1)",
    "slices of no axis": (
        "none = Constant[int64]([]); a = Slice(x, none, none, none, none); blocks = Concat(a, a, a, a, axis=1)"
    ),
    "blocks without a size": "blocks = SpaceToDepth(x)",
    "weights of other blocks": "blocks = SpaceToDepth(x, blocksize=3)",
    "a slice twice": f"{SLICES} blocks = Concat(a, b, c, c, axis=1)",
    "blocks with another consumer": "blocks = SpaceToDepth(x, blocksize=2); twin = Relu(blocks)",
}


def graph_of(text: str) -> Graph:
    """Return the graph of a text, with the weights that it uses."""
    weights = {"w": "w = Constant[2x12x3x3]()", "v": "v = Constant[2x48x1x1]()"}
    lines = [line for name, line in weights.items() if f", {name}" in text]
    return from_text("\n".join((HEADER, *lines, *(line.strip() for line in text.replace(";", "\n").splitlines()))))


def run(graph: Graph) -> np.ndarray:
    with open_session(graph, RUNTIME) as session:
        return next(iter(session.run({"x": X}).values()))


@pytest.mark.parametrize("form", FUSED)
def test_blocks_become_a_strided_convolution(form: str) -> None:
    graph = graph_of(FUSED[form])
    fused = fuse_space_to_depth_and_conv(graph)
    assert fused.op_counts.keys().isdisjoint({"Slice", "Concat", "SpaceToDepth"})
    np.testing.assert_allclose(run(fused), run(graph), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", OTHER_BLOCKS)
def test_other_blocks_stay(form: str) -> None:
    graph = graph_of(f"{OTHER_BLOCKS[form]}; y = Conv(blocks, w)")
    graph = graph.with_endpoints(graph.inputs, [Edge("y"), *([Edge("twin")] if "twin" in graph else [])])
    assert fuse_space_to_depth_and_conv(graph).op_counts == graph.op_counts


@pytest.mark.parametrize("name", ["w", "blocks", "b"])
def test_graph_inputs_are_not_replaced(name: str) -> None:
    graph = graph_of(f"{SLICES} blocks = Concat(a, b, c, d, axis=1); y = Conv(blocks, w)")
    graph = graph.with_endpoints([*graph.inputs, Edge(name)], graph.outputs)
    assert fuse_space_to_depth_and_conv(graph).op_counts == graph.op_counts
