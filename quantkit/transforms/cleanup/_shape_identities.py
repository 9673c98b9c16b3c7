"""Moves of elements that undo each other, join into one, or move nothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Node
from quantkit.ir.rewrite import Skip
from quantkit.ir.tensor import DType
from quantkit.transforms.cleanup._identities import Facts, Simplify, axes_of, passing, setting

# They keep the order of the elements.
RESHAPES = frozenset({"Reshape", "Squeeze", "ExpandDims"})

Made = Sequence[Node] | Skip | None


def reshape(facts: Facts, node: Node) -> Made:
    """One of several reshapes, or none at all."""
    source = node.inputs[0]
    inner = facts.maker(source, RESHAPES)
    base = source if inner is None else inner.inputs[0]
    for edge in dict.fromkeys((base, source)):
        if facts.are_equal(edge, Edge(node.name)):
            return passing(node, edge)
    if inner is None:
        return _without_shape_of_input(facts, node) if node.op == "Reshape" else None
    if node.op == "Squeeze" and inner.op == "ExpandDims":
        return _undone(facts, node, inner)
    return [node.with_(inputs=(base, node.inputs[1]))] if node.op == "Reshape" else None


def _undone(facts: Facts, node: Node, inner: Node) -> Made:
    """The axis that was added is removed."""
    added = facts.value(inner.inputs[1])
    removed = setting(node, "squeeze_dims")
    if added is None or added.size != 1 or not isinstance(removed, tuple) or len(removed) != 1:
        return None
    return passing(node, inner.inputs[0]) if int(added.reshape(-1)[0]) == removed[0] else None


def _without_shape_of_input(facts: Facts, node: Node) -> Made:
    """A shape that is computed, but known except for one size: that one is what is left."""
    sizes = None if facts.value(node.inputs[1]) is not None else facts.sizes(node.inputs[1])
    if not sizes or sizes.count(None) > 1 or min((size for size in sizes if size is not None), default=1) <= 0:
        return None
    dtype = np.int64 if setting(node, "Tshape") is DType.INT64 else np.int32
    wanted = facts.constant(node, "shape", np.array([-1 if size is None else size for size in sizes], dtype))
    return [wanted, node.with_(inputs=(node.inputs[0], Edge(wanted.name)))]


def transpose(facts: Facts, node: Node) -> Made:
    """Axes that stay where they are, and transposes one after another."""
    order = facts.value(node.inputs[1])
    if order is None:
        return None
    axes = axes_of(order, len(order))
    if axes == sorted(axes):
        return passing(node, node.inputs[0])
    inner = facts.maker(node.inputs[0], frozenset({"Transpose"}))
    first = None if inner is None else facts.value(inner.inputs[1])
    if inner is None or first is None or len(first) != len(order):
        return None
    both = [axes_of(first, len(first))[axis] for axis in axes]
    if both == sorted(both):
        return passing(node, inner.inputs[0])
    made = facts.constant(node, "perm", np.array(both, order.dtype))
    return [made, node.with_(inputs=(inner.inputs[0], Edge(made.name)))]


def single(facts: Facts, node: Node) -> Made:
    """A sum, a join or a part of one tensor."""
    data = list(node.inputs)
    if node.op == "ConcatV2":
        data = data[:-1]
    elif node.op in ("Concat", "Split"):
        data = data[1:]
    if node.op == "Split":
        return passing(node, data[0]) if setting(node, "num_split") == 1 else None
    return passing(node, data[0]) if len(data) == 1 else None


def pack(facts: Facts, node: Node) -> Made:
    """The parts of a tensor, put together again."""
    first = facts.maker(Edge(facts.behind(node.inputs[0]).node), frozenset({"Unpack"}))
    if first is None or setting(first, "num") != len(node.inputs) or not _on_one_axis(facts, node, first):
        return None
    parts = [facts.behind(edge) for edge in node.inputs]
    is_whole = parts == [Edge(first.name, port) for port in range(len(parts))]
    return passing(node, first.inputs[0]) if is_whole else None


def unpack(facts: Facts, node: Node) -> Made:
    """The parts of what was put together."""
    inner = facts.maker(node.inputs[0], frozenset({"Pack"}))
    if inner is None or setting(node, "num") != len(inner.inputs) or not _on_one_axis(facts, inner, node):
        return None
    return passing(node, *inner.inputs)


def _on_one_axis(facts: Facts, packed: Node, unpacked: Node) -> bool:
    return setting(packed, "axis") == setting(unpacked, "axis")


def concat(facts: Facts, node: Node) -> Made:
    """The pieces of a tensor, joined again."""
    *pieces, axis = node.inputs
    split = facts.maker(Edge(facts.behind(pieces[0]).node), frozenset({"Split", "SplitV"}))
    if split is None or [facts.behind(edge) for edge in pieces] != [
        Edge(split.name, port) for port in range(len(pieces))
    ]:
        return single(facts, node)
    along, cut = facts.value(axis), facts.value(split.inputs[0 if split.op == "Split" else 2])
    if along is None or cut is None or int(along) != int(cut) or setting(split, "num_split") != len(pieces):
        return None
    return passing(node, split.inputs[1 if split.op == "Split" else 0])


def reduction(facts: Facts, node: Node) -> Made:
    """A reduction over nothing; the largest of one element."""
    axes = facts.value(node.inputs[1])
    if axes is None:
        return None
    if not axes.size:
        return passing(node, node.inputs[0])
    dims = facts.shape(node.inputs[0]).dims
    # The sum of -0 alone is 0.
    if dims is None or not setting(node, "keep_dims") or (node.op in ("Sum", "Mean") and facts.has_signed_zeros):
        return None
    return passing(node, node.inputs[0]) if all(dims[axis] == 1 for axis in axes_of(axes, len(dims))) else None


def widened(facts: Facts, node: Node) -> Made:
    """A border of no width."""
    widths = facts.value(node.inputs[1])
    return passing(node, node.inputs[0]) if widths is not None and not widths.any() else None


def repeated(facts: Facts, node: Node) -> Made:
    """One copy."""
    counts = facts.value(node.inputs[1])
    return passing(node, node.inputs[0]) if counts is not None and (counts == 1).all() else None


def spread(facts: Facts, node: Node) -> Made:
    """A tensor that has the shape already."""
    shape = facts.value(node.inputs[1])
    given = facts.shape(node.inputs[0])
    is_same = shape is not None and given.is_known and given.sizes == tuple(int(size) for size in shape)
    return passing(node, node.inputs[0]) if is_same else None


def sliced(facts: Facts, node: Node) -> Made:
    """All of a tensor."""
    begin, size = facts.value(node.inputs[1]), facts.value(node.inputs[2])
    dims = facts.shape(node.inputs[0]).dims
    if begin is None or size is None or begin.any():
        return None
    if (size == -1).all() or (dims is not None and len(dims) == len(size) and _reaches(size, dims)):
        return passing(node, node.inputs[0])
    return None


def _reaches(size: Any, dims: tuple[int | None, ...]) -> bool:
    return all(one in (-1, whole) for one, whole in zip(size.tolist(), dims, strict=True))


def pool(facts: Facts, node: Node) -> Made:
    """Means of windows of one element; that of -0 alone is 0. The maximum of NaN alone is the lowest number."""
    if facts.has_signed_zeros:
        return None
    is_one = all(setting(node, name) == (1, 1, 1, 1) for name in ("ksize", "strides"))
    is_plain = setting(node, "padding") in (b"SAME", b"VALID")
    return passing(node, node.inputs[0]) if is_one and is_plain else None


def shape(facts: Facts, node: Node) -> Made:
    """What is known before anything runs."""
    found = facts.shape(node.inputs[0])
    dtype = np.int64 if setting(node, "out_type") is DType.INT64 else np.int32
    if node.op == "Rank":
        return None if found.rank is None else _constant(facts, node, np.array(found.rank, np.int32))
    if not found.is_known:
        return None
    sizes = found.sizes
    return _constant(facts, node, np.array(sizes if node.op == "Shape" else np.prod(sizes, dtype=np.int64), dtype))


def _constant(facts: Facts, node: Node, values: Any) -> list[Node]:
    made = facts.constant(node, "value", values)
    return [made, *passing(node, Edge(made.name))]


def size_of_axis(facts: Facts, node: Node) -> Made:
    """One size of a shape whose other sizes may be unknown."""
    inner = facts.maker(node.inputs[0], frozenset({"Shape"}))
    begin, end, strides = (facts.value(edge) for edge in node.inputs[1:])
    masks = [setting(node, f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis")]
    if inner is None or begin is None or end is None or strides is None or masks != [0, 0, 0, 0]:
        return None
    dims = facts.shape(inner.inputs[0]).dims
    if dims is None or begin.size != 1 or strides.tolist() != [1] or setting(node, "shrink_axis_mask") != 1:
        return None
    place = int(begin[0])
    size = dims[place] if -len(dims) <= place < len(dims) else None
    dtype = np.int64 if setting(node, "T") is DType.INT64 else np.int32
    return None if size is None else _constant(facts, node, np.array(size, dtype))


RULES: tuple[tuple[str, Simplify], ...] = (
    ("Reshape|Squeeze|ExpandDims", reshape),
    ("Transpose", transpose),
    ("AddN|Concat|Split", single),
    ("ConcatV2", concat),
    ("Pack", pack),
    ("Unpack", unpack),
    ("Sum|Mean|Max|Min|Prod|All|Any", reduction),
    ("Pad|PadV2|MirrorPad", widened),
    ("Tile", repeated),
    ("BroadcastTo", spread),
    ("Slice", sliced),
    ("AvgPool", pool),
    ("Shape|Size|Rank", shape),
    ("StridedSlice", size_of_axis),
)
