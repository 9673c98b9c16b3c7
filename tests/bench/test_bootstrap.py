import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from quantkit.bench.bootstrap import _medians, median_interval, ratio_interval

SECONDS = st.floats(1e-6, 1e3)
BLOCKS = st.lists(st.lists(SECONDS, min_size=1, max_size=6), min_size=5, max_size=9)


@given(BLOCKS)
def test_every_block_once_gives_the_median(blocks: list[list[float]]) -> None:
    values = [value for block in blocks for value in block]
    assert_allclose(_medians(blocks, np.ones((1, len(blocks)), int)), [np.median(values)])


@given(BLOCKS, st.data())
def test_blocks_taken_several_times_count_as_often(blocks: list[list[float]], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 3), min_size=len(blocks), max_size=len(blocks)))
    repeated = [value for block, count in zip(blocks, counts, strict=True) for value in block * count]
    assert_allclose(_medians(blocks, np.array([counts])), [np.median(repeated)])


@given(BLOCKS)
def test_the_interval_lies_among_the_samples(blocks: list[list[float]]) -> None:
    low, high = median_interval(blocks)
    values = [value for block in blocks for value in block]
    assert min(values) <= low <= high <= max(values)


@given(BLOCKS, st.integers(0, 99))
def test_equal_seeds_give_equal_intervals(blocks: list[list[float]], seed: int) -> None:
    assert median_interval(blocks, seed) == median_interval(blocks, seed)


@given(BLOCKS)
def test_the_unit_of_time_does_not_matter(blocks: list[list[float]]) -> None:
    doubled = [[2 * value for value in block] for block in blocks]
    assert_allclose(median_interval(doubled), np.multiply(2, median_interval(blocks)))


@given(BLOCKS)
def test_a_model_against_itself_is_exactly_as_fast(blocks: list[list[float]]) -> None:
    assert ratio_interval(blocks, blocks, is_paired=True) == (1.0, 1.0)


def test_pairing_cancels_what_disturbed_a_whole_round() -> None:
    disturbance = [1.0, 1.5, 1.0, 3.0, 1.2, 1.0, 2.0, 1.1, 1.0, 1.7]
    first = [[2 * slow] * 3 for slow in disturbance]
    other = [[1 * slow] * 3 for slow in disturbance]
    paired = ratio_interval(first, other, is_paired=True)
    independent = ratio_interval(first, other, is_paired=False)
    assert paired == pytest.approx((2.0, 2.0))
    assert independent[1] - independent[0] > 0.5


def test_the_interval_of_the_ratio_holds_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    trials, hits = 60, 0
    for _ in range(trials):
        disturbance = random.lognormal(0, 0.2, (20, 1))
        first = 1.1 * disturbance * random.lognormal(0, 0.1, (20, 5))
        other = disturbance * random.lognormal(0, 0.1, (20, 5))
        low, high = ratio_interval(first.tolist(), other.tolist(), is_paired=True)
        hits += low <= 1.1 <= high
    # 95 % is promised in the limit; with 20 rounds a bootstrap is a little narrow.
    assert hits >= 0.85 * trials
