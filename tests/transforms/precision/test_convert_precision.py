"""Weights in 16 bits, and graphs that compute in 16 bits."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from rewritten_graphs import check_linear_work, placeholder

from quantkit.errors import GraphError, RecipeError
from quantkit.formats import graphdef
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.ir.text import from_text
from quantkit.model import load
from quantkit.ops.kernels import evaluate
from quantkit.recipes import parse, run
from quantkit.runtimes import find_runtime, open_session
from quantkit.transforms.precision._half_graphs import COMPUTE_OPS, MOVEMENT_OPS
from quantkit.transforms.precision.convert_precision import convert_precision, find_types, narrow_ops

Floats = npt.NDArray[np.float32]
IMAGES = Path(__file__).parents[3] / "assets" / "digits_heldout.npz"
TYPES = {"float16": DType.HALF, "bfloat16": DType.BFLOAT16}
# Tolerances of the docstring, relative to the largest logit.
TOLERANCES = {"float16": 0.002, "bfloat16": 0.02}


def graph_of(values: Floats, op: str = "Mul") -> Graph:
    x = placeholder(values.shape)
    return Graph.of(
        [x, constant("w", values), Node("y", op, (Edge("x"), Edge("w")), attrs={"T": DType.FLOAT})], ["x"], ["y"]
    )


@given(
    arrays.arrays(np.float32, arrays.array_shapes(max_dims=3, max_side=5), elements=st.floats(-60000, 60000, width=32)),
    st.sampled_from(sorted(TYPES)),
)
def test_weights_are_exact_to_rounding(values: Floats, to: str) -> None:
    graph = graph_of(values)
    outcome = convert_precision.outcome(graph, to=to, minimum_size=1)
    converted = outcome.graph
    if outcome.changes:
        (widened,) = evaluate(converted["w"], [converted[converted["w"].inputs[0].node].value.array])
        np.testing.assert_array_equal(widened, values.astype(TYPES[to].numpy).astype(np.float32))
    else:
        assert "too small" in outcome.skips[0].reason
        assert np.abs(values).max() < 1e-3
    again = convert_precision.outcome(converted, to=to, minimum_size=1)
    assert (again.graph, again.changes) == (converted, ())


@pytest.mark.parametrize("value", [65520.0, -1e30, 3.4e38])
def test_values_out_of_range_are_skipped(value: float) -> None:
    graph = graph_of(np.array([1, value], np.float32))
    for weights_only in (True, False):
        outcome = convert_precision.outcome(graph, to="float16", weights_only=weights_only, minimum_size=1)
        assert outcome.graph == graph
        assert f"{value:g} is out of range: the largest float16 is 65504" in str(outcome.skips[0])
    converted = convert_precision.outcome(graph, to="bfloat16", minimum_size=1)
    assert bool(converted.changes) == (abs(value) < 3.39e38)


def test_infinite_and_nan_values_stay() -> None:
    graph = graph_of(np.array([np.nan, np.inf, 1], np.float32))
    converted = convert_precision(graph, minimum_size=1)
    np.testing.assert_array_equal(converted["w/float16"].value.array, np.array([np.nan, np.inf, 1], np.float16))


def test_unknown_options_are_rejected() -> None:
    graph = graph_of(np.array([1], np.float32))
    with pytest.raises(RecipeError, match="'float8' is not a value of to"):
        convert_precision(graph, to="float8")
    with pytest.raises(RecipeError, match="keep=weihgts"):
        convert_precision(graph, keep=("weihgts",))
    convert_precision(graph, keep=("Softmax",))  # an op type that is not in this graph


def test_kept_nodes_are_names_and_no_op_types() -> None:
    nodes = [
        placeholder((1, 2)),
        Node("Relu", "Tanh", (Edge("x"),), attrs={"T": DType.FLOAT}),
        Node("y", "Relu", (Edge("Relu"),), attrs={"T": DType.FLOAT}),
    ]
    graph = Graph.of(nodes, ["x"], ["y"])
    narrowed = narrow_ops(graph, "float16", {"Relu"})
    assert [node.op for node in narrowed.nodes.values() if node.attrs.get("T") is DType.HALF] == ["Relu"]
    other = convert_precision(graph, to="float16", weights_only=False, keep=("Relu",))
    assert not any(node.attrs.get("T") is DType.HALF for node in other.nodes.values())


def test_onnx_graphs_compute_in_half_precision_between_casts() -> None:
    graph = from_text("""
    dialect: onnx
    inputs: x
    outputs: y
    x = Placeholder[1x4x6x6](dtype=float)
    w = Constant[4x4x3x3]()
    large = Constant(70000.0)
    factors = Constant([1.0, 1.0, 2.0, 2.0])
    conv = Conv(x, w)
    relu = Relu(conv)
    roi = Constant[0]()
    larger = Resize(relu, roi, factors)
    scaled = Mul(larger, large)
    soft = Softmax(scaled, axis=1)
    y = Add(soft, larger)
    """)
    with pytest.raises(GraphError, match="cannot compute a graph of onnx ops in bfloat16"):
        convert_precision(graph, to="bfloat16", weights_only=False)
    half = convert_precision(graph, weights_only=False)
    types = find_types(half)
    assert {name: types[Edge(name)] for name in ("conv", "larger", "y/float16")} == dict.fromkeys(
        ("conv", "larger", "y/float16"), DType.HALF
    )
    assert {types[Edge(name)] for name in ("x", "factors", "large", "scaled", "soft", "y")} == {DType.FLOAT}
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    results = []
    for each in (graph, half):
        with open_session(each, "reference") as session:
            results.append(session.run({"x": x})["y"])
    np.testing.assert_allclose(results[1], results[0], atol=2e-3 * np.abs(results[0]).max())


def test_onnx_ops_with_an_input_of_unknown_type_stay_float() -> None:
    graph = from_text("""
    dialect: onnx
    inputs: x
    outputs: y
    x = Placeholder[1x4](dtype=float)
    unknown = If(x)
    sum = Add(x, unknown)
    y = Relu(x)
    """)
    half = convert_precision(graph, weights_only=False)
    assert half["sum"].inputs == (Edge("x"), Edge("unknown"))
    assert half["y"].op == "Cast"


@pytest.fixture(scope="module")
def digits() -> Graph:
    model = load("digits")
    assert model.graph is not None
    assert model.card is not None
    graph, _ = run(parse(model.card.recipe), model.graph)
    return graph.with_endpoints(None, ["softmax", str(graph["softmax"].inputs[0])])


def test_size_is_halved_and_accumulation_ops_stay_float(digits: Graph) -> None:
    sizes = [len(graphdef.encode(graph)) for graph in (digits, convert_precision(digits, minimum_size=16))]
    assert sizes[1] < 0.56 * sizes[0]
    whole = convert_precision(digits, weights_only=False)
    kinds = {node.op: node.attrs["T"] for node in whole.nodes.values() if "T" in node.attrs}
    assert kinds["Conv2D"] is kinds["MatMul"] is kinds["MaxPool"] is DType.HALF
    assert kinds["Softmax"] is kinds["AvgPool"] is DType.FLOAT


@pytest.mark.parametrize("weights_only", [True, False], ids=["weights", "whole"])
@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("runtime", ["reference", pytest.param("tensorflow", marks=pytest.mark.engine)])
def test_outputs_stay_within_tolerance(runtime: str, to: str, weights_only: bool, digits: Graph) -> None:
    if not find_runtime(runtime).available().ok:
        pytest.skip(find_runtime(runtime).available().detail)
    logits = str(digits.outputs[1])
    images = (np.load(IMAGES)["images"][:40].astype(np.float32) - 128) / 128
    converted = convert_precision(digits, to=to, weights_only=weights_only)
    with open_session(digits, "reference") as before, open_session(converted, runtime) as after:
        assert [(end.name, end.dtype) for end in after.outputs] == [(end.name, end.dtype) for end in before.outputs]
        for image in images:
            expected, actual = (session.run({"Mul": image[None]}) for session in (before, after))
            atol = TOLERANCES[to] * np.abs(expected[logits]).max()
            np.testing.assert_allclose(actual[logits], expected[logits], rtol=0, atol=atol)
            assert actual["softmax"].argmax() == expected["softmax"].argmax()


# Shape of x, further inputs and attributes of each op.
NUMBERS = np.array([[1, 2], [-3, 0.5]], np.float32)
IMAGE = (1, 4, 4, 2)
WINDOW: dict[str, Any] = {"strides": (1, 1, 1, 1), "padding": b"SAME"}
EXTRA: dict[str, tuple[tuple[int, ...], list[Any], dict[str, Any]]] = {
    "Conv2D": (IMAGE, [np.ones((3, 3, 2, 2), np.float32)], WINDOW),
    "DepthwiseConv2dNative": (IMAGE, [np.ones((3, 3, 2, 2), np.float32)], WINDOW),
    "MaxPool": (IMAGE, [], {**WINDOW, "ksize": (1, 2, 2, 1)}),
    "BiasAdd": ((2, 2), [np.array([1, 2], np.float32)], {}),
    "AddN": ((2, 2), [NUMBERS], {"N": 2}),
    "Reshape": ((2, 2), [np.array([4], np.int32)], {}),
    "ExpandDims": ((2, 2), [np.int32(0)], {}),
    "ConcatV2": ((2, 2), [NUMBERS, np.int32(0)], {"N": 2, "Tidx": DType.INT32}),
    "Pad": ((2, 2), [np.array([[1, 0], [0, 2]], np.int32)], {}),
    "PadV2": ((2, 2), [np.array([[1, 0], [0, 2]], np.int32), np.float32(3)], {}),
    "MirrorPad": ((2, 2), [np.array([[1, 0], [0, 1]], np.int32)], {"mode": b"REFLECT"}),
    "Transpose": ((2, 2), [np.array([1, 0], np.int32)], {}),
    "Slice": ((2, 2), [np.array([0, 1], np.int32), np.array([2, 1], np.int32)], {"Index": DType.INT32}),
    "StridedSlice": (
        (2, 2),
        [np.array([0], np.int32), np.array([1], np.int32), np.array([1], np.int32)],
        {"Index": DType.INT32},
    ),
    "SplitV": ((2, 2), [np.array([1, 1], np.int32), np.int32(0)], {"num_split": 2, "Tlen": DType.INT32}),
    "Pack": ((2, 2), [NUMBERS], {"N": 2}),
    "Unpack": ((2, 2), [], {"num": 2}),
    "Tile": ((2, 2), [np.array([2, 1], np.int32)], {}),
    "Max": ((2, 2), [np.array([0], np.int32)], {}),
    "Min": ((2, 2), [np.array([0], np.int32)], {}),
    "SpaceToDepth": (IMAGE, [], {"block_size": 2}),
    "DepthToSpace": ((1, 2, 2, 4), [], {"block_size": 2}),
    "SpaceToBatchND": (
        IMAGE,
        [np.array([2, 2], np.int32), np.array([[0, 0], [0, 0]], np.int32)],
        {"Tpaddings": DType.INT32},
    ),
    "BatchToSpaceND": (
        (4, 2, 2, 1),
        [np.array([2, 2], np.int32), np.array([[0, 0], [0, 0]], np.int32)],
        {"Tcrops": DType.INT32},
    ),
    **{
        op: ((2, 2), [NUMBERS], {})
        for op in (
            "Add",
            "AddV2",
            "Sub",
            "Mul",
            "Div",
            "RealDiv",
            "Maximum",
            "Minimum",
            "MatMul",
            "BatchMatMul",
            "BatchMatMulV2",
        )
    },
}
FIRST: dict[str, list[Any]] = {
    "Conv2DBackpropInput": [np.int32(IMAGE), np.ones((3, 3, 2, 2), np.float32)],
    "Split": [np.int32(0)],
    "Concat": [np.int32(0)],
}


def one_op(op: str) -> Graph:
    """Return the graph x -> Mul -> op -> Mul, in which the neighbours of the op are 16 bits."""
    shape, following, attrs = EXTRA.get(op, ((2, 2), [], {}))
    if op == "Conv2DBackpropInput":
        shape, attrs = IMAGE, WINDOW
    attrs = {**attrs, **({"num_split": 2} if op == "Split" else {"N": 1} if op == "Concat" else {})}
    leading = FIRST.get(op, [])
    consts = [constant(f"c{number}", value) for number, value in enumerate((*leading, *following))]
    names = [const.name for const in consts]
    edges = (*names[: len(leading)], "a", *names[len(leading) :])
    if op == "Concat":
        edges = (*edges, "a")
        attrs["N"] = 2
    half = {"T": DType.FLOAT}
    nodes = [
        placeholder(shape), constant("two", np.float32(2)), *consts,
        Node("a", "Mul", (Edge("x"), Edge("two")), attrs=half),
        Node("n", op, tuple(map(Edge, edges)), attrs={**half, **attrs}),
        Node("y", "Mul", (Edge("n"), Edge("two")), attrs=half),
    ]  # fmt: skip
    return Graph.of(nodes, ["x"], ["y"])


@pytest.mark.engine
@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("op", sorted(COMPUTE_OPS | MOVEMENT_OPS))
def test_every_converted_op_runs_in_tensorflow(op: str, to: str) -> None:
    if not find_runtime("tensorflow").available().ok:
        pytest.skip(find_runtime("tensorflow").available().detail)
    before = one_op(op)
    converted = convert_precision(before, to=to, weights_only=False)
    assert converted["n"].attrs["T"] is TYPES[to]
    x = np.random.default_rng(0).uniform(-2, 2, before["x"].attrs["shape"].sizes).astype(np.float32)  # type: ignore[union-attr]
    expected, in_tensorflow, in_reference = (
        open_session(graph, runtime).run({"x": x})["y"]
        for graph, runtime in ((before, "tensorflow"), (converted, "tensorflow"), (converted, "reference"))
    )
    step = 2.0**-9 if to == "float16" else 2.0**-6
    for actual in (in_tensorflow, in_reference):
        np.testing.assert_allclose(actual, expected, rtol=step, atol=step * np.abs(expected).max())


def chain(count: int) -> Graph:
    nodes = [placeholder((2, 2)), constant("c", NUMBERS)]
    for number in range(count):
        before = f"n{number - 1}" if number else "x"
        op = ("Mul", "Softmax", "Identity")[number % 3]
        edges = (Edge(before), Edge("c")) if op == "Mul" else (Edge(before),)
        nodes.append(Node(f"n{number}", op, edges, attrs={"T": DType.FLOAT}))
    return Graph.of(nodes, ["x"], [nodes[-1].name])


@pytest.mark.parametrize("weights_only", [True, False])
def test_convert_precision_runs_in_linear_time(weights_only: bool) -> None:
    check_linear_work(convert_precision, chain, weights_only=weights_only, minimum_size=1)


def test_argument_stays_unchanged(digits: Graph) -> None:
    copy = Graph.of(digits.nodes.values(), digits.inputs, digits.outputs)
    converted = convert_precision(digits, weights_only=False)
    assert digits.nodes == copy.nodes
    verify(converted)
    assert (converted.inputs, converted.outputs) == (digits.inputs, digits.outputs)
    assert convert_precision(digits, weights_only=False) == converted
