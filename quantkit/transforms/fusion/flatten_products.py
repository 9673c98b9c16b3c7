"""Replace the product of a batch of matrices and one matrix by a single MatMul.

x: (..., n, k)   w: (k, m)        x @ w  ==  reshape(reshape(x, (-1, k)) @ w, (..., n, m))

The projections of an attention layer of Keras are such products with several axes for k or m: ``abc,cde->abde``.
"""

import re
from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.registry import transform

# Equation of a product of the last axes of one factor and the first axes of the other.
PROJECTION = re.compile(
    r"(?P<batch>[a-zA-Z]+?)(?P<depth>[a-zA-Z]+),(?P=depth)(?P<columns>[a-zA-Z]+)->(?P=batch)(?P=columns)"
)
BATCHED = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


@transform
def flatten_products(graph: Graph) -> Outcome:
    """Replace the product of a batch of matrices and one constant matrix by a single MatMul.

    Projections of sequences are such products, for example queries, keys and values of attention. A
    MatMul can be fused with its bias and quantized like other dense layers.

    Before:  x (8, 20, 16) -> BatchMatMulV2(w (16, 4))
    After:   x (8, 20, 16) -> Reshape (160, 16) -> MatMul(w) -> Reshape (8, 20, 4)

    Options: none.

    An Einsum of this kind is replaced, too. If more than one size of the result is unknown, for example
    the number and the length of sequences, the sizes are computed.

    Skips if the other factor is computed, is a graph input or is more than one matrix, if x is a
    matrix or is transposed, or if the rank of the result of a BatchMatMul is unknown.

    Example:
        flatten_products
        inputs: x
        outputs: y, heads
        x = Placeholder[2x3x4]()
        w = Const[4x5]()
        v = Const[4x2x5]()
        many = BatchMatMulV2(x, w)
        y = Relu(many)
        heads = Einsum(x, v, N=2, equation="abc,cde->abde")
    """
    if graph.op_counts.keys().isdisjoint((*BATCHED, "Einsum")):
        return Outcome(graph)
    shapes = infer_shapes(graph)
    products = Rule(op("|".join(BATCHED)), partial(_flatten, shapes), ("root",))
    return apply_rules(graph, products, Rule(op("Einsum"), partial(_flatten_einsum, shapes), ("root",)))


def _flatten(shapes: Mapping[Edge, Shape], graph: Graph, root: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    source, weights = root.inputs
    value = graph.constant_of(weights)
    if value is None or weights.node in graph.input_names:
        return Skip(f"{weights} is not constant")
    if len(value.shape) != 2:
        return Skip(f"{weights} is {Shape(value.shape)}, more than one matrix")
    dims, source_dims = (shapes.get(edge, UNKNOWN).dims for edge in (Edge(root.name), source))
    if root.attrs.get("adj_x") or (source_dims is not None and len(source_dims) < 3):
        return Skip(f"{source} is {'transposed' if root.attrs.get('adj_x') else 'already a single matrix'}")
    if dims is None:
        return Skip("the rank of the result is unknown")
    if 0 in dims:
        return Skip("the result is empty")
    is_transposed = bool(root.attrs.get("adj_y"))
    depth, columns = value.shape[::-1] if is_transposed else value.shape
    rows = _integers(graph, f"{root.name}/rows", (-1, depth))
    sizes = _sizes(graph, root.name, source, dims[:-1], (columns,), value.dtype)
    flat = _reshape(free_name(graph, f"{root.name}/flat"), source, rows.name, value.dtype)
    product = Node(
        free_name(graph, f"{root.name}/product"),
        "MatMul",
        (Edge(flat.name), weights),
        attrs={"T": value.dtype, "transpose_a": False, "transpose_b": is_transposed},
    )
    return [rows, *sizes, flat, product, _reshape(root.name, Edge(product.name), sizes[-1].name, value.dtype)]


def _flatten_einsum(shapes: Mapping[Edge, Shape], graph: Graph, root: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names or len(root.inputs) != 2:
        return None
    source, weights = root.inputs
    value = graph.constant_of(weights)
    if value is None or weights.node in graph.input_names:
        return Skip(f"{weights} is not constant")
    equation = attribute(root, "equation").decode().replace(" ", "")
    match = PROJECTION.fullmatch(equation)
    if match is None or len(set(equation) - set(",->")) != sum(map(len, match.groups())):
        return Skip(f"{equation} is not the product of the last axes of {source} and the first axes of {weights}")
    batch, depth = match["batch"], match["depth"]
    columns = value.shape[len(depth) :]
    matrix = value.array.reshape(prod(value.shape[: len(depth)]), prod(columns))
    rows = _integers(graph, f"{root.name}/rows", (-1, matrix.shape[0]))
    matrix_node = constant(free_name(graph, f"{root.name}/matrix"), matrix)
    flat = _reshape(free_name(graph, f"{root.name}/flat"), source, rows.name, value.dtype)
    product = Node(
        free_name(graph, f"{root.name}/product"),
        "MatMul",
        (Edge(flat.name), Edge(matrix_node.name)),
        attrs={"T": value.dtype, "transpose_a": False, "transpose_b": False},
    )
    dims = (shapes.get(source, UNKNOWN).dims or (None,) * len(batch))[: len(batch)]
    sizes = _sizes(graph, root.name, source, dims, columns, value.dtype)
    return [
        rows,
        matrix_node,
        *sizes,
        flat,
        product,
        _reshape(root.name, Edge(product.name), sizes[-1].name, value.dtype),
    ]


def _sizes(
    graph: Graph, name: str, source: Edge, dims: tuple[int | None, ...], columns: tuple[int, ...], dtype: DType
) -> list[Node]:
    """Return nodes, the last of which is the shape of a product: the first sizes of its factor, and its columns."""
    if dims.count(None) <= 1:
        return [_integers(graph, f"{name}/sizes", (*(-1 if size is None else size for size in dims), *columns))]
    shape = Node(free_name(graph, f"{name}/shape"), "Shape", (source,), attrs={"T": dtype, "out_type": DType.INT32})
    begin, end, step = (
        _integers(graph, f"{name}/{suffix}", (number,))
        for suffix, number in (("begin", 0), ("end", len(dims)), ("step", 1))
    )
    masks: dict[str, Attr] = dict.fromkeys(
        ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
    )
    rows = Node(
        free_name(graph, f"{name}/batch"),
        "StridedSlice",
        tuple(Edge(each.name) for each in (shape, begin, end, step)),
        attrs={"T": DType.INT32, "Index": DType.INT32, **masks},
    )
    last, axis = _integers(graph, f"{name}/columns", columns), constant(free_name(graph, f"{name}/axis"), np.int32(0))
    sizes = Node(
        free_name(graph, f"{name}/sizes"),
        "ConcatV2",
        (Edge(rows.name), Edge(last.name), Edge(axis.name)),
        attrs={"T": DType.INT32, "Tidx": DType.INT32, "N": 2},
    )
    return [shape, begin, end, step, rows, last, axis, sizes]


def _integers(graph: Graph, name: str, values: tuple[int, ...]) -> Node:
    return constant(free_name(graph, name), np.array(values, np.int32))


def _reshape(name: str, source: Edge, sizes: str, dtype: DType) -> Node:
    return Node(name, "Reshape", (source, Edge(sizes)), attrs={"T": dtype, "Tshape": DType.INT32})
