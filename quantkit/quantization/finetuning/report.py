"""Report of a fine-tuning."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quantkit.quantization.finetuning.training import HeldOutDistance


@dataclass(frozen=True)
class FineTuning:
    """Course of a fine-tuning, and its effect.

    Attributes:
        budget: requested steps or time, or ``layerwise``.
        steps: number of finished steps; of layers with ``layerwise``.
        seconds: duration.
        before, after: evaluation of the simulation on the samples held out from the training; None if there was none.
        is_fine_tuned: True if the model is the fine-tuned one, and False if it is the calibrated one.
        reason: reason why the fine-tuning ended early, or why its result is not kept; may be empty.
        frozen: layers that no gradient reached.
        fidelity: agreement of the file with the simulation on these samples; for outputs other than class scores the
            correlation of the outputs; None if it was not measured.
    """

    budget: str
    steps: int = 0
    seconds: float = 0.0
    before: HeldOutDistance | None = None
    after: HeldOutDistance | None = None
    is_fine_tuned: bool = False
    reason: str = ""
    frozen: tuple[str, ...] = ()
    fidelity: float | None = None

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        noun = "layers" if self.budget == "layerwise" else "steps"
        if self.is_fine_tuned and self.before is not None and self.after is not None:
            text = f"fine-tuned in {self.steps} {noun}, {self.seconds:.0f} s: loss {self.before.loss:.4f} -> "
            text += f"{self.after.loss:.4f}"
            if self.before.agreement is not None and self.after.agreement is not None:
                text += f", agreement {100 * self.before.agreement:.1f} % -> {100 * self.after.agreement:.1f} %"
            yield f"{text} on samples held out from the calibration data"
            if self.reason:
                yield f"  fine-tuning ended early: {self.reason}"
        else:
            yield f"fine-tuning did not improve the model: {self.reason}; the calibrated model is kept"
        if self.frozen:
            yield f"  {len(self.frozen)} layers keep their calibrated weights, because no gradient reaches them"
        if self.fidelity is not None:
            yield f"  the file agrees with its simulation: {self.fidelity:.4f}"

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "budget": self.budget,
            "steps": self.steps,
            "seconds": self.seconds,
            "before": None if self.before is None else vars(self.before),
            "after": None if self.after is None else vars(self.after),
            "is_fine_tuned": self.is_fine_tuned,
            "reason": self.reason,
            "frozen_layers": list(self.frozen),
            "agreement_with_simulation": self.fidelity,
        }
