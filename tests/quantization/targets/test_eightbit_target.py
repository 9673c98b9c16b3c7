import numpy as np
import pytest

from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text
from quantkit.model import load
from quantkit.ops.kernels import KERNELS
from quantkit.quantization import Range, Ranges, Scheme, annotate, calibrate, convert
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.advice import warn_of_ranges
from quantkit.recipes import parse, run
from quantkit.runtimes import open_session

FOLD = (
    'strip_unused_nodes(type=float, shape="1,16,16,1") remove_nodes(op=Identity, op=CheckNumerics) fold_old_batch_norms'
)
SCHEME = Scheme.for_target("eightbit")


@pytest.fixture(scope="module")
def digits() -> Graph:
    recipe = parse(FOLD)
    return run(recipe, load("digits", ["Mul"], ["softmax"]).graph)[0]


def test_no_range_is_dynamic(digits: Graph) -> None:
    ranges = Ranges(dict.fromkeys(annotate(digits, SCHEME).activations, Range(-1.0, 3.0)))
    graph = convert(digits, annotate(digits, SCHEME), ranges)
    assert not {"RequantizationRange", "Min", "Max", "Conv2D", "Relu"} & set(graph.op_counts)
    assert graph.op_counts["QuantizedConv2D"] == 20
    assert graph.op_counts["Softmax"] == 1
    assert set(graph.op_counts) <= {*KERNELS, "Placeholder", "Const"}


def test_ops_of_keep_float_stay_float(digits: Graph) -> None:
    scheme = Scheme.for_target("eightbit", keep_float=("MatMul",))
    ranges = Ranges(dict.fromkeys(annotate(digits, scheme).activations, Range(-1.0, 3.0)))
    assert convert(digits, annotate(digits, scheme), ranges).op_counts["MatMul"] == 1


def test_layers_of_keep_float_stay_float(digits: Graph) -> None:
    layers = [name for name, node in digits.nodes.items() if node.op == "Conv2D"][:3]
    scheme = Scheme.for_target("eightbit", keep_float=tuple(layers))
    ranges = Ranges(dict.fromkeys(annotate(digits, scheme).activations, Range(-1.0, 3.0)))
    quantized = convert(digits, annotate(digits, scheme), ranges)
    assert [name for name, node in quantized.nodes.items() if node.op == "Conv2D"] == layers
    assert quantized.op_counts["QuantizedConv2D"] == 17
    assert set(quantized.op_counts) <= {*KERNELS, "Placeholder", "Const"}


def test_outputs_agree_with_the_float_graph(digits: Graph) -> None:
    images = np.random.default_rng(0).uniform(-1, 1, (12, 16, 16, 1)).astype(np.float32)
    ranges = calibrate(digits, annotate(digits, SCHEME), [images], runtime="reference")
    outputs = []
    for graph in (digits, convert(digits, annotate(digits, SCHEME), ranges)):
        with open_session(graph, "reference") as session:
            outputs.append(np.concatenate([session.run({"Mul": image[None]})["softmax"] for image in images]))
    assert (outputs[0].argmax(1) == outputs[1].argmax(1)).mean() >= 0.75
    assert np.abs(outputs[0] - outputs[1]).mean() < 0.05


def test_ops_without_classic_form_are_float_fallbacks() -> None:
    """Grouped and depthwise convolutions, means and products; a concatenation with a negative axis."""
    graph = from_text("""
    inputs: x
    outputs: y
    x = Placeholder[<1x8x8x4>]()
    w = Const[3x3x4x8]()
    c = Conv2D(x, w, T=float, strides=[1, 1, 1, 1], padding=SAME)
    b = Const[8]()
    d = BiasAdd(c, b, T=float)
    r = Relu(d, T=float)
    v = Const[3x3x4x8]()
    grouped = Conv2D(r, v, T=float, strides=[1, 1, 1, 1], padding=SAME)
    u = Const[3x3x8x1]()
    depthwise = DepthwiseConv2dNative(r, u, T=float, strides=[1, 1, 1, 1], padding=SAME)
    axis = Const[int32](-1)
    joined = ConcatV2(grouped, depthwise, r, axis, T=float, N=3, Tidx=int32)
    t = Const[1x1x24x4]()
    last = Conv2D(joined, t, T=float, strides=[1, 1, 1, 1], padding=SAME)
    half = Const[float](0.5)
    scaled = Mul(last, half, T=float)
    axes = Const[int32]([1, 2])
    y = Mean(scaled, axes, T=float, Tidx=int32)
    """)
    plan = annotate(graph, SCHEME)
    assert {pattern.layer for pattern in plan.patterns} == {"c", "last"}
    assert plan.pass_through == ("joined",)
    assert (
        plan.float_fallbacks["grouped"] == "weights have 4 of 8 input channels, but QuantizedConv2D supports no groups"
    )
    assert "signed weights" in plan.float_fallbacks["depthwise"]
    inputs = np.random.default_rng(0).uniform(-1, 1, (8, 1, 8, 8, 4)).astype(np.float32)
    ranges = calibrate(graph, annotate(graph, SCHEME), list(inputs), runtime="reference")
    quantized = convert(graph, annotate(graph, SCHEME), ranges)
    assert quantized.op_counts["QuantizedConv2D"] == 2
    assert quantized.op_counts["QuantizedConcat"] == 1
    assert quantized.op_counts["Conv2D"] == quantized.op_counts["Mul"] == quantized.op_counts["Mean"] == 1
    assert not {"RequantizationRange", "Min", "Max"} & set(quantized.op_counts)
    with open_session(graph, "reference") as first, open_session(quantized, "reference") as second:
        expected, actual = (session.run({"x": inputs[0]})["y"] for session in (first, second))
    assert np.abs(actual - expected).max() < 0.05 * np.abs(expected).max()


def test_depthwise_layers_come_with_a_warning(digits: Graph) -> None:
    depthwise = from_text(
        """
        x = Placeholder[1x8x8x2]()
        w = Const[3x3x2x1]()
        y = DepthwiseConv2dNative(x, w, padding=SAME, strides=[1, 1, 1, 1])
        """
    ).with_endpoints(["x"], ["y"])
    target = find_target("eightbit")
    warning = warn_of_ranges(target, depthwise, annotate(depthwise, SCHEME))
    assert "depthwise layers (1 here): --target tensorflow" in warning
    assert warn_of_ranges(target, digits, annotate(digits, SCHEME)) == ""
