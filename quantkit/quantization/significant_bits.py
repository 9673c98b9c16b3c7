"""Observed values with few significant bits: files do not depend on the last bits of the runtime.

The kernels of a runtime differ from processor to processor, and with them the last bits of all tensors. A rounded value
differs only if the observed one is that near to a value where the rounding changes:

    range     outward to 8 significant bits of its width: at most 0.8 % wider, 0.03 dB on average
    mean      nearest multiple of 1/256 of the width; it is multiplied with the rounding errors of weights
    scale     nearest value of 7 significant bits
"""

from collections.abc import Sequence
from math import ceil, floor, frexp

import numpy as np

from quantkit.ir.tensor import Array
from quantkit.quantization.ranges import Range

RANGE_BITS, MEAN_BITS, SCALE_BITS = 8, 8, 7
# Fraction of a step beyond which a limit is rounded outward: 6.0000001 is the 6 of a Relu6.
TOLERANCE = 2.0**-10


def round_range(limits: Range) -> Range:
    """Return the smallest range of few significant bits that contains a range, except for `TOLERANCE` of a step.

    Ranges of zeros and those that are not finite stay.

    >>> round_range(Range(-0.30001, 3.1234567))
    Range(low=-0.3125, high=3.125)
    >>> round_range(Range(0.0, 6.0000001))
    Range(low=0.0, high=6.0)
    """
    step = _step(limits, RANGE_BITS)
    if not step:
        return limits
    return Range(step * floor(limits.low / step + TOLERANCE), step * ceil(limits.high / step - TOLERANCE))


def round_means(means: Sequence[float], limits: Range) -> tuple[float, ...]:
    """Return the nearest means of few significant bits, relative to the range of their tensor.

    Args:
        means: mean of each channel, (c,).
        limits: range of the tensor; the means stay if it is a range of zeros.
    """
    step = _step(limits, MEAN_BITS)
    return tuple(round_multiples(means, step)) if step else tuple(means)


def round_multiples(values: Sequence[float], step: float) -> list[float]:
    """Return the nearest multiples of a step.

    >>> round_multiples([0.3, -0.1], 0.25)
    [0.25, 0.0]
    """
    rounded: list[float] = (np.rint(np.asarray(values, np.float64) / step) * step + 0.0).tolist()
    return rounded


def round_scales(scales: Array) -> Array:
    """Return the nearest scales of few significant bits, (c,), for positive scales (c,).

    >>> round_scales(np.array([0.1, 1.0, 3.14159])).tolist()
    [0.099609375, 1.0, 3.15625]
    """
    mantissas, exponents = np.frexp(scales)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissas, SCALE_BITS)), exponents - SCALE_BITS))


def _step(limits: Range, bits: int) -> float:
    """Return the value of the last significant bit of the limits; 0 for a range of zeros."""
    width = max(-limits.low, limits.high, limits.high - limits.low)
    return 2.0 ** (frexp(width * (1 + TOLERANCE))[1] - bits) if 0 < width < np.inf else 0.0
