import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quantkit.errors import RecipeError
from quantkit.ir.graph import Graph, constant
from quantkit.transforms.precision.round_weights import round_weights

Floats = npt.NDArray[np.float32]
floats = arrays.arrays(np.float32, st.integers(16, 60), elements=st.floats(-(2.0**40), 2.0**40, width=32))


def round_values(values: npt.ArrayLike, num_steps: int = 256) -> Floats:
    graph = Graph.of([constant("w", np.asarray(values, np.float32))], [], ["w"])
    array: Floats = round_weights(graph, num_steps=num_steps)["w"].value.array
    return array


@given(floats, st.integers(1, 300))
def test_error_is_half_a_step_and_values_are_few(values: Floats, num_steps: int) -> None:
    after = round_values(values, num_steps)
    step = float(np.ptp(values.astype(np.float64))) / num_steps
    # Adjacent subnormal numbers have no midpoint.
    slack = 1e-5 * float(np.abs(values).max()) + float(np.finfo(np.float32).smallest_subnormal)
    assert len(np.unique(after)) <= num_steps
    assert np.abs(after.astype(np.float64) - values).max() <= step / 2 + slack
    assert values.min() - slack <= after.min()
    assert after.max() <= values.max() + slack


def test_values_become_midpoints_of_steps() -> None:
    values = np.array([0, 0.9, 1, 1.9, 2, 2.5, 3, 3.5, 4, 4, 4, 4, 4, 4, 4, 4], np.float32)
    assert round_values(values, 4).tolist() == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5, 3.5, 3.5, *[3.5] * 8]


@pytest.mark.parametrize("values", [np.zeros(16), np.full(16, 3.0), np.arange(15), np.full(20, np.nan)])
def test_constant_small_and_nan_tensors_stay(values: npt.NDArray[np.float64]) -> None:
    np.testing.assert_array_equal(round_values(values, 4), values.astype(np.float32))


def test_infinite_values_stay_and_others_round() -> None:
    values = np.array([np.inf, -np.inf, np.nan, *range(17)], np.float32)
    after = round_values(values, 4)
    np.testing.assert_array_equal(after[:3], values[:3])
    assert set(after[3:]) == {2, 6, 10, 14}


def test_integers_stay() -> None:
    graph = Graph.of([constant("w", np.arange(100, dtype=np.int32))], [], ["w"])
    assert round_weights(graph) == graph


def test_zero_steps_are_rejected() -> None:
    with pytest.raises(RecipeError, match="num_steps must be at least 1, not 0"):
        round_values(np.arange(16), 0)
