import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from quantkit.benchmark.statistics.student import CONFIDENCE, LOOKS, geometric_mean, quantile, ratio_of_means

VALUES = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=40)


@given(VALUES, st.floats(0.01, 100))
def test_interval_is_proportional_to_the_values(values: list[float], factor: float) -> None:
    mean, interval = geometric_mean(values)
    scaled_mean, scaled_interval = geometric_mean([factor * value for value in values])
    assert_allclose((scaled_mean, *scaled_interval), np.multiply(factor, (mean, *interval)), rtol=1e-6)


@given(VALUES)
def test_interval_of_the_inverse_is_the_inverse(values: list[float]) -> None:
    mean, (low, high) = geometric_mean(values)
    inverse_mean, (inverse_low, inverse_high) = geometric_mean([1 / value for value in values])
    assert_allclose((inverse_mean, inverse_low, inverse_high), (1 / mean, 1 / high, 1 / low), rtol=1e-6)


def test_quantiles_cover_97_percent_of_normal_samples() -> None:
    """The limit of the quantiles is that of the normal distribution, 2.170."""
    quantiles = [quantile(CONFIDENCE, freedom) for freedom in range(1, 41)]
    assert sorted(quantiles, reverse=True) == quantiles
    assert quantile(CONFIDENCE, 3000) == pytest.approx(2.170, abs=2e-3)
    tabulated = {1: 21.205, 2: 5.643, 3: 3.896, 4: 3.298, 9: 2.574, 19: 2.346, 30: 2.278}
    assert [quantiles[freedom - 1] for freedom in tabulated] == pytest.approx(list(tabulated.values()), abs=1e-3)
    random = np.random.default_rng(0)
    for size in (3, 5, 20, 31):
        samples = random.normal(0.1, 0.3, (4000, size))
        mean, error = samples.mean(axis=1), samples.std(axis=1, ddof=1) / np.sqrt(size)
        covered = np.abs(mean - 0.1) <= quantile(CONFIDENCE, size - 1) * error
        assert covered.mean() == pytest.approx(0.97, abs=0.01)


@pytest.mark.parametrize("target", [1.2, 0.8, 0.6, 0.5, 0.4])
def test_interval_of_a_requested_width_covers_95_percent(target: float) -> None:
    """The first look whose interval is narrow enough ends each simulated benchmark."""
    samples = np.random.default_rng(2).normal(0, 1, (8000, LOOKS[-1]))
    covered, stopped = np.zeros(len(samples), bool), np.zeros(len(samples), bool)
    for look in LOOKS:
        part = samples[:, :look]
        half = quantile(CONFIDENCE, look - 1) * part.std(axis=1, ddof=1) / np.sqrt(look)
        stops = ~stopped & ((half <= target) | (look == LOOKS[-1]))
        covered[stops] = np.abs(part.mean(axis=1)[stops]) <= half[stops]
        stopped |= stops
    assert 0.948 <= covered.mean() <= 0.98


@pytest.mark.parametrize(("size", "other"), [(5, 5), (3, 20)])
def test_interval_of_a_ratio_of_independent_processes(size: int, other: int) -> None:
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        first, second = random.lognormal(0.2, 0.1, size), random.lognormal(0.0, 0.1, other)
        _, (low, high) = ratio_of_means(first.tolist(), second.tolist())
        hits += low <= np.exp(0.2) <= high
    assert hits >= 372


def test_more_processes_narrow_the_interval() -> None:
    values = [1.0, 1.1, 0.9]
    (low, high), (narrow_low, narrow_high) = geometric_mean(values)[1], geometric_mean(values * 4)[1]
    assert low < narrow_low < narrow_high < high
