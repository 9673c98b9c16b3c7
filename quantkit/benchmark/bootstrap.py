"""Intervals by resampling: how far would the number move, had other rounds been drawn?

Times of neighbouring calls resemble each other (the same clock frequency, the same neighbour on the
machine), so whole blocks of calls are drawn, not single ones. Where two models took turns, what disturbed
a round disturbed both: the ratio is taken within each round, and rounds are drawn.
"""

from collections.abc import Sequence
from statistics import median

import numpy as np

from quantkit.ir.tensor import Array

RESAMPLES = 2000
# Fewer blocks than this say nothing about how blocks differ; single calls are drawn then.
FEWEST_BLOCKS = 5

Blocks = Sequence[Sequence[float]]
Interval = tuple[float, float]
Estimate = tuple[float, Interval]


def median_interval(blocks: Blocks, seed: int = 0, confidence: float = 0.95) -> Interval:
    """Percentile bootstrap interval of the median over all calls.

    Args:
        blocks: seconds of the calls of each block.
        seed: of the draws; equal seeds give equal intervals.
        confidence: share of resampled medians inside.
    """
    blocks = _resamplable(blocks)
    counts = _draws(len(blocks), np.random.default_rng(seed))
    return _middle(_medians(blocks, counts), confidence)


def paired_ratio(numerator: Blocks, denominator: Blocks, seed: int = 0, confidence: float = 0.95) -> Estimate:
    """The ratio of two models that ran in the same rounds: the median, over the rounds, of each round's ratio.

    Args:
        numerator, denominator: seconds of the calls of each block; equal indices ran in one round.
        seed: of the draws.
        confidence: share of resampled ratios inside.

    Returns:
        The ratio, and its percentile bootstrap interval.
    """
    rounds = min(len(numerator), len(denominator))
    if rounds < FEWEST_BLOCKS:
        return unpaired_ratio(numerator, denominator, seed, confidence)
    pairs = zip(numerator[:rounds], denominator[:rounds], strict=True)
    ratios = [[median(upper) / median(lower)] for upper, lower in pairs]
    return median(ratio for (ratio,) in ratios), median_interval(ratios, seed, confidence)


def unpaired_ratio(numerator: Blocks, denominator: Blocks, seed: int = 0, confidence: float = 0.95) -> Estimate:
    """The ratio of two medians of models that ran at different times.

    Args:
        numerator, denominator: seconds of the calls of each block.
        seed: of the draws.
        confidence: share of resampled ratios inside.

    Returns:
        The ratio, and its percentile bootstrap interval.
    """
    random = np.random.default_rng(seed)
    drawn = [_medians(blocks, _draws(len(blocks), random)) for blocks in map(_resamplable, (numerator, denominator))]
    whole = [median(seconds for block in blocks for seconds in block) for blocks in (numerator, denominator)]
    return whole[0] / whole[1], _middle(drawn[0] / drawn[1], confidence)


def _resamplable(blocks: Blocks) -> Blocks:
    return blocks if len(blocks) >= FEWEST_BLOCKS else [[seconds] for block in blocks for seconds in block]


def _draws(count: int, random: "np.random.Generator") -> Array:
    """How often each of ``count`` blocks is drawn: (RESAMPLES, count) int."""
    draws: Array = random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return draws


def _medians(blocks: Blocks, counts: Array) -> Array:
    """Median over all calls, each block taken ``counts`` times.

    Args:
        blocks: b blocks.
        counts: (r, b) int.

    Returns:
        (r,) float64.
    """
    owners = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    values = np.concatenate([np.asarray(block, np.float64) for block in blocks])
    order = np.argsort(values, kind="stable")
    values = values[order]
    reached = np.cumsum(counts[:, owners[order]], axis=1)
    half = reached[:, -1:] / 2
    low = values[np.argmax(reached >= half, axis=1)]
    high = values[np.argmax(reached > half, axis=1)]
    middle: Array = (low + high) / 2
    return middle


def _middle(values: Array, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return float(low), float(high)
