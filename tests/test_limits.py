"""Limits of nodes after inlining and of computed bytes: small files that would hang or fill the memory."""

import tracemalloc
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from function_graphs import argument, call

import quantkit as qk
from quantkit.benchmark.sampling import feeds
from quantkit.errors import GraphError, UsageError
from quantkit.evaluation import compare
from quantkit.formats import graphdef, save
from quantkit.formats.files import save_saved_model
from quantkit.ir.functions import Function, Library
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.limits import Limits, current_limits
from quantkit.ops.kernels import KERNELS, evaluate, output_bytes
from quantkit.ops.onnx import kernels as onnx_kernels
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.runtimes import open_session
from quantkit.runtimes.random_inputs import random_arrays
from quantkit.runtimes.session import TensorInfo
from quantkit.transforms.plugins import find_transform

main = next(entry for entry in entry_points(group="console_scripts") if entry.name == "quantkit").load()
F, I32 = np.float32, np.int32
HUGE = 1 << 30


def doubling_graph(levels: int) -> Graph:
    """Return a graph with a chain of functions, each of which calls the next one twice."""
    functions = [Function("f0", Graph.of([argument("a", 0), _relu("n", "a")], ["a"], ["n"]), {"r": DType.FLOAT})]
    for level in range(1, levels):
        nodes = [argument("a", 0), call("p", f"f{level - 1}", "a"), call("q", f"f{level - 1}", "p")]
        functions.append(Function(f"f{level}", Graph.of(nodes, ["a"], ["q"]), {"r": DType.FLOAT}))
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 4))})
    library = Library({function.name: function for function in functions})
    return Graph.of([x, call("y", f"f{levels - 1}", "x")], ["x"], ["y"], library=library)


def _relu(name: str, source: str) -> Node:
    return Node(name, "Relu", (Edge(source),), attrs={"T": DType.FLOAT})


def test_functions_that_double_the_nodes_are_rejected_in_every_format(tmp_path: Path) -> None:
    graph = doubling_graph(40)
    save(graph, tmp_path / "g.pb")
    save(graph, tmp_path / "g.pbtxt")
    save_saved_model(graph, tmp_path / "saved")
    assert (tmp_path / "g.pb").stat().st_size < 10_000
    for name in ("g.pb", "g.pbtxt", "saved"):
        with pytest.raises(GraphError, match=f"{name}: the graph has more than 250,000 nodes after its") as caught:
            qk.load(tmp_path / name)
        assert "--max-nodes" in caught.value.hint


def test_max_nodes_counts_the_inlined_nodes(tmp_path: Path) -> None:
    graph = doubling_graph(6)  # 2 ** 5 Relu nodes
    save(graph, tmp_path / "g.pb")
    assert len(qk.transform(tmp_path / "g.pb", "inference").graph) < 40
    with qk.limits(max_nodes=60), pytest.raises(GraphError, match="more than 60 nodes"):
        qk.load(tmp_path / "g.pb")
    paths = [str(tmp_path / "g.pb"), "-o", str(tmp_path / "out.pb")]
    arguments = ["transform", *paths, "--transforms", "inline_functions"]
    assert main([*arguments, "--max-nodes", "60"]) == 3
    assert main([*arguments, "--max-nodes", "1000"]) == 0


def test_recursive_functions_are_not_too_many_nodes() -> None:
    even = Function("even", Graph.of([argument("a", 0), call("n", "odd", "a")], ["a"], ["n"]), {"r": DType.FLOAT})
    odd = Function("odd", Graph.of([argument("a", 0), call("n", "even", "a")], ["a"], ["n"]), {"r": DType.FLOAT})
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 4))})
    graph = Graph.of([x, call("y", "even", "x")], ["x"], ["y"], library=Library({"even": even, "odd": odd}))
    assert len(graphdef.decode(graphdef.encode(graph))) == 2


def test_limits_are_restored_and_checked() -> None:
    with qk.limits(max_nodes=5):
        with qk.limits(max_constant_bytes=7):
            assert current_limits() == Limits(5, 7)
        assert current_limits() == Limits(5)
    assert current_limits() == Limits()
    with pytest.raises(UsageError, match="max_nodes is 0, and must be a whole number from 1"), qk.limits(max_nodes=0):
        pass


T: dict[str, Attr] = {"T": DType.FLOAT}
# Nodes whose output is huge although their inputs are small: (op, attributes, inputs).
HUGE_OUTPUTS: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("Fill", T, [np.array([HUGE, HUGE], I32), F(1)]),
    ("Tile", T, [np.ones(10, F), np.array([HUGE], I32)]),
    ("Pad", T, [np.ones(10, F), np.array([[0, HUGE]], I32)]),
    ("PadV2", T, [np.ones(10, F), np.array([[HUGE, 0]], I32), F(3)]),
    ("SpaceToBatchND", T, [np.ones((1, 4, 1), F), np.array([2], I32), np.array([[0, HUGE]], I32)]),
    ("Range", {"Tidx": DType.INT32}, [I32(0), I32((1 << 31) - 1), I32(1)]),
    ("Range", {"Tidx": DType.INT64}, [np.int64(0), np.int64(1 << 62), np.int64(1)]),
    ("Range", {"Tidx": DType.FLOAT}, [F(0), F(1e30), F(1)]),
    ("LinSpace", T, [F(0), F(1), I32((1 << 31) - 1)]),
    ("BroadcastTo", T, [F(1), np.array([HUGE], I32)]),
    ("OneHot", T, [np.zeros(100, I32), I32(HUGE), F(1), F(0)]),
    ("ScatterNd", T, [np.zeros((1, 1), I32), np.ones(1, F), np.array([HUGE], I32)]),
    ("DynamicStitch", {**T, "N": 1}, [np.array([HUGE], I32), np.ones((1, 8), F)]),
    ("GatherV2", {"Tparams": DType.FLOAT}, [np.ones((1, 1 << 16), F), np.zeros(1 << 16, I32), I32(0)]),
    ("GatherNd", {"Tparams": DType.FLOAT}, [np.ones((1, 1 << 16), F), np.zeros((1 << 16, 1), I32)]),
    ("AddV2", T, [np.ones((1 << 16, 1), F), np.ones((1, 1 << 16), F)]),
    ("SelectV2", T, [np.ones((1 << 16, 1), bool), np.ones((1, 1 << 16), F), F(0)]),
    ("MatMul", T, [np.ones((1 << 16, 1), F), np.ones((1, 1 << 16), F)]),
    ("BatchMatMulV2", {**T, "adj_x": True}, [np.ones((1, 1, 1 << 16), F), np.ones((1, 1, 1 << 16), F)]),
    ("Einsum", {**T, "equation": b"a,b->ab"}, [np.ones(1 << 16, F), np.ones(1 << 16, F)]),
    ("ResizeBilinear", T, [np.ones((1, 2, 2, 3), F), np.array([HUGE, HUGE], I32)]),
    ("ResizeNearestNeighbor", T, [np.ones((1, 2, 2, 3), F), np.array([HUGE, HUGE], I32)]),
    (
        "Conv2D",
        {**T, "strides": (1, 1, 1, 1), "padding": b"EXPLICIT", "explicit_paddings": (0, 0, HUGE, 0, 0, HUGE, 0, 0)},
        [np.ones((1, 2, 2, 1), F), np.ones((1, 1, 1, 1), F)],
    ),
    (
        "DepthwiseConv2dNative",
        {**T, "strides": (1, 1, 1, 1), "padding": b"VALID"},
        [np.ones((1, 1 << 16, 1, 1), F), np.ones((1, 1, 1, 1 << 16), F)],
    ),
    (
        "Conv2DBackpropInput",
        {**T, "strides": (1, 1, 1, 1), "padding": b"SAME"},
        [np.array([1, HUGE, HUGE, 1], I32), np.ones((1, 1, 1, 1), F), np.ones((1, 2, 2, 1), F)],
    ),
]


@pytest.mark.parametrize(("op", "attrs", "inputs"), HUGE_OUTPUTS, ids=lambda value: value if type(value) is str else "")
def test_a_huge_output_is_rejected_before_it_takes_memory(op: str, attrs: dict[str, Any], inputs: list[Any]) -> None:
    arrays = [np.asarray(value) for value in inputs]
    tracemalloc.start()
    with pytest.raises(GraphError, match=r"computes [\d,]+ bytes; the limit is 2,147,483,648") as caught:
        evaluate(Node("n", op, attrs=attrs), arrays)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()
    assert "--max-constant-bytes" in caught.value.hint


# ONNX nodes whose output is huge although their inputs are small: (op, attributes, inputs).
HUGE_ONNX_OUTPUTS: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("Add", {}, [np.ones((1 << 16, 1), F), np.ones((1, 1 << 16), F)]),
    ("Less", {}, [np.ones((1 << 16, 1), F), np.ones((1, 1 << 16), F)]),
    ("Where", {}, [np.ones((1 << 16, 1), bool), np.ones((1, 1 << 16), F), F(0)]),
    ("MatMul", {}, [np.ones((1 << 16, 1), F), np.ones((1, 1 << 16), F)]),
    ("Gemm", {"transA": 1}, [np.ones((1, 1 << 16), F), np.ones((1, 1 << 16), F)]),
    ("Pad", {}, [np.ones(4, F), np.array([0, HUGE])]),
    ("OneHot", {}, [np.zeros(100, np.int64), np.int64(HUGE), np.zeros(2, F)]),
    ("Gather", {}, [np.ones((1, 1 << 16), F), np.zeros(1 << 16, np.int64)]),
    ("GatherND", {}, [np.ones((1, 1 << 16), F), np.zeros((1 << 16, 1), np.int64)]),
    ("Resize", {}, [np.ones((1, 1, 2, 2), F), np.zeros(0, F), np.zeros(0, F), np.array([1, 1, HUGE, HUGE])]),
]


@pytest.mark.parametrize(("op", "attrs", "inputs"), HUGE_ONNX_OUTPUTS, ids=[case[0] for case in HUGE_ONNX_OUTPUTS])
def test_a_huge_output_of_an_onnx_node_is_rejected(op: str, attrs: dict[str, Any], inputs: list[Any]) -> None:
    arrays = [np.asarray(value) for value in inputs]
    tracemalloc.start()
    with pytest.raises(GraphError, match=r"computes [\d,]+ bytes; the limit is 2,147,483,648"):
        onnx_kernels.evaluate(Node("n", op, attrs=attrs), arrays)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


def identity_graph(info: TensorInfo) -> Graph:
    """Return a graph that copies an input."""
    attrs = {"dtype": info.dtype, "shape": info.shape}
    return Graph.of([Node("x", "Placeholder", attrs=attrs), Node("y", "Identity", (Edge("x"),))], ["x"], ["y"])


@pytest.mark.parametrize(
    "make_inputs",
    [
        random_arrays,
        lambda inputs: compare(*[identity_graph(inputs[0])] * 2, runtimes=("reference", "reference")),
        feeds.seeded_feeds,
    ],
)
def test_a_huge_input_has_no_random_values(make_inputs: Callable[[Any], object]) -> None:
    inputs = (TensorInfo("x", DType.FLOAT, Shape((1, HUGE))),)
    with pytest.raises(GraphError, match=r"input 'x' of shape 1x[\d]+ have [\d,]+ bytes; the limit is 2,147,483,648"):
        make_inputs(inputs)


@pytest.mark.parametrize(("op", "attr", "inputs"), [("Split", "num_split", ["axis", "x"]), ("Unpack", "num", ["x"])])
def test_a_huge_number_of_outputs_has_no_shapes(op: str, attr: str, inputs: list[str]) -> None:
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 4))})
    node = Node("y", op, tuple(map(Edge, inputs)), attrs={"T": DType.FLOAT, attr: HUGE})
    tracemalloc.start()
    try:
        shapes = infer_shapes(Graph.of([x, constant("axis", I32(0)), node], ["x"], ["y"]))
        with pytest.raises(GraphError, match=f"{attr}={HUGE}"):
            evaluate(node, [*([np.array(0, I32)] if op == "Split" else []), np.zeros((0, 4), F)])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert Edge("y") not in shapes


def test_output_bytes_are_those_of_the_kernel() -> None:
    small = {HUGE: 8, 1 << 16: 6, (1 << 31) - 1: 9, 1 << 62: 7}
    shrink = np.vectorize(lambda value: small.get(int(value), value))
    compared = 0
    for op, attrs, inputs in HUGE_OUTPUTS:
        arrays = [np.asarray(value) for value in inputs]
        arrays = [array[tuple(slice(0, 6) for _ in array.shape)] for array in arrays]
        arrays = [shrink(array).astype(array.dtype) if array.dtype.kind in "iu" else array for array in arrays]
        if op == "Range":
            arrays[1] = np.asarray(9, arrays[1].dtype)
        if op in ("DynamicStitch", "Conv2DBackpropInput") or "explicit_paddings" in attrs:
            continue  # the kernel needs inputs of sizes that belong together
        node = Node("n", op, attrs=attrs)
        (result, *_) = evaluate(node, arrays)
        (dtype, *_) = output_dtypes(node)
        assert dtype is not None
        assert output_bytes(node, arrays) == result.size * dtype.num_bytes, op
        compared += 1
    assert compared >= 20


def test_missing_inputs_have_no_output_size() -> None:
    assert [op for op in KERNELS if output_bytes(Node("n", op), []) > 16] == []


def folding_graph(count: int) -> Graph:
    """Return a graph with computed constants of 4,000 bytes."""
    nodes = [constant("size", np.array([1000], I32)), constant("one", F(1)), constant("axis", np.array([0], I32))]
    total = "x"
    for number in range(count):
        nodes.append(Node(f"f{number}", "Fill", (Edge("size"), Edge("one")), attrs=T))
        nodes.append(Node(f"y{number}", "AddV2", (Edge(total), Edge(f"f{number}")), attrs=T))
        total = f"y{number}"
    x = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1000,))})
    return Graph.of([x, *nodes], ["x"], [total])


def test_the_constants_of_one_folding_are_limited_in_total() -> None:
    fold_constants = find_transform("fold_constants")
    with qk.limits(max_constant_bytes=40_000):
        assert "f9" not in fold_constants(folding_graph(10))
        with pytest.raises(GraphError, match="constant folding computes more than 40,000 bytes"):
            fold_constants(folding_graph(11))


def test_a_huge_constant_is_not_folded() -> None:
    graph = folding_graph(1).with_nodes(
        constant("size", np.array([HUGE, HUGE], I32)) if name == "size" else node
        for name, node in folding_graph(1).nodes.items()
    )
    outcome = find_transform("fold_constants").outcome(graph)
    assert "f0" in outcome.graph
    (skip,) = outcome.skips
    assert skip.reason == "the value has 4,611,686,018,427,387,904 bytes, more than max_constant_size_in_bytes=10485760"


def test_a_session_keeps_the_limits_of_its_start() -> None:
    with qk.limits(max_constant_bytes=3_000):
        session = open_session(folding_graph(1), "reference")
    with session, pytest.raises(GraphError, match="computes 4,000 bytes; the limit is 3,000"):
        session.run({"x": np.zeros(1000, F)})


def test_a_list_of_absurd_length_is_an_error() -> None:
    with pytest.raises(GraphError, match="the attribute num_split=1099511627776; the limit is 100,000"):
        output_dtypes(Node("n", "Split", attrs={**T, "num_split": 1 << 40}))
