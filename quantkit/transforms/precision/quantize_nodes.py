"""Replace float ops by TensorFlow's quantized ops, in seven steps like the classic tool.

1  placeholders become quantized (if their range is given)
2  fake-quant nodes move before activations and pools
3  fake-quant nodes become Requantize
4  float ops become quantize, quantized op, dequantize            _quantized_ops.py
5  32-bit results are requantized directly to trained ranges
6  quantize nodes of the same tensor are merged                   merge_duplicate_nodes.py
7  pairs of dequantize and quantize are removed

Fake-quant nodes are those of quantization-aware training. FakeQuant(Relu(BiasAdd(x, b))) becomes, step by step,

Relu(FakeQuant(BiasAdd(x, b)))                             moved to the 32-bit result
Relu(Dequantize(Requantize(QuantizeV2(BiasAdd(x, b)))))    quantized with the trained range
...Requantize(QuantizedBiasAdd(x, b))...                   without the conversion to float
"""

from collections.abc import Sequence
from functools import partial

from quantkit.errors import GraphError, RecipeError, did_you_mean
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip, rewrite_nodes
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import attribute, find_op, op_names
from quantkit.transforms.cleanup.merge_duplicate_nodes import merge_duplicate_nodes
from quantkit.transforms.precision._quantized_ops import (
    FIRST_AXIS,
    FLATTEN,
    classic_form,
    dequantize,
    explain_float,
    has_classic_form,
    ports,
    quantize,
    quantize_ops,
    requantize,
)
from quantkit.transforms.registry import transform

FAKE_QUANT = "FakeQuantWithMinMaxVars"
# Rounding before and rounding after these ops are equivalent, except for the averages of AvgPool
# and the upper bound of Relu6.
EXCHANGEABLE_OPS = frozenset({"AvgPool", "Identity", "MaxPool", "Relu", "Relu6"})
__all__ = ["classic_form", "explain_float", "has_classic_form", "quantize_nodes"]


@transform(exact=False)
def quantize_nodes(
    graph: Graph,
    *,
    input_min: float | None = None,
    input_max: float | None = None,
    fallback_min: float | None = None,
    fallback_max: float | None = None,
    ignore_op: tuple[str, ...] = (),
) -> Outcome:
    """Quantize convolutions, matrix products, sums, activations and pools to 8 bits.

    Before:  c = Conv2D(x, w)
             r = Relu(c)
    After:   c/eightbit = QuantizedConv2D(quantized x, quantized w, their ranges)
             c/eightbit/requantize = Requantize(c/eightbit, its range)
             r/eightbit = QuantizedRelu(c/eightbit/requantize)
             r = Dequantize(r/eightbit)

    The Dequantize of each result keeps the name of the float op; unused nodes are removed. Ranges
    of fake-quant nodes are used; other ranges are computed at run time. AddV2 and ConcatV2 are
    quantized like Add and Concat.

    Options:
        input_min: with input_max: float placeholders become quint8 with this range.
        input_max: see input_min.
        fallback_min: with fallback_max: range of results without a trained range.
        fallback_max: see fallback_min.
        ignore_op: op types that stay float.

    Skips ops of other types than float, and ops that their quantized form does not support: NCHW,
    dilations, EXPLICIT padding, unequal strides, groups, broadcasting along an inner dimension, and
    empty tensors.

    Raises:
        RecipeError: a range lacks a bound or is empty, or ignore_op is not an op type.
        GraphError: the graph is not a TensorFlow graph, or a node lacks an attribute.

    Example:
        quantize_nodes
        inputs: x
        outputs: y
        x = Placeholder[2x3]()
        y = Relu(x, T=float)
    """
    inputs, fallback = _range("input", input_min, input_max), _range("fallback", fallback_min, fallback_max)
    if fallback is not None and not fallback[0] <= 0 <= fallback[1]:
        raise RecipeError("quantize_nodes: the range from fallback_min to fallback_max must include 0")
    for op in ignore_op:
        if find_op(op) is None:
            raise RecipeError(f"quantize_nodes: ignore_op={op} is not an op type", hint=did_you_mean(op, op_names()))
    if graph.dialect != "tensorflow":
        raise GraphError(
            f"quantize_nodes requires a TensorFlow graph, and this graph has {graph.dialect} ops",
            hint="apply it to the GraphDef from which the file was exported",
        )
    before = graph
    changes: list[str] = []
    skips: list[Skip] = []
    for step in (
        partial(_quantize_placeholders, bounds=inputs),
        hoist_fake_quants,
        requantize_fake_quants,
        partial(quantize_ops, fallback=fallback, ignored=ignore_op),
    ):
        graph, changed, skipped = step(graph)
        changes.extend(changed)
        skips.extend(skipped)
    graph = merge_duplicate_nodes(merge_adjacent_requantizes(graph))
    return Outcome(_remove_unused(_remove_round_trips(graph), before), tuple(changes), tuple(skips))


def _range(name: str, low: float | None, high: float | None) -> tuple[float, float] | None:
    """Return the range of two options; None if both are absent.

    Raises:
        RecipeError: an option is missing, or the range is empty.
    """
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise RecipeError(f"You must pass both {name}_min and {name}_max into quantize_nodes")
    if not low < high:
        raise RecipeError(f"quantize_nodes: {name}_min={low:g} must be less than {name}_max={high:g}")
    return low, high


def _quantize_placeholders(graph: Graph, *, bounds: tuple[float, float] | None) -> Outcome:
    """Replace float placeholders by quint8 placeholders with a range."""
    if bounds is None:
        return Outcome(graph)
    redirected = Draft(graph)
    quantized: list[Node] = []
    skips: list[Skip] = []
    for node in graph.nodes.values():
        if node.op != "Placeholder":
            continue
        dtype = attribute(node, "dtype")
        if dtype is not DType.FLOAT:
            skips.append(Skip(f"the type of the placeholder is {dtype.value}, not float", node.name))
        elif node.name in graph.output_names:
            skips.append(Skip("the placeholder is also a graph output", node.name))
        else:
            quantized.append(node)
            redirected.redirect(node.name, f"{node.name}_eightbit/dequantize")
    draft = Draft(redirected.graph())
    for node in quantized:
        draft.replace(node.name, *_quantize_placeholder(node, bounds))
    return Outcome(draft.graph(), tuple(f"{node.name} (Placeholder) -> quint8" for node in quantized), tuple(skips))


def _quantize_placeholder(node: Node, bounds: tuple[float, float]) -> list[Node]:
    name = f"{node.name}_eightbit"
    low, high = constant(f"{name}/min", bounds[0]), constant(f"{name}/max", bounds[1])
    edges = (Edge(node.name), Edge(low.name), Edge(high.name))
    return [node.with_attrs(dtype=DType.QUINT8), low, high, dequantize(f"{name}/dequantize", edges)]


def _remove_round_trips(graph: Graph) -> Graph:
    """Bypass pairs of Dequantize and QuantizeV2: the range before a pair is at least as wide."""
    draft = Draft(graph)
    for node in graph.nodes.values():
        source = _source_of_round_trip(graph, node)
        for port, edge in zip(ports(node.name), source, strict=False):
            draft.redirect(port, edge)
    return draft.graph()


def _source_of_round_trip(graph: Graph, node: Node) -> tuple[Edge, ...]:
    """Return the inputs of the Dequantize before a QuantizeV2; empty if their types differ."""
    if node.op != "QuantizeV2" or node.controls or node.name in graph.endpoint_names:
        return ()
    source = graph[node.inputs[0].node]
    if source.op != "Dequantize" or source.controls or source.name in graph.input_names:
        return ()
    if any(attribute(node, name) != attribute(source, name) for name in ("T", "mode", "axis", "narrow_range")):
        return ()
    if attribute(node, "mode") != b"MIN_FIRST" or attribute(node, "axis") != -1:
        return ()
    bounds = zip(("Min", "Max"), node.inputs[1:], strict=True)
    return source.inputs if all(_is_extreme(graph, edge, op, node.inputs[0]) for op, edge in bounds) else ()


def _is_extreme(graph: Graph, edge: Edge, op: str, tensor: Edge) -> bool:
    """Return True if an edge is the minimum or maximum (``op``) of all elements of a tensor."""
    extreme = graph[edge.node]
    if extreme.op != op:
        return False
    flat = graph[extreme.inputs[0].node]
    return (
        flat.op == "Reshape"
        and flat.inputs[0] == tensor
        and graph.constant_of(flat.inputs[1]) == FLATTEN
        and graph.constant_of(extreme.inputs[1]) == FIRST_AXIS
    )


def _remove_unused(graph: Graph, before: Graph) -> Graph:
    """Remove nodes that have become unused; nodes without consumers in the old graph stay."""
    roots = [
        name
        for name in before.nodes
        if name in graph and (name in before.endpoint_names or name not in before.node_uses)
    ]
    needed = graph.with_(outputs=tuple(Edge(name) for name in roots)).reachable(stop_at_inputs=False)
    return graph.with_nodes(node for node in graph.nodes.values() if node.name in needed)


def hoist_fake_quants(graph: Graph) -> Outcome:
    """Move fake-quant nodes before the activations and pools that precede them."""
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for node in graph.nodes.values():
        if _range_of(graph, node) is None:
            continue
        chain = _pass_through_chain(graph, node)
        if chain:
            _hoist(draft, node, chain)
            changes.append(f"{node.name} ({node.op}) moves before {', '.join(op.name for op in reversed(chain))}")
        elif graph[node.inputs[0].node].op in EXCHANGEABLE_OPS:
            reason = f"the fake-quant cannot move before {node.inputs[0].node}, which has other consumers"
            skips.append(Skip(reason, node.name))
    return Outcome(draft.graph(), tuple(changes), tuple(skips))


def requantize_fake_quants(graph: Graph) -> Outcome:
    """Replace fake-quant nodes by quantization to 8 bits with the trained range."""
    ranges = {node.name: bounds for node in graph.nodes.values() if (bounds := _range_of(graph, node)) is not None}

    def rewrite(node: Node) -> list[Node] | Skip | None:
        if node.name not in ranges:
            return None
        if reason := _reason_to_stay(node, *ranges[node.name]):
            return Skip(reason)
        name = f"{node.name}_eightbit"
        wide = quantize(f"{name}/quantize", node.inputs, DType.QINT32).with_(controls=node.controls)
        narrow = requantize(f"{name}/requantize", wide.name, node.inputs[1:])
        return [wide, narrow, dequantize(node.name, ports(narrow.name))]

    def describe(node: Node) -> str:
        low, high = ranges[node.name]
        return f"{node.name} ({node.op}) -> Requantize to [{low:g}, {high:g}]"

    return rewrite_nodes(graph, rewrite, describe)


def merge_adjacent_requantizes(graph: Graph) -> Graph:
    """Requantize 32-bit results directly to the trained range, without a conversion to float.

    Before:  Requantize(QuantizeV2(Dequantize(Requantize(x, RequantizationRange(x))), low, high), low, high)
    After:   Requantize(x, low, high)
    """
    draft = Draft(graph)
    for node in graph.nodes.values():
        between = _match_float_detour(graph, node)
        if between:
            controls = dict.fromkeys(name for merged in (node, *between) for name in merged.controls)
            inputs = (*between[-1].inputs[:3], *node.inputs[3:])
            draft.replace(node.name, node.with_(inputs=inputs, controls=tuple(controls)))
    return draft.graph()


def _range_of(graph: Graph, node: Node) -> tuple[float, float] | None:
    """Return the trained range of a fake-quant node; None for other nodes, or if not constant."""
    if node.op != FAKE_QUANT or len(node.inputs) != 3:
        return None
    low, high = (graph.constant_of(edge) for edge in node.inputs[1:])
    if low is None or high is None or low.num_elements != 1 or high.num_elements != 1:
        return None
    return float(low.array.item()), float(high.array.item())


def _reason_to_stay(node: Node, low: float, high: float) -> str:
    bits = attribute(node, "num_bits")
    if bits != 8:
        return f"num_bits is {bits}, not 8"
    return "" if low <= 0 <= high and low < high else f"the range [{low:g}, {high:g}] is empty or does not include 0"


def _pass_through_chain(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes before which a fake-quant can move, the nearest first."""
    chain: list[Node] = []
    while True:
        source = graph[node.inputs[0].node]
        if source.op not in EXCHANGEABLE_OPS or len(source.inputs) != 1 or graph.is_shared(source):
            return chain
        chain.append(source)
        node = source


def _hoist(draft: Draft, node: Node, chain: list[Node]) -> None:
    """Move a fake-quant before a chain, whose last node takes its name."""
    nearest, farthest = chain[0], chain[-1]
    hoisted = node.with_(name=f"{node.name}_hoisted").with_input(0, farthest.inputs[0])
    draft.remove(nearest.name)
    if nearest is farthest:
        draft.replace(node.name, hoisted, nearest.with_(name=node.name).with_input(0, hoisted.name))
    else:
        draft.replace(farthest.name, hoisted, farthest.with_input(0, hoisted.name))
        draft.replace(node.name, nearest.with_(name=node.name))


def _match_float_detour(graph: Graph, node: Node) -> tuple[Node, Node, Node] | None:
    """Return QuantizeV2, Dequantize and Requantize between a 32-bit op and a trained range."""
    if node.op != "Requantize":
        return None
    wide = _producer(graph, node.inputs[:3], "QuantizeV2")
    if wide is None or wide.inputs[1:] != node.inputs[3:] or wide.attrs.get("T") is not DType.QINT32:
        return None
    source = graph[wide.inputs[0].node]
    narrow = _producer(graph, source.inputs, "Requantize") if source.op == "Dequantize" else None
    return None if narrow is None else (wide, source, narrow)


def _producer(graph: Graph, edges: Sequence[Edge], op: str) -> Node | None:
    """Return the node of type ``op`` whose three outputs are the edges, or None."""
    node = graph[edges[0].node]
    return node if node.op == op and tuple(edges) == ports(node.name) else None
