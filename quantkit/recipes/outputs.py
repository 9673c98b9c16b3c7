"""Comparison of model outputs before and after a transform, within the limits of the transform.

An exact transform may change numbers by rounding only: element types, shapes and the positions of NaN and infinity
stay. A transform that reduces precision keeps shapes, finite numbers, and most of the signal.
"""

from collections.abc import Mapping

import numpy as np

from quantkit.errors import CheckError
from quantkit.ir.tensor import Array, DType
from quantkit.recipes.rounding import FLOOR, ULP
from quantkit.transforms.registry import Claim

# Minimum cosine of the outputs before and after a transform that reduces precision.
MIN_COSINE = 0.5

NEXT = "quantkit transform --explain shows its changes; omit the transform, or report this graph"


def compare(old: Mapping[str, Array], new: Mapping[str, Array], transform: Claim, tolerance: float | None) -> str:
    """Return the difference of two sets of outputs in one line.

    Args:
        old, new: (runs, ...) by output name.
        transform: claim about the difference.
        tolerance: largest difference of an exact transform as a fraction of the largest value (at least 1); None if
            any difference of numbers is allowed.

    Raises:
        CheckError: the difference is larger than the transform may cause.
    """
    lines = []
    for name, expected in old.items():
        actual = new.get(name)
        if actual is None or actual.shape != expected.shape:
            shape = "missing" if actual is None else f"of shape {actual.shape[1:]}"
            raise CheckError(
                f"{transform.name} changes output {name!r}: it was of shape {expected.shape[1:]} and is {shape}", NEXT
            )
        if actual.dtype != expected.dtype and transform.is_exact:
            raise CheckError(
                f"{transform.name} changes output {name!r}: it was {expected.dtype} and is {actual.dtype}", NEXT
            )
        lines.append(_compare_output(name, expected, actual, transform, tolerance))
    return "; ".join(lines)


def _compare_output(name: str, expected: Array, actual: Array, transform: Claim, tolerance: float | None) -> str:
    """Return the difference of two arrays of the same shape; only finite expected values are compared."""
    # V is bfloat16, which has no kind in NumPy. Quantized values count as numbers if precision is reduced.
    if expected.dtype.kind not in ("fcV" if transform.is_exact else "fcViu"):
        if np.array_equal(expected, actual):
            return f"{name}: equal"
        difference = f"{np.mean(expected != actual):.1%} of its elements"
        if tolerance is None and expected.dtype.kind in "biu":
            return f"{name}: {difference} differ"
        raise CheckError(f"{transform.name} changes output {name!r} in {difference}", NEXT)
    rounding = FLOOR * ULP.get(DType.of(expected.dtype), 0.0)
    expected, actual = widen(expected), widen(actual)
    is_finite = np.isfinite(expected)
    if (is_finite & ~np.isfinite(actual)).any():
        raise CheckError(f"{transform.name} adds NaN or infinity to output {name!r}", NEXT)
    if transform.is_exact and not np.array_equal(expected[~is_finite], actual[~is_finite], equal_nan=True):
        raise CheckError(f"{transform.name} changes the NaN and infinite values of output {name!r}", NEXT)
    expected, actual = expected[is_finite], actual[is_finite]
    if expected.size < is_finite.size:
        name = f"{name} ({expected.size / is_finite.size:.1%} of the values finite)"
    if np.array_equal(expected, actual):
        return f"{name}: equal"
    change = float(np.abs(expected - actual).max())
    if not transform.is_exact:
        cosine = _check_cosine(name, expected, actual, transform)
        return f"{name}: largest difference {change:.2g}, cosine {cosine:.4f} (rounded by design)"
    if tolerance is not None:
        tolerance = max(tolerance, rounding)
        if change > tolerance * max(1.0, float(np.abs(expected).max())):
            raise CheckError(
                f"{transform.name} changes output {name!r} by {change:.3g}; the tolerance is {tolerance:g}", NEXT
            )
    return f"{name}: largest difference {change:.2g}"


def _check_cosine(name: str, expected: Array, actual: Array, transform: Claim) -> float:
    """Return the cosine of two outputs.

    Raises:
        CheckError: the cosine is below `MIN_COSINE`.
    """
    norms = float(np.linalg.norm(expected)) * float(np.linalg.norm(actual))
    cosine = float(np.vdot(expected, actual).real) / max(norms, 1e-300)
    if cosine < MIN_COSINE:
        raise CheckError(
            f"{transform.name} breaks output {name!r} (cosine {cosine:.3f})",
            hint="calibrate instead: quantkit quantize --target eightbit",
        )
    return cosine


def widen(values: Array) -> Array:
    """Convert to a type whose rounding does not matter."""
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
