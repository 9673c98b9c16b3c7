from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization import Range, Ranges, Scheme, annotate, calibrate, convert
from quantkit.quantization.targets.litert import FAKE_QUANT
from quantkit.quantization.targets.litert_lowering import lower_transposed_convolutions
from quantkit.runtimes import find_runtime, open_session
from quantkit.runtimes.session import SessionOptions

RUNTIMES = [find_runtime(name) for name in ("tensorflow", "litert")]
needs_runtimes = pytest.mark.skipif(
    not all(runtime.available().ok for runtime in RUNTIMES),
    reason=" ".join(runtime.available().detail for runtime in RUNTIMES),
)
FLOAT = DType.FLOAT
SCHEME = Scheme.for_target("litert")
SIZE = 9


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def node(name: str, op: str, *inputs: str, **attrs: Any) -> Node:
    return Node(name, op, tuple(map(Edge.parse, inputs)), attrs={"T": FLOAT, **attrs})


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(0, 0.3, shape).astype(np.float32)


def layer(name: str, source: str, kernel: tuple[int, ...], op: str = "Conv2D", activation: str = "") -> list[Node]:
    nodes = [
        constant(f"{name}/w", random(*kernel)),
        constant(f"{name}/b", random(kernel[2] if op != "Conv2D" else kernel[3])),
        node(f"{name}/conv", op, source, f"{name}/w", strides=(1, 1, 1, 1), padding=b"SAME"),
        node(f"{name}/sum" if activation else name, "BiasAdd", f"{name}/conv", f"{name}/b"),
    ]
    return [*nodes, node(name, activation, f"{name}/sum")] if activation else nodes


def average(name: str, source: str, size: int, stride: int, padding: bytes) -> Node:
    return node(name, "AvgPool", source, ksize=(1, size, size, 1), strides=(1, stride, stride, 1), padding=padding)


def network() -> Graph:
    """Return a convolutional network: joined branches, pools, a depthwise layer, a residual, a classifier."""
    return Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": FLOAT, "shape": Shape((1, SIZE, SIZE, 3))}),
            *layer("first", "x", (3, 3, 3, 8), activation="Relu"),
            *layer("left", "first", (1, 1, 8, 8)),
            average("average", "left", 3, 1, b"SAME"),
            node("clamped", "Relu", "average"),
            *layer("right", "first", (3, 3, 8, 1), "DepthwiseConv2dNative", "Relu6"),
            constant("axis", np.int32(3)),
            Node("join", "ConcatV2", (Edge("clamped"), Edge("right"), Edge("axis"))).with_attrs(
                T=FLOAT, N=2, Tidx=DType.INT32
            ),
            *layer("narrow", "join", (1, 1, 16, 8)),
            node("residual", "AddV2", "narrow", "first"),
            *layer("last", "residual", (1, 1, 8, 8), activation="Relu"),
            average("mean", "last", SIZE, 1, b"VALID"),
            constant("flat", np.array([1, 8], np.int32)),
            Node("reshaped", "Reshape", (Edge("mean"), Edge("flat")), attrs={"T": FLOAT, "Tshape": DType.INT32}),
            constant("w", random(8, 5)),
            node("logits", "MatMul", "reshaped", "w"),
            node("softmax", "Softmax", "logits"),
        ],
        ["x"],
        ["softmax"],
    )


DATA = np.random.default_rng(1).uniform(-1, 1, (24, SIZE, SIZE, 3)).astype(np.float32)


def run(model: Graph | Path, runtime: str) -> np.ndarray:
    with open_session(model, runtime) as session:
        (name,) = (info.name for info in session.outputs)
        return np.concatenate([session.run({"x": image[None]})[name] for image in DATA])


def quantize(graph: Graph, **changes: Any) -> Graph:
    scheme = SCHEME.with_(observer="min_max", **changes)
    plan = annotate(graph, scheme)
    return convert(graph, plan, calibrate(graph, plan, [DATA], runtime="reference"))


def litert_ops(graph: Graph) -> Counter[str]:
    with open_session(graph, "litert", SessionOptions(log_placement=True)) as session:
        return Counter(line.partition("(")[2].partition(")")[0] for line in session.placement)


def test_fake_quant_takes_the_name_of_the_edge() -> None:
    graph = network()
    plan = annotate(graph, SCHEME)
    quantized = convert(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(0.5, 3.0))))
    assert quantized.inputs == graph.inputs
    assert quantized.outputs == graph.outputs
    assert quantized["first"].op == FAKE_QUANT
    assert quantized["first/exact"].op == "Relu"
    assert quantized["x"].op == "Placeholder"
    assert quantized["first/conv"].inputs[0] == Edge("x/0/codes")
    limits = [quantized.constant_of(edge) for edge in quantized["first"].inputs[1:]]
    assert [limit.array.item() for limit in limits if limit] == [0.0, 3.0]


def test_ranges_of_non_negative_edges_start_at_zero() -> None:
    graph = network()
    plan = annotate(graph, SCHEME)
    quantized = convert(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-1.0, 3.0))))
    low = {name: quantized.constant_of(quantized[name].inputs[1]) for name in ("clamped", "join", "right", "left")}
    assert {name: value.array.item() for name, value in low.items() if value} == {
        "clamped": 0.0,
        "join": 0.0,
        "right": 0.0,
        "left": -1.0,
    }


def test_a_range_of_zero_gets_a_width() -> None:
    graph = network()
    plan = annotate(graph, SCHEME)
    quantized = convert(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(0.0, 0.0))))
    limits = [quantized.constant_of(edge) for edge in quantized["first"].inputs[1:]]
    assert [limit.array.item() for limit in limits if limit] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("pool", "op"),
    [
        (average("pool", "first", 3, 1, b"SAME"), "Mul"),
        (average("pool", "first", 3, 2, b"SAME"), "Mul"),
        (average("pool", "first", 2, 2, b"VALID"), "DepthwiseConv2dNative"),
        (average("pool", "first", SIZE, 1, b"VALID"), "Mean"),
        (average("pool", "first", 7, 1, b"SAME"), "AvgPool"),
    ],
)
def test_average_pools_are_replaced(pool: Node, op: str) -> None:
    start = network().with_endpoints(None, ["first"])
    nodes = [node for node in start.nodes.values() if node.name in start.reachable()]
    graph = Graph.of([*nodes, pool, *layer("y", "pool", (1, 1, 8, 2))], ["x"], ["y"])
    plan = annotate(graph, SCHEME)
    quantized = convert(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-64.0, 64.0))))
    assert quantized["pool/exact"].op == op
    exact = quantized.with_nodes(  # without rounding
        node.with_(op="Identity", inputs=node.inputs[:1], attrs={"T": FLOAT}) if node.op == FAKE_QUANT else node
        for node in quantized.nodes.values()
    )
    np.testing.assert_allclose(run(exact, "reference"), run(graph, "reference"), rtol=1e-5, atol=1e-5)


@needs_runtimes
@pytest.mark.engine
def test_all_layers_are_int8() -> None:
    ops = litert_ops(quantize(network()))
    assert ops["QUANTIZE"] == ops["DEQUANTIZE"] == 1
    assert ops["CONV_2D"] == 4
    assert ops["DEPTHWISE_CONV_2D"] == 2
    assert ops["AVERAGE_POOL_2D"] == 0


@needs_runtimes
@pytest.mark.engine
def test_the_file_agrees_with_its_graph() -> None:
    graph = network()
    quantized = quantize(graph)
    expected, simulated, actual = run(graph, "reference"), run(quantized, "tensorflow"), run(quantized, "litert")
    np.testing.assert_allclose(simulated, expected, atol=0.05)
    np.testing.assert_allclose(actual, simulated, atol=0.03)
    assert (actual.argmax(1) == expected.argmax(1)).mean() > 0.9


@needs_runtimes
@pytest.mark.engine
def test_all_outputs_of_a_node_are_quantized() -> None:
    parts = Node("parts", "Split", (Edge("axis"), Edge("first")), attrs={"T": FLOAT, "num_split": 2})
    graph = Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": FLOAT, "shape": Shape((1, SIZE, SIZE, 3))}),
            *layer("first", "x", (3, 3, 3, 8), activation="Relu"),
            constant("axis", np.int32(3)),
            parts,
            *layer("left", "parts", (1, 1, 4, 2)),
            *layer("right", "parts:1", (1, 1, 4, 2)),
            node("y", "AddV2", "left", "right"),
        ],
        ["x"],
        ["y"],
    )
    quantized = quantize(graph)
    assert {Edge("parts"), Edge("parts", 1)} <= quantized.uses.keys()
    np.testing.assert_allclose(run(quantized, "tensorflow"), run(graph, "reference"), atol=0.05)


@needs_runtimes
@pytest.mark.engine
def test_a_float_fallback_is_float() -> None:
    graph = network()
    quantized = quantize(graph, keep_float=("last/conv",))
    ops = litert_ops(quantized)
    assert ops["QUANTIZE"] == 2
    assert ops["DEQUANTIZE"] == 2
    np.testing.assert_allclose(run(quantized, "litert"), run(graph, "reference"), atol=0.05)


@needs_runtimes
@pytest.mark.engine
def test_values_next_to_a_sigmoid_do_not_saturate() -> None:
    graph = Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": FLOAT, "shape": Shape((1, SIZE, SIZE, 3))}),
            *layer("boxes", "x", (1, 1, 3, 4)),
            *layer("scores", "x", (1, 1, 3, 2)),
            constant("stride", np.float32(8)),
            node("pixels", "Mul", "boxes", "stride"),
            node("sigmoid", "Sigmoid", "scores"),
            constant("axis", np.int32(3)),
            Node("y", "ConcatV2", (Edge("pixels"), Edge("sigmoid"), Edge("axis"))).with_attrs(
                T=FLOAT, N=2, Tidx=DType.INT32
            ),
        ],
        ["x"],
        ["y"],
    )
    outputs = run(quantize(graph), "litert")
    assert np.abs(outputs).max() > 2
    np.testing.assert_allclose(outputs, run(graph, "reference"), atol=0.1)


@needs_runtimes
@pytest.mark.engine
def test_a_float_tensor_with_a_quantized_view_stays_float() -> None:
    """LiteRT has no int8 scatter."""
    graph = Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": FLOAT, "shape": Shape((1, SIZE, SIZE, 3))}),
            *layer("first", "x", (1, 1, 3, 4)),
            node("state", "Exp", "first"),
            constant("order", np.array([0, 2, 1, 3], np.int32)),
            node("turned", "Transpose", "state", "order", Tperm=DType.INT32),
            *layer("last", "turned", (1, 1, 4, 4)),
            constant("cache", random(2, SIZE, SIZE, 4)),
            constant("index", np.array([[1]], np.int32)),
            node("scattered", "TensorScatterUpdate", "cache", "index", "state", Tindices=DType.INT32),
            node("y", "AddV2", "scattered", "last"),
        ],
        ["x"],
        ["y"],
    )
    quantized = quantize(graph)
    assert litert_ops(quantized)["CONV_2D"] == 2
    np.testing.assert_allclose(run(quantized, "litert"), run(quantized, "tensorflow"), atol=0.05)


@needs_runtimes
@pytest.mark.engine
def test_an_output_layer_is_int8() -> None:
    graph = network().with_endpoints(None, ["logits"])
    quantized = quantize(graph)
    assert litert_ops(quantized)["DEQUANTIZE"] == 1
    assert quantized.outputs == graph.outputs
    exact = run(graph, "reference")
    np.testing.assert_allclose(run(quantized, "litert"), exact, atol=0.05 * np.abs(exact).max())


@needs_runtimes
@pytest.mark.parametrize("command", ["quantize", "transform"])
def test_files_have_a_signature(command: str, tmp_path: Path) -> None:
    """Regression: `get_signature_runner` failed on every ``.tflite`` file."""
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install ai-edge-litert")
    second = Node("a", "Placeholder", attrs={"dtype": FLOAT, "shape": Shape((1, 5))})
    nodes = [*network().nodes.values(), second, node("sum", "AddV2", "softmax", "a")]
    graph = Graph.of(nodes, ["x", "a"], ["sum", "last"])
    feeds = {"x": DATA[:1], "a": random(1, 5)}
    path = tmp_path / "network.tflite"
    if command == "quantize":
        qk.quantize(graph, [feeds] * 3, target="litert", runs=0, output=path)
    else:
        qk.transform(graph, "inference", output=path)
    interpreter = litert.Interpreter(model_path=str(path))
    assert interpreter.get_signature_list() == {"serving_default": {"inputs": ["a", "x"], "outputs": ["last", "sum"]}}
    results = interpreter.get_signature_runner("serving_default")(**feeds)
    with open_session(path, "litert") as session, open_session(graph, "tensorflow") as float_session:
        expected, float_results = session.run(feeds), float_session.run(feeds)
    for name in ("sum", "last"):
        np.testing.assert_array_equal(results[name], expected[name])
        np.testing.assert_allclose(results[name], float_results[name], atol=0.1)


def decoder(kernel: int, stride: int, padding: bytes, size: int) -> Graph:
    """Return a layer, a transposed convolution to a size with a bias and an activation, and another layer."""
    return Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": FLOAT, "shape": Shape((None, SIZE, SIZE, 3))}),
            *layer("first", "x", (3, 3, 3, 8), activation="Relu"),
            constant("image", np.array([size, size, 4], np.int32)),
            constant("zero", np.array([0], np.int32)),
            constant("one", np.array([1], np.int32)),
            Node("sizes", "Shape", (Edge("first"),), attrs={"T": FLOAT, "out_type": DType.INT32}),
            Node("batch", "Slice", (Edge("sizes"), Edge("zero"), Edge("one")), attrs={"T": DType.INT32}).with_attrs(
                Index=DType.INT32
            ),
            constant("axis", np.int32(0)),
            Node("shape", "ConcatV2", (Edge("batch"), Edge("image"), Edge("axis")), attrs={"T": DType.INT32, "N": 2}),
            constant("up/w", random(kernel, kernel, 4, 8)),
            constant("up/b", random(4)),
            node(
                "up", "Conv2DBackpropInput", "shape", "up/w", "first", strides=(1, stride, stride, 1), padding=padding
            ),
            node("biased", "BiasAdd", "up", "up/b"),
            node("clamped", "Relu", "biased"),
            *layer("y", "clamped", (3, 3, 4, 4)),
        ],
        inputs=["x"],
        outputs=["y"],
    )


TRANSPOSED = {
    "stride is the kernel": (2, 2, b"VALID", 18),
    "overlap": (3, 2, b"SAME", 18),
    "overlap of an odd size": (3, 2, b"SAME", 17),
    "border of the size": (4, 2, b"VALID", 20),
    "gaps": (1, 2, b"VALID", 18),
    "stride 1": (4, 1, b"SAME", 9),
    "stride 3": (5, 3, b"SAME", 27),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_become_equal_convolutions(name: str) -> None:
    graph = decoder(*TRANSPOSED[name])
    lowered = lower_transposed_convolutions(graph)
    assert "Conv2DBackpropInput" not in lowered.op_counts
    assert lowered.op_counts["Conv2D"] == 3
    image = np.random.default_rng(0).normal(size=(2, SIZE, SIZE, 3)).astype(np.float32)
    with open_session(graph, "reference") as before, open_session(lowered, "reference") as after:
        expected, values = before.run({"x": image})["y"], after.run({"x": image})["y"]
    assert values.shape == expected.shape
    np.testing.assert_allclose(values, expected, atol=1e-5)


def test_a_transposed_convolution_with_a_border_without_products_stays() -> None:
    graph = decoder(2, 2, b"VALID", 19)
    assert lower_transposed_convolutions(graph) == graph


@needs_runtimes
@pytest.mark.engine
def test_transposed_convolutions_are_int8(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(8, SIZE, SIZE, 3)).astype(np.float32)
    result = qk.quantize(decoder(3, 2, b"SAME", 18), images, target="litert", runs=0, output=tmp_path / "y.tflite")
    assert result.report.census.int8_fraction == 1
    with open_session(tmp_path / "y.tflite", "litert") as session:
        (values,) = session.run({"x": images}).values()
    with open_session(decoder(3, 2, b"SAME", 18), "reference") as session:
        (expected,) = session.run({"x": images}).values()
    assert 10 * np.log10(np.square(expected).sum() / np.square(values - expected).sum()) > 30
