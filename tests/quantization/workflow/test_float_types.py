"""Quantization of models in float16, bfloat16, double and mixed precision, from the float32 values of their weights."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import UnavailableError, UsageError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.transforms.precision.convert_precision import find_types

RANDOM = np.random.default_rng(0)
NUMBERS = {"float16": 10, "float64": 11, "bfloat16": 16}


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape) * 0.3


def convolutions() -> tuple[list[Any], dict[str, Array], tuple[int, ...]]:
    """Return nodes, constants and input shape of convolutions with a float tail."""
    helper = pytest.importorskip("onnx").helper
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["h"], pads=[1] * 4),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["c"]),
        helper.make_node("Softmax", ["c"], ["p"], axis=1),
        helper.make_node("Sqrt", ["p"], ["y"]),
    ]
    return nodes, {"w": normal(8, 3, 3, 3), "b": normal(8), "v": normal(8, 8, 1, 1)}, (1, 3, 12, 12)


def products() -> tuple[list[Any], dict[str, Array], tuple[int, ...]]:
    """Return nodes, constants and input shape of matrix products with a normalization between them."""
    helper = pytest.importorskip("onnx").helper
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["a"]),
        helper.make_node("LayerNormalization", ["a", "b", "b"], ["p"]),
        helper.make_node("Gemm", ["p", "v", "c"], ["y"], transB=1),
    ]
    return nodes, {"w": normal(24, 32), "b": normal(32), "v": normal(10, 32), "c": normal(10)}, (1, 24)


def model_of(parts: tuple[list[Any], dict[str, Array], tuple[int, ...]], dtype: str) -> Any:
    package = pytest.importorskip("onnx")
    nodes, constants, shape = parts
    numpy_type = DType.of(dtype).numpy if dtype != "bfloat16" else DType.BFLOAT16.numpy
    graph = package.helper.make_graph(
        nodes,
        "g",
        [package.helper.make_tensor_value_info("x", NUMBERS[dtype], shape)],
        [package.helper.make_tensor_value_info("y", NUMBERS[dtype], None)],
        [
            package.helper.make_tensor(name, NUMBERS[dtype], value.shape, value.astype(numpy_type).tobytes(), raw=True)
            for name, value in constants.items()
        ],
    )
    return package.helper.make_model(graph, opset_imports=[package.helper.make_opsetid("", 17)], ir_version=8)


def run(path: Path, x: Array) -> Array:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    (values,) = runtime.InferenceSession(str(path), options).run(None, {"x": x})
    return np.asarray(values)


@pytest.mark.engine
@pytest.mark.parametrize("float_parts", ["original", "float32"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("parts", [convolutions, products])
def test_layers_are_int8_and_float_parts_have_the_requested_type(
    parts: Any, dtype: str, float_parts: str, tmp_path: Path
) -> None:
    model = model_of(parts(), dtype)
    samples = RANDOM.standard_normal((24, *parts()[2][1:])).astype(dtype)
    result = qk.quantize(model, samples, runs=0, float_parts=float_parts, output=tmp_path / "q.onnx")
    assert result.report.census.int8_fraction == 1
    assert result.report.accuracy.metrics.worst > 25  # type: ignore[union-attr]
    graph = qk.load(tmp_path / "q.onnx").graph
    assert sum(node.value.dtype is DType.INT8 and len(node.value.shape) > 1 for node in constants_of(graph)) == 2
    types = find_types(graph)
    stays = dtype == "float16" and float_parts == "original"
    assert types[Edge("p")] is (DType.HALF if stays else DType.FLOAT)
    assert types[graph.inputs[0]] is types[graph.outputs[0]] is DType.of(dtype)
    assert run(tmp_path / "q.onnx", samples[:1]).dtype == np.dtype(dtype)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("parts", "dtype", "target"),
    [
        *(
            (convolutions, "float16", "tensorflow"),
            (convolutions, "float64", "litert"),
        ),
        *((products, "float64", "tensorflow"), (products, "float16", "eightbit")),
    ],
)
def test_every_target_takes_other_float_types(parts: Any, dtype: str, target: str) -> None:
    if target in ("tensorflow", "litert", "eightbit"):
        pytest.importorskip("tensorflow", reason="pip install tensorflow")
    samples = RANDOM.standard_normal((8, *parts()[2][1:])).astype(dtype)
    report = qk.quantize(model_of(parts(), dtype), samples, target=target, runs=0).report
    assert report.census.int8_fraction == 1
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.worst > 25


@pytest.mark.engine
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_verbs_find_a_runtime_with_kernels_of_the_type(dtype: str) -> None:
    """ONNX Runtime has no Conv of doubles."""
    model, samples = model_of(convolutions(), dtype), RANDOM.standard_normal((2, 3, 12, 12)).astype(dtype)
    assert {row.sqnr for row in qk.compare(model, model, samples).rows} == {np.inf}
    outputs = qk.evaluate(model, samples, model, task="regression").outputs
    assert outputs is not None
    assert outputs.score == 1


def constants_of(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes.values() if node.is_constant]


@pytest.mark.engine
@pytest.mark.parametrize(("target", "suffix"), [("onnx", "onnx"), ("litert", "tflite"), ("eightbit", "pb")])
def test_mixed_precision_is_quantized_from_the_float32_weights(target: str, suffix: str, tmp_path: Path) -> None:
    """A Keras policy casts float32 variables to float16: the scales are those of the variables."""
    weights = normal(3, 3, 1, 8).astype(np.float32)
    half, to_half = {"T": DType.HALF}, {"SrcT": DType.FLOAT, "DstT": DType.HALF}
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 8, 8, 1))}),
        constant("w", weights),
        constant("b", np.ones(8, np.float32)),
        Node("xh", "Cast", ("x",), attrs=to_half),
        Node("wh", "Cast", ("w",), attrs=to_half),
        Node("bh", "Cast", ("b",), attrs=to_half),
        Node("conv", "Conv2D", ("xh", "wh"), attrs={**half, "strides": (1, 1, 1, 1), "padding": b"SAME"}),
        Node("bias", "BiasAdd", ("conv", "bh"), attrs=half),
        Node("relu", "Relu", ("bias",), attrs=half),
        Node("y", "Cast", ("relu",), attrs={"SrcT": DType.HALF, "DstT": DType.FLOAT}),
    ]
    graph = Graph.of(nodes, ["x"], ["y"])
    samples = RANDOM.uniform(-1, 1, (8, 8, 8, 1)).astype(np.float32)
    output = tmp_path / f"q.{suffix}"
    result = qk.quantize(graph, samples, target=target, runs=0, output=output, float_parts="float32")
    assert result.report.census.int8_fraction == 1
    if target == "onnx":
        scale = np.abs(weights).max((0, 1, 2)) / 127
        scales = [node.value.array for node in constants_of(qk.load(output).graph) if node.value.shape == (8,)]
        # Limited pairs of weights make scales larger: instead of 127 levels, a weight has 63 or more.
        assert any(((values > 0.999 * scale) & (values <= 127 / 63 * scale)).all() for values in scales)


def test_bfloat16_endpoints_are_refused_with_the_reason() -> None:
    with pytest.raises(UnavailableError, match="'x' is bfloat16, which runtimes do not exchange") as caught:
        qk.quantize(model_of(products(), "bfloat16"), np.zeros((4, 24), np.float32), runs=0)
    assert "float32 inputs and outputs" in caught.value.hint


def test_an_unknown_type_of_float_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="float_parts is 'half', and must be one of original"):
        qk.quantize("digits", np.zeros((4, 16, 16, 1), np.float32), float_parts="half")
    (entry,) = entry_points(group="console_scripts", name="quantkit")
    command = ["quantize", "digits", "-o", str(tmp_path / "q.onnx"), "--calibration", "x.npz", "--float-parts", "half"]
    assert entry.load()(command) == 2
