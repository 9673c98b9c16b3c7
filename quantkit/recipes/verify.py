"""Does a transform keep the answers? Seeded inputs, before and after."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantkit.errors import CheckError, QuantkitError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType
from quantkit.recipes.outputs import MIN_COSINE, TOLERANCE, compare
from quantkit.runtimes.session import Session, TensorInfo
from quantkit.transforms.registry import Claim

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
        if _compared(after) == _compared(before):
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


def _compared(graph: Graph) -> tuple[Any, ...]:
    """Equal for graphs that need not be run to see that they answer alike."""
    return graph.nodes, graph.inputs, graph.outputs, graph.library


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
                hint="give arrays (--data FILE.npz), or choose other --inputs, behind a decoder say",
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
