"""How near the outputs of one graph are to those of another, where they are no classes: boxes, maps, single numbers.

signal to noise   10 log10( sum a^2 / sum (a - b)^2 )          in decibels, over all samples
error             root of noise over signal: 0.1 at 20 decibels, 0.01 at 40
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, log10, sqrt
from typing import Any

import numpy as np

from quantkit.ir.tensor import Array


@dataclass(frozen=True)
class Fidelity:
    """What a stream of outputs came to.

    Attributes:
        samples: how many there were.
        decibels: signal to noise by output; infinite where both are equal.
        not_finite: samples of which an output holds NaN or infinity.
    """

    samples: int
    decibels: Mapping[str, float]
    not_finite: int = 0

    @property
    def worst(self) -> float:
        """Of all outputs, in decibels; none where a sample holds no numbers."""
        return -inf if self.not_finite else min(self.decibels.values(), default=inf)

    @property
    def error(self) -> float:
        """Of the worst output, in parts of one, at most 1."""
        return float(min(10 ** (-self.worst / 20), 1.0))

    def to_json(self) -> dict[str, Any]:
        """Plain values; null where signal to noise is infinite."""
        decibels = {name: value if isfinite(value) else None for name, value in self.decibels.items()}
        return {"samples": self.samples, "signal_to_noise": decibels, "not_finite": self.not_finite}

    def __str__(self) -> str:
        each = [f"{name} {value:.1f} dB" if value < inf else f"{name} equal" for name, value in self.decibels.items()]
        return f"signal to noise of {', '.join(each)}"


@dataclass
class FidelityTally:
    """Sums over a stream of outputs."""

    samples: int = 0
    not_finite: int = 0
    _signal: dict[str, float] = field(default_factory=dict)
    _noise: dict[str, float] = field(default_factory=dict)

    def add(self, right: Mapping[str, Array], others: Mapping[str, Array]) -> None:
        """Count the outputs of some samples.

        Args:
            right: (n, ...) by name.
            others: what another graph gave instead, of the same shapes.
        """
        finite = np.ones(len(next(iter(right.values()))), bool)
        for name, wanted in right.items():
            rows, found = (values.reshape(len(finite), -1).astype(np.float64) for values in (wanted, others[name]))
            usable = np.isfinite(rows).all(1) & np.isfinite(found).all(1)
            finite &= usable
            self._signal[name] = self._signal.get(name, 0.0) + float((rows[usable] ** 2).sum())
            self._noise[name] = self._noise.get(name, 0.0) + float(((rows - found)[usable] ** 2).sum())
        self.samples += len(finite)
        self.not_finite += int((~finite).sum())

    @property
    def fidelity(self) -> Fidelity:
        """What it came to so far."""
        decibels = {name: _decibels(signal, self._noise[name]) for name, signal in self._signal.items()}
        return Fidelity(self.samples, decibels, self.not_finite)


def _decibels(signal: float, noise: float) -> float:
    if not noise:
        return inf
    return 20 * log10(sqrt(signal / noise)) if signal else -inf
