"""Two versions of one model, layer by layer: where do their numbers part?

For a tensor a of the first and b of the second, over all samples:

    signal to noise   10 log10( sum a^2 / sum (a - b)^2 )          in decibels: 6 for each bit that is right
    cosine            sum a b / sqrt( sum a^2  sum b^2 )
    lost              signal to noise of the worst tensor the layer reads, less its own

The first two hide a small channel beside a large one, so signal to noise is also told for the middle channel. Only sums
are kept: memory holds the tensors of one sample.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np

from quantkit.errors import GraphError, UsageError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType
from quantkit.model.loading import load
from quantkit.quantization.matching import Pair, Places, Probe, match
from quantkit.quantization.targets.tensorflow import keep_summands
from quantkit.runtimes import AUTO, RUNTIMES, open_session
from quantkit.runtimes.session import Engine, Session, SessionOptions, TensorInfo

Feeds = Mapping[str, Array]
# Given what both sessions take: what to feed them, sample by sample.
Feeder = Callable[[Sequence[TensorInfo], Sequence[TensorInfo]], Iterable[tuple[Feeds, Feeds]]]
Batch = Array | Mapping[str, Array]
# Less than a bit and a half is right.
FLOOR = 10.0
SAMPLES = 8
# Without data, pixels stand for what float inputs usually take.
CENTRE = SCALE = np.float32(128)
# Where noise has half the power of the signal, a channel says little any more.
LOST = 3.0
# A channel so many times as large as the middle one leaves the others few codes.
DWARFING = 100.0
# Fewer numbers in a channel say little of it.
MANY = 16
SHOWN, NOTED = 20, 10


class Sums(NamedTuple):
    """What is kept of a tensor, by channel: (c,) float64 each."""

    signal: Array
    noise: Array
    other: Array
    product: Array


@dataclass(frozen=True)
class Row:
    """One tensor in both versions.

    Attributes:
        name: in the first version.
        op: that makes it there.
        other: the tensor it was compared with.
        sqnr: signal to noise in decibels; infinite where both are equal.
        channel_sqnr: that of the middle channel; the same as ``sqnr`` where channels hold few numbers.
        channels: how many there are.
        lost_channels: of these, how many hold more noise than half their signal.
        cosine: 1 where both point the same way.
        lost: decibels less than what the layer reads.
        problems: what is wrong with its numbers: NaN, infinite, dead (all zero), constant, and in which version; or
            one channel dwarfs the others in the first.
        is_broken: whether one of these is no property of the first version, or makes its numbers useless.
        is_uneven: whether one channel dwarfs the others, so that few codes are left for them.
    """

    name: str
    op: str
    other: str
    sqnr: float
    channel_sqnr: float
    channels: int
    lost_channels: int
    cosine: float
    lost: float
    problems: tuple[str, ...] = ()
    is_broken: bool = False
    is_uneven: bool = False

    @property
    def worst(self) -> float:
        """By what rows are sorted."""
        return -inf if self.is_broken else min(self.sqnr, self.channel_sqnr)

    def to_json(self) -> dict[str, Any]:
        """Plain values; null where signal to noise is infinite."""
        return {name: _finite(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Comparison:
    """All tensors that two versions have in common.

    Attributes:
        names: of both versions.
        runtimes: the engines they ran in.
        rows: in the execution order of the first.
        samples: how many were fed.
        only_mine: tensors of the first that the second does not have.
        floor: signal to noise in decibels below which a layer is bad.
        is_random: whether random numbers were fed.
    """

    names: tuple[str, str]
    runtimes: tuple[Engine, Engine]
    rows: tuple[Row, ...]
    samples: int
    only_mine: tuple[str, ...] = ()
    floor: float = FLOOR
    is_random: bool = False

    @property
    def worst_first(self) -> tuple[Row, ...]:
        return tuple(sorted(self.rows, key=lambda row: row.worst))

    @property
    def bad(self) -> tuple[Row, ...]:
        """Rows that are broken, below the floor, or have lost most of their channels, in execution order."""
        return tuple(row for row in self.rows if row.is_broken or row.sqnr < self.floor or row.channel_sqnr <= LOST)

    @property
    def first_bad(self) -> Row | None:
        """The first layer, in execution order, whose numbers are not those of the first version."""
        return next(iter(self.bad), None)

    @property
    def first_uneven(self) -> Row | None:
        """The first layer, in execution order, of which one channel dwarfs the others."""
        return next((row for row in self.rows if row.is_uneven), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values, worst first."""
        first = self.first_bad
        return {
            "models": list(self.names),
            "runtimes": [{"name": one.name, "version": one.version} for one in self.runtimes],
            "samples": self.samples,
            "random": self.is_random,
            "floor": self.floor,
            "first_bad": first.name if first else None,
            "first_uneven": self.first_uneven.name if self.first_uneven else None,
            "bad": [row.name for row in self.bad],
            "layers": [row.to_json() for row in self.worst_first],
            "only_first": list(self.only_mine),
        }

    def text(self, shown: int | None = SHOWN) -> str:
        """For people.

        Args:
            shown: how many rows; None: all.
        """
        mine, theirs = (f"{name} in {engine}" for name, engine in zip(self.names, self.runtimes, strict=True))
        what = "random inputs" if self.is_random else "samples"
        lines = [f"{mine} against {theirs}: {len(self.rows)} tensors, {self.samples} {what}"]
        first = self.first_bad
        if first:
            lines.append(f"first bad layer: {first.name} ({first.op}): {_reason(first, self.floor)}")
        else:
            lines.append(f"no layer is below {self.floor:g} dB")
        uneven = self.first_uneven
        if uneven:
            lines.append(f"first uneven layer: {uneven.name} ({uneven.op}): {', '.join(uneven.problems)}")
        rows = self.worst_first if shown is None else self.worst_first[:shown]
        width, wide = (max((len(word) for word in words), default=0) for words in zip(*_headed(rows), strict=True))
        lines.append(f"{'tensor':<{width}}  {'op':<{wide}} {'dB':>6} {'channel':>8} {'lost':>6} {'cosine':>8}  remarks")
        for row in rows:
            numbers = f"{_decibels(row.sqnr):>6} {_decibels(row.channel_sqnr):>8} {_decibels(row.lost):>6}"
            lines.append(
                f"{row.name:<{width}}  {row.op:<{wide}} {numbers} {row.cosine:>8.5f}  {_remarks(row)}".rstrip()
            )
        if len(rows) < len(self.rows):
            lines.append(f"... and {len(self.rows) - len(rows)} better ones")
        noted = [row for row in self.rows if row.problems and row not in rows]
        lines += [f"{row.name} ({row.op}): {', '.join(row.problems)}" for row in noted[:NOTED]]
        if noted[NOTED:]:
            lines.append(f"... and {len(noted) - NOTED} more with remarks")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; what was summed until then is kept.

    Args:
        comparison: of the samples that were done.
    """

    def __init__(self, comparison: Comparison) -> None:
        super().__init__("interrupted")
        self.comparison = comparison


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
    first, second = load(first), load(second)
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
    feeder = _random(samples, seed) if batches is None else batches if callable(batches) else _batched(batches)
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


@dataclass
class _Tensor:
    """What is known so far of one pair."""

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
            self.pair.name,
            self.pair.op,
            str(self.pair.theirs.edge),
            sqnr,
            float(np.median(of_channels)) if len(of_channels) else sqnr,
            len(sums.signal),
            int((of_channels <= LOST).sum()),
            product / sqrt(signal * other) if signal * other > 0 else float(signal == other),
            0.0,
            (*problems, dwarfing) if dwarfing else problems,
            is_broken,
            bool(dwarfing),
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


class _Run:
    """The sums of all pairs."""

    def __init__(self, places: Places, pairs: Sequence[Pair]) -> None:
        self.places = places
        self.pairs = pairs
        self.tensors = [_Tensor(pair, places.graph.dialect == onnx.DIALECT) for pair in pairs]
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


def _open(graph: Graph, probes: Iterable[Probe], runtime: str, options: SessionOptions) -> Session:
    """A session that gives every tensor that is compared."""
    observed = graph.with_ends(None, list(dict.fromkeys(edge for probe in probes for edge in probe.edges)))
    if graph.dialect == onnx.DIALECT:
        engines = ("onnxruntime", "openvino")
    else:
        observed, engines = keep_summands(observed), ("tensorflow", "reference")
    if runtime == AUTO:
        runtime = next((name for name in engines if RUNTIMES[name].available().ok), engines[0])
    return open_session(observed, runtime, options)


def _fetched(session: Session, graph: Graph, feeds: Feeds) -> dict[Edge, Array]:
    """What a session gives, by edge."""
    is_onnx = graph.dialect == onnx.DIALECT
    return {
        onnx.edge_of(graph, name) if is_onnx else Edge.parse(name): values
        for name, values in session.run(feeds).items()
    }


def _batched(batches: Iterable[Batch]) -> Feeder:
    """Feeds both sessions the rows of the same arrays."""

    def feeder(mine: Sequence[TensorInfo], theirs: Sequence[TensorInfo]) -> Iterator[tuple[Feeds, Feeds]]:
        for batch in batches:
            arrays = dict(batch) if isinstance(batch, Mapping) else {_only(mine).name: np.asarray(batch)}
            partners = _partners(mine, theirs)
            for row in range(len(next(iter(arrays.values())))):
                rows = {name: array[row] for name, array in arrays.items()}
                yield (
                    {info.name: _fit(rows[info.name], info) for info in mine if info.name in rows},
                    {info.name: _fit(rows[one], info) for one, info in partners.items() if one in rows},
                )

    return feeder


def _random(samples: int, seed: int) -> Feeder:
    """Feeds both sessions the same seeded numbers: pixels where one of them takes pixels."""

    def feeder(mine: Sequence[TensorInfo], theirs: Sequence[TensorInfo]) -> Iterator[tuple[Feeds, Feeds]]:
        partners = _partners(mine, theirs)
        random = np.random.default_rng(seed)
        for _ in range(samples):
            rows = {info.name: _random_row(random, info, partners[info.name]) for info in mine}
            yield (
                {info.name: _fit(rows[info.name], info) for info in mine},
                {info.name: _fit(rows[name], info) for name, info in partners.items()},
            )

    return feeder


def _random_row(random: np.random.Generator, info: TensorInfo, partner: TensorInfo) -> Array:
    dims = info.shape.dims
    if dims is None or None in dims[1:] or info.dtype is DType.STRING:
        raise UsageError(
            f"input {info.name!r} takes {info.dtype.value} of shape {info.shape}: no random numbers are made for that",
            hint="give --data, or choose an input of known size",
        )
    shape = tuple(size or 1 for size in dims[1:])
    if DType.UINT8 in (info.dtype, partner.dtype):
        return random.integers(0, 256, shape, np.uint8)
    if info.dtype.is_float:
        return random.uniform(-1, 1, shape).astype(np.float32)
    return random.integers(0, 2, shape).astype(info.dtype.numpy)


def _fit(row: Array, info: TensorInfo) -> Array:
    """A row as an input takes it: its type, its order of axes, its batch."""
    if row.dtype == np.uint8 and info.dtype.is_float:
        row = (row.astype(np.float32) - CENTRE) / SCALE
    if row.dtype != info.dtype.numpy and (not info.dtype.is_float or row.dtype.kind != "f"):
        raise UsageError(
            f"input {info.name!r} takes {info.dtype.value}, not {row.dtype}", hint="give pixels, as uint8, or pictures"
        )
    row = row.astype(info.dtype.numpy, copy=False)
    dims = info.shape.dims
    if dims is None:
        return row[None]
    if len(dims) == 4 and row.ndim == 3 and not _takes(dims[1:], row.shape):
        turned = [row.transpose(order) for order in ((2, 0, 1), (1, 2, 0))]
        row = next((one for one in turned if _takes(dims[1:], one.shape)), row)
    if not dims:
        return row
    return np.ascontiguousarray(np.broadcast_to(row, (dims[0] or 1, *row.shape)))


def _takes(dims: Sequence[int | None], shape: tuple[int, ...]) -> bool:
    return len(dims) == len(shape) and all(want in (None, size) for want, size in zip(dims, shape, strict=True))


def _only(inputs: Sequence[TensorInfo]) -> TensorInfo:
    if len(inputs) != 1:
        raise UsageError(
            f"the model takes {len(inputs)} inputs ({', '.join(info.name for info in inputs)})",
            hint="give arrays by input name",
        )
    return inputs[0]


def _partners(mine: Sequence[TensorInfo], theirs: Sequence[TensorInfo]) -> dict[str, TensorInfo]:
    """The input of the second version for each of the first: by name, or by position."""
    if len(mine) != len(theirs):
        raise UsageError(
            f"one version takes {len(mine)} inputs and the other {len(theirs)}", hint="name them with --inputs"
        )
    named = {info.name: info for info in theirs}
    if all(info.name in named for info in mine):
        return {info.name: named[info.name] for info in mine}
    return {info.name: partner for info, partner in zip(mine, theirs, strict=True)}


def _reason(row: Row, floor: float) -> str:
    if row.is_broken:
        return ", ".join(row.problems)
    if row.sqnr < floor:
        return f"{_decibels(row.sqnr)} dB, {_decibels(row.lost)} dB less than what it reads"
    return (
        f"{_decibels(row.channel_sqnr)} dB in the middle channel, {row.lost_channels} of {row.channels} channels lost"
    )


def _headed(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    """Names and ops of rows, below what is written over them."""
    yield "tensor", "op"
    yield from ((row.name, row.op) for row in rows)


def _remarks(row: Row) -> str:
    lost = [f"{row.lost_channels} of {row.channels} channels lost"] if row.lost_channels else []
    named = [f"as {row.other}"] if row.other != row.name else []
    return ", ".join((*row.problems, *lost, *named))


def _decibels(value: float) -> str:
    return f"{value:.1f}" if isfinite(value) else "equal" if value > 0 else "none"


def _finite(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and not isfinite(value) else value
