"""Bootstrap confidence intervals of medians and ratios.

The latencies of consecutive calls are correlated (clock frequency, other programs), so that whole blocks of calls are
resampled instead of single calls. If two models ran in the same rounds, a disturbance affects both: the ratio is
computed within each round, and rounds are resampled.
"""

from collections.abc import Sequence
from statistics import median

import numpy as np

from quantkit.ir.tensor import Array

RESAMPLES = 2000
# With fewer blocks, their variance is unknown, and single calls are resampled.
MIN_BLOCKS = 5

Blocks = Sequence[Sequence[float]]
Interval = tuple[float, float]
Estimate = tuple[float, Interval]


def median_interval(blocks: Blocks, seed: int = 0) -> Interval:
    """Return the 95 % percentile bootstrap interval of the median over all calls.

    Args:
        blocks: seconds of the calls of each block.
        seed: seed of the resampling.
    """
    blocks = _split_few_blocks(blocks)
    counts = _draw_counts(len(blocks), np.random.default_rng(seed))
    return _percentile_interval(_medians(blocks, counts))


def paired_ratio(numerator: Blocks, denominator: Blocks, seed: int = 0) -> Estimate:
    """Return the median of the ratios in each round, for two models that ran in the same rounds.

    Args:
        numerator, denominator: seconds of the calls of each block; blocks of one index ran in one round.
        seed: seed of the resampling.

    Returns:
        The ratio and its 95 % percentile bootstrap interval.
    """
    rounds = min(len(numerator), len(denominator))
    if rounds < MIN_BLOCKS:
        return unpaired_ratio(numerator, denominator, seed)
    pairs = zip(numerator[:rounds], denominator[:rounds], strict=True)
    ratios = [[median(upper) / median(lower)] for upper, lower in pairs]
    return median(ratio for (ratio,) in ratios), median_interval(ratios, seed)


def unpaired_ratio(numerator: Blocks, denominator: Blocks, seed: int = 0) -> Estimate:
    """Return the ratio of two medians, for models that ran at different times.

    Args:
        numerator, denominator: seconds of the calls of each block.
        seed: seed of the resampling.

    Returns:
        The ratio, and its 95 % percentile bootstrap interval.
    """
    random = np.random.default_rng(seed)
    samples = [
        _medians(blocks, _draw_counts(len(blocks), random))
        for blocks in map(_split_few_blocks, (numerator, denominator))
    ]
    medians = [median(seconds for block in blocks for seconds in block) for blocks in (numerator, denominator)]
    return medians[0] / medians[1], _percentile_interval(samples[0] / samples[1])


def _split_few_blocks(blocks: Blocks) -> Blocks:
    """Return the blocks, or a block for each call if there are few."""
    return blocks if len(blocks) >= MIN_BLOCKS else [[seconds] for block in blocks for seconds in block]


def _draw_counts(count: int, random: "np.random.Generator") -> Array:
    """Return the multiplicity of each of ``count`` blocks in each resample: (RESAMPLES, count) int."""
    counts: Array = random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return counts


def _medians(blocks: Blocks, counts: Array) -> Array:
    """Return the median over all calls, with ``counts`` copies of each block.

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
    cumulative = np.cumsum(counts[:, owners[order]], axis=1)
    half = cumulative[:, -1:] / 2
    low = values[np.argmax(cumulative >= half, axis=1)]
    high = values[np.argmax(cumulative > half, axis=1)]
    middle: Array = (low + high) / 2
    return middle


def _percentile_interval(values: Array) -> Interval:
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
