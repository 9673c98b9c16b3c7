"""Channel scales move from activations into weights without a change of the float outputs."""

from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InputError
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.quantization import Plan, Ranges, Scheme, annotate, calibrate
from quantkit.quantization.corrections import equalize
from quantkit.quantization.precision import policy
from quantkit.quantization.scale_migration import find_scales, migrate_scales, with_migrated_scales
from quantkit.runtimes import open_session

onnx = pytest.importorskip("onnx", reason="pip install onnx")
pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
from onnx import numpy_helper, parser  # noqa: E402

pytestmark = pytest.mark.engine
CHANNELS = 16
SIZES = np.where(np.arange(CHANNELS) == 3, 60, 1).astype(np.float32)
SAMPLES = list(np.random.default_rng(5).normal(0, 1, (8, 1, 6, CHANNELS)).astype(np.float32))
LAYER_NORM = "n = LayerNormalization(x, gamma, beta)"
SPELT_OUT = "m = Mul(gamma, x) n = Add(m, beta)"
# A normalization with a large channel, and a gated product of two projections, one of whose channels is large, too.
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
network (float[1, 6, 16] x) => (float[1, 6, 4] y) {
  NORM
  a = MatMul(n, v)
  s = Sigmoid(a)
  b = MatMul(n, w)
  r = Relu(b)
  g = Mul(s, r)
  y = MatMul(g, u)
}
"""
# A float node uses the normalization, too, and the product is not homogeneous.
RESIDUAL = TEXT.replace("s = Sigmoid(a)", "i = Tanh(n) j = Add(a, i) s = Sigmoid(j)").replace("Mul(s, r)", "Add(s, r)")

# A convolution with a large channel, a depthwise convolution that reduces it, and one with other sizes.
CONVOLUTIONS = """
<ir_version: 8, opset_import: ["" : 17]>
network (float[1, 6, 16] x) => (float[1, 4, 16] y) {
  a = Conv(x, large, bias)
  r = Relu(a)
  b = Conv<group = 16>(r, depthwise)
  p = PRelu(b, slope)
  y = Conv(p, last)
}
"""


def network(text: str = TEXT, norm: str = LAYER_NORM) -> Graph:
    random = np.random.default_rng(1)
    values = {
        "large": random.normal(0, 0.3, (CHANNELS, 6, 1)) * SIZES[:, None, None],
        "bias": random.normal(0, 0.3, CHANNELS) * SIZES,
        "depthwise": random.normal(1, 0.1, (CHANNELS, 1, 1)) / np.sqrt(SIZES)[:, None, None],
        "slope": random.uniform(0.1, 0.3, (CHANNELS, 1)),
        "last": random.normal(0, 0.3, (4, CHANNELS, 1)) / np.sqrt(SIZES)[:, None],
        "gamma": SIZES,
        "beta": 0.1 * SIZES,
        "v": random.normal(0, 0.3, (CHANNELS, CHANNELS)) / SIZES[:, None],
        "w": random.normal(0, 0.3, (CHANNELS, CHANNELS)) / SIZES[:, None] * SIZES,
        "u": random.normal(0, 0.3, (CHANNELS, 4)) / SIZES[:, None],
    }
    model = parser.parse_model(text.replace("NORM", norm))
    for name, value in values.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return onnx_format.decode(model.SerializeToString())


def calibrate_network(graph: Graph) -> tuple[Plan, Ranges]:
    plan = annotate(graph, Scheme())
    return plan, calibrate(graph, plan, SAMPLES)


def outputs(graph: Graph) -> Array:
    with open_session(graph, "onnxruntime") as session:
        return np.concatenate([session.run({"x": sample})["y"] for sample in SAMPLES])


@pytest.mark.parametrize(
    ("text", "norm", "edges", "inserts"),
    [
        (TEXT, LAYER_NORM, "ng", False),
        (TEXT, SPELT_OUT, "ng", False),
        (CONVOLUTIONS, "", "rp", False),
        (RESIDUAL, LAYER_NORM, "ng", True),
    ],
)
def test_migrated_scales_keep_the_outputs_and_equalize_the_channels(
    text: str, norm: str, edges: str, inserts: bool
) -> None:
    graph = network(text, norm)
    plan, ranges = calibrate_network(graph)
    scales = find_scales(graph, plan, ranges, inserts=inserts)
    assert scales.keys() == set(map(Edge, edges))
    migrated = migrate_scales(graph, scales)
    np.testing.assert_allclose(outputs(migrated), outputs(graph), rtol=1e-5, atol=1e-5)
    _, after = calibrate_network(migrated)
    for edge in scales:
        ratios = [
            float(maxima.max() / np.median(maxima))
            for maxima in (each.channel_maxima[edge] for each in (ranges, after))
        ]
        assert ratios[1] < 0.5 * ratios[0]


def test_edges_between_the_constants_and_the_scaled_edge_get_new_ranges() -> None:
    """The output of the depthwise convolution is divided, too: PRelu is not part of its pattern."""
    graph = network(CONVOLUTIONS, "")
    plan, ranges = calibrate_network(graph)
    scales = find_scales(graph, plan, ranges)
    runs = [{"x": sample} for sample in SAMPLES]
    migrated = with_migrated_scales(graph, plan, ranges, scales, runs, "onnxruntime")
    _, expected = calibrate_network(migrate_scales(graph, scales))
    for edge in map(Edge, "bp"):
        assert migrated[edge] == pytest.approx(expected[edge], rel=1e-4)
        assert migrated[edge] != pytest.approx(ranges[edge], rel=0.1)
        np.testing.assert_allclose(migrated.channel_maxima[edge], expected.channel_maxima[edge], rtol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "edges"),
    [
        ("b = MatMul(n, w)", "e = Neg(n) b = MatMul(e, w)", {Edge("g")}),  # not a product
        ("b = MatMul(n, w)", "b = MatMul(n, v)", set()),  # shared weights
        ("g = Mul(s, r)", "g = Add(s, r)", {Edge("n")}),  # not homogeneous
        ("g = Mul(s, r)", "t = Tanh(r) g = Mul(s, t)", {Edge("n")}),
        ("s = Sigmoid(a)", "s = Sigmoid(r)", {Edge("n")}),  # r has two consumers
        ("r = Relu(a)", "r = Elu(a)", {Edge("p")}),
        ("y = Conv(p, last)", "q = HardSwish(p) y = Conv(q, last)", {Edge("r")}),  # not homogeneous
    ],
)
def test_scales_stay_where_no_constant_can_absorb_them(old: str, new: str, edges: set[Edge]) -> None:
    graph = network((TEXT if old in TEXT else CONVOLUTIONS).replace(old, new))
    assert find_scales(graph, *calibrate_network(graph)).keys() == edges


def test_scales_of_another_graph_are_an_error() -> None:
    with pytest.raises(InputError, match="the scales of edge 'g' cannot move"):
        migrate_scales(network(), {Edge("g"): (1.0,) * (CHANNELS + 1)})


def test_quantize_migrates_scales_if_that_is_nearer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "GOOD_ERROR", 0.0)
    messages: list[str] = []
    saved = tmp_path / "ranges.json"
    result = qk.quantize(network(), SAMPLES, runs=0, on_message=messages.append, save_ranges=saved)
    assert result.ranges.scales
    assert any("whose channel 3 is the largest" in message for message in messages)
    again = Ranges.load(saved)
    assert again == result.ranges
    plain = qk.quantize(network(), SAMPLES, runs=0, scheme=Scheme())
    errors = [each.report.accuracy.metrics.error for each in (result, plain)]  # type: ignore[union-attr]
    assert errors[0] < 0.7 * errors[1]
    repeated = qk.quantize(network(), ranges=again, plan=result.plan, runs=0)
    assert repeated.conversion.quantized == result.conversion.quantized


@pytest.mark.parametrize("activation", ["Relu(a)", "Clip<min = 0.0, max = 12.0>(a)"])
def test_layers_of_onnx_graphs_are_equalized_exactly(activation: str) -> None:
    text = CONVOLUTIONS.replace("Relu(a)", activation).replace("PRelu(b, slope)", "Relu(b)")
    graph = network(text.replace('"" : 17', '"" : 10'))
    edges = [Edge("r"), Edge("p")]
    with open_session(graph.with_endpoints(None, edges), "onnxruntime") as session:
        runs = [session.run({"x": sample}) for sample in SAMPLES]
    maxima = {edge: np.max([run[edge.node] for run in runs], (0, 1, 3)) for edge in edges}
    coarse = Scheme.for_target("onnx", weights=Scheme().weights.parse("qint8 symmetric"))
    equalized = equalize(graph, annotate(graph, coarse), maxima)
    assert not np.array_equal(equalized["last"].value.array, graph["last"].value.array)
    assert spread(equalized["depthwise"].value.array) < spread(graph["depthwise"].value.array)
    np.testing.assert_allclose(outputs(equalized), outputs(graph), rtol=1e-4, atol=1e-4)


def spread(weights: Array) -> float:
    """Return the ratio of the largest and the smallest output channels of weights."""
    sizes = np.abs(weights).reshape(len(weights), -1).max(1)
    return float(sizes.max() / sizes.min())
