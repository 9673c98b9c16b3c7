"""Layers whose tensors have channels of a much smaller range than the others, which quantize to a few values.

All channels of a tensor have one scale: with channels of -100 .. 100 and of -0.3 .. 0.3, the latter become 0.
"""

from collections.abc import Mapping

import numpy as np

from quantkit.ir.graph import Edge
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import Plan
from quantkit.quantization.precision import policy
from quantkit.quantization.ranges import Ranges


def find_lossy_layers(plan: Plan, ranges: Ranges) -> Mapping[str, str]:
    """Return the layers with an input or output that loses channels, with the reason of each.

    Args:
        plan: plan of the float graph.
        ranges: ranges of every edge of the plan, with `Ranges.channel_maxima`.
    """
    merged = ranges.merge_groups(plan.groups)
    lost = {edge: _fraction_lost(plan, merged, edge) for edge in ranges.channel_maxima if edge in plan.activations}
    reasons = {}
    for pattern in plan.patterns:
        edge = max((*pattern.inputs, pattern.output), key=lambda edge: lost.get(edge, 0.0))
        if lost.get(edge, 0.0) > policy.MAX_LOST:
            reasons[pattern.layer] = f"{lost[edge]:.0%} of the channels of {edge} would quantize to at most 2 steps"
    return reasons


def _fraction_lost(plan: Plan, ranges: Ranges, edge: Edge) -> float:
    """Return the fraction of lost channels among those that are not constantly 0."""
    maxima = np.asarray(ranges.channel_maxima[edge])
    maxima = maxima[maxima > 0]
    if maxima.size < policy.MIN_CHANNELS:
        return 0.0
    scale = QuantizationParameters.of_range(plan.activations[edge], ranges[edge]).scale
    return float((maxima < policy.MIN_STEPS * scale).mean())
