"""What is summed of one tensor in both versions of a model, sample by sample, and the row it comes to.

signal to noise   10 log10( sum a^2 / sum (a - b)^2 )          in decibels: 6 for each bit that is right
cosine            sum a b / sqrt( sum a^2  sum b^2 )
"""

from dataclasses import dataclass, field
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from quantkit.evaluation.layer_comparison import LOST, Row
from quantkit.evaluation.matching import Pair
from quantkit.ir.tensor import Array

# A channel so many times as large as the middle one leaves the others few codes.
DWARFING = 100.0
# Fewer numbers in a channel say little of it.
MANY = 16


class Sums(NamedTuple):
    """What is kept of a tensor, by channel: (c,) float64 each."""

    signal: Array
    noise: Array
    other: Array
    product: Array


@dataclass
class TensorSums:
    """What is known so far of one pair; lists hold what is said of the first version and of the second.

    Attributes:
        pair: the tensor in both.
        has_channels_first: whether both are (n, c, h, w).
        sums: by channel; None before the first sample.
        turn: how the second's axes are exchanged to be the first's; None: not at all.
        shift: of what the second's codes stand for.
        lows, highs: extremes of the finite numbers.
        not_a_number, infinite: how many were met.
        count: numbers in each channel.
        has_other_shape: whether the two can not be compared.
    """

    pair: Pair
    has_channels_first: bool
    sums: Sums | None = None
    turn: tuple[int, ...] | None = None
    shift: float = 0.0
    lows: list[float] = field(default_factory=lambda: [inf, inf])
    highs: list[float] = field(default_factory=lambda: [-inf, -inf])
    not_a_number: list[int] = field(default_factory=lambda: [0, 0])
    infinite: list[int] = field(default_factory=lambda: [0, 0])
    count: int = 0
    has_other_shape: bool = False

    def add(self, mine: Array, theirs: Array, step: float | None) -> None:
        """Add the tensors of a sample.

        Args:
            mine: (..., c) of the first version.
            theirs: the same numbers, perhaps with channels first.
            step: of codes that begin at 0; they may stand for shifted numbers.
        """
        if self.sums is None:
            self.turn = _turn(mine, theirs)
        if self.turn is not None:
            theirs = theirs.transpose(self.turn)
        if mine.shape != theirs.shape and mine.size == theirs.size:
            theirs = theirs.reshape(mine.shape)
        self.has_other_shape |= mine.shape != theirs.shape
        if self.has_other_shape:
            return
        if self.sums is None:
            self.shift = _shift(mine, theirs, step)
        theirs = theirs - np.float32(self.shift) if self.shift else theirs
        self._note(0, mine)
        self._note(1, theirs)
        self._sum(mine, theirs)

    def _note(self, which: int, values: Array) -> None:
        finite = np.isfinite(values)
        if not finite.all():
            self.not_a_number[which] += int(np.isnan(values).sum())
            self.infinite[which] += int(np.isinf(values).sum())
            values = values[finite]
        if values.size:
            self.lows[which] = min(self.lows[which], float(values.min()))
            self.highs[which] = max(self.highs[which], float(values.max()))

    def _sum(self, mine: Array, theirs: Array) -> None:
        if self.has_channels_first and mine.ndim == 4:
            mine, theirs = mine.transpose(0, 2, 3, 1), theirs.transpose(0, 2, 3, 1)
        channels = mine.shape[-1] if mine.ndim > 1 else 1
        self.count += mine.size // max(channels, 1)
        a, b = (values.reshape(-1, channels).astype(np.float64) for values in (mine, theirs))
        usable = np.isfinite(a) & np.isfinite(b)
        if not usable.all():
            a, b = np.where(usable, a, 0), np.where(usable, b, 0)
        new = Sums((a * a).sum(0), ((a - b) ** 2).sum(0), (b * b).sum(0), (a * b).sum(0))
        self.sums = new if self.sums is None else Sums(*(old + more for old, more in zip(self.sums, new, strict=True)))

    def row(self) -> Row:
        """What it came to."""
        problems, is_broken = self.problems()
        dwarfing = self._dwarfing()
        none = np.zeros(1)
        sums = self.sums or Sums(none, none, none, none)
        signal, noise, other, product = (float(one.sum()) for one in sums)
        has_signal = sums.signal > 0
        of_channels = _decibels_of(sums.signal[has_signal], sums.noise[has_signal])[: None if self.count >= MANY else 0]
        sqnr = float(_decibels_of(np.array(signal), np.array(noise)))
        return Row(
            name=self.pair.name,
            op=self.pair.op,
            other=str(self.pair.theirs.edge),
            sqnr=sqnr,
            channel_sqnr=float(np.median(of_channels)) if len(of_channels) else sqnr,
            channels=len(sums.signal),
            lost_channels=int((of_channels <= LOST).sum()),
            cosine=product / sqrt(signal * other) if signal * other > 0 else float(signal == other),
            lost=0.0,  # what it reads tells, when all rows are there
            problems=(*problems, dwarfing) if dwarfing else problems,
            is_broken=is_broken,
            is_uneven=bool(dwarfing),
            is_finite=not any((*self.not_a_number, *self.infinite)),
        )

    def problems(self) -> tuple[tuple[str, ...], bool]:
        """What is wrong with the numbers, and whether that breaks the second version."""
        found: list[str] = []
        is_broken = False
        where = ("in the first", "in the second")
        for what, counts in (("NaN", self.not_a_number), ("infinite numbers", self.infinite)):
            if any(counts):
                is_broken = True
                found.append(f"{what} {'in both' if all(counts) else where[bool(counts[1])]}")
        dead = [low == high == 0 for low, high in zip(self.lows, self.highs, strict=True)]
        constant = [low == high != 0 for low, high in zip(self.lows, self.highs, strict=True)]
        for what, flags in (("dead (all zero)", dead), ("constant", constant)):
            if any(flags):
                found.append(f"{what} {'in both' if all(flags) else where[flags[1]]}")
                is_broken |= flags[1] and not (dead[0] or constant[0])
        return tuple(found), is_broken

    def _dwarfing(self) -> str:
        """A channel of the first version beside which the others get few codes."""
        if self.sums is None or self.count < MANY or not self.sums.signal.any() or any(self.not_a_number):
            return ""
        if self.pair.op.endswith("Softmax"):  # probabilities are that uneven where the network is sure
            return ""
        sizes = np.sqrt(self.sums.signal)
        ratio = sizes.max() / np.median(sizes[sizes > 0])
        return f"channel {int(sizes.argmax())} is {ratio:.0f} times the middle one" if ratio > DWARFING else ""


def _decibels_of(signal: Array, noise: Array) -> Array:
    """Signal to noise of each element; infinite where there is no noise."""
    with np.errstate(all="ignore"):
        return np.where(noise == 0, inf, 10 * np.log10(signal / np.where(noise == 0, 1, noise)))


def _turn(mine: Array, theirs: Array) -> tuple[int, ...] | None:
    """How the axes of the second are exchanged to be those of the first; None: not at all.

    Where sizes alone do not tell, the order counts in which the two are nearer.
    """
    if theirs.ndim != 4 or mine.ndim != 4:
        return None
    orders = ((0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2))
    fitting = [order for order in orders if tuple(theirs.shape[axis] for axis in order) == mine.shape]
    if not fitting:
        return None
    distances = [float(np.nansum((mine - theirs.transpose(order)) ** 2)) for order in fitting]
    best = fitting[int(np.argmin(distances))]
    return None if best == orders[0] else best


def _shift(mine: Array, theirs: Array, step: float | None) -> float:
    """What codes that begin at 0 are shifted by, where negative numbers occur: a whole number of steps."""
    if step is None or not np.nanmin(mine, initial=0) < -step / 2:
        return 0.0
    difference = float(np.nanmedian(theirs - mine))
    return round(difference / step) * step if np.isfinite(difference) else 0.0
