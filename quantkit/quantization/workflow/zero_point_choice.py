"""Choice of the tensors that get a zero point by a Pad op, by the noise of the outputs that it removes.

    rest(S) = noise - (noise - noise of all) * sum of the gains of S / sum of all gains

The gain of a tensor is measured in the float graph: the noise of its symmetric values alone less that of its values
with a zero point. The difference of the noise of both forms of the whole model is measured as well, and the gains share
it. Tensors are chosen until the rest is near the noise with all zero points, for each output.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod, sqrt

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.decision import ERROR, INT8, Decision
from quantkit.quantization.precision.error import Floats
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.report.census import infer_sample_shapes
from quantkit.quantization.scale_migration import observe_again
from quantkit.quantization.targets.capabilities import RuntimeRules
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.error_signals import measure_gains
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.trials import Trials


def choose_zero_points(conversion: Conversion, trials: Trials, options: Options) -> Conversion:
    """Return the conversion with zero points of the tensors that lose most without one, if its fidelity is better.

    Unlike other alternatives, it is also tried for a conversion with a good fidelity. If the fidelity is neither
    better, because the errors of the tensors do not add up, nor good, all zero points are tried, and must remove more.
    """
    target, graph, plan = conversion.target, conversion.graph, conversion.plan
    if not trials.is_possible or not isinstance(target, RuntimeRules):
        return conversion
    layers = target.refinable_layers(graph, plan)
    whole = conversion.decide({layer: Decision(layer, INT8, "to measure its gain", ERROR) for layer in layers})
    edges = [edge for edge in plan.edges if whole.plan.activations[edge] != plan.activations[edge]]
    if not edges:
        return conversion
    try:
        ranges = observe_again(graph, whole.plan, conversion.ranges, edges, trials.reference.feeds, options.runtime)
        gains, noise = measure_gains(conversion, replace(whole, ranges=ranges), trials.samples, options)
    except QuantkitError as error:
        trials.report_failure(error)
        return conversion
    samples = {name: array.shape for name, array in trials.samples.feeds[0].items()}
    best = dict(_choose_groups(gains, noise))
    for groups, max_loss in ((best, 1.0), (dict.fromkeys(gains), policy.MAX_PADDED_LOSS)) if best else ():
        inputs = {layer: plan.group_of(graph[layer].inputs[0]) for layer in layers}
        errors = {layer: groups[group] for layer, group in inputs.items() if group in groups}
        traffic = _describe_traffic(graph, errors, samples)
        alternative = _pad(conversion, ranges, errors, f"zero point of its input by a Pad: {traffic}")
        if trials.is_better(alternative, conversion, max_loss, errors):
            options.on_message(
                f"zero points of {len(groups)} of {len(gains)} tensors before padded convolutions: the outputs are "
                f"nearer to the float model; {traffic} (a scheme omits them: activations = "
                f"{str(plan.scheme.activations)!r})"
            )
            return alternative
        if trials.is_good(conversion):
            break
    return conversion


def _describe_traffic(graph: Graph, layers: Iterable[str], samples: Mapping[str, tuple[int, ...]]) -> str:
    """Return the estimated memory traffic of the Pad ops before layers: int8 values are read once and written once."""
    shapes = infer_sample_shapes(graph, samples)
    sizes = (prod(size or 1 for size in shapes[edge].dims or ()) for edge in {graph[each].inputs[0] for each in layers})
    return f"the Pad ops read and write an estimated {2 * sum(sizes) / 1e6:.2g} MB"


def _pad(conversion: Conversion, observed: Ranges, errors: Mapping[str, float | None], reason: str) -> Conversion:
    """Return the conversion with zero points of the inputs of layers.

    Args:
        conversion: conversion without them.
        observed: ranges with a zero point.
        errors: predicted error of the outputs that the zero point of each layer removes; None if it is unknown.
        reason: reason of the decisions.
    """
    plan, ranges = conversion.plan, conversion.ranges
    padded = conversion.decide(
        {layer: Decision(layer, INT8, reason, ERROR, predicted=error) for layer, error in errors.items()}
    )
    changed = [edge for edge in plan.edges if padded.plan.activations[edge] != plan.activations[edge]]
    limits = {**ranges.ranges, **{edge: observed[edge] for edge in changed}}
    sqnr = {**ranges.sqnr, **{edge: observed.sqnr[edge] for edge in changed if edge in observed.sqnr}}
    return replace(padded, ranges=replace(ranges, ranges=limits, sqnr=sqnr))


def _choose_groups(gains: Mapping[frozenset[Edge], Floats], noise: Floats) -> Iterator[tuple[frozenset[Edge], float]]:
    """Yield the groups of edges to choose, and the error of the worst output that each removes.

    Args:
        gains: noise of each output that a group removes alone, (outputs,).
        noise: noise of each output without and with all groups, (2, outputs).
    """
    tiny = np.finfo(np.float64).tiny
    rest, least = np.maximum(noise, tiny)
    positive = {group: np.maximum(gain, 0) for group, gain in gains.items()}
    scale = np.maximum(rest - least, 0) / np.maximum(sum(positive.values()), tiny)
    removed = {group: gain * scale for group, gain in positive.items()}
    limit = least * 10 ** (policy.MAX_UNPADDED_DB / 10)
    while (rest > limit).any():
        worst = int(np.argmax(rest / limit))
        group = max(removed, key=lambda group: removed[group][worst], default=None)
        if group is None or not removed[group][worst]:
            return
        after = rest - removed.pop(group)
        yield group, sqrt(rest.max()) - sqrt(max(after.max(), 0.0))
        rest = after
