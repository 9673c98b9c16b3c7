"""Sums over one tensor in both versions of a model, sample by sample, and the row of the comparison they give.

SQNR      10 log10( sum a^2 / sum (a - b)^2 )          in decibels: 6 dB for each correct bit
cosine    sum a b / sqrt( sum a^2  sum b^2 )
"""

from dataclasses import dataclass, field
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from quantkit.evaluation.layer_comparison import NOISY_CHANNEL, LayerRow
from quantkit.evaluation.output_sqnr import sqnr
from quantkit.evaluation.tensor_matching import TensorPair
from quantkit.ir.tensor import Array

# A channel whose norm exceeds the median norm by this factor leaves few quantized values to the other channels.
OUTLIER_RATIO = 100.0
# Smallest number of values for statistics of a channel.
MIN_CHANNEL_VALUES = 16


class ChannelSums(NamedTuple):
    """Sums over one tensor by channel, (c,) float64 each."""

    signal: Array
    noise: Array
    other_signal: Array
    product: Array


@dataclass
class TensorSums:
    """Running sums and extremes of one tensor pair; lists hold the first version, then the second.

    Attributes:
        pair: the tensor in both graphs.
        has_channels_first: True if both tensors are (n, c, h, w).
        sums: sums by channel; None before the first sample.
        axes: permutation from the axes of the second tensor to those of the first; None if they are equal.
        shift: constant offset of the second tensor, see `_range_shift`.
        lows, highs: extremes of the finite values.
        nan_counts, infinity_counts: number of values that are not finite.
        count: number of values in each channel.
        num_samples: number of samples.
        num_different: number of samples in which the two tensors have different shapes, so that their values are not
            compared.
        shape: shape of the tensor of the first version in the last sample.
        is_resized: True if this shape depends on the data.
        is_masked: True if both tensors have the same infinity somewhere, such as in a mask.
    """

    pair: TensorPair
    has_channels_first: bool
    sums: ChannelSums | None = None
    axes: tuple[int, ...] | None = None
    shift: float = 0.0
    lows: list[float] = field(default_factory=lambda: [inf, inf])
    highs: list[float] = field(default_factory=lambda: [-inf, -inf])
    nan_counts: list[int] = field(default_factory=lambda: [0, 0])
    infinity_counts: list[int] = field(default_factory=lambda: [0, 0])
    count: int = 0
    num_samples: int = 0
    num_different: int = 0
    shape: tuple[int, ...] | None = None
    is_resized: bool = False
    is_masked: bool = False

    @property
    def has_different_shapes(self) -> bool:
        """True if the two tensors have different shapes in every sample."""
        return self.num_different == self.num_samples

    def add(self, first: Array, second: Array, scale: float | None) -> None:
        """Add the two tensors of one sample.

        Args:
            first: (..., c) tensor of the first version.
            second: the same tensor of the second version, with channels last or first.
            scale: scale of quantized values whose range begins at 0; None for all other tensors.
        """
        if self.sums is None:
            self.axes = _matching_axes(first, second)
        if self.axes is not None:
            second = second.transpose(self.axes)
        if first.shape != second.shape and first.size == second.size:
            second = second.reshape(first.shape)
        self.is_resized |= self.shape not in (None, first.shape)
        self.shape = first.shape
        self.num_samples += 1
        self.num_different += first.shape != second.shape
        if first.shape != second.shape or not first.size:
            return
        if self.sums is None:
            self.shift = _range_shift(first, second, scale)
        second = second - np.float32(self.shift) if self.shift else second
        # Masks of attention have the same infinity in both versions.
        is_masked = np.isinf(first) & (first == second)
        self.is_masked |= bool(is_masked.any())
        self._update_extremes(0, first[~is_masked])
        self._update_extremes(1, second[~is_masked])
        self._update_sums(first, second)

    def _update_extremes(self, version: int, values: Array) -> None:
        finite = np.isfinite(values)
        if not finite.all():
            self.nan_counts[version] += int(np.isnan(values).sum())
            self.infinity_counts[version] += int(np.isinf(values).sum())
            values = values[finite]
        if values.size:
            self.lows[version] = min(self.lows[version], float(values.min()))
            self.highs[version] = max(self.highs[version], float(values.max()))

    def _update_sums(self, first: Array, second: Array) -> None:
        if self.has_channels_first and first.ndim == 4:
            first, second = first.transpose(0, 2, 3, 1), second.transpose(0, 2, 3, 1)
        channels = first.shape[-1] if first.ndim > 1 else 1
        if self.sums is not None and len(self.sums.signal) != channels:  # an axis whose size varies has no channels
            channels, self.sums = 1, ChannelSums(*(values.sum(keepdims=True) for values in self.sums))
        self.count += first.size // channels
        a, b = (values.reshape(-1, channels).astype(np.float64) for values in (first, second))
        usable = np.isfinite(a) & np.isfinite(b)
        if not usable.all():
            a, b = np.where(usable, a, 0), np.where(usable, b, 0)
        new = ChannelSums((a * a).sum(0), ((a - b) ** 2).sum(0), (b * b).sum(0), (a * b).sum(0))
        if self.sums is not None:
            new = ChannelSums(*(old + more for old, more in zip(self.sums, new, strict=True)))
        self.sums = new

    def row(self) -> LayerRow:
        """Return the row of the comparison, without `LayerRow.sqnr_drop`, which depends on other rows."""
        problems, is_broken = self._problems()
        outlier = self._outlier_channel()
        zero = np.zeros(1)
        sums = self.sums or ChannelSums(zero, zero, zero, zero)
        signal, noise, other_signal, product = (float(values.sum()) for values in sums)
        has_signal = sums.signal > 0
        by_channel = sqnr(sums.signal[has_signal], sums.noise[has_signal])
        by_channel = by_channel if self.count >= MIN_CHANNEL_VALUES else by_channel[:0]
        total = float(sqnr(signal, noise))
        both = signal * other_signal
        return LayerRow(
            name=self.pair.name,
            op=self.pair.op,
            other=str(self.pair.second.edge),
            sqnr=total,
            channel_sqnr=float(np.median(by_channel)) if len(by_channel) else total,
            channels=len(sums.signal),
            noisy_channels=int((by_channel <= NOISY_CHANNEL).sum()),
            cosine=product / sqrt(both) if both > 0 else float(signal == other_signal),
            sqnr_drop=0.0,
            problems=(*problems, outlier) if outlier else problems,
            is_broken=is_broken,
            has_outlier_channel=bool(outlier),
            is_finite=not any((*self.nan_counts, *self.infinity_counts)),
        )

    def _problems(self) -> tuple[tuple[str, ...], bool]:
        """Return the problems of the values, and whether they make the second version useless."""
        different = f"another size in {self.num_different} of {self.num_samples} samples"
        problems = [different] if self.num_different else []
        is_broken = False
        versions = ("in the first", "in the second")
        for problem, counts in (("NaN", self.nan_counts), ("infinity", self.infinity_counts)):
            if any(counts):
                is_broken = True
                problems.append(f"{problem} {'in both' if all(counts) else versions[bool(counts[1])]}")
        ranges = list(zip(self.lows, self.highs, strict=True))
        dead = [low == high == 0 and not self.is_masked for low, high in ranges]
        constant = [low == high != 0 and not self.is_masked for low, high in ranges]
        for problem, flags in (("dead (all zero)", dead), ("constant", constant)):
            if any(flags):
                problems.append(f"{problem} {'in both' if all(flags) else versions[flags[1]]}")
                is_broken |= flags[1] and not (dead[0] or constant[0])
        return tuple(problems), is_broken

    def _outlier_channel(self) -> str:
        """Return a note on a channel of the first version that is much larger than the others; else empty."""
        if self.sums is None or self.count < MIN_CHANNEL_VALUES or not self.sums.signal.any() or any(self.nan_counts):
            return ""
        if self.pair.op.endswith("Softmax"):  # probabilities of a confident model differ that much
            return ""
        norms = np.sqrt(self.sums.signal)
        ratio = norms.max() / np.median(norms[norms > 0])
        if ratio <= OUTLIER_RATIO:
            return ""
        return f"channel {int(norms.argmax())} is {ratio:.0f} times the median channel"


def _matching_axes(first: Array, second: Array) -> tuple[int, ...] | None:
    """Return the permutation that gives the second tensor the axes of the first; None if they are equal.

    If the sizes allow several permutations, the one with the smallest difference is returned.
    """
    if second.ndim != 4 or first.ndim != 4:
        return None
    orders = ((0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2))
    fitting = [order for order in orders if tuple(second.shape[axis] for axis in order) == first.shape]
    if not fitting:
        return None
    distances = [float(np.nansum((first - second.transpose(order)) ** 2)) for order in fitting]
    best = fitting[int(np.argmin(distances))]
    return None if best == orders[0] else best


def _range_shift(first: Array, second: Array, scale: float | None) -> float:
    """Return the offset of a quantized range that begins at 0 although values are negative.

    Such a range stands for real values shifted by a whole number of quantization steps.
    """
    if scale is None or not np.nanmin(first, initial=0) < -scale / 2:
        return 0.0
    difference = float(np.nanmedian(second - first))
    return round(difference / scale) * scale if np.isfinite(difference) else 0.0
