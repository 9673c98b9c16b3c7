"""Tests of `quantkit.quantization.targets.tensorrt`: placement, checker, and the builder of TensorRT-RTX."""

import json
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import CheckError, UnavailableError, UsageError
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ir.text import from_text
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization import Plan, Scheme, annotate, convert, prepare
from quantkit.quantization.precision.cost import predict_costs
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes
from quantkit.quantization.targets.tensorrt import builder
from quantkit.quantization.targets.tensorrt.check import examine, find_int8_layers
from quantkit.quantization.targets.tensorrt.float16 import narrow_floats
from quantkit.quantization.workflow.planning import uncalibrated_ranges
from quantkit.summary import summarize
from quantkit.transforms._names import rename_nodes
from quantkit.transforms.precision.convert_precision import find_types

(ENTRY,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "quantkit"]
HELD_OUT = Path(__file__).parents[3] / "assets" / "digits_heldout.npz"
HEADER = onnx_format.header({"y": (DType.FLOAT, UNKNOWN)})
needs_builder = pytest.mark.skipif(find_spec(builder.PACKAGE) is None, reason="pip install tensorrt-rtx==1.7.1.116")
# Two convolutions with a residual, between pairs that TensorRT takes.
FLOAT = """
dialect: onnx
inputs: x
outputs: y
x = Placeholder[1x16x8x8](dtype=float)
w1 = Constant[16x16x3x3]()
b1 = Constant[16]()
w2 = Constant[16x16x3x3]()
conv1 = Conv(x, w1, b1, pads=[1, 1, 1, 1])
relu1 = Relu(conv1)
conv2 = Conv(relu1, w2, pads=[1, 1, 1, 1])
sum = Add(conv2, relu1)
relu2 = Relu(sum)
w3 = Constant[16x16x1x1]()
y = Conv(relu2, w3)
"""
QUANTIZED = """
dialect: onnx
inputs: x
outputs: y
x = Placeholder[1x16x8x8](dtype=float)
s = Constant(0.5)
z = Constant[int8](0)
w = Constant[int8 16x16x3x3]()
values = DequantizeLinear(w, s, z)
xq = QuantizeLinear(x, s, z)
xd = DequantizeLinear(xq, s, z)
conv = Conv(xd, values, pads=[1, 1, 1, 1])
y = Relu(conv)
"""


def quantize(text: str, **fields: object) -> tuple[Plan, Graph]:
    """Return the plan and the quantized graph of a float graph, with ranges that are not calibrated."""
    scheme = Scheme.for_target("tensorrt", **fields)
    graph = prepare(onnx_graph(text), scheme)
    plan = annotate(graph, scheme, float_nodes=find_target("tensorrt").slow_nodes(graph, "auto"))
    return plan, convert(graph, plan, uncalibrated_ranges(plan))


def onnx_graph(text: str) -> Graph:
    """Return an ONNX graph with the opset that a file states."""
    return from_text(text).with_(extra=HEADER)


def kinds(text: str) -> list[str]:
    return [f"{finding.effect}: {finding.kind}" for finding in examine(from_text(text))]


# --- Target


def test_a_residual_is_added_before_rounding() -> None:
    _, graph = quantize(FLOAT, bias_correction=False)
    assert examine(graph) == ()
    assert find_int8_layers(graph) == {"conv1", "conv2", "y"}
    assert graph["sum"].inputs[0].node == "conv2"
    assert graph[graph["sum"].inputs[1].node].op == "DequantizeLinear"
    assert graph.constant_of(graph["conv1"].inputs[2]) is not None, "the bias is float"
    zeros = [graph.constant_of(node.inputs[2]) for node in graph.nodes.values() if node.op == "QuantizeLinear"]
    assert [(zero.dtype.value, int(zero.array)) for zero in zeros if zero] == [("int8", 0)] * 3


@pytest.mark.parametrize("activation", ["Sigmoid", "HardSwish", "LeakyRelu"])
def test_activations_stay_in_the_kernel_of_the_layer(activation: str) -> None:
    _, graph = quantize(FLOAT.replace("Relu(conv1)", f"{activation}(conv1)"))
    assert graph["relu1"].inputs[0].node == "conv1"
    assert examine(graph) == ()


SIZES = {
    "Constant[16x16x3x3]()": True,
    "Constant[16x3x3x3]()": False,
    "Constant[12x12x3x3]()": False,
    "Constant[16x1x3x3]()": True,
    "Constant[16x1x1x1]()": False,
}


@pytest.mark.parametrize("weights", SIZES)
def test_small_convolutions_stay_float(weights: str) -> None:
    outputs, inputs, *_ = map(int, weights[9:-3].split("x"))
    group = outputs if inputs == 1 else 1
    text = f"""
    dialect: onnx
    inputs: x
    outputs: y
    x = Placeholder[1x{inputs * group}x8x8](dtype=float)
    w = {weights}
    y = Conv(x, w, group={group})
    """
    plan, _ = quantize(text)
    assert bool(plan.patterns) is SIZES[weights]
    assert SIZES[weights] or any(text in plan.float_fallbacks["y"] for text in ("tensor core", "one more kernel"))


STEM = """
dialect: onnx
inputs: x
outputs: y
x = Placeholder[1x{inputs}x16x16](dtype=float)
t = Tanh(x)
w1 = Constant[16x{inputs}x3x3]()
conv1 = Conv({start}, w1)
relu1 = Relu(conv1)
w2 = Constant[16x1x3x3]()
conv2 = Conv(relu1, w2, group=16)
relu2 = Relu(conv2)
w3 = Constant[32x16x1x1]()
conv3 = Conv(relu2, w3)
relu3 = Relu(conv3)
w4 = Constant[32x1x3x3]()
y = Conv(relu3, w4, group=32)
"""


@pytest.mark.parametrize(
    ("inputs", "start", "floats"), [(3, "x", {"conv1", "conv2"}), (16, "x", set()), (3, "t", set())]
)
def test_first_layers_with_few_channels_stay_float(inputs: int, start: str, floats: set[str]) -> None:
    plan, graph = quantize(STEM.format(inputs=inputs, start=start))
    assert {pattern.layer for pattern in plan.patterns} == {"conv1", "conv2", "conv3", "y"} - floats
    assert find_int8_layers(graph) == {pattern.layer for pattern in plan.patterns}
    assert not examine(graph)


def test_the_check_names_first_layers_with_few_channels() -> None:
    text = QUANTIZED.replace("Constant[int8 16x16x3x3]()", "Constant[int8 16x3x3x3]()").replace("1x16x", "1x3x")
    (finding,) = examine(from_text(text))
    assert (finding.kind, finding.effect) == ("small", "slow")
    assert "an input with 3 channels" in finding.reason


@pytest.mark.parametrize(("rows", "columns", "is_int8"), [(4, 32, True), (1, 32, False), (4, 12, False)])
def test_small_products_stay_float(rows: int, columns: int, is_int8: bool) -> None:
    text = f"""
    dialect: onnx
    inputs: x
    outputs: y
    x = Placeholder[{rows}x32](dtype=float)
    w = Constant[32x{columns}]()
    y = MatMul(x, w)
    """
    plan, _ = quantize(text)
    assert bool(plan.patterns) is is_int8


def test_the_costs_are_those_of_the_table_of_gpus() -> None:
    plan, _ = quantize(FLOAT)
    graph = onnx_graph(FLOAT)
    costs = [predict_costs(graph, plan, infer_shapes(graph), names) for names in (["onnxruntime"], ["tensorrt"])]
    assert costs[0] == costs[1]
    assert 5e-6 < costs[0].kernels["conv1"].int8 < costs[0].kernels["conv1"].float < 6e-6


@pytest.mark.engine
def test_a_tensorflow_model_computes_on_the_cpu() -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    result = qk.quantize("digits", HELD_OUT, target="tensorrt", limit=32, runs=0)
    assert examine(result.model.graph) == ()
    assert len(find_int8_layers(result.model.graph)) > 15
    quality = result.report.accuracy.quality
    assert quality is not None
    assert quality.agreement is not None
    assert quality.agreement.value > 0.95
    assert "uint8" not in str(result.report)


@pytest.mark.engine
def test_float_parts_in_float16_keep_the_types_of_inputs_and_outputs(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    path = tmp_path / "half.onnx"
    result = qk.quantize("digits", HELD_OUT, target="tensorrt", limit=32, runs=0, float_parts="float16", output=path)
    graph = qk.load(path).graph
    types = find_types(graph)
    assert {types[edge] for edge in (*graph.inputs, *graph.outputs)} == {DType.FLOAT}
    halves = {graph[edge.node].op for edge, dtype in types.items() if dtype is DType.HALF}
    assert {"Gemm", "Cast"} <= halves
    assert "Conv" not in halves, "the convolutions are int8"
    assert len(find_int8_layers(graph)) > 15
    assert examine(graph) == ()
    assert result.report.accuracy.quality is not None
    assert result.report.accuracy.quality.agreement is not None
    assert result.report.accuracy.quality.agreement.value > 0.95
    with pytest.raises(UsageError, match="--float-parts float16 requires --target tensorrt"):
        qk.quantize("digits", HELD_OUT, limit=32, float_parts="float16")


# --- Checker


def test_a_signed_file_has_no_finding() -> None:
    assert kinds(QUANTIZED) == []


def test_casts_between_float_types_are_a_part_of_the_kernels() -> None:
    text = QUANTIZED.replace("conv = Conv(xd,", "half = Cast(xd, to=10)\nconv = Conv(half,")
    graph = from_text(text.replace("y = Relu(conv)", "float = Cast(conv, to=1)\ny = Relu(float)"))
    nodes = rename_nodes(graph, {"half": "half:0"})
    assert examine(nodes) == ()
    assert find_int8_layers(nodes) == {"conv"}
    captured = nodes.with_nodes([*nodes.nodes.values(), Node("branches", "If", (Edge("x"),), ("half:0",))])
    assert examine(captured) == (), "a branch uses the value of the cast"


def test_a_zero_point_is_refused() -> None:
    assert kinds(
        QUANTIZED.replace("xq = QuantizeLinear(x, s, z)", "z3 = Constant[int8](3)\nxq = QuantizeLinear(x, s, z3)")
    ) == ["refused: zero_point"]


def test_the_clip_of_uint8_after_relu_is_named() -> None:
    text = QUANTIZED.replace("y = Relu(conv)", "relu = Relu(conv)\npool = MaxPool(relu)\nu = Constant[uint8](0)\n") + (
        "rq = QuantizeLinear(pool, s, u)\ny = DequantizeLinear(rq, s, u)\n"
    )
    (finding,) = examine(from_text(text))
    assert (finding.kind, finding.effect, finding.node) == ("clipped", "wrong values", "rq")
    assert "clips the upper half of the range of Relu 'relu'" in finding.reason
    assert "--target tensorrt" in finding.fix


FAULTS = {
    "refused: bias": (
        "conv = Conv(xd, values,",
        "b = Constant[int32 16]()\nbias = DequantizeLinear(b, s)\nconv = Conv(xd, values, bias,",
    ),
    "refused: op": ("y = Relu(conv)", "y = Det(conv)"),
    "slow: activation": (
        "y = Relu(conv)",
        "q = QuantizeLinear(conv, s, z)\nd = DequantizeLinear(q, s, z)\ny = Relu(d)",
    ),
    "slow: operand": ("Conv(xd,", "Conv(x,"),
    "slow: small": ("Constant[int8 16x16x3x3]()", "Constant[int8 12x12x3x3]()"),
    "slow: residual": (
        "y = Relu(conv)",
        "sum = Add(conv, x)\nrelu = Relu(sum)\nq = QuantizeLinear(relu, s, z)\ny = DequantizeLinear(q, s, z)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_a_finding_with_a_fix(fault: str) -> None:
    text = QUANTIZED.replace(*FAULTS[fault])
    assert text != QUANTIZED
    (finding,) = examine(from_text(text))
    assert f"{finding.effect}: {finding.kind}" == fault
    assert finding.reason
    assert finding.fix
    assert finding.node in str(finding)


def test_a_pair_between_layer_and_sum_is_a_finding() -> None:
    text = QUANTIZED.replace(
        "y = Relu(conv)",
        "q = QuantizeLinear(conv, s, z)\nd = DequantizeLinear(q, s, z)\nsum = Add(d, xd)\n"
        "r = QuantizeLinear(sum, s, z)\ny = DequantizeLinear(r, s, z)",
    )
    (finding,) = examine(from_text(text))
    assert finding.kind == "residual"
    assert "between Conv 'conv' and the sum" in finding.reason


@pytest.mark.engine
@pytest.mark.parametrize("target", ["onnx", "tensorflow", "eightbit"])
def test_files_for_the_cpu_are_wrong_on_a_gpu(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("onnxruntime", "tensorflow"):
        pytest.importorskip(package, reason=f"pip install {package}")
    path = tmp_path / ("model.onnx" if target == "onnx" else "model.pb")
    result = qk.quantize("digits", HELD_OUT, target=target, limit=8, runs=0, output=path)
    assert ("use --target tensorrt" in str(result)) is (target == "onnx"), "only the onnx file could be tried on a GPU"
    assert ENTRY.load()(["summarize", str(path), "--for", "tensorrt", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    clipped = [finding for finding in findings if finding["kind"] == "clipped"]
    assert len(clipped) > 10
    assert "Relu" in clipped[0]["reason"]
    assert {"node", "op", "effect", "fix"} <= set(clipped[0])


def test_a_summary_without_a_target_has_no_findings() -> None:
    summary = summarize(from_text(QUANTIZED))
    assert summary.to_json()["findings"] is None
    summary.check()
    assert ("findings", "none") in summarize(from_text(QUANTIZED), target="tensorrt").rows
    clipped = summarize(
        from_text(QUANTIZED.replace("z = Constant[int8](0)", "z = Constant[int8](1)")), target="tensorrt"
    )
    with pytest.raises(CheckError, match="the zero point is 1"):
        clipped.check()
    with pytest.raises(UsageError, match="no check of files"):
        summarize(from_text(QUANTIZED), target="litert")
    with pytest.raises(UsageError, match="needs a target"):
        summarize(from_text(QUANTIZED), check_build=True)


def test_a_file_without_a_reader_is_named_with_the_files_that_can_be_examined(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    with pytest.raises(UsageError, match=r"is a LiteRT model.*examines ONNX files and TensorFlow graphs") as caught:
        summarize(path, target="tensorrt")
    assert "--target tensorrt" in caught.value.hint


# --- Builder

PROGRAM = (
    'tensor={ dims={ 1 } name="a" offset=0 type=int8 }\n'
    '  tensor={ dims={ 1 } name="w" offset=0 type=int8 }\n'
    '  tensor={ dims={ 1 } name="f" offset=0 type=float }\n'
    '  corrltn={ name="c" output={"f" } input={"a" "w" "f" } layers="[ONNX Layer: conv]\x1f[ONNX Layer: w/values]" }\n'
    '  function={ name=g input_args={ "a" } layers="[ONNX Layer: relu]" }\n'
    '  corrltn={ name="d" output={"a" } input={"f" "w" } layers="[ONNX Layer: other]" }\n'
    '  runtime_fusion={ name=h input_args={ "a" "w" } layers="[ONNX Layer: product]" backbone=gemm }\n'
)


def test_int8_kernels_are_read_from_the_text_of_a_program() -> None:
    assert list(builder.find_int8_kernels(PROGRAM)) == ["conv", "w/values", "product"]


def test_a_missing_builder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="not installed") as caught:
        builder.check_build(from_text(QUANTIZED))
    assert "tensorrt-rtx==1.7.1.116" in caught.value.hint


@pytest.mark.engine
@needs_builder
def test_the_builder_makes_int8_kernels_of_the_planned_layers() -> None:
    _, graph = quantize(FLOAT)
    build = summarize(graph, target="tensorrt", check_build=True).build
    assert build is not None
    assert (build.problem, build.kernels) == ("", frozenset({"conv1", "conv2", "y"}))
    assert build.planned == build.kernels


@pytest.mark.engine
@needs_builder
def test_float16_in_the_file_leaves_the_int8_kernels() -> None:
    half = narrow_floats(quantize(FLOAT.replace("Relu(sum)", "HardSwish(sum)"))[1])
    assert find_types(half)[Edge("relu2")] is DType.HALF
    build = summarize(half, target="tensorrt", check_build=True).build
    assert build is not None
    assert (build.problem, len(build.planned), build.planned) == ("", 3, build.kernels)


@pytest.mark.engine
@needs_builder
def test_the_builder_refuses_a_quantized_bias() -> None:
    graph = from_text(QUANTIZED.replace(*FAULTS["refused: bias"])).with_(extra=HEADER)
    assert "bias" in builder.check_build(graph).problem


def test_padded_convolutions_take_symmetric_values() -> None:
    plan, graph = quantize(FLOAT)
    scales = {name: graph[name].inputs[1].node for name in graph.nodes if graph[name].op == "QuantizeLinear"}
    assert {name: str(plan.activations[Edge(name)]) for name in ("x", "relu1", "relu2")} == {
        "x": "qint8 symmetric",
        "relu1": "qint8 symmetric",
        "relu2": "qint8 affine",
    }
    steps = {float(graph[scale].value.array) for scale in scales.values()}
    assert steps == {float(np.float32(1 / 127)), float(np.float32(1 / 255))}
