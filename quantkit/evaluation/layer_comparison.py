"""What a comparison of two versions of one model came to, for people and for programs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from quantkit.runtimes.session import RuntimeVersion

# Less than a bit and a half is right.
FLOOR = 10.0
# Where noise has half the power of the signal, a channel says little any more.
LOST = 3.0
SHOWN, NOTED = 20, 10
UNPROVEN = "random inputs prove little either way: --data PICTURES compares on real ones, and names the first bad layer"


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
        is_finite: whether neither version holds NaN or infinity.
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
    is_finite: bool = True

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
    runtimes: tuple[RuntimeVersion, RuntimeVersion]
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
        """Rows that are broken, below the floor, or have lost most of their channels, in execution order.

        Of random inputs only what is no number: networks answer to noise with tensors of hardly any size, which part
        in healthy versions, too.
        """
        if self.is_random:
            return tuple(row for row in self.rows if not row.is_finite)
        return self.below

    @property
    def below(self) -> tuple[Row, ...]:
        """What `bad` is where real samples were fed."""
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
            "below": [row.name for row in self.below],
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
        elif self.below:
            few = f"{len(self.below)} of {len(self.rows)} tensors are" if self.below[1:] else "one tensor is"
            lines.append(f"{few} below {self.floor:g} dB, for which random inputs may be to blame")
        else:
            lines.append(f"no layer is below {self.floor:g} dB")
        if self.is_random:
            lines.append(UNPROVEN)
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
