"""A graph whose quantizations can be switched on and off, in both dialects."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.convert import tensorflow_to_onnx
from quantkit.evaluation.output_sqnr import sqnr
from quantkit.quantization import Scheme, annotate, calibrate, convert, prepare
from quantkit.quantization.precision.error import ErrorProbe, tap_outputs
from quantkit.quantization.precision.switches import SwitchedGraph, switch_quantization
from quantkit.runtimes import open_session

pytestmark = pytest.mark.engine
IMAGES = np.random.default_rng(0).uniform(-1, 1, (12, 16, 16, 1)).astype(np.float32)
TARGETS = {"tensorflow": "tensorflow", "onnx": "onnxruntime"}


@pytest.fixture(params=TARGETS, scope="module")
def quantized(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    """Return target, float graph, plan, ranges and switched graph of the bundled network."""
    target = request.param
    pytest.importorskip(TARGETS[target])
    model = qk.transform("digits", "inference")
    graph = model.graph if target == "tensorflow" else tensorflow_to_onnx.convert(model.graph)
    scheme = Scheme.for_target(target)
    # Products of 8-bit weights saturate on processors without VNNI.
    scheme = scheme.with_(weights=replace(scheme.weights, reduce_range=True))
    graph = prepare(graph, scheme)
    plan = annotate(graph, scheme)
    name = graph.inputs[0].node
    ranges = calibrate(graph, plan, [{name: IMAGES[index : index + 1]} for index in range(8)])
    return target, graph, plan, ranges, switch_quantization(graph, plan, ranges)


def outputs(switched: SwitchedGraph, target: str, rows: np.ndarray) -> list[np.ndarray]:
    """Return the outputs for each row of switches."""
    feeds = {switched.graph.inputs[0].node: IMAGES[:1]}
    with open_session(switched.graph, TARGETS[target]) as session:
        return [next(iter(session.run({**feeds, switched.input: row}).values())).copy() for row in rows]


def test_all_switches_off_are_the_float_model(quantized: tuple[Any, ...]) -> None:
    target, graph, _, _, switched = quantized
    with open_session(graph, TARGETS[target]) as session:
        expected = next(iter(session.run({graph.inputs[0].node: IMAGES[:1]}).values())).copy()
    (actual,) = outputs(switched, target, np.zeros((1, len(switched)), bool))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def test_the_quantization_of_each_layer_changes_the_outputs(quantized: tuple[Any, ...]) -> None:
    target, *_, switched = quantized
    rows = np.eye(len(switched), dtype=bool)[len(switched.groups) :]
    assert len(rows) == len(switched.layers) > 10
    floats, *changed = outputs(switched, target, np.vstack([np.zeros_like(rows[:1]), rows]))
    for layer, values in zip(switched.layers, changed, strict=True):
        assert not np.array_equal(values, floats), layer


@pytest.fixture
def probe(quantized: tuple[Any, ...]) -> Iterator[ErrorProbe]:
    target, graph, *_, switched = quantized
    name = graph.inputs[0].node
    feeds = [{name: IMAGES[index : index + 1]} for index in range(4)]
    with open_session(graph, TARGETS[target]) as session:
        expected = [{key: array.copy() for key, array in session.run(each).items()} for each in feeds]
    with open_session(tap_outputs(switched.graph), TARGETS[target]) as session:
        yield ErrorProbe(switched, session, feeds, expected, {})


def test_all_switches_on_are_as_far_from_float_as_the_quantized_model(
    quantized: tuple[Any, ...], probe: ErrorProbe
) -> None:
    target, graph, plan, ranges, switched = quantized
    logits = tap_outputs(graph)
    converted = tap_outputs(convert(graph, plan, ranges))
    name = graph.inputs[0].node
    with (
        open_session(logits, TARGETS[target]) as session,
        open_session(converted, TARGETS[target]) as quantized_session,
    ):
        runs = [
            [
                next(iter(each.run({name: IMAGES[index : index + 1]}).values())).copy()
                for each in (session, quantized_session)
            ]
            for index in range(4)
        ]
    expected, actual = (np.concatenate(arrays) for arrays in zip(*runs, strict=True))
    noise = np.square(actual - expected).sum() / np.square(expected).sum()
    simulated = probe.noise(np.ones(len(switched), bool))
    assert 0.4 < simulated / noise < 2.5, (sqnr(1.0, simulated), sqnr(1.0, noise))


def test_predicted_errors_are_near_measured_ones(probe: ErrorProbe) -> None:
    count = len(probe.switched)
    model = probe.measure(lambda number: None)
    choices = np.random.default_rng(1).random((6, count)) < 0.7
    measured = [(row.astype(np.float64), probe.noise(row)) for row in choices]
    fitted = model.fit(measured)
    errors = [sqnr(1.0, fitted.noise(row)) - sqnr(1.0, noise) for row, noise in measured]
    assert np.sqrt(np.mean(np.square(errors))) < 2.0
    assert np.sqrt(np.mean(np.square(errors))) <= fitted.rms_db <= fitted.interval_db
