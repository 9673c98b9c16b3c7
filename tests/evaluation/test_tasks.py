"""Metrics of tasks, with the float model as the reference."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import UsageError
from quantkit.evaluation.tasks import TASKS, find_task

BOXES = np.float32([[[0, 0, 2, 2], [4, 4, 6, 6], [8, 8, 9, 9]]])
SCORES = np.float32([[[0.9, 0.1], [0.8, 0.2], [0.1, 0.7]]])
MAPS = np.random.default_rng(0).normal(0, 1, (2, 3, 8, 8)).astype(np.float32)


def score(task: str, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> float:
    metric = find_task(task)
    assert metric is not None
    return metric.score(expected, actual)


@pytest.mark.parametrize("task", sorted(set(TASKS) - {"detection"}))
def test_equal_outputs_have_score_1_and_other_outputs_less(task: str) -> None:
    assert score(task, {"y": MAPS}, {"y": MAPS}) == pytest.approx(1)
    other = np.random.default_rng(1).normal(0, 1, MAPS.shape).astype(np.float32)
    assert 0 <= score(task, {"y": MAPS}, {"y": other}) < 0.8


def test_segmentation_is_the_mean_iou_of_the_classes() -> None:
    expected = np.float32([0, 0, 1, 1]).reshape(1, 2, 2)
    actual = np.float32([0, 1, 1, 1]).reshape(1, 2, 2)
    assert score("segmentation", {"y": expected}, {"y": actual}) == pytest.approx((1 / 2 + 2 / 3) / 2)
    channels_last = MAPS.transpose(0, 2, 3, 1)
    assert score("segmentation", {"y": MAPS}, {"y": -MAPS}) == pytest.approx(
        score("segmentation", {"y": channels_last}, {"y": -channels_last})
    )


def test_regression_is_the_worst_coefficient_of_determination() -> None:
    expected = {"a": np.float32([1, 2, 3]), "b": np.float32([0, 4])}
    assert score("regression", expected, {"a": np.float32([1, 2, 4]), "b": np.float32([0, 4])}) == pytest.approx(0.5)
    assert score("regression", expected, {"a": np.float32([9, 9, 9]), "b": np.float32([0, 4])}) == 0


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
