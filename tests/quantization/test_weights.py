from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.convert.to_litert import save_litert
from quantkit.errors import UnavailableError
from quantkit.formats import save
from quantkit.ir.check import verify
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.quantization import Plan, Ranges, Scheme, annotate, convert
from quantkit.runtimes import find_runtime, open_session

FLOAT = {"T": DType.FLOAT}
WINDOW: dict[str, Attr] = {**FLOAT, "strides": (1, 1, 1, 1), "padding": b"SAME"}
MEAN: dict[str, Attr] = {**FLOAT, "Tidx": DType.INT32, "keep_dims": False}
IMAGE = np.random.default_rng(1).uniform(-1, 1, (1, 6, 6, 8)).astype(np.float32)
SHAPES = {"w": (3, 3, 8, 16), "d": (3, 3, 16, 2), "m": (32, 40), "t": (7, 40)}
AXES = {"w": (3,), "d": (2, 3), "m": (1,), "t": (0,)}


def network() -> Graph:
    """A convolution, a depthwise one, and matrices either way, each with channels of very different size."""
    random = np.random.default_rng(0)
    weights = []
    for name, shape in SHAPES.items():
        sizes = [size if axis in AXES[name] else 1 for axis, size in enumerate(shape)]
        spread = 10.0 ** random.uniform(-2, 1, sizes)
        weights.append(constant(name, (random.standard_normal(shape) * spread).astype(np.float32)))
    return Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 6, 6, 8))}),
            *weights,
            constant("axes", np.array([1, 2], np.int32)),
            Node("conv", "Conv2D", (Edge("x"), Edge("w")), attrs=WINDOW),
            Node("depth", "DepthwiseConv2dNative", (Edge("conv"), Edge("d")), attrs=WINDOW),
            Node("mean", "Mean", (Edge("depth"), Edge("axes")), attrs=MEAN),
            Node("dense", "MatMul", (Edge("mean"), Edge("m")), attrs=FLOAT),
            Node("y", "MatMul", (Edge("dense"), Edge("t")), attrs={**FLOAT, "transpose_b": True}),
        ],
        ["x"],
        ["y"],
    )  # fmt: skip


def quantize(target: str, graph: Graph | None = None, **changes: object) -> tuple[Plan, Graph]:
    graph = graph or network()
    plan = annotate(graph, Scheme.for_target(target, weights_only=True, **changes))
    return plan, convert(graph, plan, Ranges({}))


def test_the_plan_contains_weights_only() -> None:
    plan, _ = quantize("tensorflow")
    assert {name: spec.axes for name, spec in plan.weights.items()} == AXES
    assert (plan.activations, plan.patterns, plan.edges, plan.float_fallbacks) == ({}, (), (), {})
    assert Plan.from_json(plan.to_json()) == plan


def test_weights_are_rounded_within_half_a_step() -> None:
    graph = network()
    _, quantized = quantize("tensorflow", graph)
    verify(quantized)
    with open_session(quantized.with_endpoints(["x"], list(SHAPES)), "reference") as session:
        actual = session.run({"x": np.zeros((1, 6, 6, 8), np.float32)})
    for name, axes in AXES.items():
        values = graph[name].value.array
        rest = tuple(axis for axis in range(values.ndim) if axis not in axes)
        step = np.abs(values).max(rest, keepdims=True) / 127
        assert (np.abs(actual[name] - values) <= 0.501 * step).all(), name
        assert quantized[f"{name}/codes"].value.dtype is DType.INT8
    assert quantized["conv"] == graph["conv"]


@pytest.mark.parametrize("target", ["tensorflow", "eightbit"])
def test_outputs_in_numpy(target: str) -> None:
    graph = network()
    _, quantized = quantize(target, graph)
    expected, actual = (open_session(model, "reference").run({"x": IMAGE})["y"] for model in (graph, quantized))
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=(0.02 if target == "tensorflow" else 0.05) * np.abs(expected).max()
    )


@pytest.mark.engine
@pytest.mark.parametrize(
    ("target", "runtime"),
    [("onnx", "onnxruntime"), ("onnx", "openvino"), ("tensorflow", "tensorflow"), ("tensorflow", "onnxruntime"),
     ("eightbit", "tensorflow"), ("litert", "litert")],
)  # fmt: skip
def test_outputs_in_the_runtimes(target: str, runtime: str, tmp_path: Path) -> None:
    if not find_runtime(runtime).available().ok:
        pytest.skip(find_runtime(runtime).available().detail)
    graph = network()
    _, quantized = quantize(target, graph)
    model: Graph | Path = quantized
    if target == "litert":
        model = tmp_path / "small.tflite"
        save_litert(quantized, model, small_weights=True)
        save_litert(quantized, tmp_path / "float.tflite")
        assert model.stat().st_size < (tmp_path / "float.tflite").stat().st_size
    elif target == "onnx":
        model = tmp_path / "small.onnx"
        save(quantized, model)
    expected = open_session(graph, "reference").run({"x": IMAGE})["y"]
    with open_session(model, runtime) as session:
        actual = session.run({"x": IMAGE})["y"]
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=(0.02 if target != "eightbit" else 0.05) * np.abs(expected).max()
    )


def test_float_fallbacks_have_reasons() -> None:
    graph = network()
    broken = graph["d"].value.array.copy()
    broken[0, 0, 0, 0] = np.nan
    graph = graph.with_nodes(constant("d", broken) if node.name == "d" else node for node in graph.nodes.values())
    plan, quantized = quantize("tensorflow", graph, keep_float=("dense",))
    assert plan.float_fallbacks == {
        "depth": "the weights d hold NaN or infinity",
        "dense": "the scheme keeps it in float",
    }
    assert (quantized["d"], quantized["m"]) == (graph["d"], graph["m"])
    assert quantized["w"].op == quantized["t"].op == "Mul"
    with pytest.raises(UnavailableError, match="all weights in int8 or none, and 'depth' stays float"):
        quantize("litert", graph)


def test_constants_keep_their_control_dependencies() -> None:
    graph = network()
    waiting = {name: graph[name].with_(controls=("x",)) for name in SHAPES}
    graph = graph.with_nodes(waiting.get(node.name, node) for node in graph.nodes.values())
    for target in ("tensorflow", "eightbit"):
        _, quantized = quantize(target, graph)
        constants = [node for node in quantized.nodes.values() if node.is_constant]
        weights = [node for node in constants if node.name.split("/")[0][:1] in SHAPES and node.name != "axes"]
        assert weights
        assert all(node.controls == ("x",) for node in weights)


def test_the_scheme_is_written_and_read(tmp_path: Path) -> None:
    scheme = Scheme(weights_only=True)
    scheme.save(tmp_path / "scheme.toml")
    assert "weights_only = true" in (tmp_path / "scheme.toml").read_text()
    assert Scheme.load(tmp_path / "scheme.toml") == scheme


SHARED = """
    inputs: x
    outputs: last
    x = Placeholder[?x32](dtype=float)
    first = MatMul(x, w, T=float)
    act1 = Relu(first, T=float)
    second = MatMul(act1, w, T=float)
    act2 = Relu(second, T=float)
    third = MatMul(act2, w, T=float)
    last = Relu(third, T=float)
"""


@pytest.mark.engine
@pytest.mark.parametrize("target", ["onnx", "tensorflow", "eightbit", "litert"])
@pytest.mark.parametrize("weights_only", [False, True])
def test_weights_of_several_layers_are_stored_once(target: str, weights_only: bool) -> None:
    if target != "onnx":
        pytest.importorskip("tensorflow", reason="pip install tensorflow")
    random = np.random.default_rng(0)
    draft = from_text(SHARED.replace("x = ", "w = Const[32x32]()\n    x = ", 1))
    weights = constant("w", (random.normal(size=(32, 32)) / 6).astype(np.float32))
    graph = draft.with_nodes(weights if node.name == "w" else node for node in draft.nodes.values())
    data = {"held_out" if weights_only else "calibration": random.normal(size=(8, 32)).astype(np.float32)}
    result = qk.quantize(graph, target=target, weights_only=weights_only, runs=0, **data)
    if target != "litert":  # its converter makes the constants of the file
        stored = [
            node.value
            for node in result.conversion.quantized.nodes.values()
            if node.is_constant and node.value.num_elements == 32 * 32
        ]
        assert len(stored) == 1
        assert stored[0].num_bytes == 32 * 32
    accuracy = result.report.accuracy
    assert accuracy.sqnr is not None
    assert accuracy.sqnr.worst > 20


def test_layer_without_its_weights_stays_float() -> None:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[1x4]()\ny = MatMul(x)")
    plan = annotate(graph, Scheme.for_target("tensorflow", weights_only=True))
    assert plan.float_fallbacks == {"y": "a required input is missing"}
