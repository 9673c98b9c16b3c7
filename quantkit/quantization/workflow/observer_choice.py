"""Choice of the observer, the scale migration and the bias correction by the fidelity on calibration samples.

No observer is best for every network: clipping rare values ruins some depthwise networks, and extremes ruin others. One
calibration collects both ranges. Where they differ much, and the default one is not good, both are measured. The bias
correction removes the mean error of rounded weights, which may have canceled that of clipped activations: the trials
include a correction of both, and no correction.
"""

from dataclasses import replace

import numpy as np

from quantkit.formats import onnx
from quantkit.quantization.activation_errors import measure_mean_errors
from quantkit.quantization.precision import policy
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scale_migration import (
    find_scales,
    with_channel_maxima,
    with_migrated_scales,
)
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.trials import Trials

EXTREMES = "min_max"


def choose_observer(trials: Trials) -> None:
    """Offer the extremes as ranges; the caller's observer is kept."""
    conversion = trials.present
    if trials.options.observer or not _differ_much(conversion.ranges):
        return
    message = (
        f"observer {EXTREMES} instead of {conversion.plan.scheme.observer}: the outputs are nearer to the float model "
        f"on {len(trials.samples)} calibration samples (--observer selects one)"
    )
    trials.accept(_with_extremes(conversion), policy.MAX_OBSERVER_LOSS, message=message)


def choose_scales(trials: Trials) -> None:
    """Offer the migrations of scales of an ONNX graph."""
    conversion, feeds, runtime = trials.present, trials.reference.feeds, trials.options.runtime
    graph, plan, ranges = conversion.graph, conversion.plan, conversion.ranges
    if graph.dialect != onnx.DIALECT or not find_scales(graph, plan, ranges, inserts=True):
        return
    ranges = with_channel_maxima(graph, plan, ranges, feeds, runtime)
    tried = [ranges.scales]
    for strength, inserts, max_loss in policy.MIGRATIONS:
        if inserts and trials.is_good(trials.present):
            break  # all migrations without a cost in latency are compared, also after a good one
        scales = find_scales(graph, plan, ranges, strength, inserts=inserts)
        if scales not in tried:
            with trials.report_failures():
                migrated = with_migrated_scales(graph, plan, ranges, scales, feeds, runtime)
                trials.accept(replace(conversion, ranges=migrated), max_loss, in_most_runs=True)
        tried.append(scales)
    if trials.present is not conversion:
        moved = trials.present.ranges.scales
        edge = max(moved, key=lambda edge: max(moved[edge]))
        trials.options.on_message(
            f"scales of {len(moved)} tensors move into weights, for example of {edge}, whose channel "
            f"{int(np.argmax(moved[edge]))} is the largest: the outputs are nearer to the float model"
        )


def choose_bias_correction(trials: Trials) -> None:
    """Offer a bias correction with the mean errors of activations, then none."""
    conversion, scheme = trials.present, trials.present.plan.scheme
    graph, plan, ranges = conversion.graph, conversion.plan, conversion.ranges
    if not scheme.bias_correction or not ranges.means:
        return
    with trials.report_failures():
        errors = measure_mean_errors(graph, plan, ranges, trials.samples.feeds, trials.options.runtime)
        alternative = replace(conversion, ranges=replace(ranges, mean_errors=errors))
        trials.accept(alternative, policy.MAX_CORRECTED_LOSS, in_most_runs=True)
    without = replace(conversion, plan=replace(plan, scheme=scheme.with_(bias_correction=False)))
    if trials.accept(without, policy.MAX_CORRECTED_LOSS, in_most_runs=True):
        trials.options.on_message("no bias correction: the outputs are nearer to the float model without it")
    elif trials.present is not conversion:
        trials.options.on_message("bias correction of activations: the outputs are nearer to the float model with it")


def _with_extremes(conversion: Conversion) -> Conversion:
    """Return the conversion with the extremes as ranges."""
    ranges = conversion.ranges
    scheme = conversion.plan.scheme.with_(observer=EXTREMES)
    return replace(
        conversion,
        plan=replace(conversion.plan, scheme=scheme),
        ranges=replace(
            ranges,
            ranges={edge: ranges.extremes[edge] for edge in ranges},
            provenance=replace(ranges.provenance, scheme=scheme.digest),
        ),
    )


def _differ_much(ranges: Ranges) -> bool:
    """Return True if the extremes of an edge are much wider than its range; False without extremes."""
    return any(
        extremes.high - extremes.low > policy.MUCH_WIDER * (ranges[edge].high - ranges[edge].low)
        for edge, extremes in ranges.extremes.items()
    )
