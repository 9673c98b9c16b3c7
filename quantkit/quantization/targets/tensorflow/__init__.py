"""Target "tensorflow": a frozen graph of oneDNN's fused ops, which stock TensorFlow runs in int8.

oneDNN's kernels have a scale and no zero point: x ~= quantized * scale, quantized values 0 .. 255.
Tensors with negative values are shifted by a zero point, and the bias compensates it exactly:

    x = (q - zero) * scale      sum(x * w) + b  ==  scale * sum(q * w) + (b - zero * scale * sum(w))

The zero point of a layer's output is added to its bias in the same way; the fused Relu then clamps
at the lowest value of the range instead of at 0. Only padding needs the quantized value of 0:
shifted tensors are padded before the layer.
"""

from collections.abc import Mapping
from types import MappingProxyType

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, Shape
from quantkit.ops.roles import find_roles
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.tensorflow.frames import without_back_edges
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.spec import AFFINE, UNSIGNED
from quantkit.quantization.targets.base import Target
from quantkit.quantization.targets.capabilities import KernelChecks
from quantkit.quantization.targets.tensorflow.check import check_on_this_host, require_onednn
from quantkit.quantization.targets.tensorflow.fused_patterns import add_pattern
from quantkit.quantization.targets.tensorflow.graph_builder import GraphBuilder
from quantkit.quantization.targets.tensorflow.parameters import edge_parameters
from quantkit.quantization.targets.tensorflow.pass_through import add_pass_through
from quantkit.quantization.targets.tensorflow.streams import schedule_for_two_threads
from quantkit.runtimes.session import SessionOptions

# Largest number of dimensions that QuantizeV2 has a kernel for.
MAX_RANK = 5


def convert(graph: Graph, plan: Plan, ranges: Ranges, *, streams: bool = True) -> Graph:
    """Return the graph in fused oneDNN ops; float tensors, inputs and outputs keep their names.

    A fused pattern without an int8 kernel stays float; `missing_kernels` has the reason.

    Args:
        graph: float graph.
        plan: plan of ``graph`` for the target ``tensorflow``.
        ranges: ranges of every edge of the plan.
        streams: order the nodes for two threads that run side by side (intra-op 1, inter-op 2), the
            fastest setting for small int8 layers.

    Raises:
        GraphError: the plan was made for another graph, or its weights are not symmetric qint8.
        InputError: a range is missing.
    """
    builder = _build(graph, plan, ranges)
    quantized = builder.graph()
    return schedule_for_two_threads(quantized, builder.quantized_shapes()) if streams else quantized


def _build(graph: Graph, plan: Plan, ranges: Ranges) -> GraphBuilder:
    plan.require_ranges(ranges)
    builder = GraphBuilder(graph, plan, ranges)
    pattern_of_last = {pattern.name: pattern for pattern in plan.patterns}
    pass_through = frozenset(plan.pass_through)
    # Inputs without a consumer stay, as in the float graph: callers feed them.
    needed = graph.reachable() | {edge.node for edge in graph.inputs}
    for name in without_back_edges(graph).order:
        if name not in needed:
            continue
        if name in pattern_of_last:
            add_pattern(builder, pattern_of_last[name])
        elif name in pass_through:
            add_pass_through(builder, graph[name])
        elif name not in plan.pattern_of:
            builder.keep(graph[name])
    for edge in graph.outputs:
        builder.require_float(edge)
    return builder


class TensorFlowTarget(Target, KernelChecks):
    """Frozen graphs of the fused oneDNN ops of TensorFlow."""

    name = "tensorflow"
    dialect = "tensorflow"
    suffixes = (".pb", ".pbtxt")
    runtimes = ("tensorflow",)
    defaults = MappingProxyType(
        {
            "activations": UNSIGNED,
            # The kernels shift tensors with negative values by a zero point. A symmetric range would clip the small
            # negative values of a SiLU, which the mean squared error hardly shows.
            "signed_activations": AFFINE,
            "share_pool_ranges": True,
            "float_global_pools": True,
        }
    )
    fixed = ("activations", "signed_activations")

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        return convert(graph, plan, ranges)

    def edge_parameters(self, graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[Edge, QuantizationParameters]:
        """Return the parameters of each quantized edge; the kernels add a residual to sums of 32 bits."""
        sums = {pattern.inner for pattern in plan.patterns if pattern.inner is not None}
        return {edge: value for edge, value in edge_parameters(graph, plan, ranges).items() if edge not in sums}

    def check_installation(self, *, weights_only: bool) -> None:
        if not weights_only:
            require_onednn()

    def missing_kernel(self, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
        objection = _objection_to_groups(node, shapes) if node.op == "Conv2D" else ""
        return objection or _objection_to_ranks(graph, node, shapes)

    def missing_kernels(self, graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[str, str]:
        return _build(graph, plan, ranges).reasons

    def check_host(
        self, graph: Graph, plan: Plan, ranges: Ranges, quantized: Graph, feeds: Mapping[str, Array]
    ) -> None:
        check_on_this_host(graph, plan, ranges, quantized, feeds)

    def session_options(self, cores: int) -> SessionOptions:
        """Return options for many small ops: parallel ops are faster than parallel kernels."""
        return SessionOptions(intra_op=1, inter_op=cores)


def _objection_to_groups(node: Node, shapes: Mapping[Edge, Shape]) -> str:
    channels, weights = (shapes.get(edge, UNKNOWN).dims for edge in node.inputs)
    if not channels or not weights or channels[-1] is None or weights[2] in (None, channels[-1]):
        return ""
    return f"grouped convolution ({weights[2]} of {channels[-1]} channels): oneDNN has no int8 kernel"


def _objection_to_ranks(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
    # Pass-through nodes compute quantized values of any rank: their own inputs are quantized.
    pass_through_ops = find_roles(graph).pass_through_ops
    inputs = (edge for edge in node.inputs if graph[edge.node].op not in pass_through_ops)
    rank = max((shapes.get(edge, UNKNOWN).rank or 0 for edge in inputs), default=0)
    return f"QuantizeV2 has no kernel for {rank} dimensions" if rank > MAX_RANK else ""


TARGET = TensorFlowTarget()
