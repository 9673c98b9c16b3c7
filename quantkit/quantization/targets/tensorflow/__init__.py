"""A frozen graph of fused oneDNN ops, which plain TensorFlow runs in 8 bits.

oneDNN's codes have a scale and no zero point: x ~= code * scale, codes 0...255. Where negative numbers occur they are
shifted by a whole number of steps, and the shift is taken out again through the bias, which is exact:

    x = (code - zero) * scale        sum(x * w) + b  ==  scale * sum(code * w) + (b - zero * scale * sum(w))

The shift of what a layer makes is added to its bias in the same way, and the requantizing Relu then clips at the lowest
number of the range instead of at 0. Only padding must see the code of 0 itself: shifted tensors are padded before.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.spec import SIGNED, UNSIGNED
from quantkit.quantization.targets.base import BFLOAT16, FLOAT, Target, count_conversion_nodes
from quantkit.quantization.targets.tensorflow.check import check_on_this_host, require_onednn
from quantkit.quantization.targets.tensorflow.fused_patterns import add_pattern
from quantkit.quantization.targets.tensorflow.graph_builder import GraphBuilder
from quantkit.quantization.targets.tensorflow.pass_through import add_pass_through
from quantkit.quantization.targets.tensorflow.streams import side_by_side
from quantkit.runtimes.session import SessionOptions


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
    builder = _converted(graph, plan, ranges)
    made = builder.graph()
    return side_by_side(made, builder.sizes()) if streams else made


def float_reasons(graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[str, str]:
    """Why planned patterns and pass-through nodes stay float nevertheless, by node: no kernel has their form."""
    return _converted(graph, plan, ranges).reasons


def _converted(graph: Graph, plan: Plan, ranges: Ranges) -> GraphBuilder:
    plan.require_ranges(ranges)
    builder = GraphBuilder(graph, plan, ranges)
    last = {pattern.name: pattern for pattern in plan.patterns}
    pass_through = frozenset(plan.pass_through)
    needed = graph.reachable()
    for name in graph.order:
        if name not in needed:
            continue
        if name in last:
            add_pattern(builder, last[name])
        elif name in pass_through:
            add_pass_through(builder, graph[name])
        elif name not in plan.pattern_of:
            builder.keep(graph[name])
    for edge in graph.outputs:
        builder.float_of(edge)
    return builder


class TensorFlowTarget(Target):
    """Frozen graphs of the fused oneDNN ops of TensorFlow."""

    name = "tensorflow"
    title = "frozen graph of TensorFlow's fused oneDNN ops"
    dialect = "tensorflow"
    suffixes = (".pb", ".pbtxt")
    runtimes = ("tensorflow",)
    defaults = MappingProxyType(
        {
            "activations": UNSIGNED,
            "signed_activations": SIGNED,
            "share_pool_ranges": True,
            "float_global_pools": True,
        }
    )
    fixed = ("activations", "signed_activations")
    multiplies_u8_by_s8 = True
    has_host_check = True
    fallback_precisions = (FLOAT, BFLOAT16)
    runs_bfloat16 = True
    thread_advice = "intra-op 1 and inter-op as many as cores: --intra-op 1 --inter-op {cores}"

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        return convert(graph, plan, ranges)

    def check_installation(self, *, weights_only: bool) -> None:
        if not weights_only:
            require_onednn()

    def missing_kernel(self, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
        return _objection_to_groups(node, shapes) if node.op == "Conv2D" else ""

    def float_reasons(self, graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[str, str]:
        return float_reasons(graph, plan, ranges)

    def check(self, graph: Graph, plan: Plan, ranges: Ranges, quantized: Graph) -> None:
        check_on_this_host(graph, plan, ranges, quantized)

    def session_options(self, cores: int) -> SessionOptions:
        """Return options for many small ops, which run faster side by side than split."""
        return SessionOptions(intra_op=1, inter_op=cores)

    def count_boundaries(self, graph: Graph, plan: Plan, fallbacks: Collection[str], quantized: Graph) -> int:
        return count_conversion_nodes(quantized)


def _objection_to_groups(node: Node, shapes: Mapping[Edge, Shape]) -> str:
    channels, weights = (shapes.get(edge, UNKNOWN).dims for edge in node.inputs)
    if not channels or not weights or channels[-1] is None or weights[2] in (None, channels[-1]):
        return ""
    return f"grouped convolution ({weights[2]} of {channels[-1]} channels): oneDNN has no int8 kernel of it"


TARGET = TensorFlowTarget()
