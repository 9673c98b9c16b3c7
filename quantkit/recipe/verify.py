"""Does a transform keep the answers? Seeded inputs, before and after."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantkit.errors import CheckError, QuantkitError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType
from quantkit.runtimes.session import Session, TensorInfo
from quantkit.transforms.registry import Claim

# Largest difference that rounding of float32 may leave, as a part of the largest number of an output (or of 1).
TOLERANCE = 1e-5
# Largest part of what varies in an output that rounding may take away, where it varies by more than `FLAT`.
VARIATION = 1e-2
FLAT = 1e-6
# A transform that gives up precision on purpose must keep at least this much of the signal (cosine of the outputs).
MIN_COSINE = 0.5

NEXT = "quantkit transform --explain shows what it did; leave it out, or report this graph"

Opener = Callable[[Graph], Session]
# Makes arrays, by name, of some or all inputs.
Feeder = Callable[[tuple[TensorInfo, ...]], Mapping[str, Array]]


@dataclass
class Verifier:
    """Compares answers before and after each transform; an instance is a check for `run`.

    Args:
        open_session: an engine.
        seed: of the inputs.
        tolerance: see `TOLERANCE`.
        feeder: asked for inputs, which get seeded numbers where it gives none.
    """

    open_session: Opener
    seed: int = 0
    tolerance: float = TOLERANCE
    feeder: Feeder | None = None
    feeds: Mapping[str, Array] | None = field(default=None, init=False)
    last: tuple[Graph, Mapping[str, Array]] | None = field(default=None, init=False)

    def __call__(self, before: Graph, after: Graph, transform: Claim) -> str:
        """Compare, and say how far apart the answers are.

        Raises:
            CheckError: the answers differ by more than the transform may change them, or the new graph does not run.
        """
        old = self.last[1] if self.last and self.last[0] is before else self._answers(before)[0]
        self.last = (before, old)
        if (after.nodes, after.inputs, after.outputs) == (before.nodes, before.inputs, before.outputs):
            self.last = (after, old)
            return "the same nodes"
        try:
            new, other_input = self._answers(after)
        except QuantkitError as error:
            raise CheckError(
                f"{transform.name} makes a graph that can not be run to compare: {error.message}", error.hint
            ) from error
        found = other_input or compare(old, new, transform, self.tolerance)
        self.last = (after, new)
        return found

    @property
    def terms(self) -> str:
        """What passes, in one line."""
        fed = "the given data" if self.feeder else f"inputs of seed {self.seed}"
        return (
            f"on {fed}: exact steps within {self.tolerance:g} of each output's largest number, "
            f"steps that give up precision with a cosine of at least {MIN_COSINE:g}"
        )

    def _answers(self, graph: Graph) -> tuple[Mapping[str, Array], str]:
        """The answers, and a remark where an input takes another type than before, so that they compare to nothing."""
        remark = ""
        with self.open_session(graph) as session:
            for info in session.inputs:
                fed = (self.feeds or {}).get(info.name)
                if fed is not None and info.dtype is not DType.STRING and fed.dtype != info.dtype.numpy:
                    remark = f"input {info.name!r} takes {info.dtype.value} now: answers can not be compared"
            if self.feeds is None or remark:
                given = self.feeder(session.inputs) if self.feeder else {}
                self.feeds = seeded_feeds(session.inputs, self.seed, given)
            return session.run(self._fitting(session)), remark

    def _fitting(self, session: Session) -> dict[str, Array]:
        """The feeds for the inputs that this graph still has."""
        feeds = self.feeds or {}
        return {info.name: feeds[info.name] for info in session.inputs if info.name in feeds}

    def to_json(self) -> dict[str, Any]:
        """The same as values."""
        return {
            "data": "given" if self.feeder else "seeded",
            "seed": self.seed,
            "tolerance": self.tolerance,
            "min_cosine": MIN_COSINE,
        }


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
        lines.append(_compare_one(name, want, found, transform, tolerance))
    return "; ".join(lines)


def _compare_one(name: str, want: Array, found: Array, transform: Claim, tolerance: float) -> str:
    # V: bfloat16, which NumPy does not know. Codes of 8 bits are numbers where precision is given up.
    if want.dtype.kind not in ("fcV" if transform.is_exact else "fcViu"):
        if not np.array_equal(want, found):
            raise CheckError(
                f"{transform.name} changes output {name!r} in {np.mean(want != found):.1%} of its elements", NEXT
            )
        return f"{name}: equal"
    if np.array_equal(want, found, equal_nan=True):
        return f"{name}: equal" + _remark(want)
    want, found = want.astype(np.float64), found.astype(np.float64)
    if np.isfinite(want).all() and not np.isfinite(found).all():
        raise CheckError(f"{transform.name} makes NaN or infinity in output {name!r}", NEXT)
    difference = float(np.nanmax(np.abs(want - found)))
    if transform.is_exact:
        if difference > tolerance * max(1.0, float(np.nanmax(np.abs(want)))):
            raise CheckError(
                f"{transform.name} changes output {name!r} by {difference:.3g}; the tolerance is {tolerance:g}",
                NEXT,
            )
        return f"{name}: largest difference {difference:.2g}" + _variation_kept(name, want, found, transform)
    cosine = float((want * found).sum() / max(np.linalg.norm(want) * np.linalg.norm(found), 1e-300))
    if cosine < MIN_COSINE:
        raise CheckError(
            f"{transform.name} changes output {name!r} beyond recognition: cosine {cosine:.3f}",
            hint="calibrated ranges keep more than ranges computed for each run",
        )
    return f"{name}: largest difference {difference:.2g}, cosine {cosine:.4f} (rounded by design)"


def _variation_kept(name: str, want: Array, found: Array, transform: Claim) -> str:
    """Nothing, or a remark where the answers hardly vary.

    Raises:
        CheckError: small answers (those of an untrained network, say) changed by little, but by much of what varies.
    """
    if remark := _remark(want):
        return remark
    lost = float(np.linalg.norm(found - want) / np.linalg.norm(want - want.mean()))
    if lost > VARIATION:
        raise CheckError(
            f"{transform.name} changes {lost:.1%} of what varies in output {name!r}",
            hint="quantkit transform --explain shows what it did; leave it out, or report this graph",
        )
    return ""


def _remark(want: Array) -> str:
    values = want.astype(np.float64)
    flat = values.size > 1 and np.linalg.norm(values - values.mean()) <= FLAT * np.linalg.norm(values)
    return " (but the answers hardly vary: this says little)" if flat else ""


def seeded_feeds(
    inputs: tuple[TensorInfo, ...], seed: int = 0, given: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Random arrays for inputs: floats in [-1, 1), pixels in 0..255, small integers; unknown sizes are 1.

    Args:
        inputs: what is fed.
        seed: of the random numbers.
        given: arrays of those inputs that get no random ones.

    Raises:
        UsageError: an input takes strings, or its number of dimensions is unknown.
    """
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for info in inputs:
        if given and info.name in given:
            feeds[info.name] = given[info.name]
            continue
        if info.shape.dims is None or info.dtype is DType.STRING:
            what = "strings" if info.dtype is DType.STRING else "a tensor of unknown rank"
            raise UsageError(
                f"no random values can be made for input {info.name!r}, which takes {what}",
                hint="choose another --inputs, behind the decoder",
            )
        shape = tuple(1 if size is None else size for size in info.shape.dims)
        feeds[info.name] = _random(random, info.dtype, shape)
    return feeds


def _random(random: "np.random.Generator", dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype.is_float:
        return random.uniform(-1, 1, shape).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return random.integers(0, 2, shape).astype(bool)
    high = 256 if dtype in (DType.UINT8, DType.QUINT8) else 8
    return random.integers(0, high, shape).astype(dtype.numpy)
