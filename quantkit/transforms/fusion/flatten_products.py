"""Replace the product of a batch of matrices and one matrix by a single MatMul.

x: (..., n, k)   w: (k, m)        x @ w  ==  reshape(reshape(x, (-1, k)) @ w, (..., n, m))
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.transforms.registry import transform

BATCHED = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


@transform
def flatten_products(graph: Graph) -> Outcome:
    """Replace the product of a batch of matrices and one constant matrix by a single MatMul.

    Projections of sequences are such products, for example queries, keys and values of attention. A
    MatMul can be fused with its bias and quantized like other dense layers.

    Before:  x (8, 20, 16) -> BatchMatMulV2(w (16, 4))
    After:   x (8, 20, 16) -> Reshape (160, 16) -> MatMul(w) -> Reshape (8, 20, 4)

    Options: none.

    Skips if the other factor is computed, is a graph input or is more than one matrix, if x is a
    matrix or is transposed, or if more than one size of the result is unknown.

    Example:
        flatten_products
        inputs: x
        outputs: y
        x = Placeholder[2x3x4]()
        w = Const[4x5]()
        many = BatchMatMulV2(x, w)
        y = Relu(many)
    """
    if graph.op_counts.keys().isdisjoint(BATCHED):
        return Outcome(graph)
    return apply_rules(graph, Rule(op("|".join(BATCHED)), partial(_flatten, infer_shapes(graph)), ("root",)))


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
    if dims is None or dims.count(None) > 1 or 0 in dims:
        return Skip("more than one size of the result is unknown")
    is_transposed = bool(root.attrs.get("adj_y"))
    depth = value.shape[1 if is_transposed else 0]
    rows = constant(free_name(graph, f"{root.name}/rows"), np.array([-1, depth], np.int32))
    sizes = constant(
        free_name(graph, f"{root.name}/sizes"), np.array([-1 if size is None else size for size in dims], np.int32)
    )
    attrs: dict[str, Attr] = {"T": value.dtype, "Tshape": DType.INT32}
    flat = Node(free_name(graph, f"{root.name}/flat"), "Reshape", (source, Edge(rows.name)), attrs=attrs)
    product = Node(
        free_name(graph, f"{root.name}/product"),
        "MatMul",
        (Edge(flat.name), weights),
        attrs={"T": value.dtype, "transpose_a": False, "transpose_b": is_transposed},
    )
    return [rows, sizes, flat, product, Node(root.name, "Reshape", (Edge(product.name), Edge(sizes.name)), attrs=attrs)]
