"""Trained ranges in `quantize_nodes`: fake-quant nodes of quantization-aware training.

FakeQuant(Relu(BiasAdd(x, b)))   becomes, step by step,
Relu(FakeQuant(BiasAdd(x, b)))                             moved to the 32-bit result
Relu(Dequantize(Requantize(QuantizeV2(BiasAdd(x, b)))))    quantized with the trained range
...Requantize(QuantizedBiasAdd(x, b))...                   without the conversion to float
"""

from collections.abc import Sequence

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.precision._quantized_ops import dequantize, ports, quantize, requantize

FAKE_QUANT = "FakeQuantWithMinMaxVars"
# Rounding before and rounding after these ops are equivalent, except for the averages of AvgPool
# and the upper bound of Relu6.
EXCHANGEABLE_OPS = frozenset({"AvgPool", "Identity", "MaxPool", "Relu", "Relu6"})


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
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for node in graph.nodes.values():
        bounds = _range_of(graph, node)
        if bounds is None:
            continue
        reason = _reason_to_stay(node, *bounds)
        if reason:
            skips.append(Skip(reason, node.name))
            continue
        name = f"{node.name}_eightbit"
        wide = quantize(f"{name}/quantize", node.inputs, DType.QINT32).with_(controls=node.controls)
        narrow = requantize(f"{name}/requantize", wide.name, node.inputs[1:])
        draft.replace(node.name, wide, narrow, dequantize(node.name, ports(narrow.name)))
        changes.append(f"{node.name} ({node.op}) -> Requantize to [{bounds[0]:g}, {bounds[1]:g}]")
    return Outcome(draft.graph(), tuple(changes), tuple(skips))


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
