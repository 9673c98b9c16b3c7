"""Observed values with few significant bits, which hide the last bits of the runtime."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.quantization.ranges import Range
from quantkit.quantization.significant_bits import RANGE_BITS, round_means, round_range, round_scales

LIMITS = st.floats(-1e6, 1e6, width=32)


@given(LIMITS, LIMITS)
def test_a_range_contains_the_observed_one_and_is_little_wider(first: float, second: float) -> None:
    observed = Range(min(first, second, 0.0), max(first, second, 0.0))
    rounded = round_range(observed)
    width = max(-observed.low, observed.high, observed.high - observed.low)
    slack = width * 2.0 ** -(RANGE_BITS + 8)
    assert rounded.low <= observed.low + slack
    assert rounded.high >= observed.high - slack
    assert rounded.high - rounded.low <= (observed.high - observed.low) + 2 * width * 2.0 ** (1 - RANGE_BITS)
    assert round_range(rounded) == rounded


def test_most_ranges_and_means_hide_the_rounding_of_kernels() -> None:
    random = np.random.default_rng(0)
    num_changed = 0
    for _ in range(2000):
        low, high = -float(random.gamma(2)), float(random.gamma(2))
        means = random.uniform(low, high, 8)
        moved = Range(low * (1 + 3e-7), high * (1 - 3e-7))
        num_changed += round_range(Range(low, high)) != round_range(moved)
        limits = round_range(Range(low, high))
        num_changed += round_means(tuple(means), limits) != round_means(tuple(means * (1 + 1e-8)), limits)
    assert num_changed <= 10


@pytest.mark.parametrize("limits", [(0.0, 6.0), (-1.0, 0.9921875), (0.0, 1.0), (0.0, 0.0), (-3.0, 4.0)])
def test_values_of_few_bits_stay(limits: tuple[float, float]) -> None:
    near = Range(limits[0] * (1 + 1e-7), limits[1] * (1 - 1e-7))
    assert round_range(Range(*limits)) == round_range(near) == Range(*limits)


def test_scales_keep_their_size() -> None:
    scales = np.exp(np.random.default_rng(0).normal(0, 3, 500))
    rounded = round_scales(scales)
    np.testing.assert_allclose(rounded, scales, rtol=2.0**-7)
    assert (rounded > 0).all()
    np.testing.assert_array_equal(round_scales(rounded), rounded)
