"""Upper bounds on percentiles of the latency, as in MLPerf's loadgen (early stopping, tolerance 0).

The t-th slowest of n calls is an upper bound on percentile p with 99 % confidence if

    P(Binomial(n, 1 - p) <= t) <= 0.01        with the largest such t, at least 1

Fewer calls than `needed_calls` give no bound: 11 for p50, 64 for p90, 130 for p95, 662 for p99, 6636 for p99.9.
"""

from collections.abc import Sequence
from math import exp, lgamma, log

CONFIDENCE = 0.99
# Percentiles of a report, by name.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


def percentile_bound(seconds: Sequence[float], percentile: float) -> float | None:
    """Return the upper bound on a percentile; None for too few calls.

    Args:
        seconds: latency of each call.
        percentile: fraction of the calls in (0, 1).

    >>> percentile_bound([0.1] * 63 + [0.2], 0.9), percentile_bound([0.1] * 63, 0.9)
    (0.2, None)
    """
    discarded = _discarded_calls(len(seconds), percentile)
    return sorted(seconds)[-discarded] if discarded else None


def needed_calls(percentile: float) -> int:
    """Return the smallest number of calls with a bound.

    >>> [needed_calls(percentile) for percentile in PERCENTILES.values()]
    [11, 64, 130, 662, 6636]
    """
    low, high = 1, 2
    while not _discarded_calls(high, percentile):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _discarded_calls(middle, percentile) else (middle, high)
    return high


def _discarded_calls(count: int, percentile: float) -> int:
    """Return the largest t of the module's formula; 0 for too few calls."""
    probability = 0.0
    for slow in range(count + 1):
        probability += exp(_log_binomial(count, slow) + slow * log(1 - percentile) + (count - slow) * log(percentile))
        if probability > 1 - CONFIDENCE:
            return max(slow - 1, 0)
    return 0


def _log_binomial(count: int, slow: int) -> float:
    return lgamma(count + 1) - lgamma(slow + 1) - lgamma(count - slow + 1)
