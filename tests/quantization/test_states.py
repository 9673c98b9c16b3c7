"""Recurrent models are compared with their own states in the loop."""

from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.quantization import Scheme
from quantkit.quantization.precision import policy
from quantkit.quantization.states import StateLoop, find_states
from quantkit.quantization.workflow import error_signals, lossy_layers
from quantkit.quantization.workflow.error_signals import measure_noise_fractions

pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
onnx = pytest.importorskip("onnx", reason="pip install onnx")
from onnx import helper, numpy_helper  # noqa: E402

SIZE = 16
RANDOM = np.random.default_rng(5)
DECAY, WEIGHTS, HEAD = np.float32(0.95), RANDOM.normal(0, 0.2, (SIZE, SIZE)), RANDOM.normal(0, 1, (SIZE, SIZE))

Samples = list[dict[str, Array]]


def step(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return y and the next state of the network."""
    state = feeds["h"] * DECAY + np.maximum(feeds["x"] @ WEIGHTS.astype(np.float32), 0)
    return {"y": state @ HEAD.astype(np.float32), "h_next": state}


def record(count: int) -> tuple[Samples, Samples]:
    """Return feeds and outputs of consecutive runs."""
    feeds, outputs = Samples(), Samples()
    state = np.zeros((1, SIZE), np.float32)
    for _ in range(count):
        feeds.append({"x": RANDOM.normal(0, 1, (1, SIZE)).astype(np.float32), "h": state})
        outputs.append(step(feeds[-1]))
        state = outputs[-1]["h_next"]
    return feeds, outputs


def network(state_shape: tuple[int, ...] = (1, SIZE)) -> Graph:
    """Return the network of `step`, with a shape of the state, (n, SIZE) or (SIZE,)."""
    constants = {"w": WEIGHTS.astype(np.float32), "v": HEAD.astype(np.float32), "decay": DECAY}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Mul", ["h", "decay"], ["d"]),
        helper.make_node("Add", ["d", "r"], ["sum"]),
        helper.make_node("MatMul", ["sum", "v"], ["y"]),
        helper.make_node("Reshape", ["sum", "shape"], ["h_next"]),
    ]
    constants["shape"] = np.int64(state_shape)
    shapes = {"x": (1, SIZE), "h": state_shape, "y": (1, SIZE), "h_next": state_shape}
    infos = {name: helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()}
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "recurrent", [infos["x"], infos["h"]], [infos["y"], infos["h_next"]], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx_format.decode(model.SerializeToString())


def test_consecutive_samples_show_the_states() -> None:
    feeds, outputs = record(12)
    assert find_states(feeds, outputs) == {"h": "h_next"}
    assert find_states(feeds[:2], outputs[:2]) == {}


def test_other_samples_show_no_states() -> None:
    feeds, _ = record(12)
    shuffled = [feeds[number] for number in (5, 2, 8, 0, 11, 3)]
    assert find_states(shuffled, [step(each) for each in shuffled]) == {}
    zeros = [{**each, "h": np.zeros((1, SIZE), np.float32)} for each in feeds]
    assert find_states(zeros, [{"h_next": each["h"]} for each in zeros]) == {}, "a constant input is no state"


def test_a_loop_feeds_its_own_states_inside_of_a_sequence() -> None:
    feeds, outputs = record(3)
    loop = StateLoop({"h": "h_next"})
    assert loop.feeds(feeds[0])["h"] is feeds[0]["h"]
    own = {"y": outputs[0]["y"], "h_next": outputs[0]["h_next"] + 1}
    loop.add(outputs[0], own)
    np.testing.assert_array_equal(loop.feeds(feeds[1])["h"], own["h_next"])
    assert loop.feeds(feeds[0])["h"] is feeds[0]["h"], "another sequence begins"


def test_the_accuracy_of_a_recurrent_model_includes_the_errors_of_its_states() -> None:
    feeds, outputs = record(40)
    result = qk.quantize(network(), feeds, scheme=Scheme(), runs=0)
    accuracy: Any = result.report.accuracy
    assert list(accuracy.metrics.sqnr) == ["y"], "states are not compared"
    state, noise, signal = feeds[0]["h"], 0.0, 0.0
    with qk.open_session(result, accuracy.runtime.name) as session:
        for sample, expected in zip(feeds, outputs, strict=True):
            actual = session.run({**sample, "h": state})
            state = actual["h_next"]
            noise += float(((actual["y"] - expected["y"]) ** 2).sum())
            signal += float((expected["y"] ** 2).sum())
    assert accuracy.metrics.sqnr["y"] == pytest.approx(10 * np.log10(signal / noise), abs=0.01)


def test_layers_of_a_drifting_model_stay_float(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "DRIFT_ERROR", 0.0)
    monkeypatch.setattr(policy, "GOOD_STATE_ERROR", 0.0)
    feeds, _ = record(40)
    messages: list[str] = []
    result = qk.quantize(network(), feeds, runs=0, on_message=messages.append)
    assert len(result.plan.patterns) <= 1
    assert any("accumulate" in reason for reason in result.plan.float_fallbacks.values())


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Fractions of each measurement, which no model is too good for."""
    measured: list[dict[str, float]] = []

    def measure(*arguments: Any) -> dict[str, float]:
        measured.append(measure_noise_fractions(*arguments))
        return measured[-1]

    monkeypatch.setattr(lossy_layers, "measure_noise_fractions", measure)
    monkeypatch.setattr(policy, "GOOD_STATE_ERROR", 0.0)
    return measured


def test_the_noise_of_layers_is_measured_if_states_have_no_axis_of_samples(fractions: list[dict[str, float]]) -> None:
    feeds = [{**each, "h": each["h"][0]} for each in record(40)[0]]
    qk.quantize(network((SIZE,)), feeds, runs=0)
    assert fractions[0].keys() == {"a", "y"}


def test_the_noise_of_layers_does_not_depend_on_the_time_of_a_run(
    fractions: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds, _ = record(40)
    quantized = [qk.quantize(network(), feeds, runs=0).plan.float_fallbacks]
    hours = count(step=3600)
    monkeypatch.setattr(error_signals, "perf_counter", lambda: float(next(hours)))
    quantized.append(qk.quantize(network(), feeds, runs=0).plan.float_fallbacks)
    assert fractions[0] == fractions[1]
    assert quantized[0] == quantized[1]


def test_the_noise_of_layers_is_not_measured_above_the_limit_of_macs(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(error_signals, "ErrorProbe", lambda *arguments: opened.append(arguments))
    monkeypatch.setattr(policy, "GOOD_STATE_ERROR", 0.0)
    monkeypatch.setattr(policy, "MAX_FRACTION_MACS", 2 * SIZE * SIZE * 2 - 1)
    result = qk.quantize(network(), record(40)[0], runs=0)
    assert not opened
    assert result.plan.patterns
