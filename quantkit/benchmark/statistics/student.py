"""Student's t interval over processes.

Two processes that run the same model differ in memory layout, page placement and thread placement. The calls of one
process do not show this spread, so that each process contributes one value, and the interval is that of their mean:

    exp(mean ± t(n - 1) · s / √n)        of the logarithms; the interval of 1 / ratio is the inverse of the ratio's

A benchmark examines its intervals after each number of processes in `LOOKS`, and stops at the first that is narrow
enough. The interval on which it stops is more often one that misses the true value (Chow and Robbins 1965; Starr
1966 for few samples). The looks are therefore few and fixed, and each interval is computed with 97 % confidence, as in
group sequential tests (Pocock 1977). In simulations of normal logarithms, at least 95 % of the reported intervals then
contain the true value, for any spread and requested width; 93 % if the difference equals the limit up to which two
latencies count as the same. Between the looks, a benchmark stops only at a difference of 2.5 half-widths, and of four
before the first look: this lowers these fractions by 0.5 points at most, to 94.7 % in the worst case seen, and not for
equal models.
"""

from collections.abc import Sequence
from functools import cache
from math import cos, exp, log, pi, sin, sqrt, tan
from statistics import fmean, stdev

from quantkit.benchmark.statistics.bootstrap import Estimate

# With fewer processes, the factor t of the interval exceeds 4.3, and no difference is visible.
MIN_PROCESSES = 3
# Process counts after which a benchmark may stop without a clear difference.
LOOKS = (5, 10, 20, 40)
# Probability of the intervals of a benchmark, above that of the looks together.
CONFIDENCE = 0.97


@cache
def quantile(probability: float, freedom: int) -> float:
    """Return the limit below which the absolute value of Student's t lies with a probability, by bisection.

    The probability is a finite sum for whole degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).

    >>> round(quantile(0.97, 2), 3), round(quantile(0.95, 30), 3)
    (5.643, 2.042)
    """
    low, high = 0.0, pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        term, total = cos(angle) ** (freedom % 2), 0.0
        for power in range(freedom % 2, freedom - 1, 2):
            total += term
            term *= cos(angle) ** 2 * (power + 1) / (power + 2)
        total *= sin(angle)
        is_below = (2 / pi * (angle + total) if freedom % 2 else total) < probability
        low, high = (angle, high) if is_below else (low, angle)
    return sqrt(freedom) * tan(low)


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
    """Return half the width of the interval of a sum of means (degrees of freedom: Welch and Satterthwaite)."""
    variances = [stdev(sample) ** 2 / len(sample) for sample in samples]
    total = sum(variances)
    if not total:
        return 0.0
    pairs = zip(variances, samples, strict=True)
    freedom = int(total**2 / sum(variance**2 / (len(sample) - 1) for variance, sample in pairs) + 1e-6)
    return quantile(CONFIDENCE, freedom) * sqrt(total)


def _exponential(center: float, half: float) -> Estimate:
    return exp(center), (exp(center - half), exp(center + half))
