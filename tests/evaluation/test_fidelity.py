from math import inf

import numpy as np
import pytest

from quantkit.evaluation.fidelity import FidelityTally


def test_signal_to_noise_of_each_output_over_all_samples() -> None:
    tally = FidelityTally()
    for _ in range(2):
        tally.add(
            {"a": np.full((3, 2), 10.0), "b": np.ones((3, 1))}, {"a": np.full((3, 2), 11.0), "b": np.ones((3, 1))}
        )
    found = tally.fidelity
    assert found.samples == 6
    assert found.decibels == {"a": pytest.approx(20.0), "b": inf}
    assert found.worst == pytest.approx(20.0)
    assert found.error == pytest.approx(0.1)
    assert found.to_json()["signal_to_noise"]["b"] is None
    assert str(found) == "signal to noise of a 20.0 dB, b equal"


def test_samples_that_are_no_numbers_are_counted_and_left_out() -> None:
    tally = FidelityTally()
    tally.add({"a": np.ones((2, 2))}, {"a": np.array([[1.0, np.nan], [1.0, 1.0]])})
    assert tally.fidelity.not_finite == 1
    assert tally.fidelity.decibels == {"a": inf}
    assert tally.fidelity.error == 1
