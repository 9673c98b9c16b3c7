"""Ranges of layer outputs before a bias and a clamp, in targets that compute them as separate ops.

    y = clip(x + bias, 0, limit)        y needs x in [-bias, limit - bias] only, with the bias of each channel

Other values of x are clamped anyway: quantized values for them would only make the steps larger.
"""

from collections.abc import Mapping

import numpy as np

from quantkit.ir.graph import Edge, Graph
from quantkit.ops.roles import find_roles
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Range

# Upper limits of the activations whose lower limit is 0.
LIMITS = {"Relu": np.inf, "Relu6": 6.0}


def clip_ranges(graph: Graph, plan: Plan, ranges: Mapping[Edge, Range]) -> dict[Edge, Range]:
    """Return the ranges without the values that the activation of a pattern clamps in every channel.

    Args:
        graph: float graph.
        plan: plan of ``graph``; only one with `Scheme.split_patterns` has ranges before biases.
        ranges: observed ranges.
    """
    clipped = dict(ranges)
    if not plan.scheme.split_patterns:
        return clipped
    roles = find_roles(graph)
    for pattern in plan.patterns:
        edge = Edge(pattern.layer)
        limit = LIMITS.get(graph[pattern.activation].op) if pattern.activation and not pattern.add else None
        name = roles.bias_constant(graph, graph[pattern.layer], pattern.bias)
        if limit is None or not name or edge not in ranges or len(plan.group_of(edge)) > 1:
            continue
        bias = graph[name].value.array
        lowest, highest = min(0.0, -float(bias.max())), max(0.0, limit - float(bias.min()))
        low, high = max(ranges[edge].low, lowest), min(ranges[edge].high, highest)
        clipped[edge] = Range(float(np.float32(low)), float(np.float32(high)))
    return clipped
