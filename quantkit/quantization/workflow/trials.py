"""Trials of alternatives on calibration samples: a conversion is replaced if another one has a smaller loss.

Most conversions need no alternative. To find that out, the accuracy of the first conversion is measured as for the
report, which then needs no measurement of its own. Alternatives are compared on the first samples only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from time import perf_counter

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.ir.tensor import Array
from quantkit.progress import Progress
from quantkit.quantization.fallback import ERROR, Loss
from quantkit.quantization.precision import policy
from quantkit.quantization.report import AccuracyReport
from quantkit.quantization.workflow.accuracy import measure_accuracy, write_trial_file
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference, loss_of
from quantkit.quantization.workflow.options import Options

# Function that offers alternatives of the present conversion to `Trials.accept`.
Candidate = Callable[["Trials"], None]


class Trials:
    """Comparisons of conversions on the first calibration samples.

    Attributes:
        reference: outputs of the float model on all calibration samples.
        samples: the same on the samples of a trial.
        options: options of the quantization.
        present: best conversion so far.
        is_possible: False if the caller states the decisions, no sample has outputs, or the quantized model cannot run.
        gains: loss that the float layers of a trial remove together, by layer.
        failures: messages of trials that failed.
    """

    def __init__(self, reference: FloatReference, options: Options) -> None:
        is_stated = options.scheme is not None or options.plan is not None
        self.is_possible = not is_stated and bool(reference.feeds) and not reference.is_never_finite
        self.reference = reference
        self.samples = reference.first_runs(policy.TRIAL_STEPS if reference.states else policy.TRIAL_RUNS)
        self.gains: dict[str, float] = {}
        self.failures: list[str] = []
        self.options = options
        self.present: Conversion
        self._seconds = 0.0
        self._reported: tuple[Conversion, AccuracyReport | None] | None = None
        self._best: tuple[Conversion, AccuracyReport] | None = None

    def improve(
        self, conversion: Conversion, candidates: Sequence[Candidate], *, stops_if_good: bool = True
    ) -> Conversion:
        """Return the best of a conversion and the alternatives of each candidate in turn.

        Args:
            conversion: conversion to replace.
            candidates: functions that offer alternatives.
            stops_if_good: do not try alternatives of a conversion with a good fidelity.
        """
        self.present = conversion
        for number, candidate in enumerate(candidates):
            if not self.is_possible:
                break
            if stops_if_good:
                if self.is_good(self.present):
                    break
                remaining = self._seconds * (len(candidates) - number)
                self.options.on_progress(Progress("comparing alternatives", number, len(candidates), seconds=remaining))
            with self.report_failures():
                candidate(self)
        return self.present

    def accept(
        self,
        alternative: Conversion,
        max_loss: float,
        layers: Iterable[str] = (),
        *,
        in_most_runs: bool = False,
        message: str = "",
    ) -> bool:
        """Replace the present conversion by an alternative if that is better, and return True if it is.

        Args:
            alternative, max_loss, layers, in_most_runs: see `is_better`.
            message: message about a better alternative.
        """
        if not self.is_better(alternative, self.present, max_loss, layers, in_most_runs=in_most_runs):
            return False
        self.present = alternative
        if message:
            self.options.on_message(message)
        return True

    @contextmanager
    def report_failures(self) -> Iterator[None]:
        """Report the error of an alternative, which then does not count."""
        try:
            yield
        except QuantkitError as error:
            self._report_failure(error)

    def is_good(self, conversion: Conversion) -> bool:
        """Return True if a conversion needs no alternative; False if it cannot be measured."""
        accuracy = self._measure_for_report(conversion) if self._is_reported(conversion) else self._trial(conversion)
        if accuracy is None:
            return False
        loss = _loss_of(accuracy)
        if loss.kind == ERROR:
            return loss.drop <= (policy.GOOD_STATE_ERROR if self.samples.states else policy.GOOD_ERROR)
        return loss.drop == 0 and loss.kl_divergence <= policy.GOOD_KL

    def error(self, conversion: Conversion) -> float:
        """Return the error of the outputs of a conversion; 0 if it cannot be measured."""
        accuracy = self._trial(conversion)
        return 0.0 if accuracy is None else _loss_of(accuracy).drop

    def is_better(
        self,
        alternative: Conversion,
        conversion: Conversion,
        max_loss: float,
        layers: Iterable[str] = (),
        *,
        in_most_runs: bool = False,
    ) -> bool:
        """Return True if the loss of an alternative is at most a fraction ``max_loss`` of that of a conversion.

        Args:
            alternative: conversion to measure.
            conversion: conversion that it may replace.
            max_loss: largest fraction of the loss that may remain.
            layers: layers that only the alternative computes in float; they get the gain of a better alternative.
            in_most_runs: the loss must also be smaller in more runs than it is larger: see `policy.MIN_WINS`. The
                deviation by chance is sqrt(n) in n independent runs.
        """
        default = self._trial(conversion)
        if default is None:
            return False
        accuracy = self._measure(alternative)
        if accuracy is None:
            return False
        loss, present = _loss_of(accuracy), _loss_of(default)
        is_better = (loss.drop <= present.drop or loss.kind == ERROR) and loss.distance < max_loss * present.distance
        if is_better and in_most_runs:
            signs = np.sign(_distances_by_run(default) - _distances_by_run(accuracy))
            is_better = bool(signs.sum() >= policy.MIN_WINS * sqrt(len(signs)))
        if is_better:
            self._best = alternative, accuracy
            self.gains |= dict.fromkeys(layers, present.distance - loss.distance)
        return is_better

    def _report_failure(self, error: QuantkitError) -> None:
        """Report the error of a trial, whose alternative does not count."""
        if error.message not in self.failures:
            self.failures.append(error.message)
            self.options.on_message(f"warning: a trial failed: {error.message}")

    def find_accuracy(self, conversion: Conversion, reference: FloatReference) -> AccuracyReport | None:
        """Return the accuracy of a conversion on all samples of a reference; None if it has not been measured."""
        if reference is not self.reference:
            return None
        if self._reported is not None and self._reported[0] is conversion:
            return self._reported[1]
        is_whole = len(self.samples) == len(reference)
        if self._best is None or self._best[0] is not conversion or not is_whole:
            return None
        return self._best[1] if conversion.trial_runtimes[0] == conversion.runtimes[0] else None

    def _is_reported(self, conversion: Conversion) -> bool:
        """Return True if the report is likely to need the accuracy of a conversion on all samples."""
        if self._reported is not None:
            return self._reported[0] is conversion
        options = self.options
        is_final = options.held_out is None and options.max_drop is None and options.finetune is None
        return is_final and self._best is None and not self.samples.states

    def _measure_for_report(self, conversion: Conversion) -> AccuracyReport | None:
        """Return the accuracy on all samples in the fastest runtime; None if no runtime can run it."""
        if self._reported is None:
            self.options.on_progress(Progress("measuring the calibrated model", 0))
            self._reported = conversion, self._measure(conversion, self.reference, conversion.runtimes)
            self.is_possible &= self._reported[1] is not None
        return self._reported[1]

    def _trial(self, conversion: Conversion) -> AccuracyReport | None:
        """Return the accuracy on the first samples; None if no runtime can run it."""
        if not self.is_possible:
            return None
        if self._best is None or self._best[0] is not conversion:
            self.options.on_progress(Progress("measuring the calibrated model", 0))
            accuracy = self._measure(conversion)
            if accuracy is None:
                self.is_possible = False
                return None
            self._best = conversion, accuracy
        return self._best[1]

    def _measure(
        self, conversion: Conversion, reference: FloatReference | None = None, runtimes: Sequence[str] = ()
    ) -> AccuracyReport | None:
        """Return the accuracy of a conversion (default: on the first samples, in the runtime that opens it soonest)."""
        start = perf_counter()
        try:
            with write_trial_file(conversion) as file:
                names = runtimes or conversion.trial_runtimes
                by_run = reference is None
                return measure_accuracy(file, conversion, reference or self.samples, names, by_run=by_run)
        except QuantkitError as error:
            self._report_failure(error)
            return None
        finally:
            self._seconds = perf_counter() - start


def _loss_of(accuracy: AccuracyReport) -> Loss:
    """Return the distance of a quantized model from the float model, without labels."""
    assert accuracy.metrics is not None, "a measured accuracy has metrics"
    return loss_of(accuracy.metrics)


def _distances_by_run(accuracy: AccuracyReport) -> Array:
    """Return the distance from the float model in each run, (n,)."""
    return np.array([loss_of(metrics).distance for metrics in accuracy.by_run])
