"""Ranges that training left in the graph as fake-quant nodes: the steps of `quantize_nodes` that put them to use.

FakeQuant(Relu(BiasAdd(x, b)))   becomes, step by step,
Relu(FakeQuant(BiasAdd(x, b)))                             hoisted to where 32-bit results appear
Relu(Dequantize(Requantize(QuantizeV2(BiasAdd(x, b)))))    as 8-bit codes of the trained range
...Requantize(QuantizedBiasAdd(x, b))...                   without the way through float
"""

from collections.abc import Sequence

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.precision._quantized_ops import dequantize, ports, quantize, requantize

FAKE_QUANT = "FakeQuantWithMinMaxVars"
# They keep the order of values and every value on its place: rounding before or after them is the same, up to the
# means of AvgPool and the bound of Relu6.
PASSING_OPS = frozenset({"AvgPool", "Identity", "MaxPool", "Relu", "Relu6"})


def hoist_fake_quants(graph: Graph) -> Outcome:
    """Move fake-quant nodes in front of the activations and pools before them."""
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for node in graph.nodes.values():
        if _range_of(graph, node) is None:
            continue
        chain = _passing_chain(graph, node)
        if chain:
            _hoist(draft, node, chain)
            changes.append(f"{node.name} ({node.op}) moves before {', '.join(one.name for one in reversed(chain))}")
        elif graph[node.inputs[0].node].op in PASSING_OPS:
            skips.append(Skip(f"it can not move before {node.inputs[0].node}, which feeds other nodes, too", node.name))
    return Outcome(draft.graph(), tuple(changes), tuple(skips))


def requantize_fake_quants(graph: Graph) -> Outcome:
    """Put 8-bit codes of the trained range in the place of fake-quant nodes."""
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
    """Let 32-bit results go to the trained range directly, where they went to their own and through float first.

    Before:  Requantize(QuantizeV2(Dequantize(Requantize(x, RequantizationRange(x))), low, high), low, high)
    After:   Requantize(x, low, high)
    """
    draft = Draft(graph)
    for node in graph.nodes.values():
        between = _float_detour(graph, node)
        if between:
            controls = dict.fromkeys(name for one in (node, *between) for name in one.controls)
            inputs = (*between[-1].inputs[:3], *node.inputs[3:])
            draft.replace(node.name, node.with_(inputs=inputs, controls=tuple(controls)))
    return draft.graph()


def _range_of(graph: Graph, node: Node) -> tuple[float, float] | None:
    """The trained range of a fake-quant node; None for another node, or where it is not constant."""
    if node.op != FAKE_QUANT or len(node.inputs) != 3:
        return None
    low, high = (graph.constant_of(edge) for edge in node.inputs[1:])
    if low is None or high is None or low.num_elements != 1 or high.num_elements != 1:
        return None
    return float(low.array.item()), float(high.array.item())


def _reason_to_stay(node: Node, low: float, high: float) -> str:
    bits = attribute(node, "num_bits")
    if bits != 8:
        return f"it was trained with {bits} bits, not 8"
    return "" if low <= 0 <= high and low < high else f"its range [{low:g}, {high:g}] is empty or does not hold 0"


def _passing_chain(graph: Graph, node: Node) -> list[Node]:
    """The nodes that a fake-quant may move in front of, the nearest first."""
    chain: list[Node] = []
    while True:
        source = graph[node.inputs[0].node]
        if source.op not in PASSING_OPS or len(source.inputs) != 1 or graph.is_shared(source):
            return chain
        chain.append(source)
        node = source


def _hoist(draft: Draft, node: Node, chain: list[Node]) -> None:
    """Move a fake-quant in front of a chain, whose end takes over its name."""
    nearest, farthest = chain[0], chain[-1]
    hoisted = node.with_(name=f"{node.name}_hoisted").with_input(0, farthest.inputs[0])
    draft.remove(nearest.name)
    if nearest is farthest:
        draft.replace(node.name, hoisted, nearest.with_(name=node.name).with_input(0, hoisted.name))
    else:
        draft.replace(farthest.name, hoisted, farthest.with_input(0, hoisted.name))
        draft.replace(node.name, nearest.with_(name=node.name))


def _float_detour(graph: Graph, node: Node) -> tuple[Node, Node, Node] | None:
    """What lies between a Requantize to a trained range and the 32-bit op: QuantizeV2, Dequantize, Requantize."""
    if node.op != "Requantize":
        return None
    wide = _maker(graph, node.inputs[:3], "QuantizeV2")
    if wide is None or wide.inputs[1:] != node.inputs[3:] or wide.attrs.get("T") is not DType.QINT32:
        return None
    decoded = graph[wide.inputs[0].node]
    narrow = _maker(graph, decoded.inputs, "Requantize") if decoded.op == "Dequantize" else None
    return None if narrow is None else (wide, decoded, narrow)


def _maker(graph: Graph, edges: Sequence[Edge], op: str) -> Node | None:
    """The node of type ``op`` whose three outputs are the edges."""
    node = graph[edges[0].node]
    return node if node.op == op and tuple(edges) == ports(node.name) else None
