"""Target "litert": a float graph with FakeQuant ops, which TensorFlow's converter turns into int8.

    before   x -> Conv2D -> Relu -> y
    after    x -> FakeQuant -> Conv2D -> Relu -> FakeQuant -> y

The converted graph rounds like the int8 model and runs in every runtime of TensorFlow graphs;
`quantkit.convert.to_litert` writes the file. The converter quantizes the weights, with one scale per
channel.

LiteRT has no fast int8 kernel of average pools, only a slow one on a single thread. A depthwise
convolution with weights 1/n computes the same average, except at the borders, where it counts the
padding:

    AvgPool(x)  ==  DepthwiseConv2d(x, 1/n) * n / count
"""

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np

from quantkit.convert.to_litert import check_convertible, require_converter, save_litert
from quantkit.errors import UnavailableError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import NewNodes, free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.kernels.windows import Windows
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.semantics import ADD_OPS, FUSED_ACTIVATION_OPS
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.frames import find_loop_nodes
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Range, Ranges
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets.base import Target
from quantkit.quantization.targets.capabilities import WrittenByConverter
from quantkit.quantization.targets.litert_lowering import lower_transposed_convolutions
from quantkit.quantization.weight_levels import find_limits

FAKE_QUANT = "FakeQuantWithMinMaxVars"
FAKE_QUANT_PER_CHANNEL = "FakeQuantWithMinMaxVarsPerChannel"
DEPTHWISE = "DepthwiseConv2dNative"
# Largest window of XNNPACK's depthwise kernels, 5x5.
MAX_WINDOW = 25
# Added to the inputs of float ops: the converter quantizes every op with a quantized input, unless
# an op without a range is between them. Values above 1e-22 do not change.
TINY = np.float32(1e-30)
# Ops for whose outputs the converter has fixed parameters, even if they are float: it quantizes the views and
# concatenations after them, and other values of a concatenation then saturate. It does not quantize sums and products.
FIXED_RANGE_OPS = frozenset({"Sigmoid", "Softmax", "LogSoftmax", "Tanh"})
ELEMENTWISE_OPS = ADD_OPS | {"Mul", "Sub"}
# Ops whose inputs and outputs have the same parameters, by the indices of their data inputs: if an output is quantized,
# the converter also quantizes the inputs, and with them the other consumers of the inputs.
FIRST_INPUT_VIEWS = "ExpandDims GatherV2 Pad Reshape Slice SplitV Squeeze StridedSlice Transpose Unpack"
VIEW_OPS = {
    **dict.fromkeys(FIRST_INPUT_VIEWS.split(), slice(1)),
    "ConcatV2": slice(-1),
    "Pack": slice(None),
    "Split": slice(1, 2),
}
FLOAT: dict[str, Attr] = {"T": DType.FLOAT}

Limits = dict[Edge, Range]


# Weights


def _keep_levels(graph: Graph, plan: Plan) -> Graph:
    """Return the graph with FakeQuant ops of the weights whose values the converter would round, see `find_limits`."""
    draft = Draft(graph)
    for pattern in plan.patterns:
        layer = graph[pattern.layer]
        # The last dimension of these weights is the output channel.
        if not pattern.weights or layer.op not in ("Conv2D", "MatMul") or layer.attrs.get("transpose_b"):
            continue
        values = graph[pattern.weights].value.array
        limits = find_limits(values.reshape(-1, values.shape[-1]))
        if limits is None:
            continue
        high = np.where(limits > 0, limits, 1).astype(np.float32)
        if layer.op == "MatMul":  # the converter transposes its weights, which must have one scale
            if np.ptp(high):
                continue
            high = high[0]
        nodes = NewNodes(graph, layer.name)
        ends = [nodes.constant(suffix, sign * high) for suffix, sign in (("levels_low", -1), ("levels_high", 1))]
        op = FAKE_QUANT_PER_CHANNEL if high.ndim else FAKE_QUANT
        rounded = nodes.add("levels", op, Edge(pattern.weights), *ends, num_bits=8, narrow_range=True)
        draft.replace(layer.name, *nodes, layer.with_input(WEIGHTS_INDEX, rounded))
    return draft.graph()


# Average pools


def _replace_averages(graph: Graph, plan: Plan) -> Iterator[tuple[Node, list[Node]]]:
    """Yield int8 average pools with the nodes that replace them; the last one has the pool's name."""
    shapes = infer_shapes(graph) if "AvgPool" in graph.op_counts else {}
    for name in plan.pass_through:
        node = graph[name]
        sizes = shapes.get(node.inputs[0], Shape(None)).dims if node.op == "AvgPool" else None
        if sizes is not None and None not in sizes[1:]:
            nodes = _average_nodes(graph, node, *(size or 0 for size in sizes[1:]))
            if nodes:
                yield node, nodes


def _average_nodes(graph: Graph, pool: Node, h: int, w: int, c: int) -> list[Node]:
    """Return the nodes that replace a pool; empty if the pool stays."""
    ksize, strides = (tuple(pool.attrs[key]) for key in ("ksize", "strides"))
    nodes, source = NewNodes(graph, pool.name), pool.inputs[0]
    if ksize == (1, h, w, 1) and pool.attrs["padding"] == b"VALID":
        axes = nodes.constant("axes", np.array([1, 2], np.int32))
        attrs: dict[str, Attr] = {**FLOAT, "Tidx": DType.INT32, "keep_dims": True}
        return [*nodes, Node(pool.name, "Mean", (source, axes), attrs=attrs)]
    if prod(ksize) > MAX_WINDOW or strides[1] != strides[2] or pool.attrs["padding"] not in (b"SAME", b"VALID"):
        return []
    windows = Windows.of(pool, (h, w), (ksize[1], ksize[2]))
    inside = windows.rows.inside()[:, None] * windows.columns.inside()
    weights = nodes.constant("weights", np.full((*ksize[1:3], c, 1), 1 / prod(ksize), np.float32))
    sums = nodes.add("sums", DEPTHWISE, source, weights, **FLOAT, strides=strides, padding=pool.attrs["padding"])
    if (inside != prod(ksize)).any():
        factors = nodes.constant("factors", (prod(ksize) / inside).astype(np.float32)[None, :, :, None])
        nodes.add("average", "Mul", sums, factors, **FLOAT)
    return [*nodes[:-1], nodes[-1].with_(name=pool.name)]


def _clamped_averages(graph: Graph, averages: Mapping[str, list[Node]]) -> frozenset[Edge]:
    """Return averages whose only consumer is a Relu: only the output of the Relu is quantized."""
    edges = [Edge(name) for name in averages if name not in graph.endpoint_names]
    consumers = {edge: [use.node.op for use in graph.uses.get(edge, ())] for edge in edges}
    return frozenset(edge for edge, ops in consumers.items() if len(ops) == 1 and ops[0] in FUSED_ACTIVATION_OPS)


# Ranges


def _limits_of(graph: Graph, plan: Plan, ranges: Ranges, clamped: frozenset[Edge]) -> Limits:
    """Return the range of each quantized edge; that of non-negative edges starts at 0."""
    nonnegative = plan.nonnegative_edges(graph)
    limits: Limits = {}
    for edge in plan.activations:
        low, high = ranges[edge]
        if plan.group_of(edge) - clamped <= nonnegative:
            low = max(low, 0.0)
        if edge not in clamped:
            limits[edge] = _include_zero(Range(low, high))
    return limits


def _include_zero(limits: Range) -> Range:
    """Return the range with 0, which padding and Relu need; a range of 0 alone becomes 0 .. 1."""
    low, high = min(limits.low, 0.0), max(limits.high, 0.0)
    return Range(low, high) if low < high else Range(0.0, 1.0)


class _Sums:
    """Sums of float tensors and `TINY`, which have no range.

    Attributes:
        graph: graph without the sums.
        draft: draft of the graph with them.
        edges: sum of each tensor.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.draft = Draft(graph)
        self.edges: dict[Edge, Edge] = {}

    def add(self, edge: Edge, *, term: str, result: str) -> None:
        """Add the sum of a tensor; ``term`` and ``result`` end the names of the constant and of the sum."""
        nodes = NewNodes(self.graph, f"{edge.node}/{edge.port}")
        self.edges[edge] = nodes.add(result, "Add", edge, nodes.constant(term, TINY), **FLOAT)
        self.draft.after(edge.node, *nodes)

    def redirect(self, node: Node) -> None:
        """Replace the inputs of a node that have a sum."""
        if self.edges.keys() & set(node.inputs):
            inputs = tuple(self.edges.get(edge, edge) for edge in node.inputs)
            self.draft.replace(node.name, node.with_(inputs=inputs))


def _protect_float_ops(graph: Graph, plan: Plan, limits: Limits) -> Graph:
    """Return the graph with an op without a range between quantized edges and float fallbacks."""
    sums = _Sums(graph)
    protected = limits.keys() | _fixed_ranges(graph, plan)
    for name in plan.float_fallbacks:
        for edge in graph[name].inputs:
            if edge in protected and edge not in sums.edges:
                sums.add(edge, term="nothing", result="float")
        sums.redirect(graph[name])
    return sums.draft.graph()


def _separate_views(graph: Graph, plan: Plan, limits: Limits) -> Graph:
    """Return the graph with an op without a range between float tensors with float consumers and quantized views."""
    names = {edge.node for edge in limits} - find_loop_nodes(graph)
    views = frozenset(name for name in plan.float_fallbacks if name in names and graph[name].op in VIEW_OPS)
    sums = _Sums(graph)
    for name in sorted(views):
        for edge in graph[name].inputs[VIEW_OPS[graph[name].op]]:
            is_float = edge not in limits and edge not in sums.edges and graph.constant_of(edge) is None
            if is_float and _has_float_consumers(graph, edge, views):
                sums.add(edge, term="zero", result="viewed")
        sums.redirect(graph[name])
    return sums.draft.graph()


def _has_float_consumers(graph: Graph, edge: Edge, views: frozenset[str]) -> bool:
    """Return True if a node other than ``views`` uses a tensor, or a tensor whose views the tensor consists of."""
    visited: set[Edge] = set()
    edges = [(edge, views)]
    while edges:
        edge, names = edges.pop()
        if edge in visited:
            continue
        visited.add(edge)
        if edge in graph.outputs or any(use.node.name not in names for use in graph.node_uses.get(edge.node, ())):
            return True
        producer = graph[edge.node]
        inputs = producer.inputs[VIEW_OPS[producer.op]] if producer.op in VIEW_OPS else ()
        edges += [(source, names | {producer.name}) for source in inputs if graph.constant_of(source) is None]
    return False


def _fixed_ranges(graph: Graph, plan: Plan) -> set[Edge]:
    """Return the outputs of float ops with fixed parameters that float ops use other than sums and products.

    A constant cannot be added inside a while loop of TensorFlow 1.
    """
    loop_nodes = find_loop_nodes(graph)
    float_nodes = [graph[name] for name in plan.float_fallbacks if name not in loop_nodes]
    others = {node.name for node in float_nodes if node.op not in ELEMENTWISE_OPS}
    return {
        Edge(node.name)
        for node in float_nodes
        if node.op in FIXED_RANGE_OPS and any(consumer.name in others for consumer in graph.consumers(node.name))
    }


def _add_fake_quants(graph: Graph, limits: Limits) -> Graph:
    """Return the graph with a FakeQuant after each edge.

    The FakeQuant takes the name of the node, unless the node is an input or has several outputs.
    """
    nodes: list[Node] = []
    renamed: dict[str, str] = {}
    redirects: dict[Edge, Edge] = {}
    fixed_names = graph.input_names | {edge.node for edge in (*graph.uses, *limits) if edge.port}
    for edge, (low, high) in limits.items():
        keeps_name = edge.node in fixed_names
        name = free_name(graph, f"{edge.node}/{edge.port}/codes") if keeps_name else edge.node
        source = edge
        if keeps_name:
            redirects[edge] = Edge(name)
        else:
            renamed[edge.node] = free_name(graph, f"{edge.node}/exact")
            source = Edge(renamed[edge.node])
        range_constants = [
            constant(free_name(graph, f"{edge.node}/{edge.port}/{suffix}"), np.float32(value))
            for suffix, value in (("low", low), ("high", high))
        ]
        nodes += [
            *range_constants,
            Node(name, FAKE_QUANT, (source, *(Edge(node.name) for node in range_constants)), attrs={"num_bits": 8}),
        ]
    originals = [
        node.with_(
            name=renamed.get(node.name, node.name), inputs=tuple(redirects.get(edge, edge) for edge in node.inputs)
        )
        for node in graph.nodes.values()
    ]
    return graph.with_nodes([*originals, *nodes])


class LiteRTTarget(Target, WrittenByConverter):
    """LiteRT models with int8 weights and activations, made by TensorFlow's converter."""

    name = "litert"
    dialect = "tensorflow"
    suffixes = (".tflite",)
    runtimes = ("litert",)
    defaults = MappingProxyType({"activations": Spec(DType.QINT8, symmetric=False), "quantize_outputs": True})
    fixed = ("weights", "activations", "signed_activations")

    def prepare(self, graph: Graph, runtime: str) -> Graph:
        """Return the graph with convolutions instead of transposed convolutions."""
        return lower_transposed_convolutions(graph)

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        """Return the float graph with a ``FakeQuantWithMinMaxVars`` after every quantized edge."""
        averages = {node.name: nodes for node, nodes in _replace_averages(graph, plan)}
        limits = _limits_of(graph, plan, ranges, _clamped_averages(graph, averages))
        draft = Draft(graph)
        for name, nodes in averages.items():
            draft.replace(name, *nodes)
            limits.update(
                {Edge(node.name): _include_zero(ranges[Edge(name)]) for node in nodes[:-1] if node.op == DEPTHWISE}
            )
        protected = _protect_float_ops(_keep_levels(draft.graph(), plan), plan, limits)
        return _add_fake_quants(_separate_views(protected, plan, limits), limits)

    def edge_parameters(self, graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[Edge, QuantizationParameters]:
        averages = {node.name: nodes for node, nodes in _replace_averages(graph, plan)}
        limits = _limits_of(graph, plan, ranges, _clamped_averages(graph, averages))
        spec = self.defaults["activations"]
        return {edge: QuantizationParameters.of_range(spec, range_) for edge, range_ in limits.items()}

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

    def check_form(self, graph: Graph) -> None:
        check_convertible(graph)

    def write(self, graph: Graph, path: Path, *, weights_only: bool = False) -> None:
        save_litert(graph, path, small_weights=weights_only)


TARGET = LiteRTTarget()
