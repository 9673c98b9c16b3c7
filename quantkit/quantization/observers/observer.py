"""Observers that track extremes.

An observer receives the arrays of one tensor one after the other, in constant memory, and computes a range. NaN and
infinity are counted and ignored. The range of an observer without values is (0, 0).
"""

from collections.abc import Mapping
from math import inf
from typing import Protocol

import numpy as np

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array
from quantkit.quantization.ranges import Range

State = dict[str, Array]


class Observer(Protocol):
    """Estimator of the range of one tensor.

    Attributes:
        num_nan: number of NaN values so far.
        num_infinite: number of infinite values so far.
    """

    num_nan: int
    num_infinite: int

    def observe(self, values: Array) -> None:
        """Add an array of any shape; its memory is reused after the call."""
        ...

    def range(self) -> Range:
        """Return the range of all arrays so far."""
        ...

    def state(self) -> State:
        """Return all observations as arrays, for `restore`."""
        ...

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace the observations by those of `state`."""
        ...


class MinMax:
    """Extremes of all values.

    Attributes:
        low, high: extremes; infinity without values.
        num_nan, num_infinite: number of ignored values.
    """

    def __init__(self) -> None:
        self.low, self.high = inf, -inf
        self.num_nan = 0
        self.num_infinite = 0

    def observe(self, values: Array) -> None:
        """Add an array of any shape; an empty array is ignored."""
        values, low, high = self._finite_values(values)
        if values.size:
            self._extend(low, high)
            self._sample(values)

    @property
    def extremes(self) -> Range:
        """Smallest and largest value so far; (0, 0) without values."""
        return float32_range(self.low, self.high) if self.low <= self.high else Range(0.0, 0.0)

    def range(self) -> Range:
        """Return the extremes."""
        return self.extremes

    def state(self) -> State:
        """Return all observations as arrays, for `restore`."""
        return {
            "extremes": np.array([self.low, self.high]),
            "not_finite": np.array([self.num_nan, self.num_infinite]),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace the observations by those of `state`."""
        self.low, self.high = map(float, state["extremes"])
        self.num_nan, self.num_infinite = map(int, state["not_finite"])

    def _finite_values(self, values: Array) -> tuple[Array, float, float]:
        """Return the finite values and their extremes; count the others."""
        if not values.size:
            return values, inf, -inf
        low, high = float(values.min()), float(values.max())
        if np.isfinite(low) and np.isfinite(high):
            return values, low, high
        # The minimum is NaN if any value is: only then each value is tested.
        self.num_nan += int(np.isnan(values).sum())
        self.num_infinite += int(np.isinf(values).sum())
        finite = values[np.isfinite(values)]
        return finite, float(finite.min(initial=inf)), float(finite.max(initial=-inf))

    def _extend(self, low: float, high: float) -> None:
        """Extend the range by the extremes of one array."""
        self.low, self.high = min(self.low, low), max(self.high, high)

    def _sample(self, values: Array) -> None:
        """Observe single values; extremes need none."""


class MovingAverage(MinMax):
    """Exponential moving average of the extremes of each array, which a single outlier changes little.

    Args:
        momentum: weight of the previous average, in [0, 1).
    """

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise UsageError(
                f"the momentum of moving_average({momentum:g}) is not in [0, 1)", hint="0.9 is a usual value"
            )
        self.momentum = momentum

    def _extend(self, low: float, high: float) -> None:
        if self.low > self.high:
            self.low, self.high = low, high
        else:
            self.low += (low - self.low) * (1 - self.momentum)
            self.high += (high - self.high) * (1 - self.momentum)


def float32_range(low: float, high: float) -> Range:
    """Return the range in float32, with finite limits."""
    limit = float(np.finfo(np.float32).max)
    return Range(float(np.float32(max(low, -limit))), float(np.float32(min(high, limit))))
