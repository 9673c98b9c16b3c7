"""Ranges written into the float graph, for TensorFlow's converter to make a LiteRT model of whole numbers.

    before   x -> Conv2D -> Relu -> y
    after    x -> FakeQuant -> Conv2D -> Relu -> FakeQuant -> y

The result is a TensorFlow graph that rounds like the model, and runs wherever the float graph does;
`quantkit.convert.to_litert` makes the file. The converter rounds the weights itself, one scale for each channel.

LiteRT averages windows slowly, and by one thread, because its fast kernels have no 8-bit average pool. They have
depthwise convolutions, and one whose weights are all 1/n averages as well, but for the borders, where it counts
the padding:

    AvgPool(x)  ==  DepthwiseConv2d(x, 1/n) * n / count
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np

from quantkit.convert.to_litert import require_converter, save_litert
from quantkit.errors import UnavailableError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.kernels.windows import Windows
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.plan import ACTIVATIONS, Plan
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets.base import Target

FAKE_QUANT = "FakeQuantWithMinMaxVars"
DEPTHWISE = "DepthwiseConv2dNative"
# What XNNPACK's depthwise kernels take in one go: windows of 5x5.
MOST_TAPS = 25
# Added to what float ops read, because the converter rounds whatever reads codes, unless there is an op between that
# has no range. Numbers above 1e-22 stay as they are.
NOTHING = np.float32(1e-30)
FLOAT = {"T": DType.FLOAT}

Spans = dict[Edge, Range]


def convert(graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
    """The float graph with a ``FakeQuantWithMinMaxVars`` behind every quantized edge.

    Args:
        graph: the one that was annotated.
        plan: of it, with `Scheme.quantize_outputs`.
        ranges: of every edge of the plan, shared within its groups.
    """
    averages = {node.name: nodes for node, nodes in _averages(graph, plan)}
    spans = _spans(graph, plan, ranges, _clamped(graph, averages))
    draft = Draft(graph)
    for name, nodes in averages.items():
        draft.replace(name, *nodes)
        spans.update({Edge(node.name): _with_zero(ranges[Edge(name)]) for node in nodes[:-1] if node.op == DEPTHWISE})
    return _with_ranges(_with_float_ops(draft.graph(), plan, spans), spans)


# Average pools


def _averages(graph: Graph, plan: Plan) -> Iterator[tuple[Node, list[Node]]]:
    """Average pools of 8 bits, and what computes the same; the last node has the pool's name."""
    shapes = infer_shapes(graph) if "AvgPool" in graph.op_counts else {}
    for name in plan.pass_through:
        node = graph[name]
        sizes = shapes.get(node.inputs[0], Shape(None)).dims if node.op == "AvgPool" else None
        if sizes is not None and None not in sizes[1:]:
            nodes = _averaging(graph, node, *(size or 0 for size in sizes[1:]))
            if nodes:
                yield node, nodes


def _averaging(graph: Graph, pool: Node, h: int, w: int, c: int) -> list[Node]:
    """The nodes instead of a pool; none: it stays."""
    ksize, strides = (tuple(pool.attrs[key]) for key in ("ksize", "strides"))  # type: ignore[arg-type]
    if ksize == (1, h, w, 1) and pool.attrs["padding"] == b"VALID":
        axes = constant(free_name(graph, f"{pool.name}/axes"), np.array([1, 2], np.int32))
        reads = (pool.inputs[0], Edge(axes.name))
        return [axes, Node(pool.name, "Mean", reads, attrs={**FLOAT, "Tidx": DType.INT32, "keep_dims": True})]
    if prod(ksize) > MOST_TAPS or strides[1] != strides[2] or pool.attrs["padding"] not in (b"SAME", b"VALID"):
        return []
    windows = Windows.of(pool, (h, w), (ksize[1], ksize[2]))
    inside = windows.rows.inside()[:, None] * windows.columns.inside()
    weights = constant(
        free_name(graph, f"{pool.name}/weights"), np.full((*ksize[1:3], c, 1), 1 / prod(ksize), np.float32)
    )
    averaged = Node(
        pool.name,
        DEPTHWISE,
        (pool.inputs[0], Edge(weights.name)),
        attrs={**FLOAT, "strides": strides, "padding": pool.attrs["padding"]},
    )
    if (inside == prod(ksize)).all():
        return [weights, averaged]
    averaged = replace(averaged, name=free_name(graph, f"{pool.name}/sums"))
    factors = constant(
        free_name(graph, f"{pool.name}/factors"), (prod(ksize) / inside).astype(np.float32)[None, :, :, None]
    )
    corrected = Node(pool.name, "Mul", (Edge(averaged.name), Edge(factors.name)), attrs=FLOAT)
    return [weights, averaged, factors, corrected]


def _clamped(graph: Graph, averages: Mapping[str, list[Node]]) -> frozenset[Edge]:
    """Averages that only a Relu reads: both are computed in one go, and only the result has codes."""
    edges = [Edge(name) for name in averages if name not in graph.endpoint_names]
    readers = {edge: [use.node.op for use in graph.uses.get(edge, ())] for edge in edges}
    return frozenset(edge for edge, ops in readers.items() if len(ops) == 1 and ops[0] in ACTIVATIONS)


# Ranges


def _spans(graph: Graph, plan: Plan, ranges: Ranges, clamped: frozenset[Edge]) -> Spans:
    """The range of each edge that gets codes; those that only hold what Relus made begin at 0."""
    positive = plan.nonnegative_edges(graph)
    found: Spans = {}
    for edge in plan.activations:
        low, high = ranges[edge]
        if plan.group_of(edge) - clamped <= positive:
            low = max(low, 0.0)
        if edge not in clamped:
            found[edge] = _with_zero(Range(low, high))
    return found


def _with_zero(span: Range) -> Range:
    """What pads and Relus need a code for; a range of nothing else gets some width."""
    low, high = min(span.low, 0.0), max(span.high, 0.0)
    return Range(low, high) if low < high else Range(0.0, 1.0)


def _with_float_ops(graph: Graph, plan: Plan, spans: Spans) -> Graph:
    """With float ops that read codes through an op that the converter leaves float."""
    made: dict[Edge, Edge] = {}
    draft = Draft(graph)
    for name in plan.float_fallbacks:
        node = graph[name]
        for edge in node.inputs:
            if edge in spans and edge not in made:
                nothing = constant(free_name(graph, f"{edge.node}/{edge.port}/nothing"), NOTHING)
                sum_ = Node(
                    free_name(graph, f"{edge.node}/{edge.port}/float"), "Add", (edge, Edge(nothing.name)), attrs=FLOAT
                )
                made[edge] = Edge(sum_.name)
                draft.after(edge.node, nothing, sum_)
        if made.keys() & set(node.inputs):
            draft.replace(name, node.with_(inputs=tuple(made.get(edge, edge) for edge in node.inputs)))
    return draft.graph()


def _with_ranges(graph: Graph, spans: Spans) -> Graph:
    """With the codes of each edge behind it, under its name where that can be."""
    nodes: list[Node] = []
    renamed: dict[str, str] = {}
    moved: dict[Edge, Edge] = {}
    for edge, (low, high) in spans.items():
        is_taken = edge.port or edge.node in graph.input_names
        name = free_name(graph, f"{edge.node}/{edge.port}/codes") if is_taken else edge.node
        source = edge
        if is_taken:
            moved[edge] = Edge(name)
        else:
            renamed[edge.node] = free_name(graph, f"{edge.node}/exact")
            source = Edge(renamed[edge.node])
        ends = [
            constant(free_name(graph, f"{edge.node}/{edge.port}/{word}"), np.float32(value))
            for word, value in (("low", low), ("high", high))
        ]
        nodes += [
            *ends,
            Node(name, FAKE_QUANT, (source, *(Edge(end.name) for end in ends)), attrs={"num_bits": 8}),
        ]
    kept = [
        node.with_(name=renamed.get(node.name, node.name), inputs=tuple(moved.get(edge, edge) for edge in node.inputs))
        for node in graph.nodes.values()
    ]
    return graph.with_nodes([*kept, *nodes])


class LiteRTTarget(Target):
    """LiteRT models with int8 weights and activations, made by TensorFlow's converter."""

    name = "litert"
    title = "LiteRT model"
    dialect = "tensorflow"
    suffixes = (".tflite",)
    runtimes = ("litert",)
    keeps_endpoints = True
    defaults = MappingProxyType({"activations": Spec(DType.QINT8, symmetric=False), "quantize_outputs": True})
    fixed = ("weights", "activations", "signed_activations")
    thread_advice = "as many threads as cores: --intra-op {cores}"
    weights_only_arithmetic = "LiteRT quantizes the inputs of the layers in each call"

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        return convert(graph, plan, ranges)

    def store_weights(self, graph: Graph, plan: Plan) -> Graph:
        """Return the float graph: the converter stores its weights in `write`."""
        if plan.float_fallbacks:
            name, reason = next(iter(plan.float_fallbacks.items()))
            raise UnavailableError(
                f"TensorFlow's converter stores all weights in int8 or none, and {name!r} stays float: {reason}",
                hint="choose another target, or leave keep_float out",
            )
        return graph

    def check_installation(self, *, weights_only: bool) -> None:
        require_converter()

    def write(self, graph: Graph, path: Path, *, weights_only: bool = False) -> None:
        save_litert(graph, path, small_weights=weights_only)


TARGET = LiteRTTarget()
