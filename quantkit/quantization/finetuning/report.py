"""Report of a fine-tuning."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean
from typing import Any, Self

from quantkit.benchmark.statistics.student import quantile
from quantkit.quantization.fallback import AGREEMENT, ERROR, TOP1, Loss

# Text of each kind of loss.
_LOSSES = {AGREEMENT: "disagreement with the float model", TOP1: "drop of top-1", ERROR: "error of the outputs"}


@dataclass(frozen=True)
class MetricGain:
    """Loss of the task's metric that a fine-tuning removes, on samples that the training does not use.

    Attributes:
        kind: quantity of the loss.
        before, after: mean loss of the calibrated and of the fine-tuned file over the samples.
        low, high: bounds of the 95 % interval of ``before - after``, Student's t of the differences of the runs, or of
            blocks of runs; None for a single run.
        source: description of the samples.
    """

    kind: str
    before: float
    after: float
    low: float | None
    high: float | None
    source: str

    @classmethod
    def of(cls, before: Sequence[Loss], after: Sequence[Loss], counts: Sequence[int], source: str) -> Self:
        """Return the gain for the losses of both files in the same runs, by the number of samples of each run."""
        means = [fmean((loss.drop for loss in each), counts) for each in (before, after)]
        gain, num_runs, low, high = means[0] - means[1], len(counts), None, None
        if num_runs > 1:
            deviations = [first.drop - other.drop - gain for first, other in zip(before, after, strict=True)]
            sum_ = sum((count * deviation) ** 2 for count, deviation in zip(counts, deviations, strict=True))
            error = sqrt(sum_ * num_runs / (num_runs - 1)) / sum(counts)
            half = quantile(0.95, num_runs - 1) * error
            low, high = gain - half, gain + half
        return cls(before[0].kind, means[0], means[1], low, high, source)

    @classmethod
    def of_blocks(cls, before: Sequence[Loss], after: Sequence[Loss], source: str) -> Self:
        """Return the gain for the losses of both files over all blocks of runs, and without each block (jackknife)."""
        gains = [first.drop - other.drop for first, other in zip(before, after, strict=True)]
        num_blocks, low, high = len(gains) - 1, None, None
        if num_blocks > 1:
            mean = fmean(gains[1:])
            error = sqrt((num_blocks - 1) / num_blocks * sum((gain - mean) ** 2 for gain in gains[1:]))
            half = quantile(0.95, num_blocks - 1) * error
            low, high = gains[0] - half, gains[0] + half
        return cls(before[0].kind, before[0].drop, after[0].drop, low, high, source)

    def __str__(self) -> str:
        factor, digits, percent = (1, 4, "") if self.kind == ERROR else (100, 1, " %")
        numbers = (self.before, self.after, self.before - self.after, self.low, self.high)
        before, after, gain, low, high = (f"{factor * (number or 0):.{digits}f}" for number in numbers)
        interval = "" if self.low is None else f" (95 % CI {low} to {high})"
        losses = f"{_LOSSES[self.kind]} {before}{percent} -> {after}{percent}"
        return f"{losses}, gain {gain}{percent}{interval} on {self.source}"


@dataclass(frozen=True)
class RangeChoice:
    """Observer whose ranges replace the calibrated ones before a training.

    Attributes:
        observer: name of the observer.
        gain: effect of its ranges on the task's metric, by cross-validation.
    """

    observer: str
    gain: MetricGain


@dataclass(frozen=True)
class FineTuning:
    """Course of a fine-tuning, and its effect.

    Attributes:
        budget: requested steps or time, or ``layerwise``.
        steps: number of finished steps; of layers with ``layerwise``.
        seconds: duration.
        ranges: choice of another observer before the training; None if the calibrated ranges are its start.
        before, after: loss of the simulation on the samples held out from the training; None if there was none.
        gain: effect of the training on the task's metric, which decides which file is kept; None if it was not
            measured.
        is_fine_tuned: True if the model is the trained one, and False if it is the calibrated one, with ``ranges``.
        reason: reason why the fine-tuning ended early, or why its result is not kept; may be empty.
        frozen: layers that no gradient reached.
        fidelity: agreement of the file with the simulation on these samples; for outputs other than class scores the
            correlation of the outputs; None if it was not measured.
    """

    budget: str
    steps: int = 0
    seconds: float = 0.0
    ranges: RangeChoice | None = None
    before: float | None = None
    after: float | None = None
    gain: MetricGain | None = None
    is_fine_tuned: bool = False
    reason: str = ""
    frozen: tuple[str, ...] = ()
    fidelity: float | None = None

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        if self.ranges is not None:
            yield f"ranges of the observer {self.ranges.observer}: {self.ranges.gain}"
        noun = "layers" if self.budget == "layerwise" else "steps"
        if self.is_fine_tuned and self.before is not None and self.after is not None:
            losses = f"loss {self.before:.4f} -> {self.after:.4f} on samples held out from the training"
            yield f"fine-tuned in {self.steps} {noun}, {self.seconds:.0f} s: {self.gain or losses}"
            if self.reason:
                yield f"  fine-tuning ended early: {self.reason}"
        else:
            yield f"fine-tuning brings no gain: {self.gain or self.reason}; the calibrated model is kept"
        if self.frozen:
            yield f"  {len(self.frozen)} layers keep their calibrated weights, because no gradient reaches them"
        if self.fidelity is not None:
            yield f"  the file agrees with its simulation: {self.fidelity:.4f}"

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "budget": self.budget,
            "steps": self.steps,
            "seconds": self.seconds,
            "ranges": None if self.ranges is None else asdict(self.ranges),
            "before": self.before,
            "after": self.after,
            "gain": None if self.gain is None else asdict(self.gain),
            "is_fine_tuned": self.is_fine_tuned,
            "reason": self.reason,
            "frozen_layers": list(self.frozen),
            "agreement_with_simulation": self.fidelity,
        }
