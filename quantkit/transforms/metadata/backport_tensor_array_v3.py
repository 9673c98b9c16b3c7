"""Replace TensorArray ops of version 3 by version 2, for runtimes of 2016."""

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, free_name
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import find_op
from quantkit.transforms.registry import transform

PRODUCERS = ("TensorArrayV3", "TensorArrayGradV3")
VERBS = ("Write", "Read", "Gather", "Scatter", "Concat", "Split", "Size", "Close")
CONSUMERS = tuple(f"TensorArray{verb}V3" for verb in VERBS)
# Number of outputs of the ops that forward a handle.
FORWARDING = {"Enter": 1, "Exit": 1, "Identity": 1, "Merge": 1, "NextIteration": 1, "Switch": 2}


@transform
def backport_tensor_array_v3(graph: Graph) -> Outcome:
    """Replace TensorArray ops of version 3 by those of version 2.

    Version 2 has no flow output (a number that orders the accesses to the array): a constant replaces
    it. Handles become strings, in loops too, and attributes that version 2 lacks are removed.

    Before:  t = TensorArrayV3(size)
             w = TensorArrayWriteV3(t, index, x, t:1)
    After:   t = TensorArrayV2(size)
             t/replacement_flow_node = Const(1.0)
             w = TensorArrayWriteV2(t, index, x, t/replacement_flow_node)

    Options: none.

    Skips other ops.

    Example:
        backport_tensor_array_v3
        inputs: x
        outputs: r
        x = Placeholder[2]()
        size = Const[int32](3)
        index = Const[int32](0)
        array = TensorArrayV3(size, dtype=float)
        written = TensorArrayWriteV3(array, index, x, array:1)
        r = TensorArrayReadV3(array, index, written, dtype=float)
    """
    if graph.op_counts.keys().isdisjoint((*PRODUCERS, *CONSUMERS)):
        return Outcome(graph)
    draft = Draft(graph)
    changes: list[str] = []
    for node in graph.nodes.values():
        if node.op not in PRODUCERS and node.op not in CONSUMERS:
            continue
        draft.replace(node.name, _backport(node))
        changes.append(f"{node.name} ({node.op})")
        if node.op in PRODUCERS:
            flow = constant(free_name(graph, f"{node.name}/replacement_flow_node"), np.float32(1))
            draft.after(node.name, flow)
            draft.redirect(Edge(node.name, 1), Edge(flow.name))
    for node in _find_forwarding(graph):
        draft.replace(node.name, node.with_attrs(T=DType.STRING))
    return Outcome(draft.graph(), tuple(changes))


def _backport(node: Node) -> Node:
    name = f"{node.op.removesuffix('V3')}V2"
    op = find_op(name)
    attrs = {key: value for key, value in node.attrs.items() if op is None or key in op.attrs or key.startswith("_")}
    return node.with_(op=name, attrs=attrs)


def _find_forwarding(graph: Graph) -> list[Node]:
    """Return the nodes that forward a handle."""
    forwarding: dict[str, Node] = {}
    stack = [Edge(node.name) for node in graph.nodes.values() if node.op in PRODUCERS]
    while stack:
        for node, _ in graph.uses.get(stack.pop(), ()):
            if node.op in FORWARDING and node.name not in forwarding:
                forwarding[node.name] = node
                stack.extend(Edge(node.name, port) for port in range(FORWARDING[node.op]))
    return list(forwarding.values())
