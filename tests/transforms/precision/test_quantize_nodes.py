from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.tensorflow.signatures import input_dtypes, output_dtypes
from quantkit.runtimes import open_session
from quantkit.transforms.precision._quantized_ops import QUANTIZED_OPS
from quantkit.transforms.precision.quantize_nodes import quantize_nodes
from quantkit.transforms.precision.quantize_weights import quantize_weights

CONV: Mapping[str, Any] = {"strides": (1, 1, 1, 1), "padding": b"SAME"}
POOL: Mapping[str, Any] = {"ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1), "padding": b"VALID"}


def op(name: str, kind: str, *inputs: str, controls: tuple[str, ...] = (), **attrs: Any) -> Node:
    return Node(name, kind, tuple(map(Edge.parse, inputs)), controls, {"T": DType.FLOAT, **attrs})


def placeholder(name: str, *sizes: int, dtype: DType = DType.FLOAT) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": dtype, "shape": Shape(sizes)})


def random(*sizes: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(sizes).normal(size=sizes).astype(np.float32)


X = placeholder("x", 1, 8, 8, 4)
W = constant("w", random(3, 3, 4, 5))
# A node of each op type that can be quantized, with its inputs.
EACH: Mapping[str, tuple[Node, ...]] = {
    "Add": (constant("k", random(4)), op("y", "Add", "x", "k")),
    "AddV2": (constant("k", random(4)), op("y", "AddV2", "x", "k")),
    "AvgPool": (op("y", "AvgPool", "x", **POOL),),
    "BiasAdd": (constant("k", random(4)), op("y", "BiasAdd", "x", "k")),
    "Concat": (constant("k", 3), op("r", "Tanh", "x"), op("y", "Concat", "k", "r", "x", N=2)),
    "ConcatV2": (constant("k", np.int64(-1)), op("y", "ConcatV2", "x", "x", "k", N=2, Tidx=DType.INT64)),
    "Conv2D": (W, op("y", "Conv2D", "x", "w", **CONV)),
    "MatMul": (placeholder("m", 3, 4), constant("k", random(4, 2)), op("y", "MatMul", "m", "k")),
    "MaxPool": (op("y", "MaxPool", "x", **POOL),),
    "Mul": (constant("k", random(4)), op("y", "Mul", "x", "k")),
    "Relu": (op("y", "Relu", "x"),),
    "Relu6": (op("y", "Relu6", "x"),),
    "ResizeBilinear": (constant("k", np.array([5, 5], np.int32)), op("y", "ResizeBilinear", "x", "k")),
    "Reshape": (constant("k", np.array([-1, 8], np.int32)), op("y", "Reshape", "x", "k")),
}


def graph_of(*nodes: Node, outputs: tuple[str, ...] = ("y",)) -> Graph:
    inputs = ["x", *(node.name for node in nodes if node.op == "Placeholder")]
    return Graph.of([X, *nodes], inputs, outputs)


def skips(graph: Graph, **options: Any) -> list[str]:
    """Check that the graph stays unchanged, and return the skips."""
    outcome = quantize_nodes.outcome(graph, **options)
    assert outcome.graph == graph
    return [str(skip) for skip in outcome.skips]


def check_types(graph: Graph) -> None:
    """Check that every tensor has the type that its consumer expects."""
    verify(graph)
    for node in graph.nodes.values():
        for edge, expected in zip(node.inputs, input_dtypes(node), strict=True):
            assert output_dtypes(graph[edge.node])[edge.port] is expected, f"{node.name} has the input {edge}"


def check_close_to_float(graph: Graph, tolerance: float, **options: Any) -> None:
    """Check the outputs of the quantized graph in TensorFlow, relative to the largest output."""
    feeds = {str(edge): random(*graph[edge.node].attrs["shape"].sizes) for edge in graph.inputs}  # type: ignore[union-attr]
    outputs = []
    for version in (graph, quantize_nodes(graph, **options)):
        with open_session(version, "tensorflow") as session:
            outputs.append(session.run(feeds)["y"])
    assert np.abs(outputs[0] - outputs[1]).max() <= tolerance * np.abs(outputs[0]).max()


def test_every_quantized_op_is_tested() -> None:
    assert set(EACH) == {*QUANTIZED_OPS, "AddV2", "ConcatV2"}


@pytest.mark.parametrize("kind", EACH)
def test_each_op_becomes_dequantize_of_quantized_op(kind: str) -> None:
    graph = graph_of(*EACH[kind])
    outcome = quantize_nodes.outcome(graph)
    check_types(outcome.graph)
    quantized_op = QUANTIZED_OPS[kind.removesuffix("V2")]
    assert outcome.graph["y/eightbit"].op == quantized_op.name
    assert outcome.graph["y"].op == "Dequantize"
    assert kind == "Reshape" or kind not in outcome.graph.op_counts
    assert outcome.graph.op_counts.get("Requantize", 0) == bool(quantized_op.wide_attr)
    assert outcome.changes == (f"y ({kind}) -> {quantized_op.name}",)


@pytest.mark.engine
@pytest.mark.parametrize("kind", EACH)
def test_each_quantized_op_is_close_to_float_in_tensorflow(kind: str) -> None:
    check_close_to_float(graph_of(*EACH[kind]), tolerance=0.02)


def test_node_names_equal_classic_tool() -> None:
    after = quantize_nodes(
        graph_of(op("s", "Split", "a", "x", num_split=2), constant("a", 3), op("y", "Neg", "r"), op("r", "Relu", "s:1"))
    )
    base = "r_eightbit/s__port__1"
    assert after[f"{base}/reshape_dims"].controls == ("s",)
    assert after[f"{base}/reduction_dims"].controls == ("s",)
    assert after[f"{base}/reshape"].inputs == (Edge("s", 1), Edge(f"{base}/reshape_dims"))
    for extreme in ("min", "max"):
        assert after[f"{base}/{extreme}"].inputs == (Edge(f"{base}/reshape"), Edge(f"{base}/reduction_dims"))
    assert after[f"{base}/quantize"].inputs == (Edge("s", 1), Edge(f"{base}/min"), Edge(f"{base}/max"))
    assert after["r/eightbit"].inputs == tuple(Edge(f"{base}/quantize", port) for port in range(3))
    assert after["r"].inputs == tuple(Edge("r/eightbit", port) for port in range(3))
    assert after["y"].inputs == (Edge("r"),)


def test_results_stay_quantized_between_ops() -> None:
    nodes = [W, op("c", "Conv2D", "x", "w", **CONV), op("r", "Relu", "c"), op("p", "MaxPool", "r", **POOL)]
    after = quantize_nodes(graph_of(*nodes, op("y", "Softmax", "p")))
    assert after["r/eightbit"].inputs == tuple(Edge("c/eightbit/requantize", port) for port in range(3))
    assert after["p/eightbit"].inputs == tuple(Edge("r/eightbit", port) for port in range(3))
    assert after.op_counts["Dequantize"] == 1
    assert "r" not in after


def test_quantized_weights_are_used_directly() -> None:
    graph = graph_of(constant("w", random(3, 3, 4, 40)), op("y", "Conv2D", "x", "w", **CONV))
    after = quantize_nodes(quantize_weights(graph))
    ranges = ("w_quantized_min", "w_quantized_max")
    assert after["y/eightbit"].inputs[1] == Edge("w_quantized_const")
    assert [edge.node for edge in after["y/eightbit"].inputs[4:]] == list(ranges)
    assert "w" not in after


def test_concat_inputs_are_all_minima_before_all_maxima() -> None:
    concat = quantize_nodes(graph_of(*EACH["Concat"]))["y/eightbit"]
    assert [(edge.node.split("/")[-2], edge.port) for edge in concat.inputs[1:]] == [
        (name, port) for port in range(3) for name in ("r", "x")
    ]


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["Add", "Mul"])
def test_repeated_input_is_quantized_once(kind: str) -> None:
    graph = graph_of(op("y", kind, "x", "x"))
    after = quantize_nodes(graph)
    check_types(after)
    assert after.op_counts["QuantizeV2"] == 1
    check_close_to_float(graph, tolerance=0.02)


def test_control_dependencies_move_to_quantized_op() -> None:
    after = quantize_nodes(graph_of(op("r", "Relu", "x", controls=("x",)), op("y", "Neg", "x", controls=("r",))))
    assert after["r/eightbit"].controls == ("x",)
    assert after["r"].controls == ()
    assert after["y"].controls == ("r",)


@pytest.mark.parametrize(
    ("kind", "attrs", "reason"),
    [
        ("Conv2D", {"data_format": b"NCHW"}, "y: data_format is NCHW, but QuantizedConv2D supports NHWC only"),
        (
            "Conv2D",
            {"dilations": (1, 2, 2, 1)},
            "y: dilations are (1, 2, 2, 1), but QuantizedConv2D supports no dilations",
        ),
        (
            "Conv2D",
            {"padding": b"EXPLICIT"},
            "y: padding is EXPLICIT, but QuantizedConv2D supports SAME and VALID only",
        ),
        (
            "Conv2D",
            {"strides": (1, 1, 2, 1)},
            "y: strides are (1, 1, 2, 1), but QuantizedConv2D supports equal strides only",
        ),
        ("MaxPool", {"data_format": b"NCHW"}, "y: data_format is NCHW, but QuantizedMaxPool supports NHWC only"),
        (
            "MaxPool",
            {"padding": b"EXPLICIT"},
            "y: padding is EXPLICIT, but QuantizedMaxPool supports SAME and VALID only",
        ),
        ("AvgPool", {"ksize": (1, 1, 1, 2)}, "y: ksize or strides include batch or channels"),
        ("BiasAdd", {"data_format": b"NCHW"}, "y: data_format is NCHW, but QuantizedBiasAdd supports NHWC only"),
        ("Relu", {"T": DType.HALF}, "y: the element type is half, not float"),
        ("Add", {"T": DType.INT32}, "y: the element type is int32, not float"),
        ("Mul", {"T": None}, "y: the element type is unknown, not float"),
    ],
)
def test_unsupported_attributes_are_skipped(kind: str, attrs: Mapping[str, Any], reason: str) -> None:
    *others, node = EACH[kind]
    assert skips(graph_of(*others, node.with_attrs(**attrs))) == [reason]


@pytest.mark.parametrize(
    ("sizes", "others", "is_skipped"),
    [
        ((1, 8, 8, 4), (4,), False),
        ((1, 8, 8, 4), (1, 1, 1, 4), False),
        ((1, 8, 8, 4), (8, 4), False),
        ((1, 8, 8, 4), (), False),
        ((None, 8, 8, 4), (None, 8, 8, 4), False),
        ((None, 8, 8, 4), (1, 8, 8, 4), False),
        (None, (8, 4), False),
        (None, None, False),
        ((1, 8, 8, 4), (8, 1, 1), True),
        ((2, 8, 8, 4), (2, 1, 1, 4), True),
        ((2, 8, 8, 4), (2, 8, 8, 1), True),
        ((None, None, None, 4), (None, 1, 1, 4), True),
        ((2, 8, 1, 4), (2, 1, 8, 4), True),
        (None, (8, 1, 1), True),
    ],
)
@pytest.mark.parametrize("kind", ["Add", "Mul"])
def test_only_broadcasts_of_whole_operands_are_quantized(
    sizes: tuple[int, ...] | None, others: tuple[int, ...] | None, is_skipped: bool, kind: str
) -> None:
    operands = [
        Node(name, "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(dims)})
        for name, dims in (("a", sizes), ("b", others))
    ]
    graph = graph_of(*operands, op("y", kind, "a", "b"), op("z", kind, "b", "a"), outputs=("y", "z"))
    skipped = [skip.node for skip in quantize_nodes.outcome(graph).skips]
    assert skipped == (["y", "z"] if is_skipped else [])


def test_skip_of_broadcast_states_shapes() -> None:
    graph = graph_of(constant("k", random(1, 8, 1, 1)), op("y", "Add", "x", "k"))
    assert skips(graph) == ["y: operands of shape 1x8x8x4 and 1x8x1x1 broadcast along an inner dimension"]


def test_negative_concat_axis_becomes_positive() -> None:
    unknown_rank = Node("a", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(None)})
    last, join = constant("k", -1), op("y", "Concat", "k", "x", "a", N=2)
    after = quantize_nodes(graph_of(unknown_rank, last, join))
    assert after["y_eightbit/axis"].value.array == 3
    assert after["y/eightbit"].inputs[0] == Edge("y_eightbit/axis")
    assert quantize_nodes(graph_of(unknown_rank, last, join.with_input(0, "y/k"), constant("y/k", 2)))[
        "y/eightbit"
    ].inputs[0] == Edge("y/k")
    assert skips(graph_of(unknown_rank, last, op("y", "Concat", "k", "a", "a", N=2))) == [
        "y: axis is -1 and the rank is unknown, but QuantizedConcat supports no negative axis"
    ]
    computed = placeholder("i", dtype=DType.INT64)
    join = op("y", "ConcatV2", "x", "x", "i", N=2, Tidx=DType.INT64)
    assert skips(graph_of(computed, join)) == ["y: the axis is a computed int64"]


def test_depthwise_convolution_is_skipped() -> None:
    graph = graph_of(constant("k", random(3, 3, 4, 1)), op("y", "DepthwiseConv2dNative", "x", "k", **CONV))
    assert skips(graph) == ["y: QuantizedDepthwiseConv2D requires signed weights"]
    assert skips(graph, ignore_op=("DepthwiseConv2dNative",)) == []


def test_convolution_in_groups_is_skipped() -> None:
    graph = graph_of(constant("k", random(3, 3, 2, 6)), op("y", "Conv2D", "x", "k", **CONV))
    assert skips(graph) == ["y: weights have 2 of 4 input channels, but QuantizedConv2D supports no groups"]


def test_consumer_of_empty_tensor_is_skipped() -> None:
    graph = graph_of(constant("k", np.zeros((0, 4), np.float32)), op("y", "Relu", "k"))
    assert skips(graph) == ["y: k has no elements, and thus no range"]


@pytest.mark.engine
def test_graph_input_with_inputs_is_not_computed() -> None:
    raw, cut = placeholder("raw", 1, 8, 8, 4), op("x", "Mul", "raw", "raw")
    graph = Graph.of([raw, cut, op("y", "Relu", "x")], ["x"], ["y"])
    quantized = quantize_nodes(graph)
    assert quantized["y_eightbit/x/reshape_dims"].controls == ()
    feeds = {"x": random(1, 8, 8, 4)}
    with open_session(graph, "tensorflow") as before, open_session(quantized, "tensorflow") as after:
        np.testing.assert_allclose(before.run(feeds)["y"], after.run(feeds)["y"], atol=0.02)


def test_wrong_number_of_inputs_is_skipped() -> None:
    assert skips(graph_of(op("y", "Conv2D", "x", **CONV))) == ["y: the node has 1 inputs, but Conv2D requires 2"]


def test_missing_attributes_have_defaults() -> None:
    product = quantize_nodes(graph_of(*EACH["MatMul"]))["y/eightbit"]
    assert (product.attrs["transpose_a"], product.attrs["transpose_b"]) == (False, False)
    with pytest.raises(GraphError, match=r"node 'y' \(MaxPool\) has no attribute 'ksize'"):
        quantize_nodes(graph_of(op("y", "MaxPool", "x", strides=(1, 1, 1, 1), padding=b"SAME")))


@pytest.mark.engine
def test_rare_attributes_are_copied() -> None:
    size = constant("k", np.array([5, 5], np.int32))
    graph = graph_of(size, op("y", "ResizeBilinear", "x", "k", half_pixel_centers=True))
    assert quantize_nodes(graph)["y/eightbit"].attrs["half_pixel_centers"] is True
    check_close_to_float(graph, tolerance=0.02)
    graph = graph_of(constant("k", np.array([-1, 8], np.int64)), op("y", "Reshape", "x", "k", Tshape=DType.INT64))
    check_types(quantize_nodes(graph))
    check_close_to_float(graph, tolerance=0.02)


def test_ignored_ops_stay_float() -> None:
    graph = graph_of(op("r", "Relu", "x"), op("y", "Relu6", "r"))
    after = quantize_nodes(graph, ignore_op=("Relu", "Conv2D"))
    assert (after["r"].op, after["y"].op) == ("Relu", "Dequantize")


def test_fallback_range_replaces_dynamic_range() -> None:
    after = quantize_nodes(graph_of(*EACH["Conv2D"]), fallback_min=-6.0, fallback_max=6.0)
    bounds = [after[f"y/eightbit/fallback_{end}"] for end in ("min", "max")]
    assert [node.value.array for node in bounds] == [-6, 6]
    assert after["y/eightbit/requantize"].inputs[3:] == tuple(Edge(node.name) for node in bounds)
    assert "RequantizationRange" not in after.op_counts


def test_float_placeholders_become_quint8_and_others_stay() -> None:
    ids = placeholder("i", 2, dtype=DType.INT32)
    graph = graph_of(
        ids, op("z", "Neg", "i", T=DType.INT32), W, op("y", "Conv2D", "x", "w", **CONV), outputs=("y", "z")
    )
    outcome = quantize_nodes.outcome(graph, input_min=-1.0, input_max=1.0)
    check_types(outcome.graph)
    assert outcome.graph["x"].attrs["dtype"] is DType.QUINT8
    assert outcome.graph["i"] == ids
    assert outcome.graph["y/eightbit"].inputs[0] == Edge("x")
    assert [outcome.graph[f"x_eightbit/{end}"].value.array for end in ("min", "max")] == [-1, 1]
    assert [str(skip) for skip in outcome.skips] == ["i: the type of the placeholder is int32, not float"]
    assert skips(graph_of(outputs=("x",)), input_min=0.0, input_max=1.0) == [
        "x: the placeholder is also a graph output"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_min": 0.0}, "You must pass both input_min and input_max into quantize_nodes"),
        ({"fallback_max": 1.0}, "You must pass both fallback_min and fallback_max into quantize_nodes"),
        ({"input_min": 1.0, "input_max": 1.0}, "quantize_nodes: input_min=1 must be less than input_max=1"),
        (
            {"fallback_min": 1.0, "fallback_max": 2.0},
            "quantize_nodes: the range from fallback_min to fallback_max must include 0",
        ),
        ({"ignore_op": ("Conv2d",)}, "quantize_nodes: ignore_op=Conv2d is not an op type"),
    ],
)
def test_invalid_options_are_rejected(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        quantize_nodes(graph_of(*EACH["Relu"]), **options)
    assert caught.value.message == message


def test_onnx_graph_is_rejected() -> None:
    with pytest.raises(GraphError, match="ONNX"):
        quantize_nodes(graph_of(*EACH["Relu"]).with_(dialect="onnx"))


def fake_quant(name: str, source: str, low: float = -1.0, high: float = 3.0, **attrs: Any) -> tuple[Node, ...]:
    bounds = constant(f"{name}/low", low), constant(f"{name}/high", high)
    node = op(name, "FakeQuantWithMinMaxVars", source, f"{name}/low", f"{name}/high", **attrs).with_attrs(T=None)
    return (*bounds, node)


@pytest.mark.engine
def test_32_bit_result_is_requantized_to_trained_range() -> None:
    between = [op("r", "Relu", "c"), op("p", "MaxPool", "r", **POOL), op("i", "Identity", "p")]
    graph = graph_of(
        W, op("c", "Conv2D", "x", "w", **CONV), *between, *fake_quant("q", "i", 0.0, 12.0), op("y", "Neg", "q")
    )
    after = quantize_nodes(graph)
    check_types(after)
    trained = after["q_hoisted_eightbit/requantize"]
    assert trained.inputs == (*(Edge("c/eightbit", port) for port in range(3)), Edge("q/low"), Edge("q/high"))
    assert after["r/eightbit"].inputs[0] == Edge(trained.name)
    assert "RequantizationRange" not in after.op_counts
    assert after["q"].op == "Identity"
    check_close_to_float(graph, tolerance=0.02)


def test_other_consumers_of_result_keep_dynamic_range() -> None:
    nodes = [W, op("c", "Conv2D", "x", "w", **CONV), *fake_quant("q", "c"), op("z", "Neg", "c"), op("y", "Neg", "q")]
    after = quantize_nodes(graph_of(*nodes, outputs=("y", "z")))
    assert after["q_eightbit/requantize"].inputs[0] == Edge("c/eightbit")
    assert after["c"].inputs[0] == Edge("c/eightbit/requantize")
    assert after.op_counts["RequantizationRange"] == 1


@pytest.mark.parametrize("kind", ["Exp", "Tanh", "Softmax"])
def test_trained_ranges_do_not_move_before_other_functions(kind: str) -> None:
    after = quantize_nodes(graph_of(op("e", kind, "x"), *fake_quant("y", "e")))
    assert after["y_eightbit/quantize"].inputs[0] == Edge("e")
    assert after["e"].inputs == (Edge("x"),)


def test_trained_range_does_not_move_before_shared_node() -> None:
    nodes = [op("r", "Relu", "x"), *fake_quant("y", "r"), op("z", "Neg", "r")]
    outcome = quantize_nodes.outcome(graph_of(*nodes, outputs=("y", "z")))
    assert [str(skip) for skip in outcome.skips] == [
        "y: the fake-quant cannot move before r, which has other consumers"
    ]
    assert outcome.graph["y_eightbit/quantize"].inputs[0] == Edge("r")


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (fake_quant("y", "x", num_bits=4), "y: num_bits is 4, not 8"),
        (fake_quant("y", "x", 1.0, 2.0), "y: the range [1, 2] is empty or does not include 0"),
        (fake_quant("y", "x", 0.0, -1.0), "y: the range [0, -1] is empty or does not include 0"),
    ],
)
def test_unsupported_trained_ranges_are_skipped(nodes: tuple[Node, ...], reason: str) -> None:
    assert skips(graph_of(*nodes)) == [reason]


def test_two_trained_ranges_may_share_their_constants() -> None:
    first = fake_quant("p", "x")
    second = first[2].with_(name="y").with_input(0, "e")
    after = quantize_nodes(graph_of(*first, op("e", "Exp", "p"), second))
    assert after.op_counts["Requantize"] == 2


def test_dequantize_of_other_mode_is_not_removed() -> None:
    quantized = placeholder("q", 1, 8, 8, 4, dtype=DType.QUINT8)
    bounds = constant("lo", 0.0), constant("hi", 1.0)
    dequantized = op("d", "Dequantize", "q", "lo", "hi", T=DType.QUINT8, mode=b"SCALED")
    after = quantize_nodes(graph_of(quantized, *bounds, dequantized, op("y", "Relu", "d")))
    assert after["y/eightbit"].inputs[0] == Edge("y_eightbit/d/quantize")


KINDS = st.sampled_from(
    ["Conv2D", "BiasAdd", "Relu", "Relu6", "MaxPool", "Add", "Mul", "Concat", "Tanh", "Fake", "Identity"]
)


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Return a network of 1x8x8x4 tensors."""
    nodes = [constant("w", random(3, 3, 4, 4)), constant("b", random(4))]
    nodes += [constant("axis", 3), constant("narrow", random(1, 1, 8, 4))]
    tensors = ["x"]
    for number in range(draw(st.integers(1, 12))):
        name, kind = f"n{number}", draw(KINDS)
        source = st.sampled_from(tensors[-3:])
        if kind == "Fake":
            nodes += fake_quant(name, draw(source))
        elif kind in ("Add", "Mul"):
            nodes.append(op(name, kind, draw(source), draw(source)))
        elif kind == "Concat":
            nodes.append(op(f"{name}/join", kind, "axis", draw(source), draw(source), N=2))
            nodes.append(op(name, "Conv2D", f"{name}/join", "narrow", **CONV))
        else:
            second = {"Conv2D": ["w"], "BiasAdd": ["b"]}.get(kind, [])
            attrs = {"Conv2D": CONV, "MaxPool": {**POOL, "strides": (1, 1, 1, 1), "padding": b"SAME"}}.get(kind, {})
            controls = (draw(source),) if draw(st.integers(0, 5)) == 0 else ()
            nodes.append(op(name, kind, draw(source), *second, controls=controls, **attrs))
        tensors.append(name)
    outputs = draw(st.lists(st.sampled_from(tensors[1:]), min_size=1, max_size=2, unique=True))
    return graph_of(*nodes, outputs=tuple(outputs))


@given(networks(), st.booleans())
@settings(deadline=None)
def test_quantized_networks_are_valid(graph: Graph, has_input_range: bool) -> None:
    options = {"input_min": -1.0, "input_max": 1.0} if has_input_range else {}
    after = quantize_nodes(graph, **options)
    check_types(after)
    assert after.order
    assert (after.inputs, after.outputs) == (graph.inputs, graph.outputs)
    assert not {"FakeQuantWithMinMaxVars", *QUANTIZED_OPS} - {"Reshape"} & set(after.op_counts)
    unused = {name for name in after.nodes if name not in after.node_uses}
    assert unused <= {name for name in graph.nodes if name not in graph.node_uses} | graph.endpoint_names
    assert quantize_nodes(graph, **options) == after
