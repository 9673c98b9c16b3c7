"""Decision about the precision of one layer or other node of a model, with its reason and its source."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

INT8, FLOAT = "int8", "float"
# Sources: the op, the kernels of the target, time, an error of the outputs, ``max_drop``, the caller.
SOURCES = (OP, KERNEL, COST, ERROR, ACCURACY, USER) = ("op", "kernel", "cost", "error", "accuracy", "user")
# Number of names of one reason in a text; `to_json` has all.
MAX_NAMES = 6


@dataclass(frozen=True)
class Decision:
    """Precision of one fused pattern, or of one other node.

    Attributes:
        unit: layer of the fused pattern, or name of the node.
        precision: ``int8``, ``float`` or ``bfloat16``.
        reason: cause of the precision.
        source: one of `SOURCES`.
        saved_ms: predicted time in ms that the precision saves over the other one; None if it is unknown.
        predicted: error of the outputs that float removes, or int8 adds, by the error model; None without one.
        measured: measured loss that float removes: disagreement, KL divergence or error of the outputs; None without
            a measurement.
    """

    unit: str
    precision: str
    reason: str
    source: str
    saved_ms: float | None = None
    predicted: float | None = None
    measured: float | None = None

    @property
    def is_refined(self) -> bool:
        """True for int8 in another form than that of the scheme: more precise, because of the error, or smaller."""
        return self.precision == INT8 and self.source in (ERROR, COST)

    @property
    def stores_table(self) -> bool:
        """True for a table of a Gather node in int8: it saves size, not time."""
        return self.precision == INT8 and self.source == COST

    def to_json(self) -> dict[str, Any]:
        """Return plain values by attribute."""
        return asdict(self)


@dataclass(frozen=True)
class ErrorPrediction:
    """Errors of the outputs that an error model predicts for the layers of a plan.

    Attributes:
        gains: predicted error that each layer adds in int8, by name.
        rms_db: deviation of predicted from measured noise in dB, root mean square over random choices of layers.
        interval_db: largest deviation of 90 % of the choices, in dB.
        holds: True if the errors of the layers nearly add up, so that the predictions are near the measurements.
        samples: number of samples of the error signals.
    """

    gains: Mapping[str, float]
    rms_db: float
    interval_db: float
    holds: bool
    samples: int

    def to_json(self) -> dict[str, Any]:
        """Return the quality of the prediction as plain values."""
        return {key: value for key, value in asdict(self).items() if key != "gains"}


def as_decisions(reasons: Mapping[str, "str | Decision"], source: str) -> dict[str, Decision]:
    """Return the float decisions of reasons by name; values that are decisions are unchanged."""
    return {
        name: value if isinstance(value, Decision) else Decision(name, FLOAT, value, source)
        for name, value in reasons.items()
    }


def explain(decisions: Iterable[Decision]) -> Iterator[str]:
    """Yield a table of decisions, grouped by precision, source and reason; float decisions come first."""
    groups: dict[tuple[str, str, str], list[Decision]] = {}
    for decision in decisions:
        groups.setdefault((decision.precision, decision.source, decision.reason), []).append(decision)
    for (precision, source, reason), members in sorted(groups.items(), key=lambda item: item[0][0] == INT8):
        yield f"{precision:<9} {source:<9} {len(members):>4}  {reason}"
        yield from (f"{'':26}{_describe(decision)}" for decision in members[:MAX_NAMES])
        if len(members) > MAX_NAMES:
            yield f"{'':26}{len(members) - MAX_NAMES} more (--json lists all)"


def _describe(decision: Decision) -> str:
    """Return the name with its gains."""
    gains = {
        "saves {} ms": decision.saved_ms,
        "predicted gain {}": decision.predicted,
        "measured gain {}": decision.measured,
    }
    texts = [text.format(f"{value:.2g}") for text, value in gains.items() if value is not None]
    return f"{decision.unit}: {', '.join(texts)}" if texts else decision.unit
