"""Two sets of answers: are they the same, up to what a transform says that it may change?

An exact transform may change a number by rounding, and nothing else: no type, no shape, no place of an infinity or of
what is not a number. One that gives up precision keeps shapes, finite numbers, and most of the signal.
"""

from collections.abc import Mapping

import numpy as np

from quantkit.errors import CheckError
from quantkit.ir.tensor import Array
from quantkit.transforms.registry import Claim

# Largest difference that rounding of float32 may leave, as a part of the largest number of an output (or of 1).
TOLERANCE = 1e-5
# Largest part of what varies in an output that rounding may take away, where it varies by more than `FLAT`.
VARIATION = 1e-2
FLAT = 1e-6
# What the narrow types round away of a number; a few of these may add up.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
ROUNDINGS = 8
# A transform that gives up precision on purpose must keep at least this much of the signal (cosine of the outputs).
MIN_COSINE = 0.5

NEXT = "quantkit transform --explain shows what it did; leave it out, or report this graph"


def compare(old: Mapping[str, Array], new: Mapping[str, Array], transform: Claim, tolerance: float) -> str:
    """How far apart two sets of answers are, in one line.

    Raises:
        CheckError: further than the transform may change them.
    """
    lines = []
    for name, want in old.items():
        found = new.get(name)
        if found is None or found.shape != want.shape:
            shape = "missing" if found is None else f"of shape {found.shape}"
            raise CheckError(
                f"{transform.name} changes output {name!r}: it was of shape {want.shape} and is {shape}", NEXT
            )
        if found.dtype != want.dtype and transform.is_exact:
            raise CheckError(
                f"{transform.name} changes output {name!r}: it was {want.dtype} and is {found.dtype}", NEXT
            )
        lines.append(_compare_one(name, want, found, transform, tolerance))
    return "; ".join(lines)


def _compare_one(name: str, want: Array, found: Array, transform: Claim, tolerance: float) -> str:
    """How far apart two arrays of one shape are; numbers are compared where the first ones are finite."""
    # V: bfloat16, which NumPy does not know. Codes of 8 bits are numbers where precision is given up.
    if want.dtype.kind not in ("fcV" if transform.is_exact else "fcViu"):
        if not np.array_equal(want, found):
            raise CheckError(
                f"{transform.name} changes output {name!r} in {np.mean(want != found):.1%} of its elements", NEXT
            )
        return f"{name}: equal"
    coarse = ROUNDINGS * ROUNDING.get(want.dtype.name, 0.0)
    tolerance = max(tolerance, coarse)
    want, found = _wide(want), _wide(found)
    are_numbers = np.isfinite(want)
    if (are_numbers & ~np.isfinite(found)).any():
        raise CheckError(f"{transform.name} makes NaN or infinity in output {name!r}", NEXT)
    if transform.is_exact and not np.array_equal(want[~are_numbers], found[~are_numbers], equal_nan=True):
        raise CheckError(f"{transform.name} changes what is NaN or infinite in output {name!r}", NEXT)
    want, found = want[are_numbers], found[are_numbers]
    if want.size < are_numbers.size:
        name = f"{name} ({want.size / are_numbers.size:.1%} of it finite)"
    if np.array_equal(want, found):
        return f"{name}: equal" + _remark(want)
    difference = float(np.abs(want - found).max())
    if not transform.is_exact:
        cosine = _require_signal(name, want, found, transform)
        return f"{name}: largest difference {difference:.2g}, cosine {cosine:.4f} (rounded by design)"
    if difference > tolerance * max(1.0, float(np.abs(want).max())):
        raise CheckError(
            f"{transform.name} changes output {name!r} by {difference:.3g}; the tolerance is {tolerance:g}", NEXT
        )
    return f"{name}: largest difference {difference:.2g}" + _variation_kept(name, want, found, transform, coarse)


def _require_signal(name: str, want: Array, found: Array, transform: Claim) -> float:
    """The cosine of two outputs.

    Raises:
        CheckError: little of the signal is left.
    """
    lengths = float(np.linalg.norm(want)) * float(np.linalg.norm(found))
    cosine = float(np.vdot(want, found).real) / max(lengths, 1e-300)
    if cosine < MIN_COSINE:
        raise CheckError(
            f"{transform.name} changes output {name!r} beyond recognition: cosine {cosine:.3f}",
            hint="calibrated ranges keep more than ranges computed for each run",
        )
    return cosine


def _wide(values: Array) -> Array:
    """The same in a type whose own rounding does not matter."""
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _variation_kept(name: str, want: Array, found: Array, transform: Claim, coarse: float) -> str:
    """Nothing, or a remark where the answers hardly vary.

    Raises:
        CheckError: small answers (those of an untrained network, say) changed by little, but by much of what varies.
    """
    if remark := _remark(want):
        return remark
    lost = float(np.linalg.norm(found - want) / np.linalg.norm(want - want.mean()))
    if lost > max(VARIATION, coarse):
        raise CheckError(f"{transform.name} changes {lost:.1%} of what varies in output {name!r}", NEXT)
    return ""


def _remark(values: Array) -> str:
    flat = values.size > 1 and np.linalg.norm(values - values.mean()) <= FLAT * np.linalg.norm(values)
    return " (but the answers hardly vary: this says little)" if flat else ""
