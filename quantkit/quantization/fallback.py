"""Search for the layers that must stay in float to keep the accuracy, and the contribution of each.

    1. Measure with all layers in int8. Within the limit: done.
    2. Rank the layers by the error model, which needs no measurement of the loss. Without one, measure once for each
       layer, with this layer alone in float: its gain is the loss that it removes.
    3. Keep the first layers in float, and find the smallest number of them that suffices: in growing steps from the
       number that the error model predicts, then by bisection.
    4. Rank these layers again, by the predicted error that each alone adds in int8, and repeat step 3. Without an error
       model, quantize them again, the last ones first, by halves, as long as the limit holds.

Every measurement is saved in a state file, if one is given, so that an interrupted search resumes.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from quantkit.errors import InputError
from quantkit.formats.documents import check_structure, read_json
from quantkit.formats.files import write_whole
from quantkit.progress import OnProgress, Progress, ignore_progress
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.decision import ErrorPrediction

SCHEMA, STATE_SCHEMA = "quantkit.fallback/2", "quantkit.fallback_state/1"
# Quantity of a drop: agreement with the float model, top-1, or error of the outputs and loss of a task's metric.
AGREEMENT, TOP1, ERROR = "agreement", "top1", "error"


@dataclass(frozen=True, order=True)
class Loss:
    """Distance of a quantized model from the float model; the drop is compared first.

    Attributes:
        drop: fraction of top-1 accuracy lost if labels are known, else of disagreement with the float model; the error
            of outputs other than class scores.
        kl_divergence: mean KL(float || quantized), in nats; with top-1 of an output next to others, the error of all
            outputs; 0 without class scores.
        kind: quantity of the drop.
    """

    drop: float
    kl_divergence: float
    kind: str = field(default=AGREEMENT, compare=False)

    @property
    def distance(self) -> float:
        """Quantity that also changes while no sample changes its class."""
        return self.drop if self.kind == ERROR else self.kl_divergence

    def minus(self, other: "Loss") -> "Loss":
        """Return the difference of both values."""
        return replace(self, drop=self.drop - other.drop, kl_divergence=self.kl_divergence - other.kl_divergence)


class LayerRanking(NamedTuple):
    """Layers of a plan in an order, with the prediction that led to it.

    Attributes:
        layers: layers, those first whose int8 form adds most error for the time that it saves.
        predict: function that returns the predicted error of the outputs with some layers in float.
        prediction: predicted errors of the single layers, and their interval.
    """

    layers: Sequence[str]
    predict: Callable[[frozenset[str]], float]
    prediction: ErrorPrediction

    def count_layers(self, drop: float, max_drop: float) -> int | None:
        """Return the predicted number of float layers for a drop; None if no error is as small.

        Args:
            drop: measured drop with all layers in int8; the error is nearly proportional to it.
            max_drop: largest accepted drop.
        """
        limit = self.predict(frozenset()) * max_drop / drop
        counts = range(1, len(self.layers) + 1)
        return next((count for count in counts if self.predict(frozenset(self.layers[:count])) <= limit), None)

    def rank_again(self, choice: Collection[str]) -> "LayerRanking":
        """Return the ranking of a choice of float layers by the error that each alone adds in int8.

        The order ignores the time: the error for the time would rank layers with many MACs last, whose error is large.
        """
        floats = frozenset(choice)
        return self._replace(layers=sorted(choice, key=lambda layer: -self.predict(floats - {layer})))


# Function that returns the loss with these layers in float and all others in int8.
Measure = Callable[[frozenset[str]], Loss]


@dataclass(frozen=True)
class LayerSensitivity:
    """Effect of one layer on the loss.

    Attributes:
        layer: name of the layer.
        gain: loss with all layers in int8 minus the loss with this one in float; None if it was not measured.
        contribution: loss without this layer in the final choice minus the final loss; None if the layer is in int8,
            or this was not measured.
        is_float: True if the layer stays in float.
    """

    layer: str
    gain: Loss | None
    contribution: Loss | None
    is_float: bool


@dataclass(frozen=True)
class Fallback:
    """Result of a search.

    Attributes:
        keep_float: layers that stay in float.
        loss: loss with these layers in float.
        baseline: loss with all layers in int8.
        layers: all layers, the most sensitive first.
        is_reached: True if the drop is within the limit.
        is_complete: True if the search ended within its time budget.
        prediction: predicted errors that ranked the layers; None if they were not needed or not available.
    """

    keep_float: frozenset[str]
    loss: Loss
    baseline: Loss
    layers: tuple[LayerSensitivity, ...]
    is_reached: bool
    is_complete: bool
    prediction: ErrorPrediction | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "schema": SCHEMA,
            "keep_float": sorted(self.keep_float),
            "drop": self.loss.drop,
            "kl": self.loss.kl_divergence,
            "baseline_drop": self.baseline.drop,
            "baseline_kl": self.baseline.kl_divergence,
            "is_reached": self.is_reached,
            "is_complete": self.is_complete,
            "layers": [
                {
                    "layer": row.layer,
                    "gain": _values(row.gain),
                    "contribution": _values(row.contribution),
                    "is_float": row.is_float,
                }
                for row in self.layers
            ],
        }


@dataclass
class _Search:
    """Measurements of a search with its clock.

    Attributes:
        measure: function that measures a choice.
        seconds: time budget.
        clock: function that returns the time in seconds.
        on_progress: callback for the time used.
        state: state file, or None.
        losses: measured loss of each choice.
        is_complete: False after a measurement was skipped for lack of time.
    """

    measure: Measure
    seconds: float
    clock: Callable[[], float]
    on_progress: OnProgress
    state: Path | None
    losses: dict[frozenset[str], Loss] = field(default_factory=dict)
    is_complete: bool = True

    def __post_init__(self) -> None:
        self.start = self.clock()

    def loss(self, layers: Iterable[str], fraction: float = 1.0) -> Loss | None:
        """Return the loss of a choice; None if this fraction of the time budget is exhausted.

        The first measurement is made in any case.
        """
        choice = frozenset(layers)
        if choice in self.losses:
            return self.losses[choice]
        elapsed = self.clock() - self.start
        if elapsed >= fraction * self.seconds and self.losses:
            self.is_complete = False
            return None
        self.on_progress(Progress("searching", round(elapsed), round(self.seconds), seconds=self.seconds))
        self.losses[choice] = self.measure(choice)
        if self.state:
            _save(self.state, self.losses)
        return self.losses[choice]


def search(
    layers: Iterable[str],
    measure: Measure,
    *,
    max_drop: float,
    seconds: float,
    suspects: Iterable[str] = (),
    rank: Callable[[], LayerRanking | None] = lambda: None,
    state: Path | None = None,
    on_progress: OnProgress = ignore_progress,
    clock: Callable[[], float] = monotonic,
) -> Fallback:
    """Find a small set of layers whose float fallback keeps the drop within a limit.

    Args:
        layers: names of the quantized layers.
        measure: function that converts and runs the model with some layers in float; it takes all the time.
        max_drop: largest accepted drop, a fraction.
        seconds: time budget; a running measurement is finished.
        suspects: layers to measure first, for example those with calibration warnings.
        rank: function that returns the ranking of all layers, or None if it is unknown; it is called if some layers
            must stay in float.
        state: file for the measurements, to resume an interrupted search.
        on_progress: callback for the seconds used.
        clock: function that returns the time in seconds.

    Returns:
        The layers with their losses. If no choice is within the limit, the best measured one.

    Raises:
        InputError: the state file is damaged.
    """
    names = list(layers)
    losses = _load(state) if state and state.exists() else {}
    run = _Search(measure, seconds, clock, on_progress, state, losses)
    order = list(dict.fromkeys((*(name for name in suspects if name in set(names)), *names)))
    baseline = run.loss(())
    assert baseline is not None, "the first measurement ignores the time budget"
    if baseline.drop <= max_drop:
        rows = tuple(LayerSensitivity(name, None, None, False) for name in order)
        return Fallback(frozenset(), baseline, baseline, rows, True, True)
    ranking = rank()
    gains = _measure_gains(run, order, baseline) if ranking is None else {}
    by_gain = sorted(order, key=lambda name: (name in gains, gains.get(name, Loss(0, 0))), reverse=True)
    ranked = by_gain if ranking is None else list(ranking.layers)
    guess = None if ranking is None else ranking.count_layers(baseline.drop, max_drop)
    choice = _find_shortest_prefix(run, ranked, max_drop, guess)
    loss = run.losses[frozenset(choice)]
    contributions: dict[str, Loss] = {}
    if ranking is None:
        choice, contributions = _drop_unneeded(run, choice, max_drop)
    elif loss.drop <= max_drop:
        again = ranking.rank_again(choice)
        guess = again.count_layers(baseline.drop, max_drop)
        shorter = _find_shortest_prefix(run, list(again.layers), max_drop, guess)
        # After the time budget, the result can be a part of a choice of an earlier search, which was not measured.
        is_within = run.losses.get(frozenset(shorter), baseline).drop <= max_drop
        choice = shorter if is_within else choice
    loss = run.losses[frozenset(choice)]
    rows = tuple(LayerSensitivity(name, gains.get(name), contributions.get(name), name in choice) for name in ranked)
    prediction = None if ranking is None else ranking.prediction
    return Fallback(frozenset(choice), loss, baseline, rows, loss.drop <= max_drop, run.is_complete, prediction)


def _measure_gains(run: _Search, order: list[str], baseline: Loss) -> dict[str, Loss]:
    """Return the gain of each layer in float."""
    gains = {}
    for name in order:
        loss = run.loss((name,), policy.SENSITIVITY_FRACTION)
        if loss is not None:  # after the time budget, layers of a resumed search are still known
            gains[name] = baseline.minus(loss)
    return gains


def _find_shortest_prefix(run: _Search, ranked: list[str], max_drop: float, guess: int | None) -> list[str]:
    """Return the shortest prefix within the limit; else the best measured choice.

    From a guess of its length, growing steps find a longer or shorter prefix on the other side of the limit. Bisection
    between both, or without a guess between all, finds the shortest one.
    """
    low, high = 1, len(ranked)
    best: list[str] | None = None
    count, step = guess or (low + high) // 2, 1
    is_bracketed = guess is None
    while low <= high:
        loss = run.loss(ranked[:count])
        if loss is None:
            break
        is_within = loss.drop <= max_drop
        if is_within:
            best, high = ranked[:count], count - 1
        else:
            low = count + 1
        is_bracketed = is_bracketed or (low > 1 and best is not None)
        if is_bracketed:
            count = (low + high) // 2
        else:
            count, step = max(low, count - step) if is_within else min(high, count + step), 2 * step
    if best is not None:
        return best
    closest = min(run.losses, key=lambda layers: (run.losses[layers], len(layers)))
    return [name for name in ranked if name in closest]


def _drop_unneeded(run: _Search, choice: list[str], max_drop: float) -> tuple[list[str], dict[str, Loss]]:
    """Return the choice without the layers that are not needed, and the contribution of each other measured layer.

    Layers are quantized again in halves, those with the smallest gains first: one measurement suffices for a half that
    is not needed.
    """
    needed = list(choice)
    losses: dict[str, Loss] = {}
    pending = [needed[len(needed) // 2 :], needed[: len(needed) // 2]][::-1]
    while pending:
        part = pending.pop()
        others = [name for name in needed if name not in part]
        loss = run.loss(others) if part else None
        if loss is not None and loss.drop <= max_drop:
            needed = others
        elif len(part) > 1 and loss is not None:
            pending += [part[: len(part) // 2], part[len(part) // 2 :]]
        elif loss is not None:
            losses[part[0]] = loss
    final = run.losses[frozenset(needed)]
    return needed, {name: loss.minus(final) for name, loss in losses.items() if name in needed}


def _values(loss: Loss | None) -> list[float] | None:
    return None if loss is None else [loss.drop, loss.kl_divergence]


def _save(path: Path, losses: Mapping[frozenset[str], Loss]) -> None:
    rows = [{"float": sorted(layers), "loss": astuple(loss)} for layers, loss in losses.items()]
    text = json.dumps({"schema": STATE_SCHEMA, "measured": rows}, indent=1)
    write_whole(path, lambda file: file.write(text.encode()))


def _load(path: Path) -> dict[frozenset[str], Loss]:
    hint = "remove it to start again"
    try:
        document = read_json(path, hint)
        if document["schema"] != STATE_SCHEMA:
            raise ValueError(document["schema"])
        check_structure(document["measured"], [{"float": [str], "loss": (float, float, str)}], "measured")
        return {frozenset(row["float"]): Loss(*row["loss"]) for row in document["measured"]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not the state of a search: {error}", hint) from None
