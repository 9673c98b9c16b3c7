"""The classic 8-bit ops, with calibrated ranges in the place of those they would find while they run.

    before   Requantize(x32, RequantizationRange(x32))      QuantizeV2(x, Min(x), Max(x))
    after    Requantize(x32, low, high)                     QuantizeV2(x, low, high)

Ranges that are fixed cost no pass over the data, and do not change with the picture.
"""

from collections.abc import Callable, Collection, Container, Mapping
from types import MappingProxyType

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import CONCATS, PATTERN_LAYER_OPS, Plan
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.spec import AFFINE
from quantkit.quantization.targets.base import Target, count_conversion_nodes
from quantkit.quantization.weights import replace_constants
from quantkit.transforms.cleanup.merge_duplicate_nodes import merge_duplicate_nodes
from quantkit.transforms.cleanup.strip_unused_nodes import strip_unused_nodes
from quantkit.transforms.precision.quantize_nodes import (
    classic_form,
    has_classic_form,
    quantize_nodes,
    why_float,
)
from quantkit.transforms.precision.quantize_weights import quantize_weights

CODED = "/eightbit"
HIDDEN = "/float"


def convert(graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
    """The graph in classic 8-bit ops.

    Args:
        graph: in float.
        plan: of it, with `Scheme.split_patterns`.
        ranges: of every edge of the plan.
    """
    hidden = _renamed(_classic_concats(graph, plan), lambda op: f"{op}{HIDDEN}", _float_nodes(graph, plan))
    coded = quantize_nodes(quantize_weights(hidden))
    coded = _renamed(coded, lambda op: op.removesuffix(HIDDEN), set(coded.nodes))
    draft = Draft(coded)
    for node in coded.nodes.values():
        edge = _measured(coded, node)
        found = None if edge is None else _range(graph, plan, ranges, edge)
        if found is not None:
            low, high = constant(f"{node.name}/low", found.low), constant(f"{node.name}/high", found.high)
            first = 3 if node.op == "Requantize" else 1
            inputs = (*node.inputs[:first], Edge(low.name), Edge(high.name))
            draft.replace(node.name, low, high, node.with_(inputs=inputs))
    return strip_unused_nodes(merge_duplicate_nodes(draft.graph()))


def _float_nodes(graph: Graph, plan: Plan) -> set[str]:
    """What the plan keeps float though its op has a classic form, layers, and the constants that only these read."""
    at_work = {*plan.pattern_of, *plan.pass_through}
    kept = {
        name for name in plan.float_fallbacks if graph[name].op in PATTERN_LAYER_OPS or has_classic_form(graph[name].op)
    }
    constants = {edge.node for name in kept for edge in graph[name].inputs if graph.constant_of(edge) is not None}
    return kept | {name for name in constants if not at_work & {use.node.name for use in graph.node_uses[name]}}


def _classic_concats(graph: Graph, plan: Plan) -> Graph:
    """With the axes of concats counted from the front, for which shapes are needed that hiding nodes hides as well."""
    shapes = infer_shapes(graph)
    draft = Draft(graph)
    for name in plan.pass_through:
        if graph[name].op in CONCATS:
            draft.replace(name, *classic_form(graph, graph[name], shapes))
    return draft.graph()


def _renamed(graph: Graph, renamed: Callable[[str], str], names: Container[str]) -> Graph:
    """The graph with other op types, which no transform knows, of some nodes."""
    return graph.with_nodes(
        node.with_(op=renamed(node.op)) if node.name in names else node for node in graph.nodes.values()
    )


def _measured(coded: Graph, node: Node) -> Edge | None:
    """The float edge whose range a node finds while it runs."""
    if node.op == "Requantize" and coded[node.inputs[3].node].op == "RequantizationRange":
        return Edge(node.inputs[0].node.removesuffix(CODED))
    if node.op == "QuantizeV2" and coded[node.inputs[1].node].op == "Min":
        return node.inputs[0]
    return None


def _range(graph: Graph, plan: Plan, ranges: Ranges, edge: Edge) -> Range | None:
    """The range an edge's codes reach, moved so that 0 is exactly a code; None: nothing is known of it."""
    pattern = plan.pattern_of.get(edge.node)
    if pattern is not None and pattern.activation and edge in (Edge(name) for name in pattern.nodes[-2:]):
        edge = pattern.output  # what the activation cuts off needs no codes
    value = graph.constant_of(edge)
    found = ranges.get(edge) if value is None else Range(float(value.array.min()), float(value.array.max()))
    if found is None or not np.isfinite(found).all():
        return None
    parameters = QuantizationParameters.of_range(AFFINE, found)
    scale, zero = float(parameters.scale), int(parameters.zero_point)
    return Range(-zero * scale, (255 - zero) * scale)


def _stored_constant(node: Node) -> tuple[Node, ...]:
    """Return a constant as the transform quantize_weights stores it."""
    alone = Graph.of([node.with_(controls=())], (), (node.name,))
    stored = quantize_weights(alone, minimum_size=1).nodes.values()
    return tuple(one.with_(controls=node.controls) if one.is_constant else one for one in stored)


class EightbitTarget(Target):
    """The classic TensorFlow ops of quantize_nodes, with calibrated ranges."""

    name = "eightbit"
    title = "frozen graph of the classic TensorFlow 8-bit ops"
    dialect = "tensorflow"
    suffixes = (".pb", ".pbtxt")
    runtimes = ("tensorflow",)
    defaults = MappingProxyType({"weights": AFFINE, "share_pool_ranges": True, "split_patterns": True})
    fixed = ("weights", "activations", "signed_activations")
    can_split_patterns = True
    # The classic ops have no dilations: flatten_atrous_conv would keep such layers in float.
    layer_recipe = "flatten_products simplify_arithmetic"
    thread_advice = "thread settings have little effect: each op runs on one thread"
    slow_reason = "the classic ops run on reference kernels on x86, whatever their ranges"
    faster_target = "tensorflow"

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        return convert(graph, plan, ranges)

    def store_weights(self, graph: Graph, plan: Plan) -> Graph:
        return replace_constants(graph, {name: _stored_constant(graph[name]) for name in plan.weights})

    def missing_kernel(self, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
        return why_float(graph, node, shapes)

    def count_boundaries(self, graph: Graph, plan: Plan, fallbacks: Collection[str], quantized: Graph) -> int:
        return count_conversion_nodes(quantized)


TARGET = EightbitTarget()
