"""Two versions of one model, layer by layer: where do their numbers part?

For a tensor a of the first and b of the second, over all samples:

    signal to noise   10 log10( sum a^2 / sum (a - b)^2 )          in decibels: 6 for each bit that is right
    lost              signal to noise of the worst tensor the layer reads, less its own

It hides a small channel beside a large one, so it is also told for the middle channel. Only sums are kept
(`tensor_sums`): memory holds the tensors of one sample.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any

import numpy as np

from quantkit.data.feeders import Batch, Feeder, Feeds, batched, random_feeder
from quantkit.errors import GraphError, UsageError
from quantkit.evaluation.layer_comparison import FLOOR, Comparison, Interrupted, Row
from quantkit.evaluation.matching import Pair, Places, Probe, match
from quantkit.evaluation.tensor_sums import TensorSums
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.model import as_model
from quantkit.ops.tensorflow.in_place_sums import copy_shared_summands
from quantkit.runtimes import AUTO, observing_runtime, open_session
from quantkit.runtimes.session import Session, SessionOptions

SAMPLES = 8


def compare(
    first: Any,
    second: Any,
    batches: Iterable[Batch] | Feeder | None = None,
    *,
    names: tuple[str, str] | None = None,
    runtimes: tuple[str, str] = (AUTO, AUTO),
    options: SessionOptions = SessionOptions(),
    samples: int = SAMPLES,
    seed: int = 0,
    floor: float = FLOOR,
    progress: Callable[[int], None] = lambda done: None,
) -> Comparison:
    """Run both versions of a model on the same samples and compare every tensor they have in common.

    Args:
        first: the version that is right: a graph of TensorFlow or ONNX ops, or what `quantkit.load` makes one of.
        second: the other one.
        batches: arrays of samples (n, ...) for the only input, or by input name; or a function that makes what each
            of the two is fed; None: seeded random numbers.
        names: what to call them; None: as they are named here, or first and second.
        runtimes: their engines; ``auto``: TensorFlow (or NumPy), and ONNX Runtime for ONNX.
        options: threads, device and precision; the first computes in float32 whatever it says.
        samples: how many random ones.
        seed: of these.
        floor: signal to noise in decibels below which a layer is bad.
        progress: told how many samples are done.

    Raises:
        GraphError: they have no tensor in common.
        UsageError: a sample does not fit an input, or the two take other inputs.
        UnavailableError: no engine can run one of them.
        Interrupted: by Ctrl-C, with what was summed.
    """
    names = names or (_name(first, "first"), _name(second, "second"))
    first, second = as_model(first).graph, as_model(second).graph
    for name, graph in zip(names, (first, second), strict=True):
        if not graph.inputs or not graph.outputs:
            raise UsageError(f"{name} does not say what is fed and what is asked for", hint="name inputs and outputs")
    mine, theirs = Places(first), Places(second)
    pairs = match(mine, theirs)
    if not pairs:
        raise GraphError(
            f"{names[0]} and {names[1]} have no tensor in common, by name or by weights",
            hint="compare versions of one model; quantkit summarize shows what they are",
        )
    feeder = random_feeder(samples, seed) if batches is None else batches if callable(batches) else batched(batches)
    with (
        _open(first, [pair.mine for pair in pairs], runtimes[0], replace(options, precision="float32")) as one,
        _open(second, [pair.theirs for pair in pairs], runtimes[1], options) as other,
    ):
        run = _Run(mine, pairs)

        def result() -> Comparison:
            rows = run.rows()
            compared = {row.name for row in rows}
            alone = tuple(name for name in mine.probes if name not in compared)
            engines = (one.runtime, other.runtime)
            return Comparison(names, engines, rows, run.samples, alone, floor, batches is None)

        try:
            for feeds, other_feeds in feeder(one.inputs, other.inputs):
                run.add(_fetched(one, first, feeds), _fetched(other, second, other_feeds))
                progress(run.samples)
        except KeyboardInterrupt:
            if not run.samples:
                raise
            raise Interrupted(result()) from None
        if not run.samples:
            raise UsageError("there is no sample to compare the models on", hint="give some, or none at all")
        return result()


def _name(model: Any, otherwise: str) -> str:
    return os.fspath(model) if isinstance(model, str | os.PathLike) else otherwise


class _Run:
    """The sums of all pairs."""

    def __init__(self, places: Places, pairs: Sequence[Pair]) -> None:
        self.places = places
        self.pairs = pairs
        self.tensors = [TensorSums(pair, places.graph.dialect == onnx.DIALECT) for pair in pairs]
        self.samples = 0

    def add(self, mine: Mapping[Edge, Array], theirs: Mapping[Edge, Array]) -> None:
        with np.errstate(all="ignore"):
            for pair, tensor in zip(self.pairs, self.tensors, strict=True):
                tensor.add(pair.mine.numbers(mine), pair.theirs.numbers(theirs), pair.theirs.step(theirs))
        self.samples += 1

    def rows(self) -> tuple[Row, ...]:
        """In execution order."""
        rows = {number: tensor.row() for number, tensor in enumerate(self.tensors) if not tensor.has_other_shape}
        made: dict[str, list[int]] = {}
        for number in rows:
            made.setdefault(self.pairs[number].mine.edge.node, []).append(number)
        reached: dict[str, float] = {}
        for name, node in self.places.live.items():
            before = min((reached.get(edge.node, inf) for edge in node.inputs), default=inf)
            numbers = made.get(name, ())
            reached[name] = min((rows[number].sqnr for number in numbers), default=before)
            for number in numbers:
                lost = before - rows[number].sqnr
                rows[number] = replace(rows[number], lost=lost if isfinite(lost) else 0.0)
        return tuple(rows.values())


def _open(graph: Graph, probes: Iterable[Probe], runtime: str, options: SessionOptions) -> Session:
    """A session that gives every tensor that is compared."""
    observed = graph.with_endpoints(None, list(dict.fromkeys(edge for probe in probes for edge in probe.edges)))
    if graph.dialect != onnx.DIALECT:
        observed = copy_shared_summands(observed)
    return open_session(observed, observing_runtime(graph.dialect) if runtime == AUTO else runtime, options)


def _fetched(session: Session, graph: Graph, feeds: Feeds) -> dict[Edge, Array]:
    """What a session gives, by edge."""
    is_onnx = graph.dialect == onnx.DIALECT
    return {
        onnx.edge_of(graph, name) if is_onnx else Edge.parse(name): values
        for name, values in session.run(feeds).items()
    }
