"""Shares, their intervals, and the divergence of answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import UsageError
from quantkit.evaluation.quality import Share, Tally, as_probabilities, divergences


@given(st.integers(1, 10_000), st.data())
def test_the_interval_holds_the_share(total: int, data: st.DataObject) -> None:
    share = Share(data.draw(st.integers(0, total)), total)
    low, high = share.interval
    assert 0 <= low <= share.value + 1e-12
    assert share.value - 1e-12 <= high <= 1


def test_the_interval_is_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148.
    assert Share(81, 263).interval == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert Share(15, 148).interval == pytest.approx((0.0624, 0.1605), abs=5e-5)


def test_answers_are_counted() -> None:
    answers = np.eye(8, dtype=np.float32)[[0, 1, 2, 3]]
    reference = np.eye(8, dtype=np.float32)[[0, 1, 2, 4]]
    tally = Tally()
    tally.add(answers[:2], [0, 7], reference[:2])
    tally.add(answers[2:], [None, 4], reference[2:])
    quality = tally.quality
    assert quality.samples == 4
    assert quality.top1 == Share(1, 3)
    # Of equal numbers the lower class comes first: 0, 1, 2, 3, 4 are among five, 7 is not.
    assert quality.top5 == Share(2, 3)
    assert quality.agreement == Share(3, 4)
    assert quality.divergence == pytest.approx(np.log(1e9) / 4, rel=1e-6)


def test_what_is_not_known_is_none() -> None:
    tally = Tally()
    tally.add(np.eye(4, dtype=np.float32))
    quality = tally.quality
    assert (quality.top1, quality.top5, quality.agreement, quality.divergence) == (None, None, None, None)
    assert quality.to_json()["top1"] is None


def test_answers_that_are_no_numbers_are_wrong() -> None:
    reference = np.full((2, 6), 1 / 6, np.float32)
    answers = reference.copy()
    answers[1, 3] = np.nan
    tally = Tally()
    tally.add(answers, [0, 0], reference)
    quality = tally.quality
    assert (quality.not_finite, quality.top1, quality.agreement) == (1, Share(1, 2), Share(1, 2))
    assert quality.divergence == pytest.approx(0, abs=1e-9)


def test_other_classes_are_refused() -> None:
    with pytest.raises(UsageError, match="gives 4 numbers and its reference 5"):
        Tally().add(np.zeros((1, 4)), [], np.zeros((1, 5)))


def test_scores_become_probabilities() -> None:
    scores = np.float32([[1, 2, 3], [1000, 1000, -1000]])
    found = as_probabilities(scores)
    assert found.sum(axis=1) == pytest.approx([1, 1])
    assert found[1].tolist() == [0.5, 0.5, 0.0]
    assert divergences(scores, scores).tolist() == [0.0, 0.0]
