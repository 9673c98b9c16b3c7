"""Residuals that OpenVINO adds in the kernel of a convolution.

    Conv -> QuantizeLinear -> DequantizeLinear -> Add -> QuantizeLinear

is one kernel of its CPU plugin, which does not round before the addition. If both summands are convolutions, the first
one is fused.
"""

from quantkit.ir.graph import Edge, Graph
from quantkit.quantization.plan import Plan
from quantkit.runtimes import AUTO, find_runtime


def find_unrounded(graph: Graph, plan: Plan, runtime: str) -> frozenset[Edge]:
    """Return the quantized outputs of convolutions that are added before they are rounded.

    Args:
        graph: float graph.
        plan: plan of ``graph``.
        runtime: name of the runtime; ``auto`` for the quantized graph as it is written.
    """
    if runtime == AUTO or not find_runtime(runtime).fuses_float_ops:
        return frozenset()
    layers = {pattern.inner or pattern.output: graph[pattern.layer].op for pattern in plan.patterns}
    candidates = {
        edge
        for edge, op in layers.items()
        if op == "Conv" and edge in plan.activations and len(graph.uses.get(edge, ())) == 1
    }
    sums = [graph[pattern.add] for pattern in plan.patterns if pattern.add and pattern.output in plan.activations]
    fused = ([edge for edge in node.inputs if edge in candidates] for node in sums)
    return frozenset(edges[0] for edges in fused if edges)
