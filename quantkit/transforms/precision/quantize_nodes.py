"""Compute in 8 bits what has an 8-bit op: the classic seven steps.

1  placeholders take codes (when their range is given)
2  trained ranges move in front of activations and pools          _trained_ranges.py
3  trained ranges become Requantize                               _trained_ranges.py
4  float ops become quantize, quantized op, dequantize            _quantized_ops.py
5  32-bit results go to their trained range directly              _trained_ranges.py
6  what is quantized for several readers is quantized once        merge_duplicate_nodes.py
7  dequantize and quantize in a row cancel out
"""

from functools import partial

from quantkit.errors import GraphError, RecipeError, did_you_mean
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import attribute, find_op, op_names
from quantkit.transforms.cleanup.merge_duplicate_nodes import merge_duplicate_nodes
from quantkit.transforms.precision._quantized_ops import (
    FIRST_AXIS,
    FLATTEN,
    classic_form,
    dequantize,
    has_classic_form,
    ports,
    quantize_ops,
    why_float,
)
from quantkit.transforms.precision._trained_ranges import (
    hoist_fake_quants,
    merge_adjacent_requantizes,
    requantize_fake_quants,
)
from quantkit.transforms.registry import transform

__all__ = ["classic_form", "has_classic_form", "quantize_nodes", "why_float"]


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
    """Compute convolutions, products, sums, activations and pools on 8-bit codes.

    Before:  c = Conv2D(x, w)
             r = Relu(c)
    After:   c/eightbit = QuantizedConv2D(codes of x, codes of w, their ranges)
             c/eightbit/requantize = Requantize(c/eightbit, its range)
             r/eightbit = QuantizedRelu(c/eightbit/requantize)
             r = Dequantize(r/eightbit)

    Every op keeps its name, as the Dequantize that decodes its result; what nobody reads any more goes. Ranges that
    training left as fake-quant nodes are used; other ranges are found while the graph runs. AddV2 and ConcatV2 are
    taken for what they are, Add and Concat.

    Options:
        input_min: with input_max: float placeholders are fed codes of this range instead.
        input_max: see input_min.
        fallback_min: with fallback_max: the range of results whose range is not known from training.
        fallback_max: see fallback_min.
        ignore_op: op types that stay float.

    Skips when an op does not compute in float, or in a way that its quantized form does not know: NCHW, dilations,
    explicit padding, unequal strides, groups, operands repeated along an inner dimension, tensors of no elements.

    Raises:
        RecipeError: half a range is given, or an empty one; ignore_op names no op.
        GraphError: the graph is not TensorFlow's, or a node lacks an attribute.

    Example:
        quantize_nodes
        inputs: x
        outputs: y
        x = Placeholder[2x3]()
        y = Relu(x, T=float)
    """
    inputs, fallback = _range("input", input_min, input_max), _range("fallback", fallback_min, fallback_max)
    if fallback is not None and not fallback[0] <= 0 <= fallback[1]:
        raise RecipeError("quantize_nodes: the range from fallback_min to fallback_max must hold 0")
    for op in ignore_op:
        if find_op(op) is None:
            raise RecipeError(f"quantize_nodes: ignore_op={op} names no op", hint=did_you_mean(op, op_names()))
    if graph.dialect != "tensorflow":
        raise GraphError(
            f"quantize_nodes makes TensorFlow's quantized ops, and this is a graph of {graph.dialect} ops",
            hint="apply it to the GraphDef that the file was made from",
        )
    before = graph
    changes: list[str] = []
    skips: list[Skip] = []
    for step in (
        partial(_feed_codes, bounds=inputs),
        hoist_fake_quants,
        requantize_fake_quants,
        partial(quantize_ops, fallback=fallback, ignored=ignore_op),
    ):
        graph, changed, skipped = step(graph)
        changes.extend(changed)
        skips.extend(skipped)
    graph = merge_duplicate_nodes(merge_adjacent_requantizes(graph))
    return Outcome(_without_left_overs(_without_round_trips(graph), before), tuple(changes), tuple(skips))


def _range(name: str, low: float | None, high: float | None) -> tuple[float, float] | None:
    """A range given as two options.

    Raises:
        RecipeError: one is missing, or the range is empty.
    """
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise RecipeError(f"You must pass both {name}_min and {name}_max into quantize_nodes")
    if not low < high:
        raise RecipeError(f"quantize_nodes: {name}_min={low:g} must be less than {name}_max={high:g}")
    return low, high


def _feed_codes(graph: Graph, *, bounds: tuple[float, float] | None) -> Outcome:
    """Let float placeholders take 8-bit codes of a range."""
    if bounds is None:
        return Outcome(graph)
    redirected = Draft(graph)
    taken: list[Node] = []
    skips: list[Skip] = []
    for node in graph.nodes.values():
        if node.op != "Placeholder":
            continue
        dtype = attribute(node, "dtype")
        if dtype is not DType.FLOAT:
            skips.append(Skip(f"it takes {dtype.value}, not float", node.name))
        elif node.name in graph.output_names:
            skips.append(Skip("it is an output of the graph, too", node.name))
        else:
            taken.append(node)
            redirected.redirect(node.name, f"{node.name}_eightbit/dequantize")
    draft = Draft(redirected.graph())
    for node in taken:
        draft.replace(node.name, *_decoded_placeholder(node, bounds))
    return Outcome(draft.graph(), tuple(f"{node.name} (Placeholder) takes quint8" for node in taken), tuple(skips))


def _decoded_placeholder(node: Node, bounds: tuple[float, float]) -> list[Node]:
    name = f"{node.name}_eightbit"
    low, high = constant(f"{name}/min", bounds[0]), constant(f"{name}/max", bounds[1])
    codes = (Edge(node.name), Edge(low.name), Edge(high.name))
    return [node.with_attrs(dtype=DType.QUINT8), low, high, dequantize(f"{name}/dequantize", codes)]


def _without_round_trips(graph: Graph) -> Graph:
    """Let readers of codes made of decoded codes read the first codes, whose range is at least as wide."""
    draft = Draft(graph)
    for node in graph.nodes.values():
        codes = _codes_before(graph, node)
        for port, edge in zip(ports(node.name), codes, strict=False):
            draft.redirect(port, edge)
    return draft.graph()


def _codes_before(graph: Graph, node: Node) -> tuple[Edge, ...]:
    """The codes that a QuantizeV2 makes anew of what a Dequantize decoded; nothing where it does more than that."""
    if node.op != "QuantizeV2" or node.controls or node.name in graph.endpoint_names:
        return ()
    decoded = graph[node.inputs[0].node]
    if decoded.op != "Dequantize" or decoded.controls or decoded.name in graph.input_names:
        return ()
    if any(attribute(node, name) != attribute(decoded, name) for name in ("T", "mode", "axis", "narrow_range")):
        return ()
    if attribute(node, "mode") != b"MIN_FIRST" or attribute(node, "axis") != -1:
        return ()
    measured = zip(("Min", "Max"), node.inputs[1:], strict=True)
    return decoded.inputs if all(_spans(graph, edge, op, node.inputs[0]) for op, edge in measured) else ()


def _spans(graph: Graph, edge: Edge, op: str, tensor: Edge) -> bool:
    """Whether an edge is the smallest or largest (``op``) of all elements of a tensor."""
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


def _without_left_overs(graph: Graph, before: Graph) -> Graph:
    """Without the nodes that led to a reader, or to the end of the graph, before and lead nowhere now."""
    wanted = [
        name
        for name in before.nodes
        if name in graph and (name in before.endpoint_names or name not in before.node_uses)
    ]
    needed = graph.with_(outputs=tuple(Edge(name) for name in wanted)).reachable(stop_at_inputs=False)
    return graph.with_nodes(node for node in graph.nodes.values() if node.name in needed)
