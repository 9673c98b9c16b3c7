"""Zero points of the target tensorrt: constants in biases that change no output."""

from dataclasses import replace

import numpy as np
import pytest

import quantkit as qk
from quantkit.data import as_dataset
from quantkit.errors import UsageError
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType, Tensor
from quantkit.ir.text import from_text
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization import Plan, Scheme, annotate, prepare
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.decision import COST, ERROR, FLOAT, INT8, Decision, explain
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.advice import warn_of_ranges
from quantkit.quantization.targets.onnx import native
from quantkit.quantization.targets.tensorrt.check import examine
from quantkit.quantization.targets.tensorrt.zero_points import find_padded_layers, fold_zero_points
from quantkit.quantization.workflow.calibration_run import compute_ranges
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.trials import Candidate, Trials
from quantkit.quantization.workflow.zero_point_choice import _choose_groups, add_zero_points, choose_zero_points
from quantkit.runtimes import open_session

HEADER = onnx_format.header({"y": (DType.FLOAT, UNKNOWN)})
IMAGE = """
dialect: onnx
inputs: x
outputs: y
x = Placeholder[1x16x6x6](dtype=float)
w1 = Constant[16x16x3x3]()
b1 = Constant[16]()
w2 = Constant[16x16x1x1]()
w3 = Constant[16x16x1x1]()
conv1 = Conv(x, w1, b1, pads=[1, 1, 1, 1])
"""
# Ops between two layers: the last line is the output.
GRAPHS = {
    "relu": "relu = Relu(conv1)\ny = Conv(relu, w2)",
    "clip": "low = Constant(0.0)\nhigh = Constant(0.5)\nclip = Clip(conv1, low, high)\ny = Conv(clip, w2, b1)",
    "gate": "gate = HardSwish(conv1)\ny = Conv(gate, w2)",
    "linear": "y = Conv(conv1, w2)",
    "residual": "relu = Relu(conv1)\nconv2 = Conv(relu, w2)\n"
    "sum = Add(conv2, relu)\nrelu2 = Relu(sum)\ny = Conv(relu2, w3)",
    "views": "relu = Relu(conv1)\n"
    "turned = Transpose(relu, perm=[0, 1, 3, 2])\npool = MaxPool(turned, kernel_shape=[2, 2])\n"
    "y = Conv(pool, w2)",
    "concatenation": "relu = Relu(conv1)\nconv2 = Conv(relu, w2)\nboth = Concat(relu, conv2, axis=1)\n"
    "w4 = Constant[16x32x1x1]()\ny = Conv(both, w4)",
    "float consumers": "relu = Relu(conv1)\nconv2 = Conv(relu, w2)\nsoft = Softmax(relu, axis=1)\ny = Add(conv2, soft)",
    "float convolution": "relu = Relu(conv1)\nw4 = Constant[3x16x1x3]()\nthin = Conv(relu, w4, pads=[0, 1, 0, 1])\n"
    "conv2 = Conv(relu, w2)\ny = Concat(thin, conv2, axis=1)",
    "groups": "relu = Relu(conv1)\nw4 = Constant[32x8x3x3]()\ny = Conv(relu, w4, group=2)",
    "product": "flat = Reshape(conv1, shape)\nw4 = Constant[36x32]()\nshape = Constant([16, 36])\ny = MatMul(flat, w4)",
    "product and bias": "shape = Constant([16, 36])\n"
    "flat = Reshape(conv1, shape)\nw4 = Constant[36x32]()\nb4 = Constant[32]()\n"
    "product = MatMul(flat, w4)\ny = Add(product, b4)",
    "gemm": "shape = Constant([16, 36])\n"
    "flat = Reshape(conv1, shape)\nw4 = Constant[32x36]()\ny = Gemm(flat, w4, transB=1)",
}


def plan_of(text: str, activations: str = "qint8 symmetric") -> tuple[Graph, Plan]:
    scheme = Scheme.for_target("tensorrt", activations=activations)
    graph = prepare(from_text(IMAGE + text).with_(extra=HEADER), scheme)
    nodes = {node.name: "float" for node in graph.nodes.values() if node.op == "HardSwish"}
    return graph, annotate(graph, scheme, float_nodes=nodes)


def outputs_of(graph: Graph, x: np.ndarray) -> np.ndarray:
    with open_session(graph, "reference") as session:
        return session.run({"x": x})["y"]


@pytest.mark.parametrize("name", GRAPHS)
def test_folded_zero_points_change_no_output(name: str) -> None:
    graph, plan = plan_of(GRAPHS[name])
    limits = Range(0.0, 0.4) if "Relu" in GRAPHS[name] else Range(-0.1, 0.4)
    ranges = Ranges({edge: limits if edge.node != "x" else Range(-1.0, 1.0) for edge in plan.activations})
    affine = native.convert(graph, plan, ranges, keeps_biases=True)
    folded = fold_zero_points(affine)
    pairs = [node for node in folded.nodes.values() if node.op in ("QuantizeLinear", "DequantizeLinear")]
    assert any(spec.symmetric is False for spec in plan.activations.values())
    assert not any(folded[node.inputs[2].node].value.array.any() for node in pairs)
    assert not [finding for finding in examine(folded) if finding.effect != "slow"]
    x = np.random.default_rng(0).uniform(-1, 1, (1, 16, 6, 6)).astype(np.float32)
    expected = outputs_of(affine, x)
    np.testing.assert_allclose(outputs_of(folded, x), expected, atol=2e-5 * np.abs(expected).max())


def test_biases_take_the_zero_points_and_int8_limits_the_relu() -> None:
    graph, plan = plan_of(GRAPHS["residual"])
    folded = fold_zero_points(
        native.convert(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0))), keeps_biases=True)
    )
    assert {node.op for node in folded.nodes.values() if not node.is_constant} == {
        *("Placeholder", "QuantizeLinear", "DequantizeLinear", "Conv", "Add")
    }
    assert folded.op_counts["Add"] == 1, "no Add restores the values"


@pytest.mark.parametrize("consumer", ["Conv(relu, w1, pads=[1, 1, 1, 1])", 'Conv(relu, w1, auto_pad="SAME_UPPER")'])
def test_padded_convolutions_have_inputs_without_zero_point(consumer: str) -> None:
    _, plan = plan_of(f"relu = Relu(conv1)\nconv2 = {consumer}\nother = Conv(relu, w2)\ny = Add(conv2, other)")
    assert plan.activations[Edge("relu")].symmetric
    assert plan.activations[Edge("x")].symmetric


PADDED = {
    "relu": "relu = Relu(conv1)\ny = Conv(relu, w1, b1, pads=[1, 1, 1, 1])",
    "uneven": "gate = HardSwish(conv1)\ny = Conv(gate, w1, pads=[0, 1, 2, 0], strides=[2, 2])",
    "two consumers": "relu = Relu(conv1)\nconv2 = Conv(relu, w1, pads=[1, 1, 1, 1])\n"
    "conv3 = Conv(relu, w2)\ny = Add(conv2, conv3)",
    "depthwise": "w4 = Constant[16x1x3x3]()\nrelu = Relu(conv1)\ny = Conv(relu, w4, group=16, pads=[1, 1, 1, 1])",
}


@pytest.mark.parametrize("name", PADDED)
def test_a_pad_has_the_value_that_stands_for_zero(name: str) -> None:
    graph, plan = plan_of(PADDED[name], "qint8 affine")
    assert {str(spec) for spec in plan.activations.values()} == {"qint8 affine"}
    limits = Range(0.0, 0.4) if "Relu" in PADDED[name] else Range(-0.1, 0.4)
    ranges = Ranges({edge: limits if edge.node != "x" else Range(-1.0, 0.5) for edge in plan.activations})
    affine = native.convert(graph, plan, ranges, keeps_biases=True)
    folded = fold_zero_points(affine)
    convolutions = [node for node in folded.nodes.values() if node.op == "Conv"]
    assert not any(any(node.attrs.get("pads", ())) for node in convolutions)  # type: ignore[arg-type]
    assert folded.op_counts["Pad"] == sum(any(node.attrs.get("pads", ())) for node in graph.nodes.values())  # type: ignore[arg-type]
    assert examine(folded) == ()
    x = np.random.default_rng(0).uniform(-1, 1, (1, 16, 6, 6)).astype(np.float32)
    expected = outputs_of(affine, x)
    np.testing.assert_allclose(outputs_of(folded, x), expected, atol=2e-5 * np.abs(expected).max())


def test_padding_of_unknown_width_takes_no_zero_point() -> None:
    text = 'relu = Relu(conv1)\ny = Conv(relu, w1, auto_pad="SAME_UPPER")'
    assert plan_of(text, "qint8 affine")[1].activations[Edge("relu")].symmetric


def test_other_activations_are_rejected() -> None:
    with pytest.raises(UsageError, match="requires activations.dtype = 'qint8', not 'quint8'"):
        Scheme.for_target("tensorrt", activations="quint8 affine")


def test_the_loss_of_half_of_the_levels_is_stated() -> None:
    target = find_target("tensorrt")
    warning = warn_of_ranges(target, *plan_of(PADDED["relu"]))
    assert warning.startswith("1 tensors without negative values have half of the levels")
    assert "a loss of 6.05 dB each" in warning
    assert warn_of_ranges(target, *plan_of(PADDED["relu"], "qint8 affine")) == ""


def pad_inputs(*layers: str) -> dict[str, Decision]:
    return {layer: Decision(layer, INT8, "zero point by a Pad op", ERROR) for layer in layers}


def test_a_decision_gives_one_layer_an_input_with_a_zero_point() -> None:
    text = "relu = Relu(conv1)\nconv2 = Conv(relu, w1, pads=[1, 1, 1, 1])\nrelu2 = Relu(conv2)\n"
    graph, plan = plan_of(text + "y = Conv(relu2, w1, pads=[1, 1, 1, 1])")
    assert find_padded_layers(graph, plan) == ["conv1", "conv2", "y"]
    conversion = Conversion(graph, plan, Ranges({})).decide(pad_inputs("conv2"))
    expected = {"x": "qint8 symmetric", "relu": "qint8 affine", "relu2": "qint8 symmetric"}
    assert {str(edge): str(spec) for edge, spec in conversion.plan.activations.items()} == expected
    decision = {decision.unit: decision for decision in conversion.plan.decisions}["conv2"]
    assert decision == pad_inputs("conv2")["conv2"]
    assert "int8" in next(line for line in explain(conversion.plan.decisions) if "zero point by a Pad op" in line)
    assert Plan.from_json(conversion.plan.to_json()) == conversion.plan
    later = conversion.decide({"y": Decision("y", FLOAT, "slow", COST)})
    assert later.plan.activations[Edge("relu")] == conversion.plan.activations[Edge("relu")], "later decisions keep it"
    assert later.decide({"conv2": Decision("conv2", FLOAT, "slow", COST)}).plan.refined == {}


def test_layers_without_suited_input_keep_symmetric_values() -> None:
    """Another consumer of the input has a padding of unknown width."""
    text = (
        'relu = Relu(conv1)\nconv2 = Conv(relu, w1, pads=[1, 1, 1, 1])\nconv3 = Conv(relu, w1, auto_pad="SAME_UPPER")\n'
    )
    graph, plan = plan_of(text + "y = Add(conv2, conv3)")
    conversion = Conversion(graph, plan, Ranges({})).decide(pad_inputs("conv2"))
    assert conversion.plan.activations[Edge("relu")].symmetric


def test_consumers_with_the_same_padding_share_a_pad() -> None:
    text = (
        "relu = Relu(conv1)\nconv2 = Conv(relu, w1, pads=[1, 1, 1, 1])\nconv3 = Conv(relu, w1, b1, pads=[1, 1, 1, 1])\n"
    )
    graph, plan = plan_of(
        text + "conv4 = Conv(relu, w1, pads=[0, 0, 2, 2])\nsum = Add(conv2, conv3)\ny = Add(sum, conv4)"
    )
    plan = Conversion(graph, plan, Ranges({})).decide(pad_inputs("conv2", "conv3", "conv4")).plan
    ranges = Ranges({edge: Range(0.0, 0.4) for edge in plan.activations})
    affine = native.convert(graph, plan, ranges, keeps_biases=True)
    folded = fold_zero_points(affine)
    assert folded.op_counts["Pad"] == 2
    x = np.random.default_rng(0).uniform(0, 1, (1, 16, 6, 6)).astype(np.float32)
    expected = outputs_of(affine, x)
    np.testing.assert_allclose(outputs_of(folded, x), expected, atol=2e-5 * np.abs(expected).max())


def test_groups_are_chosen_until_the_loss_of_each_output_is_small() -> None:
    groups = [frozenset({Edge(name)}) for name in "abcd"]
    gains = dict(zip(groups, np.array([[0.0, 0.0], [6.0, 0.0], [2.0, 1.0], [-1.0, 1.0]]), strict=True))
    # The gains of the first output are 8, its loss is 4: each counts by half.
    errors = dict(_choose_groups(gains, np.array([[5.0, 1.0], [1.0, 1.0]])))
    assert list(errors) == [groups[1], groups[2]]
    assert errors[groups[1]] == pytest.approx(np.sqrt(5) - np.sqrt(2))
    errors = dict(_choose_groups(gains, np.array([[5.0, 3.0], [4.9, 1.0]])))
    assert list(errors) == [groups[2], groups[3]], "the second output alone loses"
    assert dict(_choose_groups(gains, np.array([[5.0, 1.0], [4.8, 1.1]]))) == {}


def calibrate(graph: Graph, plan: Plan, samples: np.ndarray) -> tuple[Ranges, FloatReference, Options, list[str]]:
    """Return the ranges, the outputs of the float model, and options that append to the last list of messages."""
    messages: list[str] = []
    options = Options(None, calibration=samples, on_message=messages.append)
    return *compute_ranges(qk.load(graph), graph, plan, as_dataset(samples), options), options, messages


def _improve(trials: Trials, conversion: Conversion, candidate: Candidate) -> Conversion:
    return trials.improve(conversion, [candidate], stops_if_good=False)


@pytest.mark.engine
def test_tensors_with_negative_values_get_zero_points_by_their_ranges() -> None:
    samples = np.random.default_rng(0).normal(0, 1, (4, 16, 6, 6)).astype(np.float32)
    samples = np.concatenate([samples, -samples])
    graph, plan = plan_of(PADDED["uneven"])
    ranges, reference, options, messages = calibrate(graph, plan, samples)
    conversion = Conversion(graph, plan, ranges)
    alternative = _improve(Trials(reference, options), conversion, add_zero_points)
    formats = {str(edge): str(spec) for edge, spec in alternative.plan.activations.items()}
    assert formats == {"x": "qint8 symmetric", "gate": "qint8 affine"}, "the range of x is symmetric"
    assert alternative.plan.refined.keys() == {"y"}
    assert "zero points of 1 tensors with negative values before padded convolutions" in messages[-1]
    parameters, padded = (
        find_target("tensorrt").edge_parameters(graph, each.plan, each.ranges)[Edge("gate")]
        for each in (conversion, alternative)
    )
    assert 1.5 < parameters.scale / padded.scale < 2.01
    stated = replace(options, scheme=plan.scheme)
    assert _improve(Trials(reference, stated), conversion, add_zero_points) is conversion, "a scheme is kept"
    graph, plan = plan_of(PADDED["relu"])
    ranges, reference, options, _ = calibrate(graph, plan, samples)
    unsigned = Conversion(graph, plan, ranges)
    assert _improve(Trials(reference, options), unsigned, add_zero_points) is unsigned


@pytest.mark.engine
def test_tensors_with_most_of_the_loss_get_zero_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """The range of one tensor is too wide, so that its noise is the largest."""
    monkeypatch.setattr(policy, "MAX_UNPADDED_DB", 5.0)
    layers = [
        f"relu{index} = Relu(conv{index})\nconv{index + 1} = Conv(relu{index}, w1, pads=[1, 1, 1, 1])"
        for index in (1, 2, 3)
    ]
    graph, plan = plan_of("\n".join([*layers, "y = Identity(conv4)"]))
    random = np.random.default_rng(0)
    weights = Tensor.of(random.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32))
    graph = graph.with_nodes([*graph.nodes.values(), graph["w1"].with_attrs(value=weights)])
    samples = random.normal(0, 1, (8, 16, 6, 6)).astype(np.float32)
    ranges, reference, options, messages = calibrate(graph, plan, samples)
    wide = Ranges({**ranges.ranges, Edge("relu3"): Range(0.0, 8 * ranges[Edge("relu3")].high)})
    conversion = Conversion(graph, plan, replace(ranges, ranges=wide.ranges))
    trials = Trials(reference, options)
    alternative = _improve(trials, conversion, choose_zero_points)
    formats = {str(edge): str(spec) for edge, spec in alternative.plan.activations.items()}
    assert formats == dict.fromkeys(("x", "relu1", "relu2"), "qint8 symmetric") | {"relu3": "qint8 affine"}
    assert alternative.plan.refined.keys() == {"conv4"}
    assert alternative.plan.refined["conv4"].predicted is not None
    assert trials.gains["conv4"] > 0
    assert "zero points of 1 of 4 tensors before padded convolutions" in messages[-1]
    assert "write an estimated 0.0012 MB" in messages[-1]
    changed = {edge for edge in ranges if alternative.ranges[edge] != conversion.ranges[edge]}
    assert changed <= {Edge("relu3")}
    stated = replace(options, scheme=plan.scheme)
    assert _improve(Trials(reference, stated), conversion, choose_zero_points) is conversion, "a scheme is kept"
    assert _improve(Trials(reference, options), alternative, choose_zero_points) is alternative, "the rest loses little"
    trials = Trials(reference, options)
    trials.is_better = lambda *arguments, **flags: False  # type: ignore[method-assign]
    assert _improve(trials, conversion, choose_zero_points) is conversion, "the outputs are not nearer"
    monkeypatch.setattr(policy, "MAX_GAIN_MACS", 0.0)
    assert _improve(Trials(reference, options), conversion, choose_zero_points) is conversion
    assert "the runs would take too long" in messages[-1]
