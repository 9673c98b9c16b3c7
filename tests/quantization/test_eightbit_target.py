import numpy as np
import pytest

from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text
from quantkit.model import load
from quantkit.ops.kernels import KERNELS
from quantkit.quantization import Range, Ranges, Scheme, annotate, calibrate, convert
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


def test_no_range_is_found_while_it_runs(digits: Graph) -> None:
    ranges = Ranges(dict.fromkeys(annotate(digits, SCHEME).activations, Range(-1.0, 3.0)))
    graph = convert(digits, annotate(digits, SCHEME), ranges)
    assert not {"RequantizationRange", "Min", "Max", "Conv2D", "Relu"} & set(graph.op_counts)
    assert graph.op_counts["QuantizedConv2D"] == 20
    assert graph.op_counts["Softmax"] == 1
    assert set(graph.op_counts) <= {*KERNELS, "Placeholder", "Const"}


def test_what_the_scheme_keeps_stays_float(digits: Graph) -> None:
    scheme = Scheme.for_target("eightbit", keep_float=("MatMul",))
    ranges = Ranges(dict.fromkeys(annotate(digits, scheme).activations, Range(-1.0, 3.0)))
    assert convert(digits, annotate(digits, scheme), ranges).op_counts["MatMul"] == 1


def test_single_layers_that_the_scheme_keeps_stay_float(digits: Graph) -> None:
    layers = [name for name, node in digits.nodes.items() if node.op == "Conv2D"][:3]
    scheme = Scheme.for_target("eightbit", keep_float=tuple(layers))
    ranges = Ranges(dict.fromkeys(annotate(digits, scheme).activations, Range(-1.0, 3.0)))
    made = convert(digits, annotate(digits, scheme), ranges)
    assert [name for name, node in made.nodes.items() if node.op == "Conv2D"] == layers
    assert made.op_counts["QuantizedConv2D"] == 17
    assert set(made.op_counts) <= {*KERNELS, "Placeholder", "Const"}


def test_answers_stay(digits: Graph) -> None:
    pictures = np.random.default_rng(0).uniform(-1, 1, (12, 16, 16, 1)).astype(np.float32)
    ranges = calibrate(digits, annotate(digits, SCHEME), [pictures], runtime="reference")
    answers = []
    for graph in (digits, convert(digits, annotate(digits, SCHEME), ranges)):
        with open_session(graph, "reference") as session:
            answers.append(np.concatenate([session.run({"Mul": one[None]})["softmax"] for one in pictures]))
    assert (answers[0].argmax(1) == answers[1].argmax(1)).mean() >= 0.75
    assert np.abs(answers[0] - answers[1]).mean() < 0.05


def test_what_has_no_classic_form_is_planned_in_float_and_nothing_is_measured_while_it_runs() -> None:
    """Grouped and depthwise convolutions, means, pads and products; a concat whose axis is counted from the end."""
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
    assert plan.float_fallbacks["grouped"] == "its weights see 4 of 8 channels, QuantizedConv2D sees all"
    assert "signed codes" in plan.float_fallbacks["depthwise"]
    inputs = np.random.default_rng(0).uniform(-1, 1, (8, 1, 8, 8, 4)).astype(np.float32)
    ranges = calibrate(graph, annotate(graph, SCHEME), list(inputs), runtime="reference")
    made = convert(graph, annotate(graph, SCHEME), ranges)
    assert made.op_counts["QuantizedConv2D"] == 2
    assert made.op_counts["QuantizedConcat"] == 1
    assert made.op_counts["Conv2D"] == made.op_counts["Mul"] == made.op_counts["Mean"] == 1
    assert not {"RequantizationRange", "Min", "Max"} & set(made.op_counts)
    with open_session(graph, "reference") as first, open_session(made, "reference") as second:
        wanted, found = (session.run({"x": inputs[0]})["y"] for session in (first, second))
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
