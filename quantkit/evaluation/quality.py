"""How right a network's answers are, and how near to another's: counts and sums over a stream of answers.

With q the probabilities of a network and p those of its reference:

    top-1        share of samples whose most probable class is the one shown (ties: the lower number)
    agreement    share of samples where q and p have the same most probable class
    KL(p || q)   sum over classes of p * log(p / q), in nats, the mean of all samples
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array

# 95 % of a normal distribution lie within so many deviations.
DEVIATIONS = 1.959964
# Keeps the logarithm of a probability that is zero in 8 bits finite.
SMALLEST = 1e-9
# A softmax in 8 bits, or in bfloat16, misses 1 by this much.
SUM_TOLERANCE = 0.05


@dataclass(frozen=True)
class Share:
    """A part of samples, and between which shares the true one lies with 95 % (Wilson's interval).

    >>> str(Share(9, 10))
    '90.0 % (59.6 to 98.2)'
    """

    count: int
    total: int

    @property
    def value(self) -> float:
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end, in parts of one."""
        squared = DEVIATIONS**2
        middle = (self.count + squared / 2) / (self.total + squared)
        spread = self.count * (self.total - self.count) / self.total + squared / 4
        half = DEVIATIONS / (self.total + squared) * sqrt(spread)
        return max(middle - half, 0.0), min(middle + half, 1.0)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"value": self.value, "count": self.count, "total": self.total, "interval": list(self.interval)}


@dataclass(frozen=True)
class Quality:
    """What a stream of answers came to.

    Attributes:
        samples: how many answers there were.
        top1, top5: of the samples that have a label; None: none has one (or there are no more than 5 classes).
        agreement: of all samples; None: there is no reference.
        divergence: mean KL(reference || model) of the samples where both gave numbers; None as for `agreement`.
        not_finite: samples for which the network gave NaN or infinity; they count as wrong and as disagreeing.
    """

    samples: int
    top1: Share | None = None
    top5: Share | None = None
    agreement: Share | None = None
    divergence: float | None = None
    not_finite: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values; null where nothing is known."""
        shares = {"top1": self.top1, "top5": self.top5, "agreement": self.agreement}
        return {
            "samples": self.samples,
            **{name: share.to_json() if share else None for name, share in shares.items()},
            "kl": self.divergence,
            "not_finite": self.not_finite,
        }


class Tally:
    """Counts answers as they come; keeps none."""

    def __init__(self) -> None:
        self.samples = 0
        self._labelled = self._first = self._among_five = 0
        self._compared = self._agreeing = self._diverging = self._not_finite = 0
        self._divergence = 0.0
        self._num_classes = 0

    def add(self, answers: Array, labels: Sequence[int | None] = (), reference: Array | None = None) -> None:
        """Count a batch.

        Args:
            answers: (n, k) probabilities, or numbers of which a softmax makes them.
            labels: class of each sample, None where it is not known; empty: of none.
            reference: (n, k) answers of the reference for the same samples.

        Raises:
            UsageError: the two networks have different numbers of classes.
        """
        if reference is not None and reference.shape != answers.shape:
            raise UsageError(
                f"the model gives {answers.shape[-1]} numbers and its reference {reference.shape[-1]}: "
                "they do not tell the same classes apart",
                hint="compare versions of one model, or leave --reference out",
            )
        finite: Array = np.asarray(np.isfinite(answers).all(axis=1))
        self.samples += len(answers)
        self._num_classes = answers.shape[1]
        self._not_finite += int((~finite).sum())
        ranked = np.argsort(-np.where(finite[:, None], answers, -np.inf), axis=1, kind="stable")[:, :5]
        for best, is_finite, label in zip(ranked, finite, labels, strict=False):
            if label is not None:
                self._labelled += 1
                self._first += bool(is_finite and best[0] == label)
                self._among_five += bool(is_finite and label in best)
        if reference is not None:
            self._compare(answers, finite, ranked[:, 0], reference)

    def _compare(self, answers: Array, finite: Array, best: Array, reference: Array) -> None:
        usable = finite & np.isfinite(reference).all(axis=1)
        self._compared += len(answers)
        self._agreeing += int((usable & (best == np.argmax(reference, axis=1))).sum())
        self._diverging += int(usable.sum())
        self._divergence += float(divergences(reference[usable], answers[usable]).sum())

    @property
    def quality(self) -> Quality:
        """What it came to so far."""
        labelled, compared = self._labelled, self._compared
        return Quality(
            self.samples,
            Share(self._first, labelled) if labelled else None,
            Share(self._among_five, labelled) if labelled and self._num_classes > 5 else None,
            Share(self._agreeing, compared) if compared else None,
            max(self._divergence / self._diverging, 0.0) if self._diverging else None,
            self._not_finite,
        )


def divergences(reference: Array, answers: Array) -> Array:
    """KL(reference || answers) of each sample, in nats.

    Args:
        reference: (n, k) finite numbers.
        answers: (n, k) finite numbers.

    Returns:
        (n,) float64.

    >>> divergences(np.float32([[0.5, 0.5]]), np.float32([[0.5, 0.5]])).tolist()
    [0.0]
    """
    p, q = as_probabilities(reference), as_probabilities(answers)
    return np.asarray((p * (np.log(p + SMALLEST) - np.log(q + SMALLEST))).sum(axis=1))


def as_probabilities(answers: Array) -> Array:
    """Answers as they are where they are probabilities, else their softmax.

    Args:
        answers: (n, k) finite numbers.

    Returns:
        (n, k) float64.

    >>> as_probabilities(np.float32([[0.25, 0.75], [3, 3]])).tolist()
    [[0.25, 0.75], [0.5, 0.5]]
    """
    values = answers.astype(np.float64)
    given = (np.abs(values.sum(axis=1) - 1) <= SUM_TOLERANCE) & (values >= 0).all(axis=1)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.where(given[:, None], values, powers / powers.sum(axis=1, keepdims=True))
