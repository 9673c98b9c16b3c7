from dataclasses import replace

import numpy as np
import pytest

from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.ir.text import from_text
from quantkit.quantization import Range, Ranges, Scheme, annotate, calibrate
from quantkit.quantization.activation_errors import measure_mean_errors
from quantkit.quantization.corrections import correct_biases, equalize
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.runtimes import open_session

DENSE = """
inputs: x
outputs: y
x = Placeholder[<?x8>]()
w = Const[8x16]()
b = Const[16]()
v = Const[16x4]()
c = Const[4]()
m = MatMul(x, w, T=float)
n = BiasAdd(m, b, T=float)
r = Relu(n, T=float)
p = MatMul(r, v, T=float)
y = BiasAdd(p, c, T=float)
"""
CONVOLVED = """
inputs: x
outputs: y
x = Placeholder[<1x6x6x4>]()
w = Const[3x3x4x2]()
b = Const[8]()
v = Const[1x1x8x4]()
c = Const[4]()
m = DepthwiseConv2dNative(x, w, T=float, strides=[1, 1, 1, 1], padding=VALID, data_format=NHWC)
n = BiasAdd(m, b, T=float)
r = Relu(n, T=float)
p = Conv2D(r, v, T=float, strides=[1, 1, 1, 1], padding=VALID, data_format=NHWC)
y = BiasAdd(p, c, T=float)
"""
GROUPED = CONVOLVED.replace("Const[3x3x4x2]", "Const[3x3x2x8]").replace("DepthwiseConv2dNative", "Conv2D")
TENSORFLOW = Scheme.for_target("tensorflow")
RANDOM = np.random.default_rng(0)


def outputs(graph: Graph, inputs: Array) -> Array:
    with open_session(graph, "reference") as session:
        return np.concatenate([session.run({"x": example[None]})["y"] for example in inputs])


def examples(text: str) -> Array:
    shape = (32, 8) if "<?x8>" in text else (32, 6, 6, 4)
    return RANDOM.normal(1.0, 0.5, size=shape).astype(np.float32)


def with_rounded_weights(graph: Graph, scheme: Scheme) -> Graph:
    plan = annotate(graph, scheme)
    nodes = dict(graph.nodes)
    for name, spec in plan.weights.items():
        values = nodes[name].value.array
        equalized = from_text(f"{name} = Const(0.0)")[name]
        value = type(nodes[name].value).of(QuantizationParameters.of_weights(spec, values).fake_quantize(values))
        nodes[name] = equalized.with_attrs(value=value)
    return graph.with_nodes(nodes.values())


@pytest.mark.parametrize("text", [DENSE, CONVOLVED, GROUPED], ids=["dense", "depthwise", "grouped"])
def test_corrected_biases_keep_the_mean(text: str) -> None:
    graph, inputs = from_text(text), examples(text)
    coarse = TENSORFLOW.with_(weights=TENSORFLOW.weights.parse("qint8 symmetric"))
    if text == GROUPED:  # oneDNN has no grouped convolution in int8
        coarse = Scheme.for_target("litert")
    plan = annotate(graph, coarse)
    ranges = calibrate(graph, plan, [inputs], runtime="reference")
    assert set(ranges.means) == {Edge("x"), Edge("r")}
    expected = outputs(graph, inputs)
    plain = outputs(with_rounded_weights(graph, coarse), inputs)
    with_corrected_biases = correct_biases(graph, plan, ranges)
    corrected = outputs(with_rounded_weights(with_corrected_biases, coarse), inputs)
    axes = tuple(range(expected.ndim - 1))
    before = np.abs((plain - expected).mean(axes)).sum()
    after = np.abs((corrected - expected).mean(axes)).sum()
    assert after < 0.2 * before
    # The constants of the biases before the correction would be unused initializers of the file.
    assert with_corrected_biases.without_unused_nodes() == with_corrected_biases


def test_corrected_biases_remove_the_mean_error_of_activations() -> None:
    graph, inputs = from_text(CONVOLVED), examples(CONVOLVED)
    plan = annotate(graph, TENSORFLOW)
    ranges = calibrate(graph, plan, [inputs], runtime="reference")
    narrow = replace(ranges, ranges={**ranges, Edge("x"): Range(0.0, 1.5)})
    errors = measure_mean_errors(graph, plan, narrow, [{"x": example[None]} for example in inputs], "reference")
    clipped = np.clip(inputs, 0, 1.5)
    assert errors.keys() == {Edge("x"), Edge("r")}
    np.testing.assert_allclose(errors[Edge("x")], (clipped - inputs).mean((0, 1, 2)), atol=2e-3)
    corrected = correct_biases(graph, plan, replace(narrow, mean_errors=errors))
    measured = outputs(corrected, clipped).mean((0, 1, 2)) - outputs(graph, inputs).mean((0, 1, 2))
    plain = outputs(graph, clipped).mean((0, 1, 2)) - outputs(graph, inputs).mean((0, 1, 2))
    assert np.abs(measured).max() < 0.6 * np.abs(plain).max()


def test_patterns_without_means_are_unchanged() -> None:
    graph = from_text(DENSE)
    assert correct_biases(graph, annotate(graph, TENSORFLOW), Ranges({})) == graph


@pytest.mark.parametrize("text", [DENSE, CONVOLVED, f"{DENSE}\nwaits = NoOp(^w)\n"])
def test_equalizing_keeps_the_outputs(text: str) -> None:
    graph = from_text(text)
    uneven = graph["w"].value.array * np.geomspace(0.1, 10, graph["w"].value.shape[-1], dtype=np.float32)
    graph = graph.with_nodes(
        node.with_attrs(value=type(node.value).of(uneven)) if node.name == "w" else node
        for node in graph.nodes.values()
    )
    inputs = examples(text)
    equalized = equalize(graph, annotate(graph, TENSORFLOW))
    np.testing.assert_allclose(outputs(equalized, inputs), outputs(graph, inputs), rtol=1e-4, atol=1e-4)

    def spread(graph: Graph) -> float:
        sizes = np.abs(graph["w"].value.array).max(tuple(range(graph["w"].value.array.ndim - 1)))
        return float(sizes.max() / sizes.min())

    assert spread(equalized) < 0.5 * spread(graph)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("r = Relu(n", "r = Relu6(n"),
        ("outputs: y", "outputs: y, r"),
        ("v = Const[16x4]()", "v = Const[16x4]()\nz = Neg(w)"),
    ],
)
def test_only_exact_pairs_are_equalized(old: str, new: str) -> None:
    graph = from_text(DENSE.replace(old, new))
    assert equalize(graph, annotate(graph, TENSORFLOW)) == graph


def test_channels_below_the_limit_of_relu6_are_equalized() -> None:
    graph = from_text(CONVOLVED.replace("r = Relu(n", "r = Relu6(n"))
    uneven = graph["w"].value.array * np.array([0.02, 1.0], np.float32)
    graph = graph.with_nodes(
        node.with_attrs(value=type(node.value).of(uneven)) if node.name == "w" else node
        for node in graph.nodes.values()
    )
    inputs = examples(CONVOLVED)
    observed = graph.with_endpoints(None, [Edge("r")])
    with open_session(observed, "reference") as session:
        maxima = np.concatenate([session.run({"x": example[None]})["r"] for example in inputs]).max((0, 1, 2))
    assert (maxima == 6).any()
    assert ((maxima > 0) & (maxima < 1)).any()
    coarse = TENSORFLOW.with_(weights=TENSORFLOW.weights.parse("qint8 symmetric"))
    equalized = equalize(graph, annotate(graph, coarse), {Edge("r"): maxima})
    np.testing.assert_allclose(outputs(equalized, inputs), outputs(graph, inputs), rtol=1e-4, atol=1e-4)
    channels = [np.abs(each["w"].value.array).max((0, 1)).reshape(-1) for each in (graph, equalized)]
    np.testing.assert_allclose(channels[1][maxima == 6], channels[0][maxima == 6], rtol=1e-6)
    small = (maxima > 0) & (maxima < 1)
    assert (channels[1][small] > 2 * channels[0][small]).all()


def test_float_layers_absorb_factors_of_the_tensors_before_and_after_them() -> None:
    graph = from_text(CONVOLVED)
    plan = annotate(graph, Scheme.for_target("eightbit"))
    everything = annotate(graph, TENSORFLOW)
    float_patterns = [pattern for pattern in everything.patterns if pattern.weights not in plan.weights]
    assert [pattern.layer for pattern in float_patterns] == ["m"]
    inputs = examples(CONVOLVED)
    with open_session(graph.with_endpoints(None, [Edge("r")]), "reference") as session:
        maxima = np.concatenate([session.run({"x": example[None]})["r"] for example in inputs]).max((0, 1, 2))
    equalized = equalize(graph, plan, {Edge("r"): maxima}, float_patterns)
    np.testing.assert_allclose(outputs(equalized, inputs), outputs(graph, inputs), rtol=1e-4, atol=1e-4)

    def spread(graph: Graph) -> float:
        """Return the ratio of the largest and the smallest weights of an input channel, the quantized ones."""
        sizes = np.abs(graph["v"].value.array).max((0, 1, 3))
        return float(sizes.max() / sizes.min())

    assert equalize(graph, plan, {Edge("r"): maxima}) == graph
    assert not np.array_equal(equalized["w"].value.array, graph["w"].value.array)
    assert spread(equalized) < spread(graph)
