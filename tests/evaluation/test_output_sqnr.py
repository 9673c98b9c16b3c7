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
