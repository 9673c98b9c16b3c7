"""Choice between the default observer and the extremes by the measured fidelity on calibration samples.

No observer is best for every network: clipping rare values ruins some depthwise networks, and extremes ruin others. One
calibration collects both ranges. Where they differ much, and the default one is not good, both are measured.
"""

from dataclasses import replace

from quantkit.errors import QuantkitError
from quantkit.progress import Progress
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.trials import NUM_RUNS, is_better, is_good, measure_loss

EXTREMES = "min_max"
# Ratio of the widths of two ranges from which they differ much.
MUCH_WIDER = 1.5
# Largest fraction of the default observer's loss that another one may have.
GAIN = 0.5


def choose_observer(conversion: Conversion, reference: FloatReference, options: Options) -> Conversion:
    """Return the conversion with the ranges of the observer with the better fidelity.

    An observer, scheme, plan or ranges of the caller are kept.

    Args:
        conversion: with the ranges of the default observer.
        reference: outputs of the float model on the calibration samples.
        options: options of the caller.
    """
    ranges = conversion.ranges
    is_stated = bool(options.observer) or options.scheme is not None or options.plan is not None
    if is_stated or not _differ_much(ranges) or not reference.feeds or reference.is_never_finite:
        return conversion
    samples = reference.first_runs(NUM_RUNS)
    scheme = conversion.plan.scheme.with_(observer=EXTREMES)
    alternative = replace(
        conversion,
        plan=replace(conversion.plan, scheme=scheme),
        ranges=replace(
            ranges,
            ranges={edge: ranges.extremes[edge] for edge in ranges},
            provenance=replace(ranges.provenance, scheme=scheme.digest),
        ),
    )
    default = conversion.plan.scheme.observer
    try:
        options.on_progress(Progress("choosing the observer", 0, 2, default))
        loss = measure_loss(conversion, samples)
        if is_good(loss):
            return conversion
        options.on_progress(Progress("choosing the observer", 1, 2, EXTREMES))
        other = measure_loss(alternative, samples)
    except QuantkitError:
        return conversion  # the accuracy of the result has the reason
    if not is_better(other, loss, GAIN):
        return conversion
    options.on_message(
        f"observer {EXTREMES} instead of {default}: the outputs are nearer to the float model on {len(samples)} "
        "calibration samples (--observer selects one)"
    )
    return alternative


def _differ_much(ranges: Ranges) -> bool:
    """Return whether the extremes of an edge are much wider than its range; False without extremes."""
    return any(
        extremes.high - extremes.low > MUCH_WIDER * (ranges[edge].high - ranges[edge].low)
        for edge, extremes in ranges.extremes.items()
    )
