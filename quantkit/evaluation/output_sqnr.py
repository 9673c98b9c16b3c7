"""SQNR of outputs other than class scores: boxes, maps, regressions.

SQNR     10 log10( sum a^2 / sum (a - b)^2 )          in decibels, over all samples
error    sqrt( noise / signal ): 0.1 at 20 dB, 0.01 at 40 dB
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np

from quantkit.ir.tensor import Array


@dataclass(frozen=True)
class OutputSqnr:
    """Signal-to-quantization-noise ratio of each output over a dataset.

    Attributes:
        samples: number of samples.
        sqnr: in decibels, by output name; infinite for equal outputs.
        not_finite: number of samples with NaN or infinity in an output.
    """

    samples: int
    sqnr: Mapping[str, float]
    not_finite: int = 0

    @property
    def worst(self) -> float:
        """Lowest SQNR of all outputs in decibels; minus infinity if a sample is not finite."""
        return -inf if self.not_finite else min(self.sqnr.values(), default=inf)

    @property
    def error(self) -> float:
        """Relative error of the worst output, in [0, 1]."""
        return float(min(10 ** (-self.worst / 20), 1.0))

    def to_json(self) -> dict[str, Any]:
        """Return the document as plain values; null for an infinite SQNR."""
        sqnr = {name: value if isfinite(value) else None for name, value in self.sqnr.items()}
        return {"samples": self.samples, "sqnr": sqnr, "not_finite": self.not_finite}

    def __str__(self) -> str:
        outputs = [f"{name} {value:.1f} dB" if value < inf else f"{name} equal" for name, value in self.sqnr.items()]
        return f"SQNR of {', '.join(outputs)}"


@dataclass
class OutputSqnrCounter:
    """Sums of signal and noise over a stream of outputs; keeps no outputs."""

    samples: int = 0
    not_finite: int = 0
    _signal: dict[str, float] = field(default_factory=dict)
    _noise: dict[str, float] = field(default_factory=dict)

    def add(self, reference: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Add the outputs of a batch.

        Args:
            reference: (n, ...) by output name, of the reference model.
            outputs: outputs of the other model, in the same shapes.
        """
        finite = np.ones(len(next(iter(reference.values()))), bool)
        for name, values in reference.items():
            a, b = (array.reshape(len(finite), -1).astype(np.float64) for array in (values, outputs[name]))
            usable = np.isfinite(a).all(1) & np.isfinite(b).all(1)
            finite &= usable
            self._signal[name] = self._signal.get(name, 0.0) + float((a[usable] ** 2).sum())
            self._noise[name] = self._noise.get(name, 0.0) + float(((a - b)[usable] ** 2).sum())
        self.samples += len(finite)
        self.not_finite += int((~finite).sum())

    @property
    def result(self) -> OutputSqnr:
        """SQNR of the samples added so far."""
        ratios = {name: float(sqnr(signal, self._noise[name])) for name, signal in self._signal.items()}
        return OutputSqnr(self.samples, ratios, self.not_finite)


def sqnr(signal: float | Array, noise: float | Array) -> Array:
    """Compute the SQNR of each element in decibels; infinite where the noise is zero.

    >>> sqnr(100.0, 1.0).tolist()
    20.0
    """
    with np.errstate(all="ignore"):
        ratio = np.asarray(signal) / np.where(np.equal(noise, 0), 1, noise)
        return np.where(np.equal(noise, 0), inf, 10 * np.log10(ratio))
