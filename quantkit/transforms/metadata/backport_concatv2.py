"""Replace ConcatV2 by Concat, for runtimes of 2016."""

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip, free_name
from quantkit.ir.tensor import DType
from quantkit.transforms.registry import transform


@transform
def backport_concatv2(graph: Graph) -> Outcome:
    """Replace ConcatV2 by Concat, whose first input is the axis.

    Before:  y = ConcatV2(a, b, axis)
    After:   y = Concat(axis, a, b)

    Options: none. A constant int64 axis becomes int32: Concat does not support int64.

    Skips nodes whose int64 axis is not constant.

    Example:
        backport_concatv2
        inputs: x
        outputs: y
        x = Placeholder[2x3]()
        axis = Const[int32](1)
        y = ConcatV2(x, x, axis, N=2)
    """
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for node in graph.nodes.values():
        if node.op != "ConcatV2" or not node.inputs:
            continue
        axis = node.inputs[-1]
        added: list[Node] = []
        if node.attrs.get("Tidx") is DType.INT64:
            value = graph.constant_of(axis)
            if value is None or axis.node in graph.input_names:
                skips.append(Skip(f"axis {axis} is int64 and not constant", node.name))
                continue
            added.append(constant(free_name(graph, f"{node.name}/axis"), value.array.astype(np.int32)))
            axis = Edge(added[0].name)
        concat = node.with_(op="Concat", inputs=(axis, *node.inputs[:-1])).with_attrs(Tidx=None)
        draft.replace(node.name, *added, concat)
        changes.append(node.name)
    return Outcome(draft.graph() if changes else graph, tuple(changes), tuple(skips))
