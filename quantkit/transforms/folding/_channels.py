"""Fold a scale and a shift per channel into the layers before them.

    (x * W) s + o        ==  x * (W s) + o
    (x * W + b) s + o    ==  x * (W s) + (b s + o)
    concat(y1, y2) s     ==  concat(y1 s1, y2 s2)

What only moves values between places, but keeps channels apart, lets both through: concat, BatchToSpaceND,
a Reshape that keeps the last dimension, Identity.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Skip, free_name, sharing_reason
from quantkit.ir.tensor import CACHE_LIMIT_BYTES, Array, DType, Shape, Tensor
from quantkit.ops.layers import LAYER_OPS, WEIGHTS_INDEX, broadcast_channels, channel_axis, find_layer

BIAS_OPS = ("BiasAdd", "Add", "AddV2", "Sub")
FOLDED_TYPES = (DType.FLOAT, DType.DOUBLE, DType.HALF, DType.BFLOAT16)
# Looking further behind a norm would make a graph of such ops alone slow, and networks do not nest so deep.
DEEPEST = 16
MOST_ANCESTORS = 64


@dataclass(frozen=True)
class Affine:
    """``y`` becomes ``y scale + offset``; None leaves that part out.

    Attributes:
        scale: (c,).
        offset: (c,).
    """

    scale: Array | None = None
    offset: Array | None = None

    def part(self, start: int, stop: int) -> "Affine":
        """For a range of the channels."""
        return Affine(*(None if values is None else values[start:stop] for values in (self.scale, self.offset)))


@dataclass(frozen=True)
class Foldable:
    """A tensor whose channels can be scaled and shifted by changing the constants behind it.

    Attributes:
        name: of the node that makes it.
        num_channels: how many there are.
        rank: number of dimensions.
        axis: dimension of the channels.
        dtype: element type.
        fold: called with what to fold and a name for a new BiasAdd, should it need one; gives the changed
            nodes, the last of which makes the new tensor.
    """

    name: str
    num_channels: int
    rank: int
    axis: int
    dtype: DType
    fold: Callable[[Affine, str], list[Node]]

    def per_channel(self, tensor: Tensor) -> Array | None:
        """A constant that is combined with this tensor, as (c,); None where it is not one value per channel."""
        if tensor.dtype is not self.dtype:
            return None
        return broadcast_channels(tensor, rank=self.rank, axis=self.axis, num_channels=self.num_channels)


# A tensor that can take the scale; why it can not; None: there is no layer behind it.
Found = Foldable | Skip | None


def find_foldable(graph: Graph, edge: Edge, reader: Node, depth: int = 0) -> Found:
    """What a scale of ``edge`` can be folded into.

    Args:
        graph: where the edge is.
        edge: the tensor that is scaled.
        reader: the node that scales it.
        depth: how many nodes have been looked through.
    """
    node = graph.nodes.get(edge.node)
    if node is None or edge.port or node.op not in _FORMS or depth == DEEPEST:
        return None
    found = _FORMS[node.op](graph, node, depth)
    if isinstance(found, Foldable):
        shared = sharing_reason(graph, node, reader)
        return Skip(shared) if shared else found
    return found


def described(constant: Node) -> str:
    """A constant's name, element type and shape."""
    return f"{constant.name} ({constant.value.dtype.value} {Shape(constant.value.shape)})"


def not_constant(graph: Graph, name: str, role: str) -> str:
    """A clause that says that a node should be constant, and how to make it so where that is possible.

    Args:
        graph: where the node is.
        name: of the node.
        role: what it is, with its place: ``the weights of conv``.
    """
    node = graph[name]
    clause = f"{name} ({node.op}), {role}, is not constant"
    if name in graph.input_names:
        return f"{name}, {role}, is an input of the graph"
    return f"{clause}: run fold_constants first" if is_computed_from_constants(graph, name) else clause


def is_computed_from_constants(graph: Graph, name: str) -> bool:
    """Whether nothing but constants is behind a node; no more than a few ancestors are looked at."""
    seen: set[str] = set()
    stack = [name]
    while stack:
        node = graph.nodes.get(stack.pop())
        if node is None or node.name in graph.input_names or not (node.inputs or node.is_constant):
            return False
        if node.name not in seen:
            seen.add(node.name)
            stack.extend(edge.node for edge in node.inputs)
        if len(seen) > MOST_ANCESTORS:
            return False
    return True


def is_constant(graph: Graph, edge: Edge) -> bool:
    """Whether an edge carries a constant that nobody feeds."""
    return edge.node not in graph.input_names and graph.constant_of(edge) is not None


def _layer(graph: Graph, node: Node, depth: int) -> Found:
    """Convolutions and matrix products: their weights are scaled, and a BiasAdd behind them shifts."""
    layer = find_layer(node)
    if layer is None:
        return Skip(f"{node.name} has a data_format whose channels are not told apart")
    if len(node.inputs) <= WEIGHTS_INDEX:
        return None
    edge = node.inputs[WEIGHTS_INDEX]
    if not is_constant(graph, edge):
        return Skip(not_constant(graph, edge.node, f"the weights of {node.name}"))
    weights = graph[edge.node]
    shape = weights.value.shape
    if weights.value.dtype not in FOLDED_TYPES or len(shape) != layer.weights_rank:
        return Skip(f"{described(weights)}, the weights of {node.name}, is not of a kind that is folded")
    shared = sharing_reason(graph, weights, node)
    if shared:
        return Skip(shared)

    def fold(affine: Affine, name: str) -> list[Node]:
        nodes = [node]
        if affine.scale is not None:
            factor = layer.reshape_for_weights(affine.scale, shape)
            nodes.insert(0, weights.with_attrs(value=scaled(weights.value, factor)))
        if affine.offset is not None:
            nodes.extend(_shifted(graph, node, affine.offset, weights.value.dtype, name))
        return nodes

    return Foldable(node.name, layer.num_channels(shape), layer.rank, layer.axis, weights.value.dtype, fold)


def _shifted(graph: Graph, layer: Node, offset: Array, dtype: DType, name: str) -> tuple[Node, Node]:
    """A constant, and a BiasAdd that adds it to a layer."""
    values = constant(free_name(graph, f"{layer.name}_bn_offset"), _cast(offset, dtype))
    attrs = {"T": dtype, "data_format": layer.attrs.get("data_format")}
    bias = Node(name, "BiasAdd", (Edge(layer.name), Edge(values.name)), device=layer.device)
    return values, bias.with_attrs(**attrs)


def _biased(graph: Graph, node: Node, depth: int) -> Found:
    """A constant added to a layer, or subtracted from it: it is scaled along, and takes the shift."""
    slot = bias_slot(graph, node)
    if slot is None:
        return None
    found = find_foldable(graph, node.inputs[1 - slot], node, depth + 1)
    if not isinstance(found, Foldable):
        return found
    bias = graph[node.inputs[slot].node]
    values = bias_values(found, node, bias)
    if values is None:
        return Skip(f"{described(bias)} is not one bias per channel of {found.name}")
    before = found

    def fold(affine: Affine, name: str) -> list[Node]:
        made = values if affine.scale is None else values * affine.scale
        if affine.offset is not None:
            made = made - affine.offset if node.op == "Sub" else made + affine.offset
        shape = bias.value.shape if bias.value.num_elements == made.size else _bias_shape(before, node)
        tensor = _cast(made.reshape(shape), before.dtype)
        is_own = not sharing_reason(graph, bias, node)
        kept = bias.with_attrs(value=tensor) if is_own else None
        new = kept or constant(free_name(graph, f"{node.name}_bn_offset"), tensor)
        scaled_layer = [] if affine.scale is None else before.fold(replace(affine, offset=None), "")
        source = Edge(scaled_layer[-1].name) if scaled_layer else node.inputs[1 - slot]
        return [*scaled_layer, new, node.with_input(1 - slot, source).with_input(slot, Edge(new.name))]

    return replace(found, name=node.name, fold=fold)


def bias_slot(graph: Graph, node: Node) -> int | None:
    """The input slot of the constant that a node adds; None: it adds none."""
    if len(node.inputs) != 2:
        return None
    slots = (1, 0) if node.op in ("Add", "AddV2") else (1,)
    return next((slot for slot in slots if is_constant(graph, node.inputs[slot])), None)


def bias_values(before: Foldable, node: Node, bias: Node) -> Array | None:
    """The constant that a node of `BIAS_OPS` adds, as (c,); None where it is not one value per channel."""
    if node.op != "BiasAdd":
        return before.per_channel(bias.value)
    fits = bias.value.shape == (before.num_channels,) and bias.value.dtype is before.dtype
    return bias.value.array if fits and channel_axis(node, before.rank) == before.axis else None


def bias_of_layer(graph: Graph, layer: Node, bias: Node) -> Array | None:
    """The constant that a BiasAdd, Add or AddV2 adds to a layer, or to what has its channels, as (c,).

    Args:
        graph: where both are.
        layer: whose weights are constant.
        bias: what adds.

    Returns:
        None where it adds something else: no constant, or one that is not the same everywhere.
    """
    slot, facts = bias_slot(graph, bias), find_layer(layer)
    if slot is None or facts is None or bias.op not in ("BiasAdd", "Add", "AddV2"):
        return None
    weights, value = graph.constant_of(layer.inputs[WEIGHTS_INDEX]), graph[bias.inputs[slot].node].value
    if weights is None or value.dtype is not weights.dtype:
        return None
    channels = facts.num_channels(weights.shape)
    if bias.op == "BiasAdd":
        fits = value.shape == (channels,) and channel_axis(bias, facts.rank) == facts.axis
        return value.array if fits else None
    return broadcast_channels(value, rank=facts.rank, axis=facts.axis, num_channels=channels)


def _bias_shape(before: Foldable, node: Node) -> tuple[int, ...]:
    """The shape of a vector that is added along the channels."""
    trailing = 0 if node.op == "BiasAdd" else before.rank - 1 - before.axis
    return (before.num_channels,) + (1,) * trailing


def _passed(graph: Graph, node: Node, depth: int) -> Found:
    """An op that passes its first input on."""
    found = find_foldable(graph, node.inputs[0], node, depth + 1) if node.inputs else None
    return _through(graph, node, found) if isinstance(found, Foldable) else found


def _batch_to_space(graph: Graph, node: Node, depth: int) -> Found:
    """BatchToSpaceND moves values between batch and space, and crops: channels keep what they have."""
    found = find_foldable(graph, node.inputs[0], node, depth + 1)
    if not isinstance(found, Foldable):
        return found
    blocks = graph.constant_of(node.inputs[1]) if is_constant(graph, node.inputs[1]) else None
    if blocks is None:
        return Skip(not_constant(graph, node.inputs[1].node, f"the block shape of {node.name}"))
    if blocks.num_elements >= found.axis:
        return Skip(f"{node.name} moves channels of {found.name} to the batch")
    return _through(graph, node, found)


def _reshaped(graph: Graph, node: Node, depth: int) -> Found:
    """A Reshape that keeps the last dimension keeps the channels there."""
    found = find_foldable(graph, node.inputs[0], node, depth + 1)
    if not isinstance(found, Foldable):
        return found
    if not is_constant(graph, node.inputs[1]):
        return Skip(not_constant(graph, node.inputs[1].node, f"the shape of {node.name}"))
    shape = graph[node.inputs[1].node].value.array.reshape(-1).tolist()
    if found.axis != found.rank - 1 or not shape or shape[-1] != found.num_channels:
        return Skip(f"{node.name} (Reshape) mixes the channels of {found.name}")
    return replace(_through(graph, node, found), rank=len(shape), axis=len(shape) - 1)


def _through(graph: Graph, node: Node, found: Foldable) -> Foldable:
    """The same for the output of a node that lets scale and shift through."""

    def fold(affine: Affine, name: str) -> list[Node]:
        nodes = found.fold(affine, free_name(graph, f"{found.name}/biasadd"))
        return [*nodes, node.with_input(0, Edge(nodes[-1].name))]

    return replace(found, name=node.name, fold=fold)


def _concatenated(graph: Graph, node: Node, depth: int) -> Found:
    """Concatenated tensors: each takes its share, if every one can."""
    axis_slot = 0 if node.op == "Concat" else len(node.inputs) - 1
    slots = [slot for slot in range(len(node.inputs)) if slot != axis_slot]
    found = [find_foldable(graph, node.inputs[slot], node, depth + 1) for slot in slots]
    if all(one is None for one in found):
        return None
    parts: list[Foldable] = []
    for slot, one in zip(slots, found, strict=True):
        if isinstance(one, Skip):
            return one
        if one is None:
            source = graph[node.inputs[slot].node]
            return Skip(f"{node.name} also joins {source.name} ({source.op}), which is no layer that can be scaled")
        parts.append(one)
    if not is_constant(graph, node.inputs[axis_slot]):
        return Skip(not_constant(graph, node.inputs[axis_slot].node, f"the axis of {node.name}"))
    if graph[node.inputs[axis_slot].node].value.num_elements != 1:
        return Skip(f"the axis of {node.name} is not one number")
    first = parts[0]
    axis = int(graph[node.inputs[axis_slot].node].value.array.reshape(())) % first.rank
    is_along = axis == first.axis
    if any((one.rank, one.axis, one.dtype) != (first.rank, first.axis, first.dtype) for one in parts) or (
        not is_along and any(one.num_channels != first.num_channels for one in parts)
    ):
        return Skip(f"{node.name} joins layers whose channels differ")

    def fold(affine: Affine, name: str) -> list[Node]:
        nodes: list[Node] = []
        joined = node
        start = 0
        for place, (slot, one) in enumerate(zip(slots, parts, strict=True)):
            share = affine.part(start, start + one.num_channels) if is_along else affine
            nodes.extend(one.fold(share, free_name(graph, f"{node.name}_bn_in{place}")))
            joined = joined.with_input(slot, Edge(nodes[-1].name))
            start += one.num_channels
        return [*nodes, joined]

    total = sum(one.num_channels for one in parts) if is_along else first.num_channels
    return replace(first, name=node.name, num_channels=total, fold=fold)


def scaled(weights: Tensor, factor: Array) -> Tensor:
    """Weights times a factor that broadcasts to them, rounded to their own type.

    Large products are computed when they are read, so that folding a network holds no second copy of it.
    """

    def load() -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return (weights.array * factor).astype(weights.dtype.numpy, copy=False)

    product = Tensor(weights.dtype, weights.shape, load)
    if product.num_bytes <= CACHE_LIMIT_BYTES:
        _ = product.array  # kept from here on: a chain of small products must not grow
    return product


def _cast(values: Array, dtype: DType) -> Tensor:
    return Tensor.of(values.astype(dtype.numpy, copy=False), dtype)


_FORMS: dict[str, Callable[[Graph, Node, int], Found]] = {
    **dict.fromkeys(LAYER_OPS, _layer),
    **dict.fromkeys(BIAS_OPS, _biased),
    **dict.fromkeys(("Identity", "CheckNumerics"), _passed),
    **dict.fromkeys(("Concat", "ConcatV2"), _concatenated),
    "BatchToSpaceND": _batch_to_space,
    "Reshape": _reshaped,
}
