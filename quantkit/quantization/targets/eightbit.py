"""Target "eightbit": TensorFlow's classic 8-bit ops, with calibrated instead of dynamic ranges.

    before   Requantize(x32, RequantizationRange(x32))      QuantizeV2(x, Min(x), Max(x))
    after    Requantize(x32, low, high)                     QuantizeV2(x, low, high)

Fixed ranges cost no reduction over the tensor, and do not change from image to image.
"""

from collections.abc import Callable, Container, Mapping
from types import MappingProxyType

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.kernels.quantized import QuantizedRange
from quantkit.ops.semantics import CONCAT_OPS, PATTERN_LAYER_OPS
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.spec import AFFINE
from quantkit.quantization.targets.base import Target
from quantkit.transforms.cleanup.merge_duplicate_nodes import merge_duplicate_nodes
from quantkit.transforms.cleanup.strip_unused_nodes import strip_unused_nodes
from quantkit.transforms.precision.quantize_nodes import (
    classic_form,
    explain_float,
    has_classic_form,
    quantize_nodes,
)
from quantkit.transforms.precision.quantize_weights import quantize_weights

QUANTIZED_SUFFIX, FLOAT_SUFFIX = "/eightbit", "/float"
# QuantizedBiasAdd computes in steps of its largest limit over 2^14.
BIAS_ADD_FACTOR, ZERO = np.float32(1 << 17), np.zeros((), np.float32)


def _float_nodes(graph: Graph, plan: Plan) -> set[str]:
    """Return float fallbacks whose op has a classic form, layers, and the constants of only these."""
    quantized = {*plan.pattern_of, *plan.pass_through}
    fallbacks = {
        name for name in plan.float_fallbacks if graph[name].op in PATTERN_LAYER_OPS or has_classic_form(graph[name].op)
    }
    constants = {edge.node for name in fallbacks for edge in graph[name].inputs if graph.constant_of(edge) is not None}
    return fallbacks | {name for name in constants if not quantized & {use.node.name for use in graph.node_uses[name]}}


def _classic_concats(graph: Graph, plan: Plan) -> Graph:
    """Return the graph with non-negative axes of concatenations.

    They need shapes, which cannot be inferred after masking.
    """
    shapes = infer_shapes(graph)
    draft = Draft(graph)
    for name in plan.pass_through:
        if graph[name].op in CONCAT_OPS:
            draft.replace(name, *classic_form(graph, graph[name], shapes))
    return draft.graph()


def _rename_ops(graph: Graph, rename: Callable[[str], str], names: Container[str]) -> Graph:
    """Return the graph with other op types of some nodes."""
    return graph.with_nodes(
        node.with_(op=rename(node.op)) if node.name in names else node for node in graph.nodes.values()
    )


def _dynamic_edge(quantized: Graph, node: Node) -> Edge | None:
    """Return the float edge whose range a node takes from its input, or None."""
    if node.op == "Requantize" and quantized[node.inputs[3].node].op == "RequantizationRange":
        return Edge(node.inputs[0].node.removesuffix(QUANTIZED_SUFFIX))
    if node.op == "QuantizeV2" and quantized[node.inputs[1].node].op == "Min":
        return node.inputs[0]
    return None


def _limits(graph: Graph, plan: Plan, ranges: Ranges, edge: Edge) -> Range | None:
    """Return the range of an edge, moved so that 0 is represented exactly; None if it is unknown."""
    edge = plan.range_edge(edge)
    value = graph.constant_of(edge)
    limits = ranges.get(edge) if value is None else Range(float(value.array.min()), float(value.array.max()))
    if limits is None or not np.isfinite(limits).all():
        return None
    parameters = QuantizationParameters.of_range(AFFINE, limits)
    scale, zero = float(parameters.scale), int(parameters.zero_point)
    return Range(-find_exact_limit(zero * scale), find_exact_limit((255 - zero) * scale))


def find_exact_limit(limit: float) -> float:
    """Return the smallest float32 of at least a limit for which QuantizedBiasAdd has no offset.

    The kernel adds the int32 value of 0 in the range from -M to M, M = 2^17 * limit, which is between two steps. After
    the rounding to float32 it is wrong for 1 of 7 limits: all sums are too small by 1/64 of the limit. In float64 it
    is -1 or 0.
    """
    value = np.float32(limit)
    with np.errstate(over="ignore"):
        while value > 0 and np.isfinite(largest := value * BIAS_ADD_FACTOR):
            sums = QuantizedRange(np.asarray(-largest), np.asarray(largest), DType.QINT32)
            if sums.zero == 0 and sums.quantize(ZERO) == 0:
                break
            value = np.nextafter(value, np.float32(np.inf))
    return float(value)


class EightbitTarget(Target):
    """The classic TensorFlow ops of quantize_nodes, with calibrated ranges."""

    name = "eightbit"
    dialect = "tensorflow"
    suffixes = (".pb", ".pbtxt")
    runtimes = ("tensorflow",)
    defaults = MappingProxyType({"weights": AFFINE, "share_pool_ranges": True, "split_patterns": True})
    fixed = ("weights", "activations", "signed_activations")

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        plan.require_ranges(ranges)
        # Op types that quantize_nodes does not recognize stay float.
        masked = _rename_ops(_classic_concats(graph, plan), lambda op: f"{op}{FLOAT_SUFFIX}", _float_nodes(graph, plan))
        quantized = quantize_nodes(quantize_weights(masked))
        quantized = _rename_ops(quantized, lambda op: op.removesuffix(FLOAT_SUFFIX), set(quantized.nodes))
        draft = Draft(quantized)
        for node in quantized.nodes.values():
            edge = _dynamic_edge(quantized, node)
            limits = None if edge is None else _limits(graph, plan, ranges, edge)
            if limits is not None:
                low, high = constant(f"{node.name}/low", limits.low), constant(f"{node.name}/high", limits.high)
                first = 3 if node.op == "Requantize" else 1
                inputs = (*node.inputs[:first], Edge(low.name), Edge(high.name))
                draft.replace(node.name, low, high, node.with_(inputs=inputs))
        return strip_unused_nodes(merge_duplicate_nodes(draft.graph()))

    def edge_parameters(self, graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[Edge, QuantizationParameters]:
        limits = {edge: _limits(graph, plan, ranges, edge) for edge in plan.activations}
        return {edge: QuantizationParameters.of_range(AFFINE, value) for edge, value in limits.items() if value}

    def missing_kernel(self, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
        return explain_float(graph, node, shapes)


TARGET = EightbitTarget()
