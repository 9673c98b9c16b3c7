"""Identities of shape ops: inverse pairs, compositions, and no-ops."""

from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType
from quantkit.ops.layers import find_layer
from quantkit.transforms.cleanup._identities import (
    Facts,
    Rewritten,
    Simplify,
    attribute_or_default,
    normalize_axes,
    pass_through,
)

# Ops that keep the order of the elements.
RESHAPES = frozenset({"Reshape", "Squeeze", "ExpandDims"})
# Elementwise ops of layers; the other operand is a constant.
MOVED_OPS = "Elu|LeakyRelu|Relu|Relu6|Selu|Sigmoid|Softplus|Tanh|BiasAdd|Add|AddV2|Sub|Mul"


def simplify_reshape(facts: Facts, node: Node) -> Rewritten:
    """Merge consecutive reshapes, and remove a reshape to the same shape."""
    source = node.inputs[0]
    inner = facts.producer(source, RESHAPES)
    base = source if inner is None else inner.inputs[0]
    for edge in dict.fromkeys((base, source)):
        if facts.have_equal_shapes(edge, Edge(node.name)):
            return pass_through(node, edge)
    if inner is None:
        return _fix_target_shape(facts, node) if node.op == "Reshape" else None
    if {node.op, inner.op} == {"Squeeze", "ExpandDims"}:
        return _cancel_expand_dims(facts, node, inner)
    return [node.with_(inputs=(base, node.inputs[1]))] if node.op == "Reshape" else None


def _cancel_expand_dims(facts: Facts, node: Node, inner: Node) -> Rewritten:
    """Remove a Squeeze of the axis that an ExpandDims has added, and an ExpandDims of the axis that is removed."""
    expand, squeeze = (inner, node) if node.op == "Squeeze" else (node, inner)
    added = facts.value(expand.inputs[1])
    removed = attribute_or_default(squeeze, "squeeze_dims")
    if added is None or added.size != 1 or not isinstance(removed, tuple) or len(removed) != 1:
        return None
    return pass_through(node, inner.inputs[0]) if int(added.reshape(-1)[0]) == removed[0] else None


def move_before_squeeze(facts: Facts, node: Node) -> Rewritten:
    """Compute biases, factors and activations of a layer before its Squeeze: Keras computes 1-D layers in 2-D ones."""
    for slot, edge in enumerate(node.inputs):
        squeeze, dims = facts.producer(edge, frozenset({"Squeeze"})), facts.shape(edge).dims
        removed = attribute_or_default(squeeze, "squeeze_dims") if squeeze is not None else None
        if squeeze is None or dims is None or not isinstance(removed, tuple) or not removed:
            continue
        layer = facts.graph[squeeze.inputs[0].node]
        if (find_layer(layer) is None and layer.op not in MOVED_OPS.split("|")) or facts.is_shared(edge, squeeze):
            continue
        rank = len(dims) + len(removed)
        after = rank - 1 - max(normalize_axes(np.array(removed), rank))
        values = [facts.value(other) for other in node.inputs if other != edge]
        is_short = all(value is not None and value.ndim <= after for value in values)
        if len(values) == len(node.inputs) - 1 and is_short and node.attrs.get("data_format", b"NHWC") == b"NHWC":
            name = free_name(facts.graph, f"{node.name}/unsqueezed")
            moved = node.with_input(slot, squeeze.inputs[0]).with_(name=name)
            return [moved, squeeze.with_(name=node.name, inputs=(Edge(name),))]
    return None


def _fix_target_shape(facts: Facts, node: Node) -> Rewritten:
    """Replace a computed target shape with at most one unknown size by a constant; -1 is the unknown size."""
    sizes = None if facts.value(node.inputs[1]) is not None else facts.sizes(node.inputs[1])
    if not sizes or sizes.count(None) > 1 or min((size for size in sizes if size is not None), default=1) <= 0:
        return None
    dtype = np.int64 if attribute_or_default(node, "Tshape") is DType.INT64 else np.int32
    shape = facts.constant(node, "shape", np.array([-1 if size is None else size for size in sizes], dtype))
    return [shape, node.with_(inputs=(node.inputs[0], Edge(shape.name)))]


def simplify_transpose(facts: Facts, node: Node) -> Rewritten:
    """Remove a transpose that keeps all axes, and merge consecutive transposes."""
    order = facts.value(node.inputs[1])
    if order is None:
        return None
    axes = normalize_axes(order, len(order))
    if axes == sorted(axes):
        return pass_through(node, node.inputs[0])
    inner = facts.producer(node.inputs[0], frozenset({"Transpose"}))
    first = None if inner is None else facts.value(inner.inputs[1])
    if inner is None or first is None or len(first) != len(order):
        return None
    composition = [normalize_axes(first, len(first))[axis] for axis in axes]
    if composition == sorted(composition):
        return pass_through(node, inner.inputs[0])
    perm = facts.constant(node, "perm", np.array(composition, order.dtype))
    return [perm, node.with_(inputs=(inner.inputs[0], Edge(perm.name)))]


def simplify_single_operand(facts: Facts, node: Node) -> Rewritten:
    """Simplify a sum, concatenation or split of one tensor."""
    operands = list(node.inputs)
    if node.op == "ConcatV2":
        operands = operands[:-1]
    elif node.op in ("Concat", "Split"):
        operands = operands[1:]
    if node.op == "Split":
        return pass_through(node, operands[0]) if attribute_or_default(node, "num_split") == 1 else None
    return pass_through(node, operands[0]) if len(operands) == 1 else None


def simplify_pack(facts: Facts, node: Node) -> Rewritten:
    """Simplify ``pack(unpack(x))``."""
    first = facts.producer(Edge(facts.skip_identities(node.inputs[0]).node), frozenset({"Unpack"}))
    if first is None or attribute_or_default(first, "num") != len(node.inputs) or not _have_same_axis(node, first):
        return None
    operands = [facts.skip_identities(edge) for edge in node.inputs]
    is_complete = operands == [Edge(first.name, port) for port in range(len(operands))]
    return pass_through(node, first.inputs[0]) if is_complete else None


def simplify_unpack(facts: Facts, node: Node) -> Rewritten:
    """Simplify ``unpack(pack(x, y))``."""
    inner = facts.producer(node.inputs[0], frozenset({"Pack"}))
    if inner is None or attribute_or_default(node, "num") != len(inner.inputs) or not _have_same_axis(inner, node):
        return None
    return pass_through(node, *inner.inputs)


def _have_same_axis(pack: Node, unpack: Node) -> bool:
    return attribute_or_default(pack, "axis") == attribute_or_default(unpack, "axis")


def simplify_concat(facts: Facts, node: Node) -> Rewritten:
    """Simplify ``concat(split(x))``."""
    *operands, axis = node.inputs
    split = facts.producer(Edge(facts.skip_identities(operands[0]).node), frozenset({"Split", "SplitV"}))
    if split is None or [facts.skip_identities(edge) for edge in operands] != [
        Edge(split.name, port) for port in range(len(operands))
    ]:
        return simplify_single_operand(facts, node)
    concat_axis, split_axis = facts.value(axis), facts.value(split.inputs[0 if split.op == "Split" else 2])
    if concat_axis is None or split_axis is None or int(concat_axis) != int(split_axis):
        return None
    if attribute_or_default(split, "num_split") != len(operands):
        return None
    return pass_through(node, split.inputs[1 if split.op == "Split" else 0])


def simplify_reduction(facts: Facts, node: Node) -> Rewritten:
    """Remove a reduction over no axes, or over axes of size 1 that are kept."""
    axes = facts.value(node.inputs[1])
    if axes is None:
        return None
    if not axes.size:
        return pass_through(node, node.inputs[0])
    dims = facts.shape(node.inputs[0]).dims
    # The sum of a single -0 is 0.
    may_change_zeros = node.op in ("Sum", "Mean") and facts.has_signed_zeros
    if dims is None or not attribute_or_default(node, "keep_dims") or may_change_zeros:
        return None
    return (
        pass_through(node, node.inputs[0]) if all(dims[axis] == 1 for axis in normalize_axes(axes, len(dims))) else None
    )


def simplify_pad(facts: Facts, node: Node) -> Rewritten:
    """Remove a pad of width 0."""
    widths = facts.value(node.inputs[1])
    return pass_through(node, node.inputs[0]) if widths is not None and not widths.any() else None


def simplify_tile(facts: Facts, node: Node) -> Rewritten:
    """Remove a tile with one copy along every axis."""
    counts = facts.value(node.inputs[1])
    return pass_through(node, node.inputs[0]) if counts is not None and (counts == 1).all() else None


def simplify_broadcast(facts: Facts, node: Node) -> Rewritten:
    """Remove a broadcast to the same shape."""
    target = facts.value(node.inputs[1])
    shape = facts.shape(node.inputs[0])
    is_same = target is not None and shape.is_known and shape.sizes == tuple(int(size) for size in target)
    return pass_through(node, node.inputs[0]) if is_same else None


def simplify_slice(facts: Facts, node: Node) -> Rewritten:
    """Remove a slice of the complete tensor."""
    begin, size = facts.value(node.inputs[1]), facts.value(node.inputs[2])
    dims = facts.shape(node.inputs[0]).dims
    if begin is None or size is None or begin.any():
        return None
    if (size == -1).all() or (dims is not None and len(dims) == len(size) and _covers(size, dims)):
        return pass_through(node, node.inputs[0])
    return None


def _covers(sizes: Any, dims: tuple[int | None, ...]) -> bool:
    return all(size in (-1, dim) for size, dim in zip(sizes.tolist(), dims, strict=True))


def simplify_pool(facts: Facts, node: Node) -> Rewritten:
    """Remove an average pool with a 1x1 window.

    Signed zeros: the mean of a single -0 is 0. Max pools stay: the maximum of a single NaN is the
    lowest float.
    """
    if facts.has_signed_zeros:
        return None
    is_one = all(attribute_or_default(node, name) == (1, 1, 1, 1) for name in ("ksize", "strides"))
    has_no_pad = attribute_or_default(node, "padding") in (b"SAME", b"VALID")
    return pass_through(node, node.inputs[0]) if is_one and has_no_pad else None


def fold_shape(facts: Facts, node: Node) -> Rewritten:
    """Replace Shape, Size or Rank of a known shape by a constant."""
    shape = facts.shape(node.inputs[0])
    dtype = np.int64 if attribute_or_default(node, "out_type") is DType.INT64 else np.int32
    if node.op == "Rank":
        return None if shape.rank is None else _replace_by_constant(facts, node, np.array(shape.rank, np.int32))
    if not shape.is_known:
        return None
    sizes = shape.sizes if node.op == "Shape" else np.prod(shape.sizes, dtype=np.int64)
    return _replace_by_constant(facts, node, np.array(sizes, dtype))


def _replace_by_constant(facts: Facts, node: Node, values: Any) -> list[Node]:
    value = facts.constant(node, "value", values)
    return [value, *pass_through(node, Edge(value.name))]


def fold_size_of_axis(facts: Facts, node: Node) -> Rewritten:
    """Replace one known element of a shape by a constant; other sizes may be unknown."""
    inner = facts.producer(node.inputs[0], frozenset({"Shape"}))
    begin, end, strides = (facts.value(edge) for edge in node.inputs[1:])
    masks = [attribute_or_default(node, f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis")]
    if inner is None or begin is None or end is None or strides is None or masks != [0, 0, 0, 0]:
        return None
    dims = facts.shape(inner.inputs[0]).dims
    is_element = begin.size == 1 and strides.tolist() == [1] and attribute_or_default(node, "shrink_axis_mask") == 1
    if dims is None or not is_element:
        return None
    axis = int(begin[0])
    size = dims[axis] if -len(dims) <= axis < len(dims) else None
    dtype = np.int64 if attribute_or_default(node, "T") is DType.INT64 else np.int32
    return None if size is None else _replace_by_constant(facts, node, np.array(size, dtype))


RULES: tuple[tuple[str, Simplify], ...] = (
    ("Reshape|Squeeze|ExpandDims", simplify_reshape),
    (MOVED_OPS, move_before_squeeze),
    ("Transpose", simplify_transpose),
    ("AddN|Concat|Split", simplify_single_operand),
    ("ConcatV2", simplify_concat),
    ("Pack", simplify_pack),
    ("Unpack", simplify_unpack),
    ("Sum|Mean|Max|Min|Prod|All|Any", simplify_reduction),
    ("Pad|PadV2|MirrorPad", simplify_pad),
    ("Tile", simplify_tile),
    ("BroadcastTo", simplify_broadcast),
    ("Slice", simplify_slice),
    ("AvgPool", simplify_pool),
    ("Shape|Size|Rank", fold_shape),
    ("StridedSlice", fold_size_of_axis),
)
