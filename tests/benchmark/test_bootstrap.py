from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from quantkit.benchmark.statistics.bootstrap import Estimate, _medians, median_interval, paired_ratio, unpaired_ratio

SECONDS = st.floats(1e-6, 1e3)
BLOCKS = st.lists(st.lists(SECONDS, min_size=1, max_size=6), min_size=5, max_size=9)


@given(BLOCKS)
def test_each_block_once_is_the_median(blocks: list[list[float]]) -> None:
    values = [value for block in blocks for value in block]
    assert_allclose(_medians(blocks, np.ones((1, len(blocks)), int)), [np.median(values)])


@given(BLOCKS, st.data())
def test_repeated_blocks_count_repeatedly(blocks: list[list[float]], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 3), min_size=len(blocks), max_size=len(blocks)))
    repeated = [value for block, count in zip(blocks, counts, strict=True) for value in block * count]
    assert_allclose(_medians(blocks, np.array([counts])), [np.median(repeated)])


@given(BLOCKS)
def test_interval_is_within_the_samples(blocks: list[list[float]]) -> None:
    low, high = median_interval(blocks)
    values = [value for block in blocks for value in block]
    assert min(values) <= low <= high <= max(values)


@given(BLOCKS, st.integers(0, 99))
def test_equal_seeds_give_equal_intervals(blocks: list[list[float]], seed: int) -> None:
    assert median_interval(blocks, seed) == median_interval(blocks, seed)


@given(BLOCKS)
def test_interval_is_proportional_to_the_samples(blocks: list[list[float]]) -> None:
    doubled = [[2 * value for value in block] for block in blocks]
    assert_allclose(median_interval(doubled), np.multiply(2, median_interval(blocks)))


@given(BLOCKS)
def test_ratio_of_a_model_to_itself_is_one(blocks: list[list[float]]) -> None:
    assert paired_ratio(blocks, blocks) == (1.0, (1.0, 1.0))


@given(BLOCKS, st.floats(0.1, 10.0))
def test_constant_ratio_has_an_interval_of_width_zero(blocks: list[list[float]], factor: float) -> None:
    slower = [[factor * value for value in block] for block in blocks]
    ratio, interval = paired_ratio(slower, blocks)
    assert_allclose((ratio, *interval), (factor,) * 3)


def test_pairing_cancels_disturbances_of_a_round() -> None:
    disturbance = [1.0, 1.5, 1.0, 3.0, 1.2, 1.0, 2.0, 1.1, 1.0, 1.7]
    first = [[2 * slow] * 3 for slow in disturbance]
    other = [[1 * slow] * 3 for slow in disturbance]
    assert paired_ratio(first, other)[1] == pytest.approx((2.0, 2.0))
    low, high = unpaired_ratio(first, other)[1]
    assert high - low > 0.5


def test_too_few_rounds_are_not_paired() -> None:
    first, other = [[2.0, 2.2], [2.1, 1.9]], [[1.0, 1.1], [1.05, 0.95]]
    assert paired_ratio(first, other) == unpaired_ratio(first, other)


@pytest.mark.parametrize("estimate", [paired_ratio, unpaired_ratio])
def test_interval_contains_the_true_ratio_with_its_confidence(estimate: Callable[..., Estimate]) -> None:
    random = np.random.default_rng(7)
    trials, hits = 60, 0
    for _ in range(trials):
        disturbance = random.lognormal(0, 0.2, (20, 1)) if estimate is paired_ratio else 1.0
        first = 1.1 * disturbance * random.lognormal(0, 0.1, (20, 5))
        other = disturbance * random.lognormal(0, 0.1, (20, 5))
        _, (low, high) = estimate(first.tolist(), other.tolist())
        hits += low <= 1.1 <= high
    # The confidence of 95 % holds in the limit; with 20 rounds, bootstrap intervals are narrower.
    assert hits >= 0.85 * trials
