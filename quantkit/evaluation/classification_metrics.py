"""Accuracy of a classifier and agreement with a reference model, counted over a stream of outputs.

With q the probabilities of the model and p those of the reference model:

    top-1        fraction of labelled samples whose most probable class is the label (ties: the lower index)
    top-5        fraction of labelled samples whose label is among the five most probable classes
    agreement    fraction of samples where q and p have the same most probable class
    KL(p || q)   sum over classes of p * log(p / q), in nats; the mean of all samples
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

import numpy as np

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array
from quantkit.model.endpoints import SIZES_HINT

# Half the width of the 95 % interval of a normal distribution, in standard deviations.
STANDARD_DEVIATIONS = 1.959964
# Keeps the logarithm of a probability that quantizes to zero finite.
EPSILON = 1e-9
# A softmax in int8 or in bfloat16 differs from 1 by up to this much.
SUM_TOLERANCE = 0.05
# Number of labels from which a shift differs from chance, and the gain of top-1 that shows a shift.
MIN_LABELS, SHIFT_GAIN = 10, 0.3
# Shifts of the labels: none, and the usual errors.
SHIFTS = (0, 1, -1)


@dataclass(frozen=True)
class Proportion:
    """Fraction of samples, with its 95 % confidence interval (Wilson).

    >>> str(Proportion(9, 10))
    '90.0 % (59.6 to 98.2)'
    """

    count: int
    total: int

    @property
    def value(self) -> float:
        """Fraction in [0, 1]."""
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound, in [0, 1]."""
        squared = STANDARD_DEVIATIONS**2
        centre = (self.count + squared / 2) / (self.total + squared)
        variance = self.count * (self.total - self.count) / self.total + squared / 4
        half = STANDARD_DEVIATIONS / (self.total + squared) * sqrt(variance)
        return max(centre - half, 0.0), min(centre + half, 1.0)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"

    def to_json(self) -> dict[str, Any]:
        """Return the document as plain values."""
        return {
            "value": self.value,
            "count": self.count,
            "total": self.total,
            "interval": list(self.interval),
        }


@dataclass(frozen=True)
class ClassificationMetrics:
    """Metrics of a classifier over a dataset.

    Attributes:
        samples: number of samples.
        top1, top5: accuracy on the labelled samples; None if no sample has a label (top5: also for 5 classes or fewer).
        agreement: with the reference model, on all samples; None if there is no reference model.
        kl_divergence: mean KL(reference || model) over the samples with finite outputs of both, in nats; None like
            ``agreement``.
        not_finite: number of samples with NaN or infinity in the model's output; they count as wrong and as
            disagreement.
        num_classes: number of class scores.
        label_shift: 1 or -1 if most predictions are correct after this is added to each label; else 0.
        shifted_top1: top-1 accuracy with shifted labels; None without a shift.
    """

    samples: int
    top1: Proportion | None = None
    top5: Proportion | None = None
    agreement: Proportion | None = None
    kl_divergence: float | None = None
    not_finite: int = 0
    num_classes: int = 0
    label_shift: int = 0
    shifted_top1: Proportion | None = None

    @property
    def is_at_chance(self) -> bool:
        """True if top-1 does not exceed that of guessing, with enough labels to exclude a working model."""
        if self.top1 is None or self.num_classes < 2:
            return False
        low, high = self.top1.interval
        chance = 1 / self.num_classes
        return low <= chance and high < max(0.5, chance + 0.25)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to doubt the labels, or the preprocessing."""
        if self.label_shift:
            hint = "pass --labels with the model's own labels, or number the classes as the model does"
            shift = f"top-1 is {self.shifted_top1} with every label {self.label_shift:+d}"
            return (f"labels seem shifted by one: {shift}; {hint}",)
        if self.is_at_chance:
            return (f"top-1 is that of guessing among {self.num_classes} classes: check preprocessing and labels",)
        return ()

    def to_json(self) -> dict[str, Any]:
        """Return the document as plain values; null for a metric that is not known."""
        proportions = {"top1": self.top1, "top5": self.top5, "agreement": self.agreement}
        return {
            "samples": self.samples,
            **{name: value.to_json() if value else None for name, value in proportions.items()},
            "kl": self.kl_divergence,
            "not_finite": self.not_finite,
            "label_shift": self.label_shift,
        }


class ClassificationCounter:
    """Counter of correct predictions and of agreement; keeps no outputs.

    The counts of parts of a dataset add up to those of the whole one, also the KL divergence: its sum is exact.
    """

    def __init__(self) -> None:
        self._num_classes = 0
        self._counts: Counter[str] = Counter()
        self._kl: list[float] = []

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self._counts["samples"]

    def add(
        self,
        outputs: Array,
        labels: Sequence[int | None] = (),
        reference: Array | None = None,
    ) -> None:
        """Count a batch.

        Args:
            outputs: (n, k) probabilities, or logits of which a softmax makes them.
            labels: class of each sample, None if it is not known; empty if no sample has a label.
            reference: (n, k) outputs of the reference model for the same samples.

        Raises:
            UsageError: the class counts of the two models differ.
        """
        if reference is not None and reference.shape != outputs.shape:
            raise UsageError(
                f"the model has {outputs.shape[-1]} classes and the reference model {reference.shape[-1]}",
                hint="compare versions of one model, or omit --reference",
            )
        if self._num_classes not in (0, outputs.shape[1]):
            raise UsageError(
                f"the model has {self._num_classes} scores for one sample and {outputs.shape[1]} for another",
                hint=SIZES_HINT,
            )
        finite: Array = np.asarray(np.isfinite(outputs).all(axis=1))
        counts = self._counts
        counts["samples"] += len(outputs)
        self._num_classes = outputs.shape[1]
        counts["not finite"] += int((~finite).sum())
        ranked = np.argsort(-np.where(finite[:, None], outputs, -np.inf), axis=1, kind="stable")[:, :5]
        for best, is_finite, label in zip(ranked, finite, labels, strict=False):
            if label is not None:
                counts["labelled"] += 1
                counts["top5"] += bool(is_finite and label in best)
                for shift in SHIFTS:
                    counts[f"top1{shift:+d}"] += bool(is_finite and best[0] == label + shift)
        if reference is not None:
            self._compare(outputs, finite, ranked[:, 0], reference)

    def merge(self, other: "ClassificationCounter") -> None:
        """Add the counts of other samples of the same model."""
        self._num_classes = other._num_classes or self._num_classes
        self._counts.update(other._counts)
        self._kl += other._kl

    def _compare(self, outputs: Array, finite: Array, best: Array, reference: Array) -> None:
        usable = finite & np.isfinite(reference).all(axis=1)
        self._counts["compared"] += len(outputs)
        self._counts["agreeing"] += int((usable & (best == np.argmax(reference, axis=1))).sum())
        self._kl += kl_divergences(reference[usable], outputs[usable]).tolist()

    @property
    def metrics(self) -> ClassificationMetrics:
        """Metrics of the samples counted so far."""
        counts = self._counts
        labelled, compared = counts["labelled"], counts["compared"]
        top1, *shifted = (counts[f"top1{shift:+d}"] for shift in SHIFTS)
        is_shifted = labelled >= MIN_LABELS and max(shifted) - top1 >= SHIFT_GAIN * labelled
        return ClassificationMetrics(
            self.samples,
            Proportion(top1, labelled) if labelled else None,
            Proportion(counts["top5"], labelled) if labelled and self._num_classes > 5 else None,
            Proportion(counts["agreeing"], compared) if compared else None,
            max(fsum(self._kl) / len(self._kl), 0.0) if self._kl else None,
            counts["not finite"],
            self._num_classes,
            SHIFTS[1 + shifted.index(max(shifted))] if is_shifted else 0,
            Proportion(max(shifted), labelled) if is_shifted else None,
        )


def kl_divergences(reference: Array, outputs: Array) -> Array:
    """Compute KL(reference || outputs) of each sample, in nats.

    Args:
        reference: (n, k) finite values.
        outputs: (n, k) finite values.

    Returns:
        (n,) float64.

    >>> kl_divergences(np.float32([[0.5, 0.5]]), np.float32([[0.5, 0.5]])).tolist()
    [0.0]
    """
    p, q = as_probabilities(reference), as_probabilities(outputs)
    return np.asarray((p * (np.log(p + EPSILON) - np.log(q + EPSILON))).sum(axis=1))


def as_probabilities(outputs: Array) -> Array:
    """Return rows that are probabilities unchanged, and the softmax of all other rows.

    Args:
        outputs: (n, k) finite values.

    Returns:
        (n, k) float64.

    >>> as_probabilities(np.float32([[0.25, 0.75], [3, 3]])).tolist()
    [[0.25, 0.75], [0.5, 0.5]]
    """
    values = outputs.astype(np.float64)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    softmax = powers / powers.sum(axis=1, keepdims=True)
    return np.where(are_probabilities(values)[:, None], values, softmax)


def are_probabilities(outputs: Array) -> Array:
    """Return for each row whether it is non-negative and sums to one.

    Args:
        outputs: (n, k) values.

    Returns:
        (n,) bool.

    >>> are_probabilities(np.float32([[0.25, 0.75], [3, 3]])).tolist()
    [True, False]
    """
    sums = outputs.sum(axis=1)
    return np.asarray((np.abs(sums - 1) <= SUM_TOLERANCE) & (outputs >= 0).all(axis=1))


def act_as_class_scores(outputs: Array) -> bool:
    """Return True if outputs are probabilities of classes, or logits that single out one class.

    Logits have both signs, and the softmax of most rows is closer to certainty than to a uniform distribution. Boxes,
    reconstructions and embeddings are not like that.

    Args:
        outputs: (n, k) values.

    >>> act_as_class_scores(np.float32([[0.25, 0.75]])), act_as_class_scores(np.float32([[0.25, 0.25]]))
    (True, False)
    >>> act_as_class_scores(np.float32([[-4, 9]])), act_as_class_scores(np.float32([[40, 90]]))
    (True, False)
    """
    finite = outputs[np.isfinite(outputs).all(axis=1)]
    if outputs.dtype.kind != "f" or outputs.shape[1] < 2 or not len(finite):
        return False
    if are_probabilities(finite).all():
        return True
    confidence = float(np.median(as_probabilities(finite).max(axis=1)))
    return bool((finite < 0).any() and (finite > 0).any() and confidence >= (1 + 1 / outputs.shape[1]) / 2)
