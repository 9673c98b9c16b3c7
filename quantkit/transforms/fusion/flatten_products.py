"""Products of many matrices with one are a single product.

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
    """Multiply a batch of matrices with one constant matrix as a single MatMul.

    What projects each step of a sequence is written so: queries, keys and values of an attention. As a MatMul it takes
    the bias and the 8 bits that other dense layers take.

    Before:  x (8, 20, 16) -> BatchMatMulV2(w (16, 4))
    After:   x (8, 20, 16) -> Reshape (160, 16) -> MatMul(w) -> Reshape (8, 20, 4)

    Options: none.

    Skips when the other factor is computed, is fed or is more than one matrix, when x is a matrix itself or is
    transposed, and when more than one size of the result is not known.

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
    return apply_rules(graph, Rule(op("|".join(BATCHED)), partial(_flattened, infer_shapes(graph)), ("root",)))


def _flattened(shapes: Mapping[Edge, Shape], graph: Graph, root: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    source, weights = root.inputs
    value = graph.constant_of(weights)
    if value is None or weights.node in graph.input_names:
        return Skip(f"{weights} is computed")
    if len(value.shape) != 2:
        return Skip(f"{weights} is {Shape(value.shape)}, more than one matrix")
    made, read = (shapes.get(edge, UNKNOWN).dims for edge in (Edge(root.name), source))
    if root.attrs.get("adj_x") or (read is not None and len(read) < 3):
        return Skip(f"{source} is {'transposed' if root.attrs.get('adj_x') else 'one matrix already'}")
    if made is None or made.count(None) > 1 or 0 in made:
        return Skip("more than one size of its result is not known")
    is_turned = bool(root.attrs.get("adj_y"))
    depth = value.shape[1 if is_turned else 0]
    rows = constant(free_name(graph, f"{root.name}/rows"), np.array([-1, depth], np.int32))
    sizes = constant(
        free_name(graph, f"{root.name}/sizes"), np.array([-1 if one is None else one for one in made], np.int32)
    )
    attrs: dict[str, Attr] = {"T": value.dtype, "Tshape": DType.INT32}
    flat = Node(free_name(graph, f"{root.name}/flat"), "Reshape", (source, Edge(rows.name)), attrs=attrs)
    product = Node(
        free_name(graph, f"{root.name}/product"),
        "MatMul",
        (Edge(flat.name), weights),
        attrs={"T": value.dtype, "transpose_a": False, "transpose_b": is_turned},
    )
    return [rows, sizes, flat, product, Node(root.name, "Reshape", (Edge(product.name), Edge(sizes.name)), attrs=attrs)]
