"""Rules for ops of ONNX graphs that move values: views, transposes, slices, concatenations."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Skip
from quantkit.ir.tensor import Shape
from quantkit.transforms.onnx._facts import (
    GraphFacts,
    constant_value,
    has_input,
    identity,
    integers,
    is_all,
    new_constant,
    producer,
    reason_to_keep,
)

Rewritten = list[Node] | Skip | None
# Ops that keep the order of the elements.
VIEW_OPS = "Reshape|Flatten|Squeeze|Unsqueeze"
# Ends of slices from here on are the end of any axis.
FAR = 2**31 - 1
# Maximum number of ops between a tensor and a tensor of the same shape.
MAX_DISTANCE = 8
_SAME_SHAPE = "Relu|Sigmoid|Tanh|Cast|Identity|Softmax|LeakyRelu|HardSwish|Gelu|Erf|Sqrt|Neg|LayerNormalization"


def _is_same_view(before: Shape, after: Shape) -> bool:
    """Return True if two shapes of the same elements are equal: at most one size is unknown."""
    dims = before.dims
    return dims is not None and dims == after.dims and dims.count(None) <= 1 and 0 not in dims


def remove_view(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Remove a Reshape, Flatten, Squeeze or Unsqueeze that keeps the shape."""
    is_same = _is_same_view(facts.shape(root.inputs[0]), facts.shape(Edge(root.name)))
    return identity(root, root.inputs[0]) if is_same else None


def merge_views(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Replace consecutive views by one Reshape, and a computed target shape by a constant."""
    inner = producer(graph, root.inputs[0], VIEW_OPS)
    is_computed = root.op == "Reshape" and has_input(root, 1) and constant_value(graph, root, 1) is None
    if inner is None and not is_computed:
        return None
    dims = facts.dims(Edge(root.name))
    source = root.inputs[0] if inner is None else inner.inputs[0]
    if _is_same_view(facts.shape(source), facts.shape(Edge(root.name))):
        return identity(root, source)
    if dims is None or 0 in dims:
        return _merge_axes(graph, root, inner)
    target: list[int | None] = [-1 if size is None else size for size in dims]
    if target.count(-1) > 1 and is_computed and inner is None:
        copied = _copied_axes(graph, root, source)
        target = [0 if axis in copied else size for axis, size in enumerate(target)]
    if target.count(-1) > 1:
        return _merge_axes(graph, root, inner)
    shape = new_constant(graph, f"{root.name}/shape", np.array(target, np.int64))
    return [shape, Node(root.name, "Reshape", (source, Edge(shape.name)), extra=root.extra)]


def _merge_axes(graph: Graph, root: Node, inner: Node | None) -> Rewritten:
    """Remove a Squeeze of the axes that an Unsqueeze adds."""
    if inner is None or root.op != "Squeeze" or inner.op != "Unsqueeze":
        return None
    axes, added = (integers(graph, node, "axes", 1) for node in (root, inner))
    return identity(root, inner.inputs[0]) if axes is not None and axes == added else None


def _copied_axes(graph: Graph, root: Node, source: Edge) -> set[int]:
    """Return the axes of a Reshape whose target size is the size of the same axis of its input."""
    target = producer(graph, root.inputs[1], "Concat")
    if target is None or any(len(_elements(graph, edge)) != 1 for edge in target.inputs):
        return set()
    elements = [_elements(graph, edge)[0] for edge in target.inputs]
    origin = _origin(graph, source)
    return {axis for axis, size in enumerate(elements) if size is not None and size == (origin, axis)}


def _elements(graph: Graph, edge: Edge) -> Sequence[tuple[Edge, int] | None]:
    """Return for each element of a list of sizes the tensor and the axis that it is the size of."""
    value = graph.constant_of(edge)
    if value is not None:
        return [None] * value.num_elements
    node = graph[edge.node]
    inner = producer(graph, edge, "Unsqueeze|Reshape|Cast")
    if inner is not None:
        return _elements(graph, inner.inputs[0])
    index: list[int] | None = None
    if node.op == "Gather" and not node.attrs.get("axis", 0):
        indices = constant_value(graph, node, 1)
        index = None if indices is None else [int(item) for item in indices.reshape(-1)]
    elif node.op == "Slice":
        starts, ends = integers(graph, node, "starts", 1), integers(graph, node, "ends", 2)
        if starts and ends and len(starts) == 1 and ends[0] == starts[0] + 1 and starts[0] >= 0:
            index = starts
    sizes = producer(graph, node.inputs[0], "Shape") if index is not None else None
    if index is None or sizes is None or sizes.attrs.get("start") or min(index) < 0:
        return [None] * 2  # the number of elements is unknown
    return [(_origin(graph, sizes.inputs[0]), axis) for axis in index]


def _origin(graph: Graph, edge: Edge) -> Edge:
    """Return the first tensor of a chain of ops that keep the shape."""
    for _ in range(MAX_DISTANCE):
        node = producer(graph, edge, _SAME_SHAPE)
        if node is None:
            break
        edge = node.inputs[0]
    return edge


def remove_expand(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Remove an Expand, Tile, Slice, Resize or pool that keeps the shape."""
    shape = facts.shape(root.inputs[0])
    if not shape.is_known or shape != facts.shape(Edge(root.name)):
        return None
    if root.op == "Slice":
        steps = integers(graph, root, "steps", 4)
        return identity(root, root.inputs[0]) if not has_input(root, 4) or (steps and min(steps) > 0) else None
    if root.op in ("MaxPool", "AveragePool"):
        is_single = {*_attr(root, "kernel_shape"), *_attr(root, "strides")} == {1} and not any(_attr(root, "pads"))
        return identity(root, root.inputs[0]) if is_single else None
    if root.op == "Resize":
        # Equal sizes are not enough: a scale of 1.05 moves the positions, too.
        scales = constant_value(graph, root, 1 if len(root.inputs) == 2 else 2)
        has_scales = has_input(root, 1 if len(root.inputs) == 2 else 2) and (scales is None or scales.size)
        is_crop = root.attrs.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
        return None if is_crop or (has_scales and not is_all(scales, 1)) else identity(root, root.inputs[0])
    return identity(root, root.inputs[0])


def _attr(node: Node, name: str) -> tuple[int, ...]:
    return tuple(node.attrs.get(name, ()))


def remove_slice(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Remove a Slice from the first to the last element, and merge slices of different axes."""
    bounds = _bounds(facts, graph, root)
    if bounds is None:
        return None
    if all(start == 0 and end >= FAR and step == 1 for start, end, _, step in bounds):
        return identity(root, root.inputs[0])
    inner = producer(graph, root.inputs[0], "Slice")
    first = _bounds(facts, graph, inner) if inner is not None else None
    if inner is None or first is None or {axis for *_, axis, _ in first} & {axis for *_, axis, _ in bounds}:
        return None
    if facts.opset < 10:
        return None
    columns = np.array([*first, *bounds], np.int64).T
    names = ("starts", "ends", "axes", "steps")
    constants = [
        new_constant(graph, f"{root.name}/{name}", column) for name, column in zip(names, columns, strict=True)
    ]
    inputs = (inner.inputs[0], *(Edge(constant.name) for constant in constants))
    return [*constants, root.with_(inputs=inputs)]


def _bounds(facts: GraphFacts, graph: Graph, node: Node) -> list[tuple[int, int, int, int]] | None:
    """Return start, end, axis and step of each sliced axis; None if a value is not constant."""
    starts, ends = integers(graph, node, "starts", 1), integers(graph, node, "ends", 2)
    axes, steps = integers(graph, node, "axes", 3), integers(graph, node, "steps", 4)
    dims = facts.dims(node.inputs[0])
    if starts is None or ends is None or dims is None:
        return None
    if (has_input(node, 3) and axes is None) or (has_input(node, 4) and steps is None):
        return None
    axes = [axis % len(dims) for axis in (range(len(starts)) if axes is None else axes)]
    return list(zip(starts, ends, axes, steps or [1] * len(starts), strict=True))


def merge_transposes(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Merge consecutive transposes, and remove one that keeps the order."""
    dims = facts.dims(root.inputs[0])
    order = _attr(root, "perm") or (tuple(range(len(dims)))[::-1] if dims is not None else ())
    inner, source = producer(graph, root.inputs[0], "Transpose"), root.inputs[0]
    if inner is not None and order:
        first = _attr(inner, "perm") or tuple(range(len(order)))[::-1]
        order, source = tuple(first[axis] for axis in order), inner.inputs[0]
    if order and order == tuple(range(len(order))):
        return identity(root, source)
    moved = facts.dims(source)
    target = facts.dims(Edge(root.name))
    if order and moved is not None and target is not None and target.count(None) <= 1 and 0 not in target:
        # only axes of size 1 move: the order of the elements stays.
        larger = [axis for axis in order if moved[axis] != 1]
        if larger == sorted(larger):
            sizes = np.array([-1 if size is None else size for size in target], np.int64)
            shape = new_constant(graph, f"{root.name}/shape", sizes)
            return [shape, Node(root.name, "Reshape", (source, Edge(shape.name)), extra=root.extra)]
    return None if inner is None else [root.with_input(0, source).with_attrs(perm=order)]


def merge_transposes_around_views(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Replace a Transpose, a view that moves or drops axes of size 1, and a Transpose back by a Reshape."""
    view = producer(graph, root.inputs[0], VIEW_OPS)
    inner = producer(graph, view.inputs[0], "Transpose") if view is not None else None
    if view is None or inner is None:
        return None
    edges = (inner.inputs[0], Edge(inner.name), Edge(view.name), Edge(root.name))
    source, moved, viewed, target = (facts.dims(edge) for edge in edges)
    if not source or not moved or not viewed or not target or source.count(None) > 1 or 0 in source:
        return None
    perm = _attr(inner, "perm") or tuple(range(len(source)))[::-1]
    if [size for size in moved if size != 1] != [size for size in viewed if size != 1]:
        return None
    # Axis of the source of each larger axis of the view.
    axes = iter([axis for axis in perm if source[axis] != 1])
    origins = [None if size == 1 else next(axes) for size in viewed]
    order = _attr(root, "perm") or tuple(range(len(viewed)))[::-1]
    larger = [origin for axis in order if (origin := origins[axis]) is not None]
    if larger != sorted(larger):
        return None
    shape = new_constant(graph, f"{root.name}/shape", np.array([-1 if size is None else size for size in target]))
    return [shape, Node(root.name, "Reshape", (edges[0], Edge(shape.name)), extra=root.extra)]


def merge_concats(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Replace a Concat of a Concat along the same axis by one Concat."""
    axis, rank = root.attrs.get("axis"), len(facts.dims(Edge(root.name)) or ())
    inputs: list[Edge] = []
    for edge in root.inputs:
        inner = producer(graph, edge, "Concat")
        if inner is not None and rank and _has_only_concats(graph, inner, axis, rank):
            inputs.extend(inner.inputs)
        else:
            inputs.append(edge)
    return [root.with_(inputs=tuple(inputs))] if len(inputs) > len(root.inputs) else None


def _has_only_concats(graph: Graph, inner: Node, axis: Any, rank: int) -> bool:
    """Return True if all uses of a Concat are concatenations along its axis."""
    if inner.name in graph.endpoint_names:
        return False
    concats = [use.node for use in graph.node_uses.get(inner.name, ()) if use.slot >= 0 and use.node.op == "Concat"]
    axes: list[Any] = [node.attrs.get("axis") for node in (inner, *concats)]
    return len(concats) == len(graph.node_uses[inner.name]) and {each % rank for each in axes} == {axis % rank}


def remove_pad(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Remove a Pad without padding, and a Tile with one repetition."""
    if root.op == "Tile":
        return identity(root, root.inputs[0]) if is_all(constant_value(graph, root, 1), 1) else None
    pads = integers(graph, root, "pads", 1)
    return identity(root, root.inputs[0]) if pads is not None and not any(pads) else None


_REDUCTIONS = "ReduceMean|ReduceSum|ReduceMax|ReduceMin|ReduceProd|ReduceL1|ReduceL2|ReduceSumSquare|ReduceLogSumExp"


def join_squeeze(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Replace a Squeeze after a reduction, or an Unsqueeze, by the option keepdims of the reduction."""
    inner = producer(graph, root.inputs[0], f"{_REDUCTIONS}|ArgMax|ArgMin")
    keeps = root.op == "Squeeze"
    if inner is None or bool(inner.attrs.get("keepdims", 1)) != keeps or reason_to_keep(graph, inner, root):
        return None
    dims = facts.dims(inner.inputs[0])
    axes = integers(graph, root, "axes", 1)
    reduced = [int(_attr_value(inner, "axis"))] if inner.op.startswith("Arg") else integers(graph, inner, "axes", 1)
    if dims is None or axes is None or not reduced:
        return None
    if sorted(axis % len(dims) for axis in axes) != sorted(axis % len(dims) for axis in reduced):
        return None
    return [inner.with_attrs(keepdims=0 if keeps else 1)]


def _attr_value(node: Node, name: str) -> int:
    return int(node.attrs.get(name, 0))


def join_gather(facts: GraphFacts, graph: Graph, root: Node) -> Rewritten:
    """Replace a Slice of one element and a Squeeze by a Gather, and a Gather and an Unsqueeze by a Gather."""
    axes = integers(graph, root, "axes", 1)
    if axes is None or len(axes) != 1:
        return None
    if root.op == "Unsqueeze":
        inner = producer(graph, root.inputs[0], "Gather")
        index = constant_value(graph, inner, 1) if inner is not None else None
        dims = facts.dims(Edge(root.name))
        if inner is None or index is None or index.ndim or dims is None or reason_to_keep(graph, inner, root):
            return None
        if axes[0] % len(dims) != _attr_value(inner, "axis") % len(dims):
            return None
        constant = new_constant(graph, f"{root.name}/index", index.reshape(1))
        return [constant, inner.with_input(1, Edge(constant.name))]
    inner = producer(graph, root.inputs[0], "Slice")
    bounds = _bounds(facts, graph, inner) if inner is not None else None
    if inner is None or bounds is None or len(bounds) != 1 or reason_to_keep(graph, inner, root):
        return None
    start, end, axis, step = bounds[0]
    dims = facts.dims(inner.inputs[0])
    is_single = (end == start + 1 and (start >= 0 or end < 0)) or (start == -1 and end >= FAR)
    if dims is None or not is_single or step != 1 or axes[0] % len(dims) != axis:
        return None
    constant = new_constant(graph, f"{root.name}/index", np.array(start, np.int64))
    return [constant, Node(root.name, "Gather", (inner.inputs[0], Edge(constant.name)), attrs={"axis": axis})]


RULES: tuple[tuple[str, Callable[[GraphFacts, Graph, Node], Rewritten]], ...] = (
    (VIEW_OPS, remove_view),
    ("Squeeze|Unsqueeze", join_squeeze),
    ("Squeeze|Unsqueeze", join_gather),
    (VIEW_OPS, merge_views),
    ("Expand|Tile|Slice|Resize|MaxPool|AveragePool", remove_expand),
    ("Slice", remove_slice),
    ("Transpose", merge_transposes_around_views),
    ("Transpose", merge_transposes),
    ("Concat", merge_concats),
    ("Pad|Tile", remove_pad),
)
