import numpy as np
import pytest

from quantkit import quantize
from quantkit.errors import GraphError
from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text
from quantkit.model import load
from quantkit.quantization import Scheme, annotate
from quantkit.quantization.targets import find_target
from quantkit.quantization.workflow.estimate import QuantizationEstimate
from quantkit.quantization.workflow.estimate import estimate_quantization as estimate_model
from quantkit.quantization.workflow.planning import convert_uncalibrated
from quantkit.summary.summary import recommend_command


def estimate_quantization(graph: Graph) -> QuantizationEstimate:
    return estimate_model(load(graph))


NETWORK = """
    inputs: prepared
    outputs: y
    raw = Placeholder[2x8x8x3]()
    two = Const(2.0)
    prepared = Mul(raw, two, T=float)
    w = Const[3x3x3x4]()
    conv = Conv2D(prepared, w, T=float, padding=SAME, strides=[1, 1, 1, 1])
    up = Conv2DBackpropInput(sizes, w, conv, T=float, padding=SAME, strides=[1, 1, 1, 1])
    sizes = Const[int32]([2, 8, 8, 3])
    y = Softmax(up, T=float)
"""


def test_layers_are_counted_and_the_rest_has_reasons() -> None:
    estimate = estimate_quantization(from_text(NETWORK))
    assert (estimate.num_int8, estimate.num_layers) == (2, 2), "a transposed convolution with the stride 1 is a Conv"
    text = str(estimate)
    assert text.startswith("2 of 2 layers, 100.0% of the MACs; float: ")
    assert "1 Softmax (small probabilities would quantize to zero)" in text
    document = estimate.to_json()
    assert {row["op"] for row in document["float_fallbacks"]} == {"Softmax", "Transpose"}


def test_unknown_shapes_give_no_fraction() -> None:
    conv = "y = Conv2D(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1])"
    text = f"inputs: x\noutputs: y\nx = Placeholder[<*>]()\nw = Const[3x3x3x4]()\n{conv}"
    estimate = estimate_quantization(from_text(text))
    assert (estimate.num_layers, estimate.int8_fraction) == (1, None)
    sized = estimate_quantization(from_text(text.replace("<*>", "?x8x8x3")))
    assert str(sized) == "1 of 1 layers, 100.0% of the MACs; float: 1 Transpose (no quantized consumer)"


def test_scalar_input_has_no_shape_option() -> None:
    text = NETWORK.replace("inputs: prepared", "inputs: prepared, rate").replace(
        "w = Const", "rate = Placeholder[]()\n    w = Const", 1
    )
    assert str(estimate_quantization(from_text(text))).startswith("2 of 2 layers")


def test_graph_without_a_plan_has_a_problem() -> None:
    estimate = estimate_quantization(from_text("dialect: onnx\ninputs: x\nx = Input()\ny = Relu(x)"))
    assert str(estimate) == "no plan: the graph has no outputs"
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[2]()\ny = Neg(x, T=float)")
    assert str(estimate_quantization(graph)) == "no layer to quantize"


def test_the_estimate_of_a_graph_without_onnx_form_is_for_the_target_tensorflow() -> None:
    graph = from_text(NETWORK.replace("y = Softmax(up", "z = BesselI0e(up, T=float)\n    y = Softmax(z"))
    estimate = estimate_quantization(graph)
    assert estimate.target == "tensorflow"
    assert str(estimate).startswith("1 of 2 layers")
    assert "for the target tensorflow" in str(estimate)
    command = recommend_command(load(graph), estimate)
    assert "quantize MODEL -o OUT.pb --target tensorflow --calibration" in command


def test_quantized_graph_has_no_plan() -> None:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[2x4]()\ny = QuantizedRelu(x, x, x)")
    assert str(estimate_quantization(graph)) == "no plan: the model is already quantized"


def test_ensure_shape_is_not_counted() -> None:
    sized = "sized = EnsureShape(prepared, T=float, shape=<2x8x8x3>)"
    text = NETWORK.replace("conv = Conv2D(prepared", f"{sized}\n    conv = Conv2D(sized")
    fallbacks = estimate_quantization(from_text(text)).to_json()["float_fallbacks"]
    assert "EnsureShape" not in {row["op"] for row in fallbacks}


@pytest.mark.engine
def test_the_estimate_equals_the_report_of_quantize() -> None:
    estimate = estimate_model(load("digits"))
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 1)).astype(np.float32)
    counts = quantize("digits", images, runs=0).report.census
    assert estimate.num_int8 == counts.num_patterns == estimate.num_layers
    assert estimate.int8_fraction == counts.int8_fraction
    assert sum(count for _, count in estimate.reasons) == len(counts.float_fallbacks)


def test_an_op_without_a_form_in_the_target_is_a_problem() -> None:
    text = "inputs: x\noutputs: y\nx = Placeholder[2x4]()\nw = Const[4x4]()\nm = MatMul(x, w, T=float)\n"
    assert "Digamma" in str(estimate_quantization(from_text(f"{text}y = Digamma(m, T=float)")))


def test_an_invalid_node_is_the_problem_of_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that fails on a damaged file is not at fault: the invalid node is named."""

    def convert(*arguments: object) -> None:
        raise TypeError

    graph = from_text("""
        inputs: x
        outputs: y
        x = Placeholder[1x4x4x3]()
        y = AvgPool(x, ksize=wrong, strides=[1, 1, 1, 1], padding=SAME)
    """)
    monkeypatch.setattr(type(find_target("tensorflow")), "convert", convert)
    plan = annotate(graph, Scheme.for_target("tensorflow"))
    with pytest.raises(GraphError, match="node 'y'"):
        convert_uncalibrated(graph, plan)
    with pytest.raises(TypeError):
        convert_uncalibrated(graph.with_nodes([graph["x"]]).with_endpoints(["x"], ["x"]), plan)
