"""Decisions: one for each layer and other node, in the plan, its file, the result and the text of ``--explain``."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import CheckError, UnavailableError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text
from quantkit.quantization import Plan, Scheme, annotate
from quantkit.quantization.fallback import AGREEMENT, ERROR, Loss
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.decision import MAX_NAMES, SOURCES, Decision, ErrorPrediction, explain
from quantkit.quantization.precision.error import ErrorModel, decibels
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.targets.tensorflow import TARGET
from quantkit.quantization.workflow import planning
from quantkit.quantization.workflow import trials as trials_module
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.error_signals import count_runs, draw_choices
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.planning import choose_plan
from quantkit.quantization.workflow.preparation import prepare_float_graph
from quantkit.quantization.workflow.trials import Trials

TEXT = """
    inputs: x
    outputs: y
    x = Placeholder[1x8x8x4]()
    w1 = Const[3x3x4x4]()
    b1 = Const[4]()
    c1 = Conv2D(x, w1, T=float, strides=[1, 1, 1, 1], padding=SAME)
    s1 = BiasAdd(c1, b1, T=float)
    r1 = Relu(s1, T=float)
    p1 = MaxPool(r1, T=float, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding=VALID)
    w2 = Const[3x3x4x4]()
    c2 = Conv2D(p1, w2, T=float, strides=[1, 1, 1, 1], padding=SAME)
    n2 = Neg(c2, T=float)
    w3 = Const[1x1x4x4]()
    y = Conv2D(n2, w3, T=float, strides=[1, 1, 1, 1], padding=SAME)
"""
SCHEME = Scheme.for_target("tensorflow", keep_float=["y"])


def sources(plan: Plan) -> dict[str, tuple[str, str]]:
    return {decision.unit: (decision.precision, decision.source) for decision in plan.decisions}


def test_every_layer_and_node_has_one_decision() -> None:
    plan = annotate(from_text(TEXT), SCHEME, float_nodes={"c2": Decision("c2", "float", "slow", "cost")})
    expected = {"c1": ("int8", "kernel"), "p1": ("float", "cost"), "c2": ("float", "cost"), "y": ("float", "user")}
    assert sources(plan) == expected | {"n2": ("float", "op")}
    assert plan.float_fallbacks["c2"] == "slow"
    assert plan.float_fallbacks.keys() == sources(plan).keys() - {"c1"}
    assert all(decision.reason and decision.source in SOURCES for decision in plan.decisions)
    (kernel,) = [decision.reason for decision in plan.decisions if decision.precision == "int8"]
    assert kernel == "one int8 kernel computes Conv2D + BiasAdd + Relu"


def test_a_reason_of_the_caller_is_a_decision_of_the_user() -> None:
    plan = annotate(from_text(TEXT), SCHEME, float_nodes={"c2": "my reason"})
    assert plan.float_decisions["c2"] == Decision("c2", "float", "my reason", "user")
    assert sources(annotate(from_text(TEXT), SCHEME))["p1"] == ("int8", "op")


def test_weights_only_decides_about_each_constant() -> None:
    plan = annotate(from_text(TEXT), SCHEME.with_(weights_only=True))
    assert sources(plan) == {"c1": ("int8", "op"), "c2": ("int8", "op"), "y": ("float", "user")}


def test_a_plan_file_has_the_reasons_and_sources(tmp_path: Path) -> None:
    plan = annotate(from_text(TEXT), SCHEME)
    plan.save(tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    assert {"unit": "n2", "precision": "float", "reason": "Neg has no int8 form", "source": "op"} in document[
        "decisions"
    ]
    assert Plan.load(tmp_path / "plan.json") == plan


def test_the_text_groups_decisions_by_reason() -> None:
    many = [Decision(f"n{index}", "float", "no kernel", "kernel") for index in range(MAX_NAMES + 3)]
    gained = Decision("first", "float", "noisy", "error", -0.5, 0.25, 0.125)
    lines = list(explain([Decision("c", "int8", "fast", "kernel", 1.5), *many, gained]))
    assert [line.split()[:3] for line in lines if line[0] != " "] == [
        ["float", "kernel", str(len(many))],
        ["float", "error", "1"],
        ["int8", "kernel", "1"],
    ]
    assert "3 more" in lines[MAX_NAMES + 1]
    assert lines[-3].strip() == "first: saves -0.5 ms, predicted gain 0.25, measured gain 0.12"
    assert lines[-1].strip() == "c: saves 1.5 ms"


def test_a_layer_without_a_kernel_is_float_in_the_plan() -> None:
    """The padding of a shifted tensor of unknown size has no kernel: the plan has the decision, not the conversion."""
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[1x?x?x3]()
        w = Const[3x3x3x4]()
        y = Conv2D(x, w, T=float, strides=[1, 2, 2, 1], padding=SAME)
        """
    )
    plan = annotate(graph, Scheme.for_target("tensorflow"))
    ranges = Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0)))
    assert TARGET.missing_kernels(graph, plan, ranges).keys() == {"y"}
    conversion = Conversion(graph, plan, ranges).with_kernels()
    assert sources(conversion.plan) == {"y": ("float", "kernel")}
    assert conversion.with_kernels() is conversion


def error_model(grams: np.ndarray, parts: Sequence[int] | None = None) -> ErrorModel:
    """Return an error model of one output."""
    return ErrorModel(None, grams[None], np.array(range(len(grams)) if parts is None else parts))  # type: ignore[arg-type]


def draw_rows(count: int, size: int) -> np.ndarray:
    """Return random switches, (count, size)."""
    return (np.random.default_rng(0).random((count, size)) < 0.5).astype(np.float64)


@pytest.mark.parametrize("is_coherent", [True, False])
def test_the_error_model_is_fitted_to_measured_choices(is_coherent: bool) -> None:
    """All signals agree. The measured noise is twice that of their sum, or twice the sum of their energies."""
    rows = [row for row in draw_rows(24, 8) if row.any()]
    measured = [(row, 2 * row.sum() ** (2 if is_coherent else 1)) for row in rows]
    fitted = error_model(np.ones((8, 8))).fit(measured)
    assert fitted.is_coherent is is_coherent
    assert fitted.noise(np.ones(8)) == pytest.approx(2 * 8 ** (2 if is_coherent else 1), rel=0.01)
    assert fitted.rms_db < 0.3
    assert fitted.holds
    assert fitted.contributions(np.ones(8)) == pytest.approx(16 if is_coherent else 2, rel=0.01)


def test_the_errors_of_a_layer_and_its_inputs_are_one_signal() -> None:
    """The third quantization, of a layer, cancels the error of the first one, its input; the second is independent."""
    grams = np.array([[1.0, 0.5, -1.0], [0.5, 1.0, 0.0], [-1.0, 0.0, 1.0]])
    rows = [np.array(row, np.float64) for row in ((1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 1, 1), (1, 1, 1))]
    fitted = error_model(grams, [0, 1, 0]).fit([(row, noise) for row, noise in zip(rows, (1, 1, 2, 2, 1), strict=True)])
    assert not fitted.is_coherent
    assert [fitted.noise(row) for row in rows] == pytest.approx([1, 1, 2, 2, 1], rel=0.05)


def test_the_error_model_learns_the_deviation_of_similar_choices() -> None:
    """The noise is four times as large while the first quantization, which causes half of it, is on."""
    grams = np.diag([8.0, *[1.0] * 8])
    rows = draw_rows(60, 9)
    noises = [float(row @ np.diag(grams)) * (4 if row[0] else 1) for row in rows]
    fitted = error_model(grams).fit(list(zip(rows[:24], noises, strict=False)))
    deviations = [decibels(fitted.noise(row)) - decibels(noise) for row, noise in zip(rows, noises, strict=True)]
    assert np.sqrt(np.mean(np.square(deviations))) < 0.3
    assert fitted.holds


def test_few_measured_choices_state_the_deviation_without_a_fit() -> None:
    model = error_model(np.ones((2, 2)))
    row = np.array([1.0, 0.0])
    off = model.fit([(row, 1.0), (row, 10.0), (row, 0.1)])
    # The mean of two choices predicts the third one.
    assert off.interval_db == pytest.approx(15.0, rel=0.02)
    assert off.rms_db == pytest.approx(np.sqrt((15**2 + 15**2) / 3), rel=0.02)
    assert not off.holds
    single = model.fit([(row, 10.0)])
    assert (single.rms_db, single.interval_db) == pytest.approx((10.0, 10.0))
    assert single.noise(row) == pytest.approx(10.0, rel=0.01)


def test_random_choices_and_the_error_model_of_the_report() -> None:
    assert len(set(draw_choices("abcdef", 8))) > 6
    assert ErrorPrediction({}, 0.5, 1.5, True, 8).to_json() == {
        "rms_db": 0.5,
        "interval_db": 1.5,
        "holds": True,
        "samples": 8,
    }


def test_the_interval_of_the_error_model_contains_other_choices() -> None:
    """Each choice deviates at random, by 1 dB or 3 dB: 90 % of other choices are within the interval."""
    random = np.random.default_rng(0)
    model = error_model(np.eye(20))
    for spread in (0.5, 3.0):
        rows = (random.random((224, 20)) < 0.5).astype(np.float64)
        measured = [(row, row.sum() * 10 ** (random.normal(0, spread) / 10)) for row in rows]
        fitted = model.fit(measured[:24])
        deviations = [abs(decibels(fitted.noise(row)) - decibels(noise)) for row, noise in measured[24:]]
        assert np.mean(np.array(deviations) <= fitted.interval_db) >= 0.9
        assert fitted.interval_db < 5 * spread
        assert fitted.holds is (spread < 1)


def test_outputs_of_few_values_have_more_runs() -> None:
    assert count_runs([{"scores": np.ones((1, 2), np.float32)}], {}) == policy.MAX_SIGNAL_RUNS
    assert count_runs([{"image": np.ones((1, 64, 64), np.float32)}], {}) == policy.SIGNAL_RUNS
    both = [{"image": np.ones((1, 64, 64), np.float32), "scores": np.ones((1, 256), np.float32)}]
    assert count_runs(both, {}) == policy.SIGNAL_VALUES // 256
    assert count_runs(both, {"state": "scores"}) == policy.SIGNAL_STEPS
    assert count_runs(both, {}, 2, 1024, 16) == 4
    assert count_runs(both, {}, 2, 100, 16) == 2
    assert count_runs(both, {}, 2, 1 << 20, 16) == 16


@pytest.mark.parametrize(("kind", "is_good"), [(AGREEMENT, False), (ERROR, True)])
def test_the_kind_of_a_loss_is_stated(kind: str, is_good: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disagreement of 1 % is not a good model, even if the KL divergence is the same number."""
    trials = Trials(FloatReference(feeds=[{}], outputs=[{}], classes=[(None,)]), Options(None))
    monkeypatch.setattr(trials, "_is_reported", lambda conversion: False)
    monkeypatch.setattr(trials, "_trial", lambda conversion: object())
    monkeypatch.setattr(trials_module, "_loss_of", lambda accuracy: Loss(0.01, 0.01, kind))
    assert trials.is_good(Any) is is_good  # type: ignore[arg-type]


def test_a_failed_trial_is_reported_and_is_not_good(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **keywords: Any) -> None:
        raise UnavailableError("the runtime has no kernel")

    messages: list[str] = []
    graph = from_text(TEXT)
    plan = annotate(graph, SCHEME)
    conversion = Conversion(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0))))
    options = Options(None, on_message=messages.append)
    feeds, outputs = {"x": np.ones((1, 8, 8, 4), np.float32)}, {"y": np.ones((1, 4))}
    reference = FloatReference(feeds=[feeds], outputs=[outputs], classes=[(None,)])
    trials = Trials(reference, options)
    monkeypatch.setattr(trials_module, "measure_accuracy", fail)
    assert not trials.is_good(conversion)
    assert trials.is_possible is False
    assert not trials.is_better(replace(conversion), conversion, 0.9)
    assert trials.failures == ["the runtime has no kernel"]
    assert messages == ["warning: a trial failed: the runtime has no kernel"]


def test_a_fault_of_the_converter_is_not_a_damaged_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: Graph, plan: Plan) -> Graph:
        raise AssertionError("a fault")

    graph = from_text(TEXT)
    monkeypatch.setattr(planning, "convert_uncalibrated", fail)
    with pytest.raises(AssertionError, match="a fault"):
        choose_plan(Options(None, plan=annotate(graph, SCHEME)), graph, SCHEME)


def test_a_plan_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, paths = qk.load(from_text(TEXT)), list[Path]()
    plan = annotate(prepare_float_graph(model, Options(None), SCHEME, None).graph, SCHEME)
    plan.save(tmp_path / "plan.json")

    def load(path: Path) -> Plan:
        paths.append(path)
        return plan

    monkeypatch.setattr(Plan, "load", load)
    options = Options(None, plan=tmp_path / "plan.json")
    scheme = planning.choose_scheme(options)
    graph = prepare_float_graph(model, options, scheme, None).graph
    assert choose_plan(options, graph, scheme) is plan
    assert paths == [tmp_path / "plan.json"]


DIGITS = np.random.default_rng(0).normal(0, 1, (24, 16, 16, 1)).astype(np.float32)


@pytest.mark.engine
def test_a_result_has_the_decisions_and_the_trace(tmp_path: Path) -> None:
    result = qk.quantize("digits", DIGITS, runs=0, verify=True, trace=tmp_path / "trace.html")
    document = result.to_json()
    assert document["decisions"] == [decision.to_json() for decision in result.decisions]
    assert {decision.unit for decision in result.decisions} == {decision.unit for decision in result.plan.decisions}
    saved = [decision.saved_ms for decision in result.decisions if decision.reason.startswith("one int8 kernel")]
    assert len(saved) == len(result.plan.patterns)
    assert all(ms is not None and ms > 0 for ms in saved)
    assert document["error_model"] is None
    assert document["failed_trials"] == []
    assert result.trace is not None
    assert sum(bool(record.check) for record in result.trace.records) == len(result.trace.records) > 10
    text = result.explain()
    assert "one int8 kernel computes Conv + Relu" in text
    assert "changed" in text
    assert (tmp_path / "trace.html").read_text().startswith("<!doctype html>")


@pytest.mark.engine
def test_the_accuracy_search_states_its_error_model() -> None:
    """Layers after channels of very different sizes: float layers are needed, and the error model ranks them."""
    random = np.random.default_rng(0)
    sizes = np.where(np.arange(64) % 16 == 0, 100, 1).astype(np.float32)
    text = (
        "inputs: x\noutputs: y\nx = Placeholder[?x64]()\nu = Const[64x64]()\nv = Const[64x64]()\nw = Const[64x64]()\n"
    )
    text += "g = MatMul(x, u, T=float)\nq = Relu(g, T=float)\n"
    text += "h = MatMul(q, v, T=float)\nr = Relu(h, T=float)\ny = MatMul(r, w, T=float)"
    samples = (random.normal(0, 1, (64, 64)) * sizes).astype(np.float32)
    result = qk.quantize(from_text(text), samples, runs=0, max_drop=0.002, limit=32)
    assert result.report.fallback is not None
    assert result.report.fallback.baseline.kind == ERROR
    model = result.to_json()["error_model"]
    assert model["rms_db"] > 0
    assert model["interval_db"] > 0
    assert model["samples"] == 32
    layers = {decision.unit: decision for decision in result.decisions if decision.source == "accuracy"}
    assert layers.keys() == result.report.fallback.keep_float
    assert all(decision.predicted is not None and decision.saved_ms is not None for decision in layers.values())


@pytest.mark.parametrize("name", ["trace.txt", "missing/trace.html"])
def test_a_trace_that_cannot_be_written_fails_first(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        qk.quantize("digits", DIGITS, runs=0, trace=tmp_path / name)


def test_verify_rejects_a_wrong_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that halves a constant fails the verification; nothing is written."""
    from quantkit.quantization.workflow import preparation

    def fail(before: Graph, after: Graph, transform: Any) -> str:
        raise CheckError("y: the outputs differ")

    monkeypatch.setattr(preparation, "make_verifier", lambda *arguments, **options: fail)
    with pytest.raises(CheckError, match="the outputs differ"):
        prepare_float_graph(qk.load(from_text(TEXT)), Options(None, verify=True), SCHEME, None)


def test_shapes_are_inferred_once_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantkit.ops import shape_inference

    graphs, infer = list[Graph](), shape_inference.infer

    def record(graph: Graph, *known_shapes: Any) -> Any:
        graphs.append(graph)
        return infer(graph, *known_shapes)

    monkeypatch.setattr(shape_inference, "infer", record)
    graph = from_text(TEXT)
    annotate(graph, SCHEME)
    plan = annotate(graph, SCHEME)
    ranges = Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0)))
    TARGET.missing_kernels(graph, plan, ranges)
    assert sum(each is graph for each in graphs) == 1
