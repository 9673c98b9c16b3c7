"""How a range is chosen from the numbers that flow over an edge.

Every observer takes arrays one after the other and keeps a fixed amount of memory. NaN and infinity are counted and
left out. An observer that saw nothing says (0, 0).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from math import inf
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.ranges import Range
from quantkit.quantization.spec import AFFINE, Spec
from quantkit.registry import Registry

BINS = 2048
# So many values of each array go into a histogram: with a hundred pictures, close to a million for each edge.
SAMPLES = 1 << 13
# Strides that share no factor with a number of channels, so that a sample meets them all.
_PRIMES = np.array([1, 2, 3, 5, 7, 11, 13, 17, 23, 31, 41, 53, 71, 97, 127, 167, 223, 293, 389, 521, 691, 919, 1223])
# Ends are tried at these fractions of the extremes.
FRACTIONS = np.concatenate([np.linspace(1.0, 0.3, 71), np.geomspace(0.28, 0.003, 29)])

Floats = npt.NDArray[np.float64]
State = dict[str, Array]


class Observer(Protocol):
    """What chooses a range."""

    num_nan: int
    num_infinite: int

    def observe(self, values: Array) -> None:
        """Take numbers of any shape into account."""
        ...

    def range(self) -> Range:
        """The range of everything observed."""
        ...

    def state(self) -> State:
        """All that was observed, as arrays; `restore` takes it up again."""
        ...

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on where another observer of this kind stopped."""
        ...


class MinMax:
    """Running extremes of everything observed."""

    def __init__(self) -> None:
        self.low, self.high = inf, -inf
        self.num_nan = 0
        self.num_infinite = 0

    def observe(self, values: Array) -> None:
        """values: any shape; empty arrays are ignored."""
        values, low, high = self._finite(values)
        if values.size:
            self._extend(low, high)
            self._sample(values)

    def range(self) -> Range:
        return Range(*_float32(self.low, self.high)) if self.low <= self.high else Range(0.0, 0.0)

    def state(self) -> State:
        return {"ends": np.array([self.low, self.high]), "odd": np.array([self.num_nan, self.num_infinite])}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.low, self.high = map(float, state["ends"])
        self.num_nan, self.num_infinite = map(int, state["odd"])

    def _finite(self, values: Array) -> tuple[Array, float, float]:
        """The finite values, and their extremes."""
        if not values.size:
            return values, inf, -inf
        low, high = float(values.min()), float(values.max())
        if np.isfinite(low) and np.isfinite(high):
            return values, low, high
        # A minimum is NaN where any value is, so only here the values are looked at one by one.
        self.num_nan += int(np.isnan(values).sum())
        self.num_infinite += int(np.isinf(values).sum())
        kept = values[np.isfinite(values)]
        return kept, float(kept.min(initial=inf)), float(kept.max(initial=-inf))

    def _extend(self, low: float, high: float) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)

    def _sample(self, values: Array) -> None:
        """Look at the values themselves; extremes need no more."""


class MovingAverage(MinMax):
    """Extremes of each array, averaged: a rare one counts little.

    Args:
        momentum: weight of what was before, below 1.
    """

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise UsageError(
                f"moving_average({momentum:g}): the weight of the past must be at least 0 and below 1",
                hint="0.9 is usual",
            )
        self.momentum = momentum

    def _extend(self, low: float, high: float) -> None:
        if self.low > self.high:
            self.low, self.high = low, high
        else:
            self.low += (low - self.low) * (1 - self.momentum)
            self.high += (high - self.high) * (1 - self.momentum)


class Histogram:
    """Counts over evenly wide bins, a fixed number of them; bin k holds k * width <= x < (k + 1) * width.

    When a value falls outside, the width is doubled: two neighbours become one, which is exact. Exact zeros are
    counted apart: they cost no error and say nothing about where to end.
    """

    def __init__(self, bins: int = BINS) -> None:
        self.width = 0.0
        self.first = 0
        self.counts = np.zeros(bins, np.int64)
        self.zeros = 0

    @property
    def centres(self) -> Floats:
        return (self.first + np.arange(len(self.counts), dtype=np.float64) + 0.5) * self.width

    def add(self, values: Array) -> None:
        """Count finite values."""
        zeros = values.size - int(np.count_nonzero(values))
        values = values[values != 0] if zeros else values
        self.zeros += zeros
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not self.width:
            self._begin(low, high)
        self._reach(low, high)
        places = np.floor(values / np.float64(self.width)).astype(np.int64)
        places -= self.first
        self.counts += np.bincount(places.reshape(-1), minlength=len(self.counts))

    def _begin(self, low: float, high: float) -> None:
        """Half the bins for what is there: a power of two as the width makes doubling exact."""
        span = max(high, 0.0) - min(low, 0.0)
        exponent = np.ceil(np.log2(span) - np.log2(len(self.counts)))
        self.width = float(np.ldexp(1.0, int(max(exponent, -1000))))
        self.first = int(np.floor(min(low, 0.0) / self.width))

    def _reach(self, low: float, high: float) -> None:
        """Move and widen the bins until both ends have one."""
        used = np.flatnonzero(self.counts)
        while True:
            first, last = int(np.floor(low / self.width)), int(np.floor(high / self.width))
            if used.size:
                first, last = min(first, self.first + int(used[0])), max(last, self.first + int(used[-1]))
            if first >= self.first and last < self.first + len(self.counts):
                return
            if last - first < len(self.counts):
                self._move(min(max(self.first, last - len(self.counts) + 1), first))
                return
            self._double()
            used = np.flatnonzero(self.counts)

    def _move(self, first: int) -> None:
        self._put(self.first + np.arange(len(self.counts)), first)

    def _double(self) -> None:
        self.width *= 2
        self._put((self.first + np.arange(len(self.counts))) >> 1, self.first >> 1)

    def _put(self, places: npt.NDArray[np.int64], first: int) -> None:
        """Count again, at other places."""
        used = self.counts > 0
        moved = np.zeros_like(self.counts)
        np.add.at(moved, places[used] - first, self.counts[used])
        self.counts, self.first = moved, first

    def state(self) -> State:
        return {"counts": self.counts, "bins": np.array([self.width, self.first, self.zeros])}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.counts = np.array(state["counts"])
        width, first, zeros = state["bins"]
        self.width, self.first, self.zeros = float(width), int(first), int(zeros)


class Streaming(MinMax):
    """Exact extremes, and a histogram of a sample of everything observed.

    Args:
        samples: values of each array that are counted.
    """

    def __init__(self, samples: int = SAMPLES) -> None:
        super().__init__()
        self.samples = samples
        self.histogram = Histogram()
        self._turn = 0

    def _sample(self, values: Array) -> None:
        flat = values.reshape(-1)
        step = int(_PRIMES[np.searchsorted(_PRIMES, max(flat.size // self.samples, 1), side="right") - 1])
        if step > 1:
            # Another beginning each time: what one picture leaves out, the next one shows.
            self._turn += 1
            flat = flat[self._turn % step : self._turn % step + step * self.samples : step]
        self.histogram.add(flat)

    def range(self) -> Range:
        ends = super().range()
        return self._chosen(ends) if self.histogram.counts.any() else ends

    def _chosen(self, ends: Range) -> Range:
        return ends

    def state(self) -> State:
        return {**super().state(), **self.histogram.state(), "turn": np.array(self._turn)}

    def restore(self, state: Mapping[str, Array]) -> None:
        super().restore(state)
        self.histogram.restore(state)
        self._turn = int(state["turn"])


class Percentile(Streaming):
    """The range that holds a share of the numbers; half of the rest falls out at either end.

    Args:
        percent: how many of a hundred to hold.
        samples: values of each array that are counted.
    """

    def __init__(self, percent: float = 99.99, samples: int = SAMPLES) -> None:
        super().__init__(samples)
        if not 50 < percent <= 100:
            raise UsageError(f"percentile({percent:g}): give more than 50 and at most 100", hint="99.99 is usual")
        self.percent = percent

    def _chosen(self, ends: Range) -> Range:
        histogram = self.histogram
        counts = histogram.counts.copy()
        if histogram.zeros:
            counts[np.clip(-histogram.first, 0, len(counts) - 1)] += histogram.zeros
        reached = np.cumsum(counts) / counts.sum()
        rest = (1 - self.percent / 100) / (1 if ends.low >= 0 or ends.high <= 0 else 2)
        edges = (histogram.first + np.arange(len(counts) + 1)) * histogram.width
        low = ends.low if ends.low >= 0 else edges[np.searchsorted(reached, rest, side="right")]
        high = ends.high if ends.high <= 0 else edges[np.searchsorted(reached, 1 - rest) + 1]
        return Range(*_float32(max(ends.low, low), min(ends.high, high)))


class MeanSquaredError(Streaming):
    """The range whose parameters is nearest to the numbers, in the mean of the squared distance.

    Args:
        spec: form of the codes.
        samples: values of each array that are counted.
    """

    def __init__(self, spec: Spec = AFFINE, samples: int = SAMPLES) -> None:
        super().__init__(samples)
        self.spec = spec

    def _chosen(self, ends: Range) -> Range:
        used = self.histogram.counts > 0
        centres, counts = self.histogram.centres[used], self.histogram.counts[used].astype(np.float64)
        return _searched(self.spec, ends, lambda lows, highs: _squared_errors(self.spec, lows, highs, centres, counts))


class Entropy(Streaming):
    """The range whose codes tell most about the numbers: the least Kullback-Leibler divergence.

    The distribution of the clipped numbers is compared with what codes leave of it: within each code, all bins that
    hold anything are alike.

    Args:
        spec: form of the codes.
        samples: values of each array that are counted.
    """

    def __init__(self, spec: Spec = AFFINE, samples: int = SAMPLES) -> None:
        super().__init__(samples)
        self.spec = spec

    def _chosen(self, ends: Range) -> Range:
        centres, counts = self.histogram.centres, self.histogram.counts.astype(np.float64)

        def costs(lows: Floats, highs: Floats) -> Floats:
            spans = map(Range, lows.tolist(), highs.tolist())
            return np.array([_divergence(self.spec, span, centres, counts) for span in spans])

        return _searched(self.spec, ends, costs)


def _searched(spec: Spec, ends: Range, costs: Callable[[Floats, Floats], Floats]) -> Range:
    """The cheapest range: the ends are drawn in together where codes are symmetric, else one after the other.

    Args:
        spec: form of the codes.
        ends: the extremes.
        costs: of ranges, from their lows and highs, both (n,).
    """
    high_only, low_only = (False, True), (True, False)
    best = ends
    for draws_low, draws_high in [(True, True)] if spec.symmetric else [high_only, low_only, high_only]:
        if (draws_high and best.high > 0) or (draws_low and best.low < 0):
            lows = np.multiply(best.low, FRACTIONS if draws_low and best.low < 0 else 1.0 + 0 * FRACTIONS)
            highs = np.multiply(best.high, FRACTIONS if draws_high and best.high > 0 else 1.0 + 0 * FRACTIONS)
            cheapest = int(np.argmin(costs(lows, highs)))
            best = Range(*_float32(float(lows[cheapest]), float(highs[cheapest])))
    return best


def _squared_errors(spec: Spec, lows: Floats, highs: Floats, values: Floats, counts: Floats) -> Floats:
    """Sum of squared errors of rounding and clipping, for each range."""
    parameters = QuantizationParameters.of_limits(spec, lows, highs)
    scale, zero = parameters.scale.astype(np.float64)[:, None], parameters.zero_point[:, None]
    low, high = spec.limits
    levels = values / scale
    np.rint(levels, out=levels)
    np.clip(levels, low - zero, high - zero, out=levels)
    levels *= scale
    levels -= values
    levels *= levels
    errors: Floats = levels @ counts
    return errors


def _divergence(spec: Spec, span: Range, values: Floats, counts: Floats) -> float:
    """Kullback-Leibler divergence of what codes show from the clipped numbers."""
    parameters = QuantizationParameters.of_range(spec, span)
    low, high = spec.limits
    inside = np.flatnonzero((values >= min(span.low, 0.0)) & (values <= max(span.high, 0.0)))
    # Fewer bins than codes are all shown as they are, which says nothing about rounding.
    if inside.size < min((high - low) // 2, int(np.count_nonzero(counts))):
        return inf
    first, last = int(inside[0]), int(inside[-1])
    kept = counts[first : last + 1].copy()
    codes = np.clip(np.rint(values[first : last + 1] / float(parameters.scale)) + int(parameters.zero_point), low, high)
    codes = (codes - low).astype(np.int64)
    held = kept > 0
    if not held.any():
        return inf
    # Averaged before the clipped numbers are put on the end bins: that codes can not show those is the price.
    in_code = np.bincount(codes, kept)[codes] / np.maximum(np.bincount(codes, held)[codes], 1)
    kept[0] += counts[:first].sum()
    kept[-1] += counts[last + 1 :].sum()
    held = kept > 0
    shown = np.maximum(in_code[held], 1e-9)
    share = kept[held] / kept.sum()
    return float(np.sum(share * np.log(share / (shown / shown.sum()))))


def _float32(low: float, high: float) -> tuple[float, float]:
    limit = float(np.finfo(np.float32).max)
    return float(np.float32(max(low, -limit))), float(np.float32(min(high, limit)))


@dataclass(frozen=True)
class ObserverType:
    """Named way to choose a range.

    Attributes:
        name: word of ``--observer`` and of a scheme.
        create: creates an observer for tensors of a spec; called with the number in brackets too,
            where there is one.
        takes_number: True if the name may be followed by a number, as in ``percentile(99.9)``.
    """

    name: str
    create: Callable[..., Observer]
    takes_number: bool


def observer(function: Callable[..., Observer]) -> ObserverType:
    """Make an observer type of a function ``(spec)`` or ``(spec, number=default)``.

    The function's name is the observer's name. An installed package adds the result through an
    entry point of the group ``quantkit.observers``.
    """
    return ObserverType(function.__name__, function, len(signature(function).parameters) > 1)


@observer
def min_max(spec: Spec) -> Observer:
    """Choose the extremes."""
    return MinMax()


@observer
def moving_average(spec: Spec, number: float = 0.9) -> Observer:
    """Average the extremes of the arrays, with the number as momentum."""
    return MovingAverage(number)


@observer
def percentile(spec: Spec, number: float = 99.99) -> Observer:
    """Choose the range that holds the number as percentage of the values."""
    return Percentile(number)


@observer
def entropy(spec: Spec) -> Observer:
    """Minimize the Kullback-Leibler divergence of the quantized values."""
    return Entropy(spec)


@observer
def mean_squared_error(spec: Spec) -> Observer:
    """Minimize the mean squared error of the quantized values."""
    return MeanSquaredError(spec)


REGISTRY = Registry("observer", ObserverType, (min_max, moving_average, percentile, entropy, mean_squared_error))
_TEXT = re.compile(r"(\w+)\((\d+(?:\.\d+)?)\)")


def observers() -> Mapping[str, ObserverType]:
    """Return all observer types by name."""
    return REGISTRY.objects()


def find_observer(text: str) -> tuple[ObserverType, float | None]:
    """Return the observer type and the number of a text such as ``min_max`` or ``percentile(99.9)``.

    Raises:
        UsageError: the name is not registered, or the observer takes no number.
        UnavailableError: a plugin of that name cannot be loaded.
    """
    match = _TEXT.fullmatch(text)
    kind = REGISTRY.find(match[1] if match else text)
    if match and not kind.takes_number:
        raise UsageError(f"the observer {kind.name} takes no number", hint=f"write {kind.name}")
    return kind, float(match[2]) if match else None


def create_observer(text: str, spec: Spec) -> Observer:
    """Create the observer of a text for tensors of a spec.

    Raises:
        UsageError: as `find_observer`, or the number is out of bounds.
        UnavailableError: as `find_observer`.
    """
    kind, number = find_observer(text)
    return kind.create(spec) if number is None else kind.create(spec, number)
