"""Proportions, their intervals, agreement and KL divergence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import UsageError
from quantkit.evaluation.classification_metrics import (
    ClassificationCounter,
    Proportion,
    act_as_class_scores,
    as_probabilities,
    kl_divergences,
)
from quantkit.ir.tensor import Array


@given(st.integers(1, 10_000), st.data())
def test_interval_contains_the_proportion(total: int, data: st.DataObject) -> None:
    proportion = Proportion(data.draw(st.integers(0, total)), total)
    low, high = proportion.interval
    assert 0 <= low <= proportion.value + 1e-12
    assert proportion.value - 1e-12 <= high <= 1


def test_interval_is_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148.
    assert Proportion(81, 263).interval == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert Proportion(15, 148).interval == pytest.approx((0.0624, 0.1605), abs=5e-5)


def test_predictions_are_counted() -> None:
    outputs = np.eye(8, dtype=np.float32)[[0, 1, 2, 3]]
    reference = np.eye(8, dtype=np.float32)[[0, 1, 2, 4]]
    counter = ClassificationCounter()
    counter.add(outputs[:2], [0, 7], reference[:2])
    counter.add(outputs[2:], [None, 4], reference[2:])
    metrics = counter.metrics
    assert metrics.samples == 4
    assert metrics.top1 == Proportion(1, 3)
    # Of equal scores the lower class comes first: 0, 1, 2, 3, 4 are in the top five, 7 is not.
    assert metrics.top5 == Proportion(2, 3)
    assert metrics.agreement == Proportion(3, 4)
    assert metrics.kl_divergence == pytest.approx(np.log(1e9) / 4, rel=1e-6)


def test_unknown_metrics_have_no_value() -> None:
    counter = ClassificationCounter()
    counter.add(np.eye(4, dtype=np.float32))
    metrics = counter.metrics
    assert (metrics.top1, metrics.top5, metrics.agreement, metrics.kl_divergence) == (None, None, None, None)
    assert metrics.to_json()["top1"] is None


def test_outputs_that_are_not_finite_count_as_wrong() -> None:
    reference = np.full((2, 6), 1 / 6, np.float32)
    outputs = reference.copy()
    outputs[1, 3] = np.nan
    counter = ClassificationCounter()
    counter.add(outputs, [0, 0], reference)
    metrics = counter.metrics
    assert (metrics.not_finite, metrics.top1, metrics.agreement) == (1, Proportion(1, 2), Proportion(1, 2))
    assert metrics.kl_divergence == pytest.approx(0, abs=1e-9)


def test_different_class_counts_are_rejected() -> None:
    with pytest.raises(UsageError, match="has 4 classes and the reference model 5"):
        ClassificationCounter().add(np.zeros((1, 4)), [], np.zeros((1, 5)))


def test_softmax_is_applied_to_logits() -> None:
    scores = np.array([[1, 2, 3], [1000, 1000, -1000]], np.float32)
    probabilities = as_probabilities(scores)
    assert probabilities.sum(axis=1) == pytest.approx([1, 1])
    assert probabilities[1].tolist() == [0.5, 0.5, 0.0]
    assert kl_divergences(scores, scores).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("shift", [1, -1])
def test_labels_that_are_shifted_by_one_are_reported(shift: int) -> None:
    classes = np.arange(40) % 8 + 1
    counter = ClassificationCounter()
    counter.add(np.eye(10, dtype=np.float32)[classes], (classes - shift).tolist())
    metrics = counter.metrics
    assert metrics.label_shift == shift
    assert metrics.shifted_top1 is not None
    assert metrics.shifted_top1.value == 1
    (warning,) = metrics.warnings
    assert f"with every label {shift:+d}" in warning
    assert metrics.to_json()["label_shift"] == shift


def test_a_model_at_chance_is_reported_and_a_working_one_is_not() -> None:
    random = np.random.default_rng(0)
    classes = np.arange(60) % 10
    guesses, working = ClassificationCounter(), ClassificationCounter()
    guesses.add(np.eye(10, dtype=np.float32)[random.permutation(classes)], classes.tolist())
    working.add(np.eye(10, dtype=np.float32)[classes], classes.tolist())
    assert guesses.metrics.is_at_chance
    assert "guessing among 10 classes" in guesses.metrics.warnings[0]
    assert not working.metrics.warnings
    few = ClassificationCounter()
    few.add(np.eye(10, dtype=np.float32)[[1, 2]], [3, 4])
    assert not few.metrics.is_at_chance, "two labels do not show it"


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]], np.float32), True),
        (np.array([[8, -3, -5], [-4, 1, 9]], np.float32), True),
        (
            np.array([[0.9, 0.8, 0.1], [0.2, 0.9, 0.5]], np.float32),
            False,
        ),  # sigmoid: several labels, or a reconstruction
        (np.array([[100, 50, 220, 180], [30, 10, 90, 70]], np.float32), False),  # boxes in pixels
        (np.random.default_rng(0).normal(0, 0.1, (5, 128)).astype(np.float32), False),  # embeddings
        (np.array([[1, 0], [0, 1]], np.int32), False),
    ],
)
def test_class_scores_differ_from_other_vectors(outputs: Array, expected: bool) -> None:
    assert act_as_class_scores(outputs) == expected


def test_counts_of_parts_add_up_to_those_of_the_whole() -> None:
    random = np.random.default_rng(3)
    outputs, reference = random.standard_normal((2, 40, 7))
    outputs[5, 2] = np.nan
    labels = [*range(7), None] * 5
    whole = ClassificationCounter()
    whole.add(outputs, labels, reference)
    parts = []
    for part in (slice(24, 40), slice(0, 8), slice(8, 24)):
        counter = ClassificationCounter()
        counter.add(outputs[part], labels[part], reference[part])
        parts.append(counter)
    merged = ClassificationCounter()
    for counter in parts:
        merged.merge(counter)
    assert merged.metrics == whole.metrics
    assert merged.metrics.samples == 40
