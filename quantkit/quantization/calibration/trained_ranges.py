"""Trained ranges: the FakeQuant nodes of quantization-aware training.

    x -> Conv2D(FakeQuant(weights)) -> BatchNorm -> Relu -> FakeQuant(low, high) -> y

Constant folding rounds the weights, and the batch norms are folded into the rounded weights: both keep the steps of
training. The FakeQuant nodes of activations are removed, and their limits become ranges.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.quantization.annotation import annotate
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.precision.decision import Decision
from quantkit.quantization.ranges import Range
from quantkit.quantization.scheme import Scheme

FAKE_QUANT = "FakeQuantWithMinMaxVars"
FAKE_QUANT_OPS = frozenset({FAKE_QUANT, "FakeQuantWithMinMaxArgs"})
NO_RANGE = "quantization-aware training gave it no range"


def extract_ranges(graph: Graph) -> tuple[Graph, Mapping[Edge, Range]]:
    """Return the graph without FakeQuant nodes, and the range of each edge that had one.

    Args:
        graph: TensorFlow graph whose constants are folded. A FakeQuant whose limits are not constant stays. Of several
            on one edge, also through each other, the first determines the range.
    """
    ranges: dict[Edge, Range] = {}
    sources: dict[Edge, Edge] = {}
    nodes: dict[str, Node] = dict(graph.nodes)
    for name in graph.order:
        node = graph[name]
        limits = _limits(graph, node)
        if limits is None:
            continue
        source = sources.get(node.inputs[0], node.inputs[0])
        ranges.setdefault(source, limits)
        sources[Edge(name)] = source
        # An output keeps its name.
        nodes[name] = Node(name, "Identity", (source,), node.controls, {"T": DType.FLOAT}, node.device)
    outputs = graph.endpoint_names
    remaining = (
        node.with_(inputs=tuple(sources.get(edge, edge) for edge in node.inputs))
        for name, node in nodes.items()
        if Edge(name) not in sources or name in outputs
    )
    return graph.with_nodes(remaining) if sources else graph, ranges


def _limits(graph: Graph, node: Node) -> Range | None:
    """Return the limits of a FakeQuant, moved so that 0 is represented exactly; None for another node."""
    if node.op == "FakeQuantWithMinMaxArgs":
        low, high = float(attribute(node, "min")), float(attribute(node, "max"))
    elif node.op == FAKE_QUANT and len(node.inputs) == 3:
        values = [graph.constant_of(edge) for edge in node.inputs[1:]]
        if values[0] is None or values[1] is None or {value.num_elements for value in values if value} != {1}:
            return None
        low, high = (float(value.array.item()) for value in values if value)
    else:
        return None
    steps = 2 ** int(attribute(node, "num_bits")) - 1 - bool(attribute(node, "narrow_range"))
    if not low < high:
        return None
    scale = (high - low) / steps
    zero = min(max(round(-low / scale), 0), steps)
    return Range(-zero * scale, (steps - zero) * scale)


def plan_trained(
    graph: Graph,
    scheme: Scheme,
    trained: Mapping[Edge, Range],
    float_nodes: Mapping[str, str | Decision] = MappingProxyType({}),
) -> Plan:
    """Return a plan whose quantized edges all have trained ranges; the other layers stay float.

    Args:
        graph: float graph of `extract_ranges`, prepared for the target.
        scheme: requested quantization.
        trained: ranges by edge of the graph.
        float_nodes: see `annotate`.
    """
    plan = annotate(graph, scheme, float_nodes=float_nodes)
    untrained: set[str] = set()
    while missing := _nodes_without_range(graph, plan, trained) - untrained:
        untrained |= missing
        plan = annotate(graph, scheme, float_nodes={**dict.fromkeys(untrained, NO_RANGE), **float_nodes})
    return plan


def derive_ranges(graph: Graph, plan: Plan, trained: Mapping[Edge, Range]) -> dict[Edge, Range]:
    """Return the range of each quantized edge that training determines.

    An edge without a FakeQuant has the range of its group, or, inside of a fused pattern, the range before the bias:

        y = x + b in [low, high]    =>    x in [low - max(b), high - min(b)]
    """
    ranges = {edge: trained[edge] for edge in plan.activations if edge in trained}
    for group in plan.groups:
        related = [trained[edge] for edge in group if edge in trained]
        if related:
            union = Range(min(low for low, _ in related), max(high for _, high in related))
            ranges.update(dict.fromkeys(group & plan.activations.keys(), union))
    for pattern in plan.patterns:
        for edge, limits in _inner_ranges(graph, pattern, ranges):
            if edge in plan.activations:
                ranges.setdefault(edge, limits)
    return ranges


def _inner_ranges(graph: Graph, pattern: FusedPattern, ranges: Mapping[Edge, Range]) -> Iterator[tuple[Edge, Range]]:
    """Yield the edges of a pattern with their ranges, from the output to the layer."""
    limits = ranges.get(pattern.output)
    for name in reversed(pattern.nodes):
        if limits is None:
            return
        yield Edge(name), limits
        if name == pattern.add:
            limits = ranges.get(pattern.inner) if pattern.inner is not None else None
        elif name == pattern.bias:
            values = [graph.constant_of(edge) for edge in graph[name].inputs]
            bias = next(value.array for value in values if value is not None)
            limits = Range(limits.low - float(bias.max()), limits.high - float(bias.min()))


def _nodes_without_range(graph: Graph, plan: Plan, trained: Mapping[Edge, Range]) -> set[str]:
    """Return the layers and pass-through nodes with a quantized edge that has no range."""
    missing = plan.activations.keys() - derive_ranges(graph, plan, trained).keys()
    names = set()
    for pattern in plan.patterns:
        edges = {*pattern.inputs, pattern.output, pattern.inner, *map(Edge, pattern.nodes)}
        names |= {pattern.layer} if edges & missing else set()
    return names | {name for name in plan.pass_through if {Edge(name), *graph[name].inputs} & missing}
