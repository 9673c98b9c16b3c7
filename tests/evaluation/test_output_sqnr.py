from math import inf

import numpy as np
import pytest

from quantkit.evaluation.output_sqnr import OutputSqnrCounter


def test_sqnr_of_each_output_over_all_samples() -> None:
    counter = OutputSqnrCounter()
    for _ in range(2):
        counter.add(
            {"a": np.full((3, 2), 10.0), "b": np.ones((3, 1))}, {"a": np.full((3, 2), 11.0), "b": np.ones((3, 1))}
        )
    result = counter.result
    assert result.samples == 6
    assert result.sqnr == {"a": pytest.approx(20.0), "b": inf}
    assert result.worst == pytest.approx(20.0)
    assert result.error == pytest.approx(0.1)
    assert result.to_json()["sqnr"]["b"] is None
    assert str(result) == "SQNR of a 20.0 dB, b equal"


def test_samples_that_are_not_finite_are_counted_and_skipped() -> None:
    counter = OutputSqnrCounter()
    counter.add({"a": np.ones((2, 2))}, {"a": np.array([[1.0, np.nan], [1.0, 1.0]])})
    assert counter.result.not_finite == 1
    assert counter.result.sqnr == {"a": inf}
    assert counter.result.error == 1


def test_an_output_that_is_never_of_equal_size_is_not_near() -> None:
    """Its values are compared in no sample, however little the sizes differ."""
    counter = OutputSqnrCounter()
    counter.add({"boxes": np.ones((1, 200))}, {"boxes": np.zeros((1, 199))})
    never = counter.result
    assert never.error == pytest.approx(0.005)
    assert not never.is_near(20, 0.98)
    counter.add({"boxes": np.ones((1, 200))}, {"boxes": np.ones((1, 200))})
    once = counter.result
    assert once.is_near(20, 0.98)


def test_integers_are_compared_by_the_fraction_of_equal_values() -> None:
    counter = OutputSqnrCounter()
    mask = np.arange(10, dtype=np.int32).reshape(1, 10)
    counter.add({"mask": mask, "map": np.ones((1, 4))}, {"mask": mask - (mask == 9), "map": np.ones((1, 4))})
    result = counter.result
    assert result.sqnr == {"map": inf}
    assert result.equal == {"mask": 0.9}
    assert result.error == pytest.approx(0.1)
    assert not result.is_near(20, 0.98)
    assert result.is_near(20, 0.9)
    assert str(result) == "SQNR of map equal; equal values of mask 90.0 %"
    assert result.to_json()["equal"] == {"mask": 0.9}


def test_an_unchanged_reconstruction_error_is_not_a_difference() -> None:
    random = np.random.default_rng(0)
    image = random.normal(0, 1, (1, 1000))
    blurred = image + random.normal(0, 0.5, image.shape)
    noisy = blurred + random.normal(0, 0.12, image.shape)
    counter = OutputSqnrCounter()
    counter.add({"y": blurred}, {"y": noisy}, {"x": image})
    result = counter.result
    assert result.worst < 20
    assert result.reconstruction["y"] == pytest.approx((0.5, 0.51), rel=0.1)
    assert result.is_near(20, 1)
    worse = OutputSqnrCounter()
    worse.add({"y": blurred}, {"y": blurred + random.normal(0, 0.6, image.shape)}, {"x": image})
    assert not worse.result.is_near(20, 1)
