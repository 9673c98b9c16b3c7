"""Scattered elements in LiteRT, which only adds them to zeros.

TensorFlow's converter multiplies the tensor by 0 at the updates, which gives NaN for infinite values. It has no form
of minima and maxima:

    TensorScatterAdd(x, indices, updates)     =  x + ScatterNd(indices, updates)
    TensorScatterUpdate(x, indices, updates)  =  where(is_updated, ScatterNd(indices, updates), x)
    TensorScatterMax(x, indices, updates)     =  where(is_updated, max(x, UnsortedSegmentMax(updates, indices)), x)
    is_updated                                =  ScatterNd(indices, 1) > 0
"""

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Attr, Graph, Node
from quantkit.ir.rewrite import NewNodes
from quantkit.ir.tensor import DType
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.frames import find_loop_nodes

EXTREMES = {"TensorScatterMin": "Minimum", "TensorScatterMax": "Maximum"}
OPS = {"TensorScatterAdd", "TensorScatterUpdate", *EXTREMES}


def replace_scatters(graph: Graph) -> Graph:
    """Replace sums and updates of scattered elements, and their minima and maxima along the first axis.

    Nodes in functions and in loops of TensorFlow 1 stay.
    """
    if not OPS & graph.op_counts.keys():
        return graph
    draft, loop_nodes, shapes = Draft(graph), find_loop_nodes(graph), infer_shapes(graph)
    for node in graph.nodes.values():
        if node.op not in OPS or node.name in loop_nodes:
            continue
        if node.op not in EXTREMES or (shapes.get(node.inputs[1], UNKNOWN).dims or (None,))[-1] == 1:
            draft.replace(node.name, *_replacement(graph, node))
    return draft.graph()


def _replacement(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes that replace a scatter; the last one has its name."""
    nodes = NewNodes(graph, node.name)
    x, indices, updates = node.inputs
    dtype = node.attrs["T"]
    positions = nodes.add("indices", "Cast", indices, SrcT=node.attrs["Tindices"], DstT=DType.INT32)
    shape = nodes.add("shape", "Shape", x, T=dtype, out_type=DType.INT32)
    if node.op in EXTREMES:
        segment = f"UnsortedSegment{node.op[-3:]}"
        row = nodes.add("row", "Squeeze", positions, T=DType.INT32, squeeze_dims=(-1,))
        first: dict[str, Attr] = {
            "Tindices": DType.INT32,
            "Taxis": DType.INT32,
            "Tparams": DType.INT32,
            "batch_dims": 0,
        }
        count = nodes.add("count", "GatherV2", shape, np.array(0, np.int32), np.array(0, np.int32), **first)
        types: dict[str, Attr] = {"T": dtype, "Tindices": DType.INT32, "Tnumsegments": DType.INT32}
        value = nodes.add(
            "value", EXTREMES[node.op], x, nodes.add("extreme", segment, updates, row, count, **types), T=dtype
        )
    else:
        value = nodes.add("value", "ScatterNd", positions, updates, shape, T=dtype, Tindices=DType.INT32)
    if node.op == "TensorScatterAdd":
        return [*nodes, node.with_(op="AddV2", inputs=(x, value), attrs={"T": dtype})]
    sizes = nodes.add("updates/shape", "Shape", updates, T=dtype, out_type=DType.INT32)
    increments = nodes.add("increments", "Fill", sizes, np.array(1, np.int32), T=DType.INT32, index_type=DType.INT32)
    counts = nodes.add("counts", "ScatterNd", positions, increments, shape, T=DType.INT32, Tindices=DType.INT32)
    is_updated = nodes.add("is_updated", "Greater", counts, np.array(0, np.int32), T=DType.INT32)
    return [*nodes, node.with_(op="SelectV2", inputs=(is_updated, value, x), attrs={"T": dtype})]
