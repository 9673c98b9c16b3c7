"""Drop of the accuracy of a candidate against the float model, with an upper limit at 95 % confidence.

    labels          fraction of samples that the float model classifies correctly and the candidate does not, less the
                    fraction of the reverse
    class scores    fraction of samples whose most probable class differs
    otherwise       1 - metric of the task, the mean over the samples (without a task: R2 of the outputs)

The limits of fractions are exact (Clopper and Pearson 1934): n samples without a loss show no less than 3 / n. The
margins of the samples show more. With m the distance of the two highest scores of the float model, d the largest change
towards another class (relative to the distance of that class, times m), and h the median of m, the first-order
probability of another class is

    P(m < d) <= F * P(m <= h) * E[d | m <= h] / h

if the density of m near 0 is at most F times its mean below h: 1 if it rises from 0, as for a network that is sure of
most samples, 1.4 if it falls exponentially, as for scores without any knowledge; F = 1.5. This limit holds for errors
that are small against h: without a change of another sample by half of its margin. Of the limits that hold, the lower
one is used.

The limits of means are Student's. The limit of the k-th candidate on the same samples is exceeded with probability
ALPHA / (k (k + 1)), and in addition with the probabilities of the candidates directly before it whose limits are within
the bound (fallback procedure of Wiens, Pharmaceutical Statistics 2, 2003). Each limit alone holds with more than the
stated confidence. Together, with the stated confidence, all int8 and bfloat16 candidates whose limits are within the
bound are within it, for any number of them; limits beyond the bound are not limited together.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import ceil, exp, lgamma, log, log1p, sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np

from quantkit.benchmark.statistics.student import quantile
from quantkit.evaluation.classification_metrics import SUM_TOLERANCE
from quantkit.evaluation.tasks import TASKS
from quantkit.ir.tensor import Array
from quantkit.quantization.workflow.float_reference import ComparedRun, FloatReference, flatten
from quantkit.runtimes.session import Session

# Probability that a limit is exceeded.
ALPHA = 0.05
# Metric of outputs other than class scores, without a task of the caller.
DEFAULT_TASK = "regression"
# Bound on the density of the margins near 0, relative to its mean below the median: `F` above.
DENSITY = 1.5
# Largest change of the samples above the median margin, relative to the distance of the class: errors are small.
MOST_CHANGE = 0.5
# Fewest values of a mean with a limit: the values of fewer samples are not nearly normal.
FEWEST = 5
# Quantized probabilities below this one are rounding errors.
LEAST_PROBABILITY = 1e-3


@dataclass(frozen=True)
class Drop:
    """Drop of the accuracy on samples that were not used to choose.

    Attributes:
        metric: metric that drops: ``top-1``, ``agreement``, or the metric of the task.
        value: measured drop, a fraction.
        high: upper limit of the drop at 95 % confidence.
        samples: number of samples.
    """

    metric: str
    value: float
    high: float
    samples: int

    def __str__(self) -> str:
        return f"drop {self.value:.4f} of the {self.metric} (at most {self.high:.4f}, {self.samples} samples)"

    def to_json(self) -> dict[str, Any]:
        """Return the values of `drop` in the document of ``quantkit optimize --json``."""
        return asdict(self)


def compute_alpha(earlier: Iterable[bool]) -> float:
    """Return the accepted probability that the limit of the next candidate on the same samples is exceeded.

    Args:
        earlier: for each candidate before it, in order: True if its limit is within the bound.

    >>> [round(ALPHA / compute_alpha(earlier), 2) for earlier in ([], [False], [True], [False, True])]
    [2.0, 6.0, 1.5, 4.0]
    """
    alpha = ALPHA / 2
    for position, is_within in enumerate(earlier, 2):
        alpha = (alpha if is_within else 0) + ALPHA / (position * (position + 1))
    return alpha


def measure_drop(session: Session, reference: FloatReference, alpha: float) -> Drop:
    """Run a candidate on the samples of a float model, and return its drop.

    Args:
        session: session of the candidate.
        reference: outputs of the float model on samples that were not used to choose.
        alpha: probability that the limit is exceeded.
    """
    name = reference.score_output
    if name is not None:
        return _count_losses(reference.runs(session), name, alpha, has_labels=reference.top1 is not None)
    task = reference.task or TASKS[DEFAULT_TASK]
    drops: list[float] = []
    for run in reference.runs(session):
        score = task.compute(reference.without_states(run.expected), run.actual, run.inputs)
        drops += [1 - score] * len(run.classes)
    return Drop(task.metric, fmean(drops), mean_limit(drops, alpha), len(drops))


def _count_losses(runs: Iterable[ComparedRun], name: str, alpha: float, *, has_labels: bool) -> Drop:
    """Return the drop of class scores, from the samples whose most probable class changes."""
    pairs = [(flatten(run.expected, name), flatten(run.actual, name), run.classes) for run in runs]
    expected, actual = (np.concatenate(arrays).astype(np.float64) for arrays in list(zip(*pairs, strict=True))[:2])
    labels = np.array([-1 if index is None else index for *_, classes in pairs for index in classes])
    is_finite = np.isfinite(actual).all(1)
    first, other = expected.argmax(1), np.where(is_finite, actual.argmax(1), -1)
    by_margins = 1.0 if not is_finite.all() else margin_limit(expected, actual, alpha / 2)
    if not has_labels:
        lost, total = int((first != other).sum()), len(first)
        return Drop("agreement", lost / total, min(proportion_limit(lost, total, alpha / 2), by_margins), total)
    has_label = labels >= 0
    lost = int(((first == labels) & (other != labels) & has_label).sum())
    gained = int(((first != labels) & (other == labels) & has_label).sum())
    total = int(has_label.sum())
    high = proportion_limit(lost, total, alpha / 4) - (1 - proportion_limit(total - gained, total, alpha / 4))
    return Drop("top-1", (lost - gained) / total, min(high, by_margins), total)


def margin_limit(expected: Array, actual: Array, alpha: float) -> float:
    """Return the upper limit of the probability of another class, from the margins of the samples.

    Args:
        expected, actual: scores of the float model and of the candidate, (n, classes).
        alpha: probability that the limit is exceeded.
    """
    if expected.shape[1] < 2:
        return 1.0
    is_probability = expected.min() >= 0 and bool((np.abs(expected.sum(1) - 1) < SUM_TOLERANCE).all())
    before, after = (_logits(scores) if is_probability else scores for scores in (expected, actual))
    top = before.argmax(1)[:, None]
    gaps = [scores - np.take_along_axis(scores, top, 1) for scores in (before, after)]
    distances = np.where(np.arange(expected.shape[1]) == top, np.inf, -gaps[0])
    margins = distances.min(1)
    # Change towards each class relative to its distance; 1 makes it the most probable class.
    relative = ((gaps[1] - gaps[0]) / np.maximum(distances, 1e-9)).max(1)
    half = float(np.median(margins))
    is_near = margins <= half
    if half <= 0 or is_near.sum() < FEWEST or bool((relative[~is_near] >= MOST_CHANGE).any()):
        return 1.0
    changes = np.clip((relative * margins)[is_near] / half, 0, 1).tolist()
    fraction = proportion_limit(int(is_near.sum()), len(margins), alpha / 2)
    return min(DENSITY * fraction * mean_limit(changes, alpha / 2), 1.0)


def _logits(scores: Array) -> Array:
    """Return the logarithms of probabilities."""
    logits: Array = np.log(np.maximum(scores / np.maximum(scores.sum(1, keepdims=True), 1e-9), LEAST_PROBABILITY))
    return logits


def proportion_limit(count: int, total: int, alpha: float) -> float:
    """Return the upper limit of a proportion, which is exceeded with probability ``alpha`` (Clopper and Pearson 1934).

    >>> round(proportion_limit(0, 299, 0.05), 4)
    0.01
    """
    if count >= total:
        return 1.0
    return _solve(lambda p: _binomial_tail(count, total, p) > alpha)


def _binomial_tail(count: int, total: int, p: float) -> float:
    """Return the probability of at most ``count`` of ``total`` events of probability ``p``, 0 < p < 1."""
    terms = (
        lgamma(total + 1) - lgamma(k + 1) - lgamma(total - k + 1) + k * log(p) + (total - k) * log1p(-p)
        for k in range(count + 1)
    )
    return sum(map(exp, terms))


def _solve(is_below: Callable[[float], bool]) -> float:
    """Return the end of the part of (0, 1) on which a condition holds, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def mean_limit(values: list[float], alpha: float) -> float:
    """Return the upper limit of a mean, which is exceeded with probability ``alpha``; 1 for fewer than `FEWEST` values.

    >>> round(mean_limit([0.0, 0.01, 0.02, 0.01, 0.01], 0.05), 4)
    0.0167
    """
    if len(values) < FEWEST:
        return 1.0
    t = quantile(1 - 2 * alpha, len(values) - 1)
    return fmean(values) + t * stdev(values) / sqrt(len(values))


def samples_for(max_drop: float) -> int:
    """Return the number of samples without any loss that show a drop of the agreement of the first candidate.

    Args:
        max_drop: limit, above 0 and below 1.
    """
    return ceil(log(ALPHA / 4) / log1p(-max_drop))
