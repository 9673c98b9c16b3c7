"""Which layers must stay float for the answers to stay right, and what each of them buys.

    1. Measure with everything in 8 bits. Good enough? Done.
    2. Sensitivity: measure once for each unit, with that unit alone in float. The gain is what it gives back.
    3. Put the most sensitive ones in float; the least number that suffices is found by halving.
    4. Try to return each of those to 8 bits, the least sensitive first; it stays there if the answers stay right.

Every measurement is kept, in a file if one is named, so that a search that was interrupted goes on where it was.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from quantkit.errors import InputError
from quantkit.formats.files import write_whole

SCHEMA = "quantkit.fallback/1"
# Part of the time after which no more sensitivities are measured: knowing them all helps nobody without a choice.
MEASURING = 0.6


@dataclass(frozen=True, order=True)
class Loss:
    """How far a quantized graph is from the float one; smaller is better, the drop counts first.

    Attributes:
        drop: in parts of one, top-1 accuracy lost where labels are known, else disagreement with the float graph, or
            the error of outputs that are no classes.
        divergence: mean KL(float || quantized), in nats.
    """

    drop: float
    divergence: float


# Loss with these units (by name) in float and all others in 8 bits.
Measure = Callable[[frozenset[str]], Loss]
# Told what is measured next, and which share of the time is used.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Row:
    """One unit: what it gives back when it alone is float, and whether it stays float.

    Attributes:
        unit: its name.
        gain: the loss in 8 bits minus that with it in float; None: not measured before time ran out.
        bought: the loss without it in the final choice minus the final loss; None: it is in 8 bits, or was not tried.
        is_float: the decision.
    """

    unit: str
    gain: Loss | None
    bought: Loss | None
    is_float: bool


@dataclass(frozen=True)
class Fallback:
    """The result of a search.

    Attributes:
        keep_float: units that stay float.
        loss: with this choice.
        baseline: with everything in 8 bits.
        rows: the units, most sensitive first.
        is_reached: whether the drop is within what was allowed.
        is_complete: whether the search ended before its time.
    """

    keep_float: frozenset[str]
    loss: Loss
    baseline: Loss
    rows: tuple[Row, ...]
    is_reached: bool
    is_complete: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "keep_float": sorted(self.keep_float),
            "drop": self.loss.drop,
            "divergence": self.loss.divergence,
            "baseline_drop": self.baseline.drop,
            "baseline_divergence": self.baseline.divergence,
            "is_reached": self.is_reached,
            "is_complete": self.is_complete,
            "units": [
                {"unit": row.unit, "gain": _pair(row.gain), "bought": _pair(row.bought), "is_float": row.is_float}
                for row in self.rows
            ],
        }


@dataclass
class _Search:
    """Measurements so far, and the clock."""

    measure: Measure
    deadline: float
    started: float
    clock: Callable[[], float]
    progress: Progress
    state: Path | None
    known: dict[frozenset[str], Loss] = field(default_factory=dict)
    is_complete: bool = True

    def loss(self, floats: Iterable[str], what: str, part: float = 1.0) -> Loss | None:
        """The loss of a choice, or None where this part of the time is over before it is measured."""
        key = frozenset(floats)
        if key in self.known:
            return self.known[key]
        now = self.clock()
        if now >= self.started + part * (self.deadline - self.started) and self.known:
            self.is_complete = False
            return None
        self.progress(what, (now - self.started) / (self.deadline - self.started))
        self.known[key] = self.measure(key)
        if self.state:
            _save(self.state, self.known)
        return self.known[key]


def search(
    units: Iterable[str],
    measure: Measure,
    *,
    max_drop: float,
    seconds: float,
    likely: Iterable[str] = (),
    state: Path | None = None,
    progress: Progress = lambda what, share: None,
    clock: Callable[[], float] = monotonic,
) -> Fallback:
    """Find a small set of units whose staying in float keeps the drop within bounds.

    Args:
        units: names of the units that are in 8 bits.
        measure: makes and tries the graph with some of them in float; the only part that takes time.
        max_drop: how much may be lost, in parts of one.
        seconds: time budget; the measurement under way when it ends is finished.
        likely: units to try first, worst first, where something is known beforehand (their own noise, say).
        state: a file to keep measurements in, and to go on from.
        progress: told what is measured.
        clock: seconds that pass.

    Returns:
        The choice, and what it rests on. Where even all units in float do not help, none is kept there.

    Raises:
        InputError: the state file is damaged.
    """
    start = clock()
    known = _load(state) if state and state.exists() else {}
    found = _Search(measure, start + seconds, start, clock, progress, state, known)
    first = [name for name in dict.fromkeys(likely) if name in set(units)]
    order = list(dict.fromkeys((*first, *units)))
    baseline = found.loss((), "everything in 8 bits")
    assert baseline is not None, "the first measurement is made whatever the time"
    if baseline.drop <= max_drop:
        return Fallback(frozenset(), baseline, baseline, tuple(Row(n, None, None, False) for n in order), True, True)
    gains = _gains(found, order, baseline)
    ranked = sorted(order, key=lambda name: (name in gains, gains.get(name, Loss(0, 0))), reverse=True)
    chosen = _least_prefix(found, ranked, max_drop)
    bought: dict[str, Loss] = {}
    if chosen:
        chosen, bought = _returned(found, chosen, max_drop)
    loss = found.known[frozenset(chosen)]
    rows = tuple(Row(name, gains.get(name), bought.get(name), name in chosen) for name in ranked)
    return Fallback(frozenset(chosen), loss, baseline, rows, loss.drop <= max_drop, found.is_complete)


def _gains(found: _Search, order: list[str], baseline: Loss) -> dict[str, Loss]:
    """What each unit gives back when it alone is float."""
    gains = {}
    for number, name in enumerate(order, start=1):
        alone = found.loss((name,), f"sensitivity {number} of {len(order)}: {name}", MEASURING)
        if alone is None:
            continue  # an earlier search may have measured the next one
        gains[name] = _minus(baseline, alone)
    return gains


def _least_prefix(found: _Search, ranked: list[str], max_drop: float) -> list[str]:
    """The shortest prefix that is found to suffice, by halving; the best known choice where none does."""
    low, high = 1, len(ranked)
    best: list[str] | None = None
    while low <= high:
        count = (low + high) // 2
        loss = found.loss(ranked[:count], f"the {count} most sensitive in float")
        if loss is None:
            break
        if loss.drop <= max_drop:
            best, high = ranked[:count], count - 1
        else:
            low = count + 1
    if best is not None:
        return best
    closest = min(found.known, key=lambda floats: (found.known[floats], len(floats)))
    return [name for name in ranked if name in closest]


def _returned(found: _Search, chosen: list[str], max_drop: float) -> tuple[list[str], dict[str, Loss]]:
    """The choice without the units that it can do without, and what each of the others buys."""
    kept = list(chosen)
    without: dict[str, Loss] = {}
    for name in reversed(chosen):
        fewer = [one for one in kept if one != name]
        loss = found.loss(fewer, f"{name} back in 8 bits")
        if loss is None:
            break
        if loss.drop <= max_drop:
            kept = fewer
        else:
            without[name] = loss
    final = found.known[frozenset(kept)]
    return kept, {name: _minus(loss, final) for name, loss in without.items() if name in kept}


def _minus(first: Loss, second: Loss) -> Loss:
    return Loss(first.drop - second.drop, first.divergence - second.divergence)


def _pair(loss: Loss | None) -> list[float] | None:
    return None if loss is None else [loss.drop, loss.divergence]


def _save(path: Path, known: Mapping[frozenset[str], Loss]) -> None:
    rows = [{"float": sorted(floats), "quality": _pair(loss)} for floats, loss in known.items()]
    text = json.dumps({"schema": SCHEMA, "measured": rows}, indent=1)
    write_whole(path, lambda file: file.write(text.encode()))


def _load(path: Path) -> dict[frozenset[str], Loss]:
    try:
        document = json.loads(path.read_text())
        if document["schema"] != SCHEMA:
            raise ValueError(document["schema"])
        return {frozenset(row["float"]): Loss(*row["quality"]) for row in document["measured"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no state of a search: {error}", hint="remove it to start anew") from None
