"""Choice of the tensors that get a zero point by a Pad op, by their ranges or by the noise of the outputs.

    loss = 20 log10(step without a zero point / step with a zero point)

Tensors with negative values get a zero point if this loss, which follows from their ranges, is not small. The others
lose half of their levels. Zero points remove noise of the outputs:

    rest(S) = noise - (noise - noise of all) * sum of the gains of S / sum of all gains

The gain of a tensor is measured in the float graph: the noise of its symmetric values alone less that of its values
with a zero point. The difference of the noise of both forms of the whole model is measured as well, and the gains share
it. Tensors are chosen until the rest is near the noise with all zero points, for each output.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import log10, prod, sqrt

import numpy as np

from quantkit.ir.graph import Edge
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.decision import ERROR, INT8, Decision
from quantkit.quantization.precision.error import Floats
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.report.census import infer_sample_shapes
from quantkit.quantization.scale_migration import observe_again
from quantkit.quantization.targets.capabilities import RuntimeRules
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.error_signals import measure_gains
from quantkit.quantization.workflow.trials import Trials

REASON = "zero point of its input by a Pad"


def add_zero_points(trials: Trials) -> None:
    """Add zero points of the tensors with negative values that lose precision without one."""
    conversion, graph, plan = trials.present, trials.present.graph, trials.present.plan
    ranges = conversion.ranges.merge_groups(plan.groups)
    layers, whole, edges = _find_alternative(conversion)
    losses = {edge: _step_ratio_db(edge, ranges, conversion, whole) for edge in edges if ranges[edge].low < 0}
    losses = {edge: loss for edge, loss in losses.items() if loss > policy.MAX_SIGNED_DB}
    layers = [layer for layer in layers if graph[layer].inputs[0] in losses]
    if not layers:
        return
    feeds, runtime = trials.reference.feeds, trials.options.runtime
    observed = observe_again(graph, whole.plan, conversion.ranges, losses, feeds, runtime)
    traffic = _describe_traffic(conversion, layers, trials)
    trials.options.on_message(
        f"zero points of {len({plan.group_of(edge) for edge in losses})} tensors with negative values before padded "
        f"convolutions, whose ranges cause a loss of up to {max(losses.values()):.1f} dB without one: {traffic}"
    )
    trials.present = _pad(conversion, observed, dict.fromkeys(layers), f"{REASON}: {traffic}")


def _step_ratio_db(edge: Edge, ranges: Ranges, *conversions: Conversion) -> float:
    """Return the step of an edge in the first of two conversions over that in the second, in dB."""
    steps = [
        float(QuantizationParameters.of_range(each.plan.activations[edge], ranges[edge]).scale) for each in conversions
    ]
    return 20 * log10(steps[0] / steps[1])


def choose_zero_points(trials: Trials) -> None:
    """Offer zero points of the tensors that lose most without one."""
    conversion, graph, plan = trials.present, trials.present.graph, trials.present.plan
    layers, whole, edges = _find_alternative(conversion)
    if not edges:
        return
    feeds, options = trials.reference.feeds, trials.options
    ranges = observe_again(graph, whole.plan, conversion.ranges, edges, feeds, options.runtime)
    gains, noise = measure_gains(conversion, replace(whole, ranges=ranges), trials.samples, options)
    groups = dict(_choose_groups(gains, noise))
    inputs = {layer: plan.group_of(graph[layer].inputs[0]) for layer in layers}
    errors = {layer: groups[group] for layer, group in inputs.items() if group in groups}
    if not errors:
        return
    traffic = _describe_traffic(conversion, errors, trials)
    message = (
        f"zero points of {len(groups)} of {len(gains)} tensors before padded convolutions: the outputs are nearer to "
        f"the float model; {traffic}"
    )
    trials.accept(_pad(conversion, ranges, errors, f"{REASON}: {traffic}"), 1.0, errors, message=message)


def _find_alternative(conversion: Conversion) -> tuple[list[str], Conversion, list[Edge]]:
    """Return the layers whose inputs can get a zero point, the conversion with all zero points, and these inputs."""
    target, graph, plan = conversion.target, conversion.graph, conversion.plan
    layers = [*target.refinable_layers(graph, plan)] if isinstance(target, RuntimeRules) else []
    whole = _pad(conversion, conversion.ranges, dict.fromkeys(layers), "to measure its gain") if layers else conversion
    return layers, whole, _changed_edges(conversion, whole)


def _changed_edges(conversion: Conversion, other: Conversion) -> list[Edge]:
    """Return the edges whose values have another format in another conversion of the graph."""
    return [edge for edge in conversion.plan.edges if other.plan.activations[edge] != conversion.plan.activations[edge]]


def _describe_traffic(conversion: Conversion, layers: Iterable[str], trials: Trials) -> str:
    """Return the estimated traffic of Pad ops before layers, two bytes for each value, and the scheme without them."""
    graph = conversion.graph
    shapes = infer_sample_shapes(graph, trials.samples.sample_shapes)
    sizes = (prod(size or 1 for size in shapes[edge].dims or ()) for edge in {graph[each].inputs[0] for each in layers})
    return (
        f"the Pad ops read and write an estimated {2 * sum(sizes) / 1e6:.2g} MB (a scheme omits them: activations = "
        f"{str(conversion.plan.scheme.activations)!r})"
    )


def _pad(conversion: Conversion, observed: Ranges, errors: Mapping[str, float | None], reason: str) -> Conversion:
    """Return the conversion with zero points of the inputs of layers.

    Args:
        conversion: conversion without them.
        observed: ranges with a zero point.
        errors: predicted error of the outputs that the zero point of each layer removes; None if it is unknown.
        reason: reason of the decisions.
    """
    ranges = conversion.ranges
    padded = conversion.decide(
        {layer: Decision(layer, INT8, reason, ERROR, predicted=error) for layer, error in errors.items()}
    )
    changed = _changed_edges(conversion, padded)
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
