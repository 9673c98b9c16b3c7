"""TensorArray ops as engines of 2016 know them."""

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, free_name
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import find_op
from quantkit.transforms.registry import transform

MAKERS = ("TensorArrayV3", "TensorArrayGradV3")
VERBS = ("Write", "Read", "Gather", "Scatter", "Concat", "Split", "Size", "Close")
USERS = tuple(f"TensorArray{verb}V3" for verb in VERBS)
# What carries a handle into and through loops, with the number of its outputs.
CARRIERS = {"Enter": 1, "Exit": 1, "Identity": 1, "Merge": 1, "NextIteration": 1, "Switch": 2}


@transform
def backport_tensor_array_v3(graph: Graph) -> Outcome:
    """Write TensorArray ops of version 3 in version 2.

    Version 2 makes no flow, a number that only orders what happens to the array: a constant stands in for it. Its
    handles are strings, also where they pass through loops, and attributes it does not know go.

    Before:  t = TensorArrayV3(size)
             w = TensorArrayWriteV3(t, index, x, t:1)
    After:   t = TensorArrayV2(size)
             t/replacement_flow_node = Const(1.0)
             w = TensorArrayWriteV2(t, index, x, t/replacement_flow_node)

    Options: none.

    Skips when there are no such ops.

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
    if graph.op_counts.keys().isdisjoint((*MAKERS, *USERS)):
        return Outcome(graph)
    draft = Draft(graph)
    changes: list[str] = []
    for node in graph.nodes.values():
        if node.op not in MAKERS and node.op not in USERS:
            continue
        draft.replace(node.name, _backported(node))
        changes.append(f"{node.name} ({node.op})")
        if node.op in MAKERS:
            flow = constant(free_name(graph, f"{node.name}/replacement_flow_node"), np.float32(1))
            draft.after(node.name, flow)
            draft.redirect(Edge(node.name, 1), Edge(flow.name))
    for node in _carriers(graph):
        draft.replace(node.name, node.with_attrs(T=DType.STRING))
    return Outcome(draft.graph(), tuple(changes))


def _backported(node: Node) -> Node:
    name = f"{node.op.removesuffix('V3')}V2"
    op = find_op(name)
    attrs = {key: value for key, value in node.attrs.items() if op is None or key in op.attrs or key.startswith("_")}
    return node.with_(op=name, attrs=attrs)


def _carriers(graph: Graph) -> list[Node]:
    """The nodes that pass a handle on."""
    found: dict[str, Node] = {}
    stack = [Edge(node.name) for node in graph.nodes.values() if node.op in MAKERS]
    while stack:
        for node, _ in graph.uses.get(stack.pop(), ()):
            if node.op in CARRIERS and node.name not in found:
                found[node.name] = node
                stack.extend(Edge(node.name, port) for port in range(CARRIERS[node.op]))
    return list(found.values())
