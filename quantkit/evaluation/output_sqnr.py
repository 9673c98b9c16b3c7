"""Distance of outputs other than class scores: boxes, maps, regressions, integers.

SQNR     10 log10( sum a^2 / sum (a - b)^2 )          in decibels, over all samples
error    sqrt( noise / signal ): 0.1 at 20 dB, 0.01 at 40 dB
equal    fraction of equal values, of integer and boolean outputs
sizes    smaller / larger number of values, of outputs whose size depends on the data; their values are compared in the
         samples of equal size

A model that reproduces its input, such as an autoencoder, also has a reconstruction error: the relative error of the
output as an estimate of the input.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np

from quantkit.evaluation.classification_metrics import ClassificationMetrics
from quantkit.evaluation.tasks import TaskMetric
from quantkit.ir.tensor import Array

# Largest relative error of an output that counts as a reproduction of the input.
MAX_RECONSTRUCTION_ERROR = 0.7
# Relative growth of a reconstruction error that counts as unchanged.
ERROR_TOLERANCE = 0.05


@dataclass(frozen=True)
class OutputSqnr:
    """Signal-to-quantization-noise ratio of each output over a dataset.

    Attributes:
        samples: number of samples.
        sqnr: in decibels, by name of each real output; infinite for equal outputs.
        not_finite: number of samples with NaN or infinity in an output.
        equal: fraction of equal values, by name of each integer or boolean output.
        reconstruction: reconstruction error of the reference model and of the other one, by name of each output that
            reproduces an input.
        metric: name of the metric of a task; empty without a task.
        score: value of this metric, 1 for equal outputs.
        sizes: samples of equal size and mean ratio of the sizes, by name of each output whose size differs in a sample.
        classes: class metrics by name of the output that the labels of the samples belong to; empty without labels.
    """

    samples: int
    sqnr: Mapping[str, float]
    not_finite: int = 0
    equal: Mapping[str, float] = field(default_factory=dict)
    reconstruction: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    metric: str = ""
    score: float = 1.0
    sizes: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    classes: Mapping[str, ClassificationMetrics] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        """Lowest SQNR of all outputs in decibels; minus infinity if a sample is not finite."""
        return -inf if self.not_finite else min(self.sqnr.values(), default=inf)

    @property
    def error(self) -> float:
        """Loss in [0, 1]: 1 - score of a task, else the largest one of three values.

        These are the relative error of the worst real output, the fraction of different integers and of missing sizes.
        """
        if self.metric:
            return 1.0 if self.not_finite else 1 - self.score
        return float(max(min(10 ** (-self.worst / 20), 1.0), 1 - self._smallest_fraction))

    def is_near(self, decibels: float, fraction: float) -> bool:
        """Return True if every output is near that of the reference model, and has its size in a sample.

        Args:
            decibels: lowest SQNR of a real output, unless its reconstruction error is unchanged.
            fraction: lowest fraction of equal values of an integer output, ratio of sizes, or score of a task.
        """
        if self.metric:
            return not self.not_finite and self.score >= fraction
        changed = [name for name, value in self.sqnr.items() if value < decibels and not self._is_as_good(name)]
        is_compared = all(equal for equal, _ in self.sizes.values())
        return not self.not_finite and not changed and is_compared and self._smallest_fraction >= fraction

    @property
    def _smallest_fraction(self) -> float:
        """Smallest fraction of equal values of an integer output, or ratio of sizes."""
        return min((*self.equal.values(), *(ratio for _, ratio in self.sizes.values())), default=1.0)

    def _is_as_good(self, name: str) -> bool:
        before, after = self.reconstruction.get(name, (0.0, inf))
        return after <= before * (1 + ERROR_TOLERANCE)

    def to_json(self) -> dict[str, Any]:
        """Return the document as plain values; null for an infinite SQNR."""
        sqnr = {name: value if isfinite(value) else None for name, value in self.sqnr.items()}
        return {
            "samples": self.samples,
            "sqnr": sqnr,
            "equal": dict(self.equal),
            "reconstruction": {name: list(errors) for name, errors in self.reconstruction.items()},
            "sizes": {name: {"equal": equal, "ratio": ratio} for name, (equal, ratio) in self.sizes.items()},
            "not_finite": self.not_finite,
            "task": {"metric": self.metric, "score": self.score} if self.metric else None,
            "classes": {name: metrics.to_json() for name, metrics in self.classes.items()},
        }

    @property
    def size_texts(self) -> list[str]:
        """Mean ratio of the sizes of each output whose size differs in a sample."""
        return [
            f"{name} {100 * ratio:.1f} % (equal in {equal} of {self.samples} samples)"
            for name, (equal, ratio) in self.sizes.items()
        ]

    def __str__(self) -> str:
        ratios = [f"{name} {value:.1f} dB" if value < inf else f"{name} equal" for name, value in self.sqnr.items()]
        fractions = [f"{name} {100 * value:.1f} %" for name, value in self.equal.items()]
        errors = [f"{name} {before:.4f} -> {after:.4f}" for name, (before, after) in self.reconstruction.items()]
        parts = (
            ("sizes of ", self.size_texts),
            ("SQNR at equal sizes of " if self.sizes else "SQNR of ", ratios),
            ("equal values of ", fractions),
            ("reconstruction error of ", errors),
        )
        task = f"{self.metric} {self.score:.4f} of the float model; " if self.metric else ""
        return task + "; ".join(title + ", ".join(texts) for title, texts in parts if texts)


@dataclass
class OutputSqnrCounter:
    """Sums of signal and noise over a stream of outputs; keeps no outputs.

    Attributes:
        task: metric to compute, too; None without a task.
        samples: number of samples.
        not_finite: number of samples with NaN or infinity.
    """

    task: TaskMetric | None = None
    samples: int = 0
    not_finite: int = 0
    _score: float = 0.0
    # Sums of several numbers, by kind and name of the output: signal and noise; equal values and all; signal and two
    # errors of a reconstruction; samples of equal size and ratios of sizes.
    _sums: dict[str, dict[str, Array]] = field(
        default_factory=lambda: {kind: {} for kind in ("sqnr", "equal", "reconstruction", "sizes")}
    )

    def add(
        self, reference: Mapping[str, Array], outputs: Mapping[str, Array], inputs: Mapping[str, Array] | None = None
    ) -> None:
        """Add the outputs of a batch.

        Args:
            reference: (n, ...) by output name, of the reference model.
            outputs: outputs of the other model; an output of another size counts for its size only.
            inputs: (n, ...) by input name, for the reconstruction error and the tokens of a language model.
        """
        finite = np.ones(len(next(iter(reference.values()))), bool)
        for name, values in reference.items():
            has_equal_size = self._add_size(name, values, outputs[name], len(finite))
            others = outputs[name].reshape(values.shape) if has_equal_size else outputs[name]
            if values.dtype.kind in "biuO":  # O: strings
                if has_equal_size and values.size:
                    self._add("equal", name, int((values == others).sum()), values.size)
                continue
            a, b = (array.reshape(len(finite), -1).astype(np.float64) for array in (values, others))
            usable = np.isfinite(a).all(1) & np.isfinite(b).all(1)
            finite &= usable
            if not has_equal_size:
                continue
            self._add_reconstruction(name, values, others, inputs or {})
            self._add("sqnr", name, float((a[usable] ** 2).sum()), float(((a - b)[usable] ** 2).sum()))
        self.samples += len(finite)
        if self.task is not None:
            self._score += len(finite) * self.task.compute(reference, outputs, inputs or {})
        self.not_finite += int((~finite).sum())

    def merge(self, other: "OutputSqnrCounter") -> None:
        """Add the sums of other samples of the same models."""
        self.samples += other.samples
        self.not_finite += other.not_finite
        self._score += other._score
        for kind, sums in other._sums.items():
            for name, numbers in sums.items():
                self._add(kind, name, *numbers)

    def _add(self, kind: str, name: str, *numbers: float) -> None:
        self._sums[kind][name] = self._sums[kind].get(name, 0.0) + np.array(numbers, np.float64)

    def _add_size(self, name: str, values: Array, others: Array, count: int) -> bool:
        """Add the sizes of an output of samples; return True if they are equal."""
        small, large = sorted((values.size, others.size))
        self._add("sizes", name, count * (small == large), count * (small / large if large else 1.0))
        return small == large

    def _add_reconstruction(self, name: str, values: Array, others: Array, inputs: Mapping[str, Array]) -> None:
        """Add the error of an output as an estimate of an input of its shape."""
        sources = [array for array in inputs.values() if array.dtype.kind == "f" and array.size == values.size]
        if not sources:
            return
        target = sources[0].reshape(values.shape).astype(np.float64)
        powers = (float(np.square(array).sum()) for array in (target, values - target, others - target))
        self._add("reconstruction", name, *powers)

    @property
    def result(self) -> OutputSqnr:
        """SQNR of the samples added so far."""
        ratios = {name: float(sqnr(*powers)) for name, powers in self._sums["sqnr"].items()}
        equal = {name: float(count / total) for name, (count, total) in self._sums["equal"].items()}
        sizes = {
            name: (int(equal_sizes), float(ratio / self.samples))
            for name, (equal_sizes, ratio) in self._sums["sizes"].items()
            if equal_sizes < self.samples
        }
        errors = {
            name: (float(np.sqrt(before / signal)), float(np.sqrt(after / signal)))
            for name, (signal, before, after) in self._sums["reconstruction"].items()
            if before < MAX_RECONSTRUCTION_ERROR**2 * signal
        }
        metric = "" if self.task is None else self.task.metric
        score = self._score / max(self.samples, 1) if metric else 1.0
        return OutputSqnr(self.samples, ratios, self.not_finite, equal, errors, metric, score, sizes)


def sqnr(signal: float | Array, noise: float | Array) -> Array:
    """Compute the SQNR of each element in decibels; infinite where the noise is zero.

    >>> sqnr(100.0, 1.0).tolist()
    20.0
    """
    with np.errstate(all="ignore"):
        ratio = np.asarray(signal) / np.where(np.equal(noise, 0), 1, noise)
        return np.where(np.equal(noise, 0), inf, 10 * np.log10(ratio))
