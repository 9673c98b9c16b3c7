"""Replace ConcatV2 by Concat, for runtimes of 2016."""

from functools import partial

import numpy as np

from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import NewNodes, Outcome, Skip, rewrite_nodes
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
    return rewrite_nodes(graph, partial(_backport, graph))


def _backport(graph: Graph, node: Node) -> list[Node] | Skip | None:
    if node.op != "ConcatV2" or not node.inputs:
        return None
    axis, nodes = node.inputs[-1], NewNodes(graph, node.name)
    if node.attrs.get("Tidx") is DType.INT64:
        value = graph.constant_of(axis)
        if value is None or axis.node in graph.input_names:
            return Skip(f"axis {axis} is int64 and not constant")
        axis = nodes.constant("axis", value.array.astype(np.int32))
    return [*nodes, node.with_(op="Concat", inputs=(axis, *node.inputs[:-1])).with_attrs(Tidx=None)]
