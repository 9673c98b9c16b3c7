"""Metrics of tasks, with the float model as the reference."""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from plugin_distribution import forget_plugins, write_distribution

import quantkit as qk
from quantkit.errors import CheckError, UnavailableError, UsageError
from quantkit.evaluation.detection import score_detection
from quantkit.evaluation.output_sqnr import OutputSqnrCounter
from quantkit.evaluation.tasks import REGISTRY, TASKS, find_task
from quantkit.ir.graph import Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization.targets.diagnosis import find_plugin_problems

BOXES = np.array([[[0, 0, 2, 2], [4, 4, 6, 6], [8, 8, 9, 9]]], np.float32)
SCORES = np.array([[[0.9, 0.1], [0.8, 0.2], [0.1, 0.7]]], np.float32)
MAPS = np.random.default_rng(0).normal(0, 1, (2, 3, 8, 8)).astype(np.float32)


def score(
    task: str, expected: Mapping[str, Any], actual: Mapping[str, Any], inputs: Mapping[str, Any] | None = None
) -> float:
    metric = find_task(task)
    assert metric is not None
    return metric.compute(expected, actual, inputs or {})


def two_outputs(noise: float) -> Graph:
    """Return a product whose result and negative result are outputs; noise changes the weights."""
    random = np.random.default_rng(2)
    weights = random.normal(0, 1, (6, 4)) + noise * random.normal(0, 1, (6, 4))
    types = {"T": DType.FLOAT}
    nodes = (
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 6))}),
        constant("w", weights.astype(np.float32)),
        Node("y", "MatMul", ("x", "w"), attrs=types),
        Node("z", "Neg", ("y",), attrs=types),
    )
    return Graph.of(nodes, ["x"], ["y", "z"])


def language_model(noise: float) -> Graph:
    """Return a table with the logits of the next token; noise changes the table."""
    random = np.random.default_rng(3)
    table = random.normal(0, 2, (10, 10)) + noise * random.normal(0, 2, (10, 10))
    types = {"Tparams": DType.FLOAT, "Tindices": DType.INT32, "Taxis": DType.INT32}
    nodes = (
        Node("ids", "Placeholder", attrs={"dtype": DType.INT32, "shape": Shape((None, 7))}),
        constant("table", table.astype(np.float32)),
        constant("axis", np.int32(0)),
        Node("logits", "GatherV2", ("table", "ids", "axis"), attrs=types),
    )
    return Graph.of(nodes, ["ids"], ["logits"])


RUNTIMES = {"runtime": "reference", "reference_runtime": "reference"}
ROWS = np.random.default_rng(4).normal(0, 1, (11, 6)).astype(np.float32)
TOKENS = np.random.default_rng(5).integers(0, 10, (5, 7)).astype(np.int32)


@pytest.mark.parametrize("task", sorted(set(TASKS) - {"detection", "language"}))
def test_equal_outputs_have_score_1_and_other_outputs_less(task: str) -> None:
    assert score(task, {"y": MAPS}, {"y": MAPS}) == pytest.approx(1)
    other = np.random.default_rng(1).normal(0, 1, MAPS.shape).astype(np.float32)
    assert 0 <= score(task, {"y": MAPS}, {"y": other}) < 0.8


def test_segmentation_is_the_mean_iou_of_the_classes() -> None:
    expected = np.array([0, 0, 1, 1], np.float32).reshape(1, 2, 2)
    actual = np.array([0, 1, 1, 1], np.float32).reshape(1, 2, 2)
    assert score("segmentation", {"y": expected}, {"y": actual}) == pytest.approx((1 / 2 + 2 / 3) / 2)
    channels_last = MAPS.transpose(0, 2, 3, 1)
    assert score("segmentation", {"y": MAPS}, {"y": -MAPS}) == pytest.approx(
        score("segmentation", {"y": channels_last}, {"y": -channels_last})
    )


def test_regression_is_the_worst_coefficient_of_determination() -> None:
    expected = {"a": np.array([1, 2, 3], np.float32), "b": np.array([0, 4], np.float32)}
    assert score(
        "regression", expected, {"a": np.array([1, 2, 4], np.float32), "b": np.array([0, 4], np.float32)}
    ) == pytest.approx(0.5)
    assert score("regression", expected, {"a": np.array([9, 9, 9], np.float32), "b": np.array([0, 4], np.float32)}) == 0
    assert score("regression", {"a": np.array([[2]], np.float32)}, {"a": np.array([[1]], np.float32)}) == 0.75


@pytest.mark.parametrize(
    ("actual", "expected"), [("abcd", 1.0), ("abed", 0.75), ("bcda", 0.5), ("zzzz", 0.0), ("dcba", 0.0)]
)
def test_text_is_the_edit_distance_of_the_most_likely_tokens(actual: str, expected: float) -> None:
    def logits(text: str) -> np.ndarray:
        return np.eye(128, dtype=np.float32)[[list(map(ord, text))]]

    assert score("text", {"y": logits("abcd")}, {"y": logits(actual)}) == expected


def test_detection_is_the_mean_average_precision() -> None:
    reference = {"boxes": BOXES, "scores": SCORES}
    assert score("detection", reference, reference) == 1
    missing = SCORES.copy()
    missing[0, 1, 0] = 0  # one of two boxes of class 0, and all of class 1
    assert score("detection", reference, {"boxes": BOXES, "scores": missing}) == pytest.approx((0.5 + 1) / 2)
    moved = BOXES.copy()
    moved[0, 0] += 1.9  # the best box of class 0 is wrong, the second one is a hit at precision 1/2
    assert score("detection", reference, {"boxes": moved, "scores": SCORES}) == pytest.approx((0.25 + 1) / 2)
    with pytest.raises(UsageError, match="not boxes"):
        score("detection", {"y": MAPS}, {"y": MAPS})


def test_language_is_the_ratio_of_the_perplexities_of_the_next_tokens() -> None:
    ids, mask = np.array([[0, 1, 1, 0]], np.int64), np.array([[1, 1, 1, 0]], np.int64)
    half, rest = np.log(np.array([[0.5, 0.5]], np.float64)), np.log(np.array([[0.75, 0.25]], np.float64))
    expected, actual = ({"y": np.repeat(row[None], 4, 1).astype(np.float32)} for row in (half, rest))
    # The tokens 1, 1, 0 have the probability 1/2 each, then 1/4, 1/4, 3/4.
    assert score("language", expected, actual, {"ids": ids}) == pytest.approx((3 / 64) ** (1 / 3) / 0.5)
    assert score("language", expected, actual, {"attention_mask": mask, "ids": ids}) == pytest.approx(0.5)
    assert score("language", actual, expected, {"ids": ids}) == 1
    assert score("language", expected, {"y": actual["y"] * np.nan}, {"ids": ids}) == 0
    with pytest.raises(UsageError, match="token ids"):
        score("language", expected, actual, {"ids": ids[:, :2]})


@pytest.mark.parametrize("task", ["regression", "embedding", "text"])
def test_evaluate_measures_the_metric_of_the_task_of_all_outputs(task: str) -> None:
    result = qk.evaluate(two_outputs(0.2), ROWS, two_outputs(0), task=task, batch=4, **RUNTIMES)
    assert result.outputs is not None
    assert result.outputs.metric == TASKS[task].metric
    assert set(result.outputs.sqnr) == {"y", "z"}
    assert 0.3 < result.outputs.score < 1
    assert result.metrics.samples == 11
    assert f"{result.outputs.score:.4f} of the reference model" in str(result)
    assert result.to_json()["outputs"]["task"] == {"metric": TASKS[task].metric, "score": result.outputs.score}
    result.check(min_agreement=result.outputs.score)
    with pytest.raises(CheckError, match=f"{TASKS[task].metric} is 0"):
        result.check(min_agreement=1)


def test_evaluate_measures_the_perplexity_of_a_language_model() -> None:
    result = qk.evaluate(language_model(0.1), {"ids": TOKENS}, language_model(0), task="language", **RUNTIMES)
    equal = qk.evaluate(language_model(0), {"ids": TOKENS}, language_model(0), task="language", **RUNTIMES)
    assert result.outputs is not None
    assert equal.outputs is not None
    assert equal.outputs.score == 1
    assert 0.5 < result.outputs.score <= 1


def test_evaluate_with_a_task_requires_a_fitting_reference() -> None:
    with pytest.raises(UsageError, match="measured with a reference model"):
        qk.evaluate(two_outputs(0), ROWS, task="embedding")
    with pytest.raises(UsageError, match="one process"):
        qk.evaluate(two_outputs(0), ROWS, two_outputs(0), task=TASKS["text"].score, workers=2)
    one_output = two_outputs(0).with_endpoints(["x"], ["y"])
    with pytest.raises(UsageError, match="the reference model"):
        qk.evaluate(two_outputs(0), ROWS, one_output, task="embedding", **RUNTIMES)


def test_counts_of_parts_add_up() -> None:
    metric = find_task("embedding")
    counters = [OutputSqnrCounter(metric) for _ in range(3)]
    other = np.random.default_rng(1).normal(0, 1, MAPS.shape).astype(np.float32)
    ids = np.arange(2)
    for row, counter in enumerate(counters[:2]):
        rows = slice(row, row + 1)
        for each in (counter, counters[2]):
            each.add({"y": MAPS[rows], "i": ids[rows]}, {"y": other[rows], "i": ids[:1]}, {"x": MAPS[rows] + 0.01})
    counters[0].merge(counters[1])
    merged, whole = counters[0].result.to_json(), counters[2].result.to_json()
    assert merged == whole
    assert merged["equal"] == {"i": 0.5}
    assert merged["reconstruction"]


def test_unknown_task_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'segmentaton' is not a task") as caught:
        find_task("segmentaton")
    assert "segmentation" in caught.value.hint
    with pytest.raises(UsageError, match="not a task"):
        qk.quantize("digits", np.zeros((1, 28, 28, 1), np.float32), task="unknown", runs=0)


@pytest.mark.engine
def test_max_drop_limits_the_metric_of_a_function() -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    calls = []

    def nearest(expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]) -> float:
        calls.append(sorted(expected) == sorted(actual))
        return 1 - max(float(np.abs(expected[name] - actual[name]).max()) for name in expected)

    messages: list[str] = []
    data = "assets/digits_heldout.npz"
    result = qk.quantize("digits", data, limit=8, task=nearest, max_drop=0.9, runs=0, on_message=messages.append)
    assert calls
    assert all(calls)
    assert any("--max-drop limits 1 - nearest" in message for message in messages)
    sqnr = result.report.accuracy.sqnr
    assert sqnr is not None
    assert sqnr.metric == "nearest"
    assert result.report.fallback is not None
    assert result.report.fallback.loss.drop == pytest.approx(1 - sqnr.score)
    assert result.to_json()["sqnr"]["task"] == {"metric": "nearest", "score": sqnr.score}
    assert "nearest" in str(result)


@pytest.mark.engine
def test_fine_tuning_is_judged_in_the_metric_of_the_task() -> None:
    for module in ("onnxruntime", "tensorflow"):
        pytest.importorskip(module, reason=f"pip install {module}")
    scheme = {"target": "onnx", "weights": "qint8 symmetric reduce_range"}
    result = qk.quantize(two_outputs(0), ROWS, scheme=scheme, task="regression", finetune=2, runs=0)
    sqnr = result.report.accuracy.sqnr
    assert sqnr is not None
    assert sqnr.metric == "R2"
    assert sqnr.score > 0.9
    assert result.report.fine_tuning is not None


def test_unknown_boxes_name_the_commands_that_work() -> None:
    outputs = {"boxes": np.zeros((1, 8, 4), np.float32), "scores": np.zeros((1, 2, 8), np.float32)}
    with pytest.raises(UsageError) as caught:
        score_detection(outputs, outputs)
    assert "--task regression" in str(caught.value.hint)
    assert "--outputs NAMES" in str(caught.value.hint)


def test_package_adds_a_task_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = """
        import numpy as np
        from quantkit.evaluation.tasks import TaskMetric

        def score(expected, actual):
            return 1 - max(float(np.abs(values - actual[name]).max()) for name, values in expected.items())

        TASK = TaskMetric("margin", "1 - largest difference", score)
        BROKEN = TaskMetric("worst", "", score)
    """
    entry_points = {"margin": "margin_task:TASK", "worst": "margin_task:BROKEN"}
    write_distribution(tmp_path, "margin_task", dedent(source), {"quantkit.tasks": entry_points})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    forget_plugins(REGISTRY)
    try:
        alone = qk.evaluate(two_outputs(0.01), ROWS, two_outputs(0), task="margin", **RUNTIMES)
        pair = qk.evaluate(two_outputs(0.01), ROWS, two_outputs(0), task="margin", workers=2, **RUNTIMES)
        assert alone.outputs is not None
        assert pair.outputs is not None
        assert pair.outputs.metric == alone.outputs.metric == "1 - largest difference"
        assert 0.5 < pair.outputs.score < 1
        with pytest.raises(UnavailableError, match="the field 'metric'"):
            find_task("worst")
        assert any("'metric'" in problem for problem in find_plugin_problems())
        qk.save(two_outputs(0), tmp_path / "a.pb")
        np.save(tmp_path / "rows.npy", ROWS)
        main = import_module("quantkit.cli").main
        arguments = ["evaluate", str(tmp_path / "a.pb"), "--data", str(tmp_path / "rows.npy"), "--task", "margin"]
        assert main([*arguments, "--reference", str(tmp_path / "a.pb"), "--runtime", "reference"]) == 0
        assert "1 - largest difference" in capsys.readouterr().out
    finally:
        forget_plugins(REGISTRY)
        sys.modules.pop("margin_task", None)
