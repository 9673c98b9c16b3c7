"""Small layers between float ops stay float, because their boundaries take more time than int8 saves."""

import re
from collections.abc import Sequence

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization import Scheme, annotate
from quantkit.quantization.precision.cost import predict_costs
from quantkit.quantization.precision.decision import COST
from quantkit.quantization.precision.search import TimeCut
from quantkit.quantization.workflow import conversion

onnx = pytest.importorskip("onnx", reason="pip install onnx")
pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
from onnx import helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.engine
STEPS = {f"m{step}" for step in range(12)}


def network(*, size: int = 16, rows: int = 1, has_large_layer: bool = True, large_rows: int = 64) -> Graph:
    """Return twelve steps of a recurrent layer, and a large layer for another input.

    Args:
        size: number of channels of a step.
        rows: number of its rows.
        has_large_layer: False for the steps alone.
        large_rows: number of rows of the large layer.
    """
    random = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array((random.normal(0, 1, (width, width)) / np.sqrt(width)).astype(np.float32), name)
        for name, width in (("recurrent", size), ("kernel", 256))
    ]
    nodes, state = [helper.make_node("Split", ["x"], [f"x{step}" for step in range(12)], axis=2, num_outputs=12)], "x0"
    for step in range(12):
        nodes += [
            helper.make_node("MatMul", [state, "recurrent"], [f"m{step}"]),
            helper.make_node("Add", [f"m{step}", f"x{step}"], [f"a{step}"]),
            helper.make_node("Tanh", [f"a{step}"], [f"h{step}"]),
        ]
        state = f"h{step}"
    shapes = {"x": (1, rows, 12 * size), "h11": (1, rows, size)}
    if has_large_layer:
        nodes.append(helper.make_node("MatMul", ["z", "kernel"], ["y"]))
        shapes = {"x": shapes["x"], "z": (1, large_rows, 256), "h11": shapes["h11"], "y": (1, large_rows, 256)}
    infos = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    half = len(infos) // 2
    model = helper.make_model(
        helper.make_graph(nodes, "network", infos[:half], infos[half:], weights[: 1 + has_large_layer]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    return onnx_format.decode(model.SerializeToString())


def quantize(graph: Graph, messages: list[str], target: str = "onnx") -> qk.QuantizationResult:
    random = np.random.default_rng(5)
    shapes = {edge.node: tuple(map(int, graph[edge.node].attrs["shape"].dims)) for edge in graph.inputs}
    samples: Sequence[dict[str, np.ndarray]] = [
        {name: random.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(8)
    ]
    return qk.quantize(graph, samples, target=target, runs=0, on_message=messages.append)


def int8_layers(result: qk.QuantizationResult) -> set[str]:
    return {pattern.layer for pattern in result.plan.patterns}


def test_small_steps_between_float_ops_stay_float() -> None:
    result = quantize(network(), [])
    assert int8_layers(result) == {"y"}
    decisions = {each.unit: each for each in result.decisions}
    assert all(decisions[name].source == COST for name in STEPS)
    assert "boundaries" in decisions["m0"].reason


def test_boundaries_cost_little_in_litert() -> None:
    """A product of 128 x 128 between float ops, as in recurrent layers: LiteRT takes less time for it in int8."""
    graph = from_text("""
        inputs: x
        outputs: h
        x = Placeholder[1x128]()
        w = Const[128x128]()
        g = Tanh(x, T=float)
        m = MatMul(g, w, T=float)
        h = Tanh(m, T=float)
    """)
    plan = annotate(graph, Scheme.for_target("litert"))
    choices = [
        TimeCut(graph, plan, predict_costs(graph, plan, infer_shapes(graph), [runtime])).choose()
        for runtime in ("litert", "onnxruntime")
    ]
    assert choices == [frozenset(), {"m"}]


def test_steps_with_many_rows_stay_int8() -> None:
    assert int8_layers(quantize(network(size=256, rows=64), [])) >= STEPS


@pytest.mark.parametrize(("options", "int8"), [({"has_large_layer": False}, STEPS), ({"large_rows": 2}, {"y"})])
def test_report_begins_with_the_float_model_without_a_predicted_speedup(
    options: dict[str, int], int8: set[str]
) -> None:
    """All layers lose time in int8, or the others stay float and those in int8 gain little."""
    result = quantize(network(**options), [])
    assert int8_layers(result) == int8
    first_line = str(result.report).splitlines()[0]
    doubt = (
        r"no speed-up is predicted \((0\.\d\d|1\.0[01])x by the table of costs\): keep the float model, or measure both"
    )
    assert re.match(doubt, first_line)
    assert first_line.split("(")[1].startswith(f"{result.report.to_json()['predicted_speed_up']:.2f}x")


def test_report_does_not_name_the_float_model_with_a_predicted_speedup() -> None:
    assert "keep the float model" not in str(quantize(network(large_rows=64), []).report)


def depthwise_network(channels: int, kernel: tuple[int, int]) -> Graph:
    """Return a depthwise convolution between two pointwise ones, of images of 16x16."""
    random = np.random.default_rng(3)
    square = (channels, channels, 1, 1)
    shapes = {"first": square, "depthwise": (channels, 1, *kernel), "last": square}
    weights = [
        numpy_helper.from_array(random.normal(0, 0.1, shape).astype(np.float32), name) for name, shape in shapes.items()
    ]
    pads = [size // 2 for size in kernel * 2]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"]),
        helper.make_node("Conv", ["a", "depthwise"], ["b"], group=channels, pads=pads),
        helper.make_node("Conv", ["b", "last"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, 1, (1, channels, 16, 16)) for name in ("x", "y")]
    model = helper.make_model(
        helper.make_graph(nodes, "network", infos[:1], infos[1:], weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return onnx_format.decode(model.SerializeToString())


@pytest.mark.parametrize(
    ("channels", "kernel", "precision"),
    [
        (304, (5, 5), "int8"),
        (296, (5, 5), "float"),
        (296, (3, 5), "int8"),
        (300, (3, 5), "float"),
        (302, (5, 5), "int8"),
    ],
    ids=["multiple of 16", "multiple of 8", "multiple of 8, small kernel", "multiple of 4", "slow float kernel"],
)
def test_depthwise_layers_of_incomplete_blocks_of_channels_stay_float_in_onnxruntime(
    channels: int, kernel: tuple[int, int], precision: str
) -> None:
    """Its int8 kernel computes 16 channels together, its float kernel 4: those of an incomplete block take longer."""
    graph = depthwise_network(channels, kernel)
    plan = annotate(graph, Scheme.for_target("onnx"))
    choice = TimeCut(graph, plan, predict_costs(graph, plan, infer_shapes(graph), ["onnxruntime"])).choose()
    assert ("b" in choice) is (precision == "float")


def test_installed_runtimes_do_not_change_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The depthwise layer would be float in a file for ONNX Runtime alone."""
    graph = depthwise_network(300, (5, 5))
    monkeypatch.setattr(conversion, "_find_installed", lambda target: ("onnxruntime",))
    result = quantize(graph, [])
    assert int8_layers(result) == {"a", "b", "y"}
    shapes = infer_shapes(graph)
    both = TimeCut(graph, result.plan, predict_costs(graph, result.plan, shapes, ("openvino", "onnxruntime")))
    speedup = both.seconds(frozenset(both.costs.kernels)) / both.seconds(frozenset())
    assert result.report.to_json()["predicted_speed_up"] == pytest.approx(speedup)


def test_estimated_times_keep_int8_layers() -> None:
    graph = network(size=64, rows=4)
    assert int8_layers(quantize(graph, [])) == {"y"}
    assert int8_layers(quantize(graph, [], "tensorrt")) >= STEPS


def test_layers_of_unknown_size_stay_int8() -> None:
    random = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array(random.normal(0, 1, shape).astype(np.float32) / 8, name)
        for name, shape in (("first", (64, 64)), ("second", (64, 256)), ("third", (256, 256)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["m0"]),
        helper.make_node("Relu", ["m0"], ["positive"]),
        helper.make_node("ReduceMax", ["x"], ["column"], axes=[1], keepdims=0),
        helper.make_node("Greater", ["column", "zero"], ["mask"]),
        helper.make_node("Compress", ["positive", "mask"], ["selected"], axis=0),
        helper.make_node("MatMul", ["selected", "second"], ["m1"]),
        helper.make_node("Softplus", ["m1"], ["gate"]),
        helper.make_node("MatMul", ["gate", "third"], ["m2"]),
    ]
    weights.append(numpy_helper.from_array(np.array(0, np.float32), "zero"))
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "network",
            [helper.make_tensor_value_info("x", 1, (128, 64))],
            [helper.make_tensor_value_info("m2", 1, (None, 256))],
            weights,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    assert int8_layers(quantize(onnx_format.decode(model.SerializeToString()), [])) == {"m0", "m1", "m2"}
