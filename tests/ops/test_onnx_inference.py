"""Shape inference of ONNX graphs: shape arithmetic with unknown sizes, and the shapes of real networks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from quantkit.formats import load, onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ir.text import from_text
from quantkit.ops.onnx.shapes import count_macs
from quantkit.ops.onnx.types import infer_types
from quantkit.ops.shape_inference import infer, infer_shapes
from quantkit.runtimes import find_runtime, open_session
from quantkit.runtimes.random_inputs import random_arrays
from quantkit.runtimes.session import TensorInfo

NETWORKS = sorted((Path(__file__).parents[2].parent / "shared" / "onnx_models").glob("*.onnx"))

# Inputs whose sizes are unknown, and cannot be 1.
INPUTS = {
    "silero_vad_op15": {"input": np.zeros((1, 576), np.float32), "sr": np.array(16000)},
    "silero_vad_op18": {"input": np.zeros((1, 576), np.float32), "sr": np.array(16000)},
    "xfeat": {"input": np.zeros((1, 3, 64, 96), np.float32)},
}

# A tensor of unknown batch size is flattened by sizes that the graph computes, as PyTorch exports x.view(n, c * h, -1).
CHAIN = """
    dialect: onnx
    inputs: x
    outputs: y
    x = Placeholder[?x3x4x5]()
    sizes = Shape(x)
    first = Constant[int64](0)
    begin = Constant[int64]([1])
    end = Constant[int64]([3])
    axes = Constant[int64]([0])
    n = Gather(sizes, first, axis=0)
    row = Unsqueeze(n, axes)
    inner = Slice(sizes, begin, end)
    product = ReduceProd(inner, keepdims=1)
    rest = Constant[int64]([-1])
    target = Concat(row, product, rest, axis=0)
    y = Reshape(x, target)
    filled = ConstantOfShape(target)
    half = Cast(product, to=1)
    two = Constant([2.0])
    quotient = Div(half, two)
    whole = Floor(quotient)
    count = Cast(whole, to=7)
    wide = Expand(two, count)
    parts = Split(sizes, _outputs=[parts, others])
    swapped = Concat(parts:1, parts, axis=0)
    other = Reshape(x, swapped)
"""


def test_sizes_are_followed_through_arithmetic() -> None:
    shapes, sizes = infer(from_text(CHAIN))
    assert sizes[Edge("target")].tolist() == [None, 12, -1]
    assert shapes[Edge("y")] == Shape((None, 12, None))
    assert shapes[Edge("filled")] == Shape((None, 12, None))
    assert sizes[Edge("count")].tolist() == [6]
    assert shapes[Edge("wide")] == Shape((6,))
    assert shapes[Edge("other")] == Shape((4, 5, None, 3))


def test_a_product_of_unknown_sizes_is_unknown() -> None:
    graph = from_text("""
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[?x?x8]()
        sizes = Shape(x)
        first = Constant[int64]([0, 1])
        leading = Gather(sizes, first, axis=0)
        rows = ReduceProd(leading, keepdims=1)
        width = Constant[int64]([8])
        target = Concat(rows, width, axis=0)
        y = Reshape(x, target)
    """)
    shapes, sizes = infer(graph)
    assert sizes[Edge("target")].tolist() == [None, 8]
    assert shapes[Edge("y")] == Shape((None, 8))


def test_an_expansion_to_computed_sizes_has_their_number_of_dimensions() -> None:
    graph = from_text("""
        dialect: onnx
        inputs: x, sizes
        outputs: y
        x = Placeholder[?x1x8]()
        sizes = Placeholder[4](dtype=int64)
        y = Expand(x, sizes)
    """)
    assert infer_shapes(graph)[Edge("y")] == Shape((None, None, None, 8))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("zero, end", (1, 4, 5)),  # axes default to the first ones
        ("zero, second, axes", (2, 4, 2)),
        ("last, first, axes, back", (2, 4, 3)),
        ("zero, ends, axes", (2, 4, None)),
        ("zero, ends", (None, None, None)),
        ("starts=[0, 1], ends=[9, -1]", (2, 2, 5)),  # attributes in opsets before 10
        ("starts=[-2], ends=[5], axes=[2]", (2, 4, 2)),
    ],
)
def test_slices(inputs: str, expected: tuple[int | None, ...]) -> None:
    graph = from_text(f"""
        dialect: onnx
        inputs: x, ends
        outputs: y
        x = Placeholder[2x4x5]()
        ends = Placeholder[1](dtype=int64)
        zero = Constant[int64]([0])
        end = Constant[int64]([1])
        second = Constant[int64]([2])
        axes = Constant[int64]([-1])
        last = Constant[int64]([-1])
        first = Constant[int64]([-6])
        back = Constant[int64]([-2])
        y = Slice(x, {inputs})
    """)
    assert infer_shapes(graph)[Edge("y")] == Shape(expected)


def test_fixed_sizes_fix_all_others() -> None:
    shapes = infer_shapes(from_text(CHAIN.replace("?x3x4x5", "2x3x4x5")))
    assert shapes[Edge("y")] == Shape((2, 12, 5))
    assert all(shape.is_known for edge, shape in shapes.items() if edge.node != "filled")


def test_graph_input_has_no_known_value() -> None:
    graph = from_text(CHAIN).with_endpoints(["x", "target"], None)
    assert Edge("target") not in infer(graph).sizes


def test_stated_shapes_complete_unknown_sizes() -> None:
    graph = from_text("""
        dialect: onnx
        inputs: x
        x = Placeholder[1x?]()
        y = com.example.Mystery(x)
        z = Relu(y)
    """)
    assert Edge("z") not in infer_shapes(graph) or infer_shapes(graph)[Edge("z")] == Shape(None)
    assert infer_shapes(graph, {Edge("y"): Shape((1, 7))})[Edge("z")] == Shape((1, 7))


def test_element_types() -> None:
    types = infer_types(from_text(CHAIN))
    assert types[Edge("y")] is types[Edge("whole")] is types[Edge("filled")] is DType.FLOAT
    assert types[Edge("count")] is types[Edge("parts", 1)] is DType.INT64


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
@pytest.mark.models
@pytest.mark.engine
@pytest.mark.skipif(not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed")
def test_shapes_and_types_of_networks(path: Path) -> None:
    graph = load(path)
    nodes = [node for node in graph.nodes.values() if node.op not in ("Placeholder", "Constant", "Absent")]
    edges = [Edge(node.name, port) for node in nodes for port in _ports(graph, node.name)]
    with open_session(graph.with_endpoints(None, edges), "onnxruntime") as session:
        arrays = session.run(random_arrays(session.inputs, feeds=_feeds(path.stem, session.inputs)))
    shapes, types = infer_shapes(graph), infer_types(graph)
    stated = {edge: shape for edge, (_, shape) in onnx.value_infos(graph).items()}
    complete = infer_shapes(graph, stated)
    num_known = 0
    for edge, array in zip(edges, arrays.values(), strict=True):
        assert shapes.get(edge, Shape(None)).accepts(array.shape), (edge, shapes[edge], array.shape)
        assert edge not in types or types[edge].numpy == array.dtype
        num_known += complete.get(edge, Shape(None)).dims is not None
    # The outputs of an If have the shapes of its subgraphs, which are not inferred.
    has_branches = "If" in graph.op_counts
    assert num_known >= (0.75 if has_branches else 1.0) * len(edges)
    assert np.mean([edge in types for edge in edges]) >= (0.6 if has_branches else 1.0)


def _ports(graph: Graph, name: str) -> range:
    """Return the ports of a node whose values have names."""
    names = graph[name].attrs.get(onnx.OUTPUTS)
    return range(len(names) if isinstance(names, tuple) else 1)


def _feeds(name: str, inputs: Sequence[TensorInfo]) -> Mapping[str, Array]:
    """Return the arrays of a network's inputs whose unknown sizes cannot be 1."""
    arrays = INPUTS.get(name, {})
    states = {info.name: np.zeros((2, 1, 128), np.float32) for info in inputs if info.name == "state"}
    return {**arrays, **states}


@pytest.mark.parametrize(
    ("op", "size", "steps", "count"),
    [
        # 5 steps of 2 samples, 2 directions: gates * hidden rows of W (3 columns) and of R (4 columns)
        ("LSTM", 16, "5", 5 * 2 * 2 * (16 * 3 + 16 * 4)),
        ("GRU", 12, "5", 5 * 2 * 2 * (12 * 3 + 12 * 4)),
        ("GRU", 12, "?", None),
    ],
)
def test_macs_of_recurrent_layers(op: str, size: int, steps: str, count: int | None) -> None:
    graph = from_text(f"""
    dialect: onnx
    inputs: x
    outputs: y
    x = Placeholder[{steps}x2x3]()
    w = Constant[2x{size}x3]()
    r = Constant[2x{size}x4]()
    y = {op}(x, w, r, direction="bidirectional", hidden_size=4)
    """)
    assert count_macs(graph["y"], infer_shapes(graph)) == count


def test_the_rank_of_an_expansion_to_unknown_sizes_is_known() -> None:
    graph = from_text("""
        dialect: onnx
        inputs: x, sizes
        outputs: y
        x = Placeholder[5x1]()
        sizes = Placeholder[3](dtype=int64)
        y = Expand(x, sizes)
    """)
    assert infer(graph)[0][Edge("y")] == Shape((None, 5, None))


@pytest.mark.parametrize(
    ("values", "allowzero", "expected"),
    [
        ("[-1, 64, 48]", 1, (2, 64, 48)),
        ("[2, 64, -1]", 1, (2, 64, 48)),
        ("[0, 64, -1]", 0, (2, 64, 48)),
        ("[0, 64, 48]", 1, (0, 64, 48)),
        ("[-1]", 1, (6144,)),
    ],
)
def test_reshape_infers_the_size_minus_one_with_and_without_allowzero(
    values: str, allowzero: int, expected: tuple[int, ...]
) -> None:
    graph = from_text(f"""
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[2x3x32x32]()
        sizes = Constant[int64]({values})
        y = Reshape(x, sizes, allowzero={allowzero})
    """)
    assert infer_shapes(graph)[Edge("y")] == Shape(expected)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("y = Reshape(x, computed)", (None, None)),
        ("y = Split(x, axis=1, num_outputs=3, _outputs=[y, z])", (2, 2, 4, 4)),
        ('y = Pad(x, pads, "", last)', (2, 5, 5, 4)),
        ('y = Resize(x, "", "", sides, axes=[2, 3])', (2, 5, 8, 6)),
        ('y = Resize(x, "", "", sides, axes=[2, 3], keep_aspect_ratio_policy=not_larger)', (2, 5, None, None)),
        ('y = Einsum(x, w, equation="...ab,bc->...ac")', (2, 5, 4, 7)),
        ('y = Einsum(x, w, equation="...ab,bc")', (2, 5, 4, 7)),
        ("y = Squeeze(open)", None),
    ],
)
def test_shapes_of_forms_of_later_opsets(node: str, expected: tuple[int | None, ...] | None) -> None:
    graph = from_text(f"""
        dialect: onnx
        inputs: x, open, computed
        outputs: y
        x = Placeholder[2x5x4x4]()
        open = Placeholder[?x1x4]()
        computed = Placeholder[2](dtype=int64)
        pads = Constant[int64]([0, 1])
        "" = Absent()
        last = Constant[int64]([2])
        sides = Constant[int64]([8, 6])
        w = Constant[4x7]()
        {node}
    """)
    assert infer_shapes(graph).get(Edge("y"), Shape(None)) == Shape(expected)


@pytest.mark.parametrize("rank", [3, 4])
def test_macs_of_attention(rank: int) -> None:
    query, key, value = ("2x5x12", "2x7x12", "2x7x16") if rank == 3 else ("2x4x5x3", "2x4x7x3", "2x4x7x4")
    graph = from_text(f"""
        dialect: onnx
        inputs: q, k, v
        outputs: y
        q = Placeholder[{query}]()
        k = Placeholder[{key}]()
        v = Placeholder[{value}]()
        y = Attention(q, k, v, q_num_heads=4, kv_num_heads=4)
    """)
    # batch * heads * queries * keys * (size of a key + size of a value)
    assert count_macs(graph["y"], infer_shapes(graph)) == 2 * 4 * 5 * 7 * (3 + 4)
