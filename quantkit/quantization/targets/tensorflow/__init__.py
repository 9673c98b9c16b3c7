"""A frozen graph of fused oneDNN ops, which plain TensorFlow runs in 8 bits.

oneDNN's codes have a scale and no zero point: x ~= code * scale, codes 0...255. Where negative numbers occur they are
shifted by a whole number of steps, and the shift is taken out again through the bias, which is exact:

    x = (code - zero) * scale        sum(x * w) + b  ==  scale * sum(code * w) + (b - zero * scale * sum(w))

The shift of what a layer makes is added to its bias in the same way, and the requantizing Relu then clips at the lowest
number of the range instead of at 0. Only padding must see the code of 0 itself: shifted tensors are padded before.
"""

from collections.abc import Mapping

from quantkit.ir.graph import Graph
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.targets.tensorflow.fused_patterns import add_pattern
from quantkit.quantization.targets.tensorflow.graph_builder import Growth
from quantkit.quantization.targets.tensorflow.pass_through import add_pass_through
from quantkit.quantization.targets.tensorflow.streams import side_by_side


def convert(graph: Graph, plan: Plan, ranges: Ranges, *, streams: bool = True) -> Graph:
    """The graph in fused 8-bit ops; tensors that are kept in float, and the graph's ends, keep their names.

    A pattern whose form has no 8-bit kernel stays float; `float_reasons` names it.

    Args:
        graph: the float graph.
        plan: of `annotate` on this graph, for the target ``tensorflow``.
        ranges: of `collect` with this plan.
        streams: whether nodes are ordered for two threads that run side by side (intra-op 1, inter-op 2), the
            fastest setting for small 8-bit layers.

    Raises:
        GraphError: the plan was made for another graph, or its weights are not symmetric qint8.
        InputError: a range is missing.
    """
    work = _converted(graph, plan, ranges)
    made = work.graph()
    return side_by_side(made, work.sizes()) if streams else made


def float_reasons(graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[str, str]:
    """Why planned patterns and pass-through nodes stay float nevertheless, by node: no kernel has their form."""
    return _converted(graph, plan, ranges).reasons


def _converted(graph: Graph, plan: Plan, ranges: Ranges) -> Growth:
    plan.require(ranges)
    work = Growth(graph, plan, ranges)
    last = {pattern.name: pattern for pattern in plan.patterns}
    pass_through = frozenset(plan.pass_through)
    needed = graph.reachable()
    for name in graph.order:
        if name not in needed:
            continue
        if name in last:
            add_pattern(work, last[name])
        elif name in pass_through:
            add_pass_through(work, graph[name])
        elif name not in plan.pattern_of:
            work.keep(graph[name])
    for edge in graph.outputs:
        work.float_of(edge)
    return work
