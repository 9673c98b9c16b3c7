"""Histogram of a tensor in constant memory, and the observers that compute a range from it."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from quantkit.errors import UsageError
from quantkit.ir.tensor import Array
from quantkit.quantization.observers.observer import MinMax, State, float32_range
from quantkit.quantization.ranges import Range

# With half as many, bins of tensors with few large values are wider than a quantized value.
BINS = 4096
# Least number of values of each larger array that the histogram counts: with a hundred images, about a million for each
# edge.
SAMPLES = 1 << 13
# Strides of the sample: coprime to usual channel counts, so that a sample contains all channels.
STRIDES = np.array([1, 2, 3, 5, 7, 11, 13, 17, 23, 31, 41, 53, 71, 97, 127, 167, 223, 293, 389, 521, 691, 919, 1223])

# Values beyond this fraction of an extreme are all counted if they are rare: clipping costs the squares of few values,
# which a sample misses or has too often.
TAIL, MAX_TAIL = 0.5, 0.25

Floats = npt.NDArray[np.float64]


class Histogram:
    """Histogram with a fixed number of bins of equal width; bin k counts k * width <= x < (k + 1) * width.

    When a value is outside, the width doubles: two neighbour bins become one, which is exact. Zeros are counted
    separately: they cause no quantization error.

    Attributes:
        width: width of a bin, a power of two; 0 without values.
        first: index k of the first bin.
        counts: number of values in each bin.
        zeros: number of zeros.
    """

    def __init__(self, bins: int = BINS) -> None:
        self.width = 0.0
        self.first = 0
        self.counts = np.zeros(bins, np.int64)
        self.zeros = 0

    @property
    def centers(self) -> Floats:
        """Center of each bin."""
        return (self.first + np.arange(len(self.counts), dtype=np.float64) + 0.5) * self.width

    @property
    def used_bins(self) -> tuple[Floats, Floats]:
        """Center and count of each bin that has values."""
        used = self.counts > 0
        return self.centers[used], self.counts[used].astype(np.float64)

    def add(self, values: Array, weight: int = 1) -> None:
        """Count finite values, each with a weight: the number of values that it stands for."""
        zeros = values.size - int(np.count_nonzero(values))
        values = values[values != 0] if zeros else values
        self.zeros += zeros * weight
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not self.width:
            self._choose_width(low, high)
        self._cover(low, high)
        indices = np.floor(values / np.float64(self.width)).astype(np.int64)
        indices -= self.first
        self.counts += weight * np.bincount(indices.reshape(-1), minlength=len(self.counts))

    def _choose_width(self, low: float, high: float) -> None:
        """Choose the width for which the first values take about half of the bins."""
        span = max(high, 0.0) - min(low, 0.0)
        exponent = np.ceil(np.log2(span) - np.log2(len(self.counts)))
        self.width = float(np.ldexp(1.0, int(max(exponent, -1000))))
        self.first = int(np.floor(min(low, 0.0) / self.width))

    def _cover(self, low: float, high: float) -> None:
        """Shift and widen the bins until both limits have a bin."""
        used = np.flatnonzero(self.counts)
        while True:
            first, last = int(np.floor(low / self.width)), int(np.floor(high / self.width))
            if used.size:
                first, last = min(first, self.first + int(used[0])), max(last, self.first + int(used[-1]))
            if first >= self.first and last < self.first + len(self.counts):
                return
            if last - first < len(self.counts):
                self._shift(min(max(self.first, last - len(self.counts) + 1), first))
                return
            self._double()
            used = np.flatnonzero(self.counts)

    def _shift(self, first: int) -> None:
        self._rebin(self.first + np.arange(len(self.counts)), first)

    def _double(self) -> None:
        self.width *= 2
        self._rebin((self.first + np.arange(len(self.counts))) >> 1, self.first >> 1)

    def _rebin(self, indices: npt.NDArray[np.int64], first: int) -> None:
        """Move the count of each bin to a new index."""
        used = self.counts > 0
        counts = np.zeros_like(self.counts)
        np.add.at(counts, indices[used] - first, self.counts[used])
        self.counts, self.first = counts, first

    def state(self) -> State:
        """Return the counts as arrays, for `restore`."""
        return {"counts": self.counts, "bins": np.array([self.width, self.first, self.zeros])}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace the counts by those of `state`."""
        self.counts = np.array(state["counts"])
        width, first, zeros = state["bins"]
        self.width, self.first, self.zeros = float(width), int(first), int(zeros)


class HistogramObserver(MinMax):
    """Exact extremes, and a histogram of a sample of the values.

    Args:
        samples: least number of values of each larger array that are counted.
    """

    def __init__(self, samples: int = SAMPLES) -> None:
        super().__init__()
        self.samples = samples
        self.histogram = Histogram()
        self._phase = 0

    def _sample(self, values: Array) -> None:
        flat = values.reshape(-1)
        step = int(STRIDES[np.searchsorted(STRIDES, max(flat.size // self.samples, 1), side="right") - 1])
        if step == 1:
            self.histogram.add(flat)
            return
        # Each array is sampled from another first value to its end, so that together all positions are sampled.
        self._phase += 1
        sampled = slice(self._phase % step, None, step)
        is_tail = _find_tail(flat > TAIL * self.high)
        if self.low < 0:
            is_tail |= _find_tail(flat < TAIL * self.low)
        self.histogram.add(flat[sampled][~is_tail[sampled]], step)
        self.histogram.add(flat[is_tail])

    def range(self) -> Range:
        """Return the range computed from the histogram; the extremes if it is empty."""
        extremes = super().range()
        return self._compute_range(extremes) if self.histogram.counts.any() else extremes

    def _compute_range(self, extremes: Range) -> Range:
        return extremes

    def state(self) -> State:
        """Return all observations as arrays, for `restore`."""
        return {**super().state(), **self.histogram.state(), "phase": np.array(self._phase)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace the observations by those of `state`."""
        super().restore(state)
        self.histogram.restore(state)
        self._phase = int(state["phase"])


class Percentile(HistogramObserver):
    """Range that contains a percentage of the values; half of the others are below it, half above.

    Args:
        percent: percentage inside the range, in (50, 100].
        samples: least number of values of each larger array that are counted.
    """

    def __init__(self, percent: float = 99.99, samples: int = SAMPLES) -> None:
        super().__init__(samples)
        if not 50 < percent <= 100:
            raise UsageError(f"percentile({percent:g}) is not in (50, 100]", hint="99.99 is a usual value")
        self.percent = percent

    def _compute_range(self, extremes: Range) -> Range:
        histogram = self.histogram
        counts = histogram.counts.copy()
        if histogram.zeros:
            counts[np.clip(-histogram.first, 0, len(counts) - 1)] += histogram.zeros
        cumulative = np.cumsum(counts) / counts.sum()
        # The fraction outside is clipped at one side only if all values have one sign.
        outside = (1 - self.percent / 100) / (1 if extremes.low >= 0 or extremes.high <= 0 else 2)
        edges = (histogram.first + np.arange(len(counts) + 1)) * histogram.width
        low = extremes.low if extremes.low >= 0 else edges[np.searchsorted(cumulative, outside, side="right")]
        high = extremes.high if extremes.high <= 0 else edges[np.searchsorted(cumulative, 1 - outside) + 1]
        return float32_range(max(extremes.low, low), min(extremes.high, high))


def _find_tail(is_beyond: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return a mask of the values beyond a limit, (n,); all False if they are not rare."""
    return is_beyond if np.count_nonzero(is_beyond) <= MAX_TAIL * is_beyond.size else np.zeros_like(is_beyond)
