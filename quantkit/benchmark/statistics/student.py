"""Student's t interval over processes.

Two processes that run the same model differ in memory layout, page placement and thread placement. The calls of one
process do not show this spread, so that each process contributes one value, and the interval is that of their mean:

    exp(mean ± t(n - 1) · s / √n)        of the logarithms; the interval of 1 / ratio is the inverse of the ratio's
"""

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean, stdev

from quantkit.benchmark.statistics.bootstrap import Estimate

# With fewer processes, the factor t of the interval exceeds 4.3, and no difference is visible.
MIN_PROCESSES = 3
# Two-sided 95 % quantiles of Student's t distribution for 1, 2, ... degrees of freedom.
QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def geometric_mean(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of positive values, one per process, and its 95 % interval.

    >>> geometric_mean([2.0, 2.0, 2.0])
    (2.0, (2.0, 2.0))
    """
    logarithms = [log(value) for value in values]
    return _exponential(fmean(logarithms), _half_width([logarithms]))


def ratio_of_means(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """Return the ratio of two geometric means of independent processes, and its 95 % interval.

    Args:
        numerator, denominator: positive values, one per process; at least two of each.
    """
    samples = [[log(value) for value in values] for values in (numerator, denominator)]
    return _exponential(fmean(samples[0]) - fmean(samples[1]), _half_width(samples))


def _half_width(samples: Sequence[Sequence[float]]) -> float:
    """Return half the width of the interval of a sum of means; the smallest sample gives the degrees of freedom."""
    freedom = min(map(len, samples)) - 1
    quantile = QUANTILES[min(freedom, len(QUANTILES)) - 1]
    return quantile * sqrt(sum(stdev(sample) ** 2 / len(sample) for sample in samples))


def _exponential(center: float, half: float) -> Estimate:
    return exp(center), (exp(center - half), exp(center + half))
