"""Choice of the observer, the scale migration and the bias correction by the fidelity on calibration samples.

No observer is best for every network: clipping rare values ruins some depthwise networks, and extremes ruin others. One
calibration collects both ranges. Where they differ much, and the default one is not good, both are measured. The bias
correction removes the mean error of rounded weights, which may have canceled that of clipped activations: the trials
include a correction of both, and no correction.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge
from quantkit.quantization.activation_errors import measure_mean_errors
from quantkit.quantization.precision import policy
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scale_migration import (
    find_scales,
    with_channel_maxima,
    with_migrated_scales,
)
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.trials import Trials

EXTREMES = "min_max"


def choose_observer(conversion: Conversion, trials: Trials, options: Options) -> Conversion:
    """Return the conversion with the ranges of the observer with the better fidelity; the caller's observer is kept."""
    if options.observer or not _differ_much(conversion.ranges) or trials.is_good(conversion):
        return conversion
    default = conversion.plan.scheme.observer
    alternative = _with_extremes(conversion)
    if not trials.is_better(alternative, conversion, policy.MAX_OBSERVER_LOSS):
        return conversion
    options.on_message(
        f"observer {EXTREMES} instead of {default}: the outputs are nearer to the float model on {len(trials.samples)} "
        "calibration samples (--observer selects one)"
    )
    return alternative


def choose_scales(conversion: Conversion, trials: Trials, options: Options) -> Conversion:
    """Return the conversion of an ONNX graph with migrated scales if that has the better fidelity."""
    if conversion.graph.dialect != onnx.DIALECT or trials.is_good(conversion):
        return conversion
    observed = _with_channel_maxima(conversion, trials, options)
    if observed is None:
        return conversion
    best, tried = conversion, [conversion.ranges.scales]
    for strength, inserts, max_loss in policy.MIGRATIONS:
        if inserts and trials.is_good(best):
            break  # all migrations without a cost in latency are compared, also after a good one
        scales = find_scales(conversion.graph, conversion.plan, observed.ranges, strength, inserts=inserts)
        alternative = None if scales in tried else _with_scales(observed, scales, trials, options)
        if alternative is not None and trials.is_better(alternative, best, max_loss, in_most_runs=True):
            best = alternative
        tried.append(scales)
    if best is not conversion:
        moved = best.ranges.scales
        edge = max(moved, key=lambda edge: max(moved[edge]))
        options.on_message(
            f"scales of {len(moved)} tensors move into weights, for example of {edge}, whose channel "
            f"{int(np.argmax(moved[edge]))} is the largest: the outputs are nearer to the float model"
        )
    return best


def _with_ranges(conversion: Conversion, trials: Trials, compute: Callable[[], Ranges]) -> Conversion | None:
    """Return the conversion with other ranges; None if they cannot be computed, because a graph does not run."""
    try:
        return replace(conversion, ranges=compute())
    except QuantkitError as error:
        trials.report_failure(error)
        return None


def _with_channel_maxima(conversion: Conversion, trials: Trials, options: Options) -> Conversion | None:
    """Return the conversion with the largest values of all channels; None if no scales can migrate."""
    graph, plan, ranges = conversion.graph, conversion.plan, conversion.ranges
    if not find_scales(graph, plan, ranges, inserts=True):
        return None
    feeds = trials.reference.feeds
    return _with_ranges(conversion, trials, lambda: with_channel_maxima(graph, plan, ranges, feeds, options.runtime))


def _with_scales(
    conversion: Conversion, scales: Mapping[Edge, tuple[float, ...]], trials: Trials, options: Options
) -> Conversion | None:
    """Return the conversion with migrated scales; None if the result cannot run."""
    facts = (conversion.graph, conversion.plan, conversion.ranges)
    feeds = trials.reference.feeds
    return _with_ranges(conversion, trials, lambda: with_migrated_scales(*facts, scales, feeds, options.runtime))


def choose_bias_correction(conversion: Conversion, trials: Trials, options: Options) -> Conversion:
    """Return the conversion with the bias correction with the best fidelity, or without one."""
    scheme = conversion.plan.scheme
    is_corrected = scheme.bias_correction and bool(conversion.ranges.means)
    if not is_corrected or trials.is_good(conversion):
        return conversion
    best = conversion
    with_activations = _with_mean_errors(conversion, trials, options)
    limit = policy.MAX_CORRECTED_LOSS
    if with_activations is not None and trials.is_better(with_activations, best, limit, in_most_runs=True):
        best = with_activations
    plan = replace(conversion.plan, scheme=scheme.with_(bias_correction=False))
    without = replace(conversion, plan=plan)
    if trials.is_better(without, best, limit, in_most_runs=True):
        options.on_message("no bias correction: the outputs are nearer to the float model without it")
        return without
    if best is not conversion:
        options.on_message("bias correction of activations: the outputs are nearer to the float model with it")
    return best


def _with_mean_errors(conversion: Conversion, trials: Trials, options: Options) -> Conversion | None:
    """Return the conversion with a correction of the mean errors of activations; None if they cannot be measured."""
    graph, plan, ranges = conversion.graph, conversion.plan, conversion.ranges

    def compute() -> Ranges:
        mean_errors = measure_mean_errors(graph, plan, ranges, trials.samples.feeds, options.runtime)
        return replace(ranges, mean_errors=mean_errors)

    return _with_ranges(conversion, trials, compute)


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
