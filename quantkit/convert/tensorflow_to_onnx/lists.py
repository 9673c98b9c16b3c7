"""Lists of tensors as one tensor each: element i of the list is row i.

    TensorFlow 1   TensorArrayV3(size) -> handle, flow; reads and writes take both
    TensorFlow 2   TensorListReserve, TensorListFromTensor -> list
    result         tensor of shape (size, *shape of an element)

A write becomes a TensorScatterUpdate of one row.
"""

from collections.abc import Callable, Mapping

import numpy as np

from quantkit.convert.tensorflow_to_onnx.translator import conversion_error, dtype_of
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.semantics import LOOP_OPS
from quantkit.ops.shape_rules import Rules

# Rows of an empty list whose elements have an unknown shape. Input: number of rows; attribute: T.
EMPTY_ROWS = "_EmptyTensorList"
WRITE = "TensorScatterUpdate"

# (nodes before, node) -> nodes in its place; the last one has its name and one output
_Rewrite = Callable[[Mapping[str, Node], Node], list[Node]]
LIST_OPS: Rules[_Rewrite] = Rules()


def lower_lists(graph: Graph) -> Graph:
    """Return the graph with tensors in the place of lists; ops that are not supported stay.

    The loops of the graph take and return the tensors; their functions stay.
    """
    if not any(op.startswith(("TensorArray", "TensorList")) or op in LOOP_OPS for op in graph.op_counts):
        return graph
    nodes: dict[str, Node] = {}
    flows: dict[Edge, Edge] = {}
    for name in graph.order:
        node = graph[name]
        node = node.with_(inputs=tuple(flows.get(edge, edge) for edge in node.inputs), controls=())
        rewrite = LIST_OPS.get(node.op)
        try:
            lowered = rewrite(nodes, node) if rewrite else [_with_types(nodes, node)]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise conversion_error(node, f"the node is invalid ({error})") from error
        nodes |= {new.name: new for new in lowered}
        if node.op == "TensorArrayV3":
            flows[Edge(name, 1)] = Edge(name)
    return graph.with_nodes(nodes.values())


def _with_types(nodes: Mapping[str, Node], node: Node) -> Node:
    """Return a node that passes values on with the types of its inputs: lists have become tensors."""
    if node.op in LOOP_OPS:
        return node.with_attrs(T=tuple(dtype_of(nodes, edge) for edge in node.inputs))
    return node.with_attrs(T=dtype_of(nodes, node.inputs[0])) if node.op == "Identity" else node


@LIST_OPS.rule("TensorArrayV3 TensorListReserve")
def _empty(nodes: Mapping[str, Node], node: Node) -> list[Node]:
    if node.op == "TensorArrayV3":
        size, dtype, shape = node.inputs[0], node.attrs["dtype"], node.attrs.get("element_shape")
    else:
        size, dtype, shape = node.inputs[1], node.attrs["element_dtype"], _constant_shape(nodes, node.inputs[0])
    if not isinstance(dtype, DType):
        raise conversion_error(node, "the element type is unknown")
    if not isinstance(shape, Shape) or not shape.is_known:
        return [Node(node.name, EMPTY_ROWS, (size,), attrs={"T": dtype})]
    dims = constant(f"{node.name}/dims", np.array(shape.sizes, np.int32))
    return [dims, *_fill_rows(node.name, size, Edge(dims.name), dtype)]


def _fill_rows(name: str, size: Edge, dims: Edge, dtype: DType) -> list[Node]:
    """Return the nodes of a list of zeros.

    Args:
        name: name of the last node.
        size: number of elements, int32.
        dims: shape of an element, int32.
        dtype: element type.
    """
    axis = constant(f"{name}/axis", np.int32(0))
    zero = constant(f"{name}/zero", np.zeros((), dtype.numpy), dtype)
    count = Node(f"{name}/count", "ExpandDims", (size, Edge(axis.name)), attrs={"T": DType.INT32})
    edges = (Edge(count.name), dims, Edge(axis.name))
    whole = Node(f"{name}/shape", "ConcatV2", edges, attrs={"T": DType.INT32, "N": 2})
    attrs = {"T": dtype, "index_type": DType.INT32}
    return [axis, zero, count, whole, Node(name, "Fill", (Edge(whole.name), Edge(zero.name)), attrs=attrs)]


def _constant_shape(nodes: Mapping[str, Node], edge: Edge) -> Shape | None:
    node = nodes[edge.node]
    if not node.is_constant or node.value.array.ndim != 1:
        return None
    return Shape([None if size < 0 else int(size) for size in node.value.array])


def _same(nodes: Mapping[str, Node], node: Node, edge: Edge) -> Node:
    return Node(node.name, "Identity", (edge,), attrs={"T": dtype_of(nodes, edge)})


LIST_OPS.rule("TensorListFromTensor TensorListStack")(lambda nodes, node: [_same(nodes, node, node.inputs[0])])


@LIST_OPS.rule("TensorListGetItem TensorListGather TensorArrayReadV3 TensorArrayGatherV3")
def _gather(nodes: Mapping[str, Node], node: Node) -> list[Node]:
    rows = node.inputs[0 if node.op.startswith("TensorList") else 2]
    if node.op == "TensorArrayGatherV3" and _covers(nodes, node.inputs[1], nodes[node.inputs[0].node]):
        return [_same(nodes, node, rows)]
    axis = constant(f"{node.name}/axis", np.int32(0))
    dtypes: dict[str, Attr] = {
        "Tparams": dtype_of(nodes, rows),
        "Tindices": dtype_of(nodes, node.inputs[1]),
        "Taxis": DType.INT32,
    }
    return [axis, Node(node.name, "GatherV2", (rows, node.inputs[1], Edge(axis.name)), attrs=dtypes)]


@LIST_OPS.rule("TensorListSetItem TensorArrayWriteV3")
def _write(nodes: Mapping[str, Node], node: Node) -> list[Node]:
    index, value = node.inputs[1:3]
    rows = node.inputs[0 if node.op == "TensorListSetItem" else 3]
    dtype, index_dtype = dtype_of(nodes, value), dtype_of(nodes, index)
    whole: list[Node] = []
    if nodes[rows.node].op == EMPTY_ROWS:  # the value has the shape of all elements
        sizes = Node(f"{node.name}/sizes", "Shape", (value,), attrs={"T": dtype, "out_type": DType.INT32})
        whole = [sizes, *_fill_rows(f"{node.name}/rows", nodes[rows.node].inputs[0], Edge(sizes.name), dtype)]
        rows = Edge(whole[-1].name)
    axis = constant(f"{node.name}/axis", np.int32(0))
    shape = constant(f"{node.name}/shape", np.array([1, 1], np.int32))
    indices = Node(f"{node.name}/indices", "Reshape", (index, Edge(shape.name)), attrs={"T": index_dtype})
    row = Node(f"{node.name}/row", "ExpandDims", (value, Edge(axis.name)), attrs={"T": dtype})
    attrs: dict[str, Attr] = {"T": dtype, "Tindices": index_dtype}
    inputs = (rows, Edge(indices.name), Edge(row.name))
    return [*whole, axis, shape, indices, row, Node(node.name, WRITE, inputs, attrs=attrs)]


@LIST_OPS.rule("TensorArrayScatterV3")
def _scatter(nodes: Mapping[str, Node], node: Node) -> list[Node]:
    return [_same(nodes, node, node.inputs[2]) if _covers(nodes, node.inputs[1], None) else node]


@LIST_OPS.rule("TensorListLength TensorArraySizeV3")
def _length(nodes: Mapping[str, Node], node: Node) -> list[Node]:
    rows = node.inputs[-1]
    producer = nodes[rows.node]
    if producer.op == EMPTY_ROWS:
        return [_same(nodes, node, producer.inputs[0])]
    sizes = Node(f"{node.name}/sizes", "Shape", (rows,), attrs={"T": dtype_of(nodes, rows), "out_type": DType.INT32})
    begin, end = (constant(f"{node.name}/{name}", np.array([value], np.int32)) for name, value in (("0", 0), ("1", 1)))
    edges = (Edge(sizes.name), Edge(begin.name), Edge(end.name), Edge(end.name))
    attrs: dict[str, Attr] = {"T": DType.INT32, "Index": DType.INT32, "shrink_axis_mask": 1}
    return [sizes, begin, end, Node(node.name, "StridedSlice", edges, attrs=attrs)]


def _covers(nodes: Mapping[str, Node], indices: Edge, rows: Node | None) -> bool:
    """Return True if indices are 0, 1, 2 ... up to the number of rows of an empty list; to any number if None."""
    size = None if rows is None else size_of(nodes, rows)
    node = nodes[indices.node]
    if node.is_constant:
        is_whole = rows is None or (size is not None and _integer(nodes, size) == len(node.value.array))
        return is_whole and np.array_equal(node.value.array, np.arange(len(node.value.array)))
    if node.op != "Range" or [_integer(nodes, node.inputs[slot]) for slot in (0, 2)] != [0, 1]:
        return False
    limit = node.inputs[1]
    is_same = (
        size is not None and _integer(nodes, limit) is not None and _integer(nodes, limit) == _integer(nodes, size)
    )
    return rows is None or limit == size or is_same


def size_of(nodes: Mapping[str, Node], rows: Node) -> Edge | None:
    """Return the number of rows of an empty list; None for another node."""
    if rows.op == EMPTY_ROWS:
        return rows.inputs[0]
    count = nodes.get(f"{rows.name}/count") if rows.op == "Fill" else None
    return count.inputs[0] if count is not None else None


def _integer(nodes: Mapping[str, Node], edge: Edge) -> int | None:
    """Return the value of an integer constant."""
    node = nodes[edge.node]
    return int(node.value.array) if node.is_constant and node.value.array.ndim == 0 else None
