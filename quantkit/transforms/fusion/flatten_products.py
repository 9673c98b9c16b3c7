"""Replace the product of a batch of matrices and one matrix by a single MatMul.

x: (..., n, k)   w: (k, m)        x @ w  ==  reshape(reshape(x, (-1, k)) @ w, (..., n, m))

The projections of an attention layer of Keras are such products with several axes for k or m: ``abc,cde->abde``.
"""

import re
from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import NewNodes, Outcome, Rule, Skip, apply_rules
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
    nodes = NewNodes(graph, root.name)
    rows = nodes.constant("rows", np.array((-1, depth), np.int32))
    return _multiply(nodes, root, rows, weights, dims[:-1], (columns,), value.dtype, transpose_b=is_transposed)


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
    nodes = NewNodes(graph, root.name)
    rows = nodes.constant("rows", np.array((-1, matrix.shape[0]), np.int32))
    dims = (shapes.get(source, UNKNOWN).dims or (None,) * len(batch))[: len(batch)]
    return _multiply(nodes, root, rows, nodes.constant("matrix", matrix), dims, columns, value.dtype, transpose_b=False)


def _multiply(
    nodes: NewNodes,
    root: Node,
    rows: Edge,
    matrix: Edge,
    dims: tuple[int | None, ...],
    columns: tuple[int, ...],
    dtype: DType,
    *,
    transpose_b: bool,
) -> list[Node]:
    """Return the nodes of a product of one matrix; the last one has the name of ``root``.

    Args:
        nodes: nodes of the operands.
        root: product of a batch of matrices.
        rows: shape of the batch as one matrix.
        matrix: the other factor.
        dims: sizes of the batch.
        columns: last sizes of the result.
        dtype: element type.
        transpose_b: True if the matrix is transposed.
    """
    sizes = _add_sizes(nodes, root.inputs[0], dims, columns, dtype)
    reshape: dict[str, Attr] = {"T": dtype, "Tshape": DType.INT32}
    flat = nodes.add("flat", "Reshape", root.inputs[0], rows, **reshape)
    product = nodes.add("product", "MatMul", flat, matrix, T=dtype, transpose_a=False, transpose_b=transpose_b)
    return [*nodes, Node(root.name, "Reshape", (product, sizes), attrs=reshape)]


def _add_sizes(
    nodes: NewNodes, source: Edge, dims: tuple[int | None, ...], columns: tuple[int, ...], dtype: DType
) -> Edge:
    """Add the shape of a product: the first sizes of its factor, and its columns."""
    if dims.count(None) <= 1:
        sizes = (*(-1 if size is None else size for size in dims), *columns)
        return nodes.constant("sizes", np.array(sizes, np.int32))
    shape = nodes.add("shape", "Shape", source, T=dtype, out_type=DType.INT32)
    bounds = [
        nodes.constant(suffix, np.array([number], np.int32))
        for suffix, number in (("begin", 0), ("end", len(dims)), ("step", 1))
    ]
    masks: dict[str, Attr] = dict.fromkeys(
        ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
    )
    rows = nodes.add("batch", "StridedSlice", shape, *bounds, T=DType.INT32, Index=DType.INT32, **masks)
    last, axis = nodes.constant("columns", np.array(columns, np.int32)), nodes.constant("axis", np.int32(0))
    return nodes.add("sizes", "ConcatV2", rows, last, axis, T=DType.INT32, Tidx=DType.INT32, N=2)
