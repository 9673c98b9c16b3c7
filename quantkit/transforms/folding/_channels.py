"""Fold a scale and an offset per channel into the layers before them.

    (x * W) s + o        ==  x * (W s) + o
    (x * W + b) s + o    ==  x * (W s) + (b s + o)
    concat(y1, y2) s     ==  concat(y1 s1, y2 s2)

Ops that move values but do not mix channels are passed through: concat, BatchToSpaceND, Identity,
and a Reshape that keeps the last dimension.
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
# Limits of the upstream search, which keep the run time linear. Layers of networks are closer.
MAX_DEPTH = 16
MAX_ANCESTORS = 64


@dataclass(frozen=True)
class Affine:
    """Per-channel map ``y scale + offset``; None omits the scale or the offset.

    Attributes:
        scale: (c,).
        offset: (c,).
    """

    scale: Array | None = None
    offset: Array | None = None

    def part(self, start: int, stop: int) -> "Affine":
        """Return the map of a range of the channels."""
        return Affine(*(None if values is None else values[start:stop] for values in (self.scale, self.offset)))


@dataclass(frozen=True)
class Foldable:
    """Tensor whose channels can be scaled and shifted by changing constants upstream of it.

    Attributes:
        name: name of the producer.
        num_channels: number of channels.
        rank: number of dimensions.
        axis: dimension of the channels.
        dtype: element type.
        fold: function of an `Affine` and the name of a possible new BiasAdd; returns the changed
            nodes, of which the last produces the new tensor.
    """

    name: str
    num_channels: int
    rank: int
    axis: int
    dtype: DType
    fold: Callable[[Affine, str], list[Node]]

    def per_channel(self, tensor: Tensor) -> Array | None:
        """Return a constant operand as (c,); None if it is not one value per channel."""
        if tensor.dtype is not self.dtype:
            return None
        return broadcast_channels(tensor, rank=self.rank, axis=self.axis, num_channels=self.num_channels)


# Foldable tensor, or the reason why folding is impossible, or None if no layer is upstream.
FoldTarget = Foldable | Skip | None


def find_foldable(graph: Graph, edge: Edge, consumer: Node, depth: int = 0) -> FoldTarget:
    """Return the target into which a scale of ``edge`` can be folded.

    Args:
        graph: graph of the edge.
        edge: scaled tensor.
        consumer: node that scales the tensor; other consumers prevent folding.
        depth: number of nodes passed through so far.
    """
    node = graph.nodes.get(edge.node)
    if node is None or edge.port or node.op not in _FINDERS or depth == MAX_DEPTH:
        return None
    target = _FINDERS[node.op](graph, node, depth)
    if isinstance(target, Foldable):
        shared = sharing_reason(graph, node, consumer)
        return Skip(shared) if shared else target
    return target


def describe_constant(constant: Node) -> str:
    """Return the name, the element type and the shape of a constant."""
    return f"{constant.name} ({constant.value.dtype.value} {Shape(constant.value.shape)})"


def explain_not_constant(graph: Graph, name: str, role: str) -> str:
    """Return the reason why an operand is not constant, with a hint if constant folding helps.

    Args:
        graph: graph of the node.
        name: name of the node.
        role: role of the node, for example ``the weights of conv``.
    """
    node = graph[name]
    clause = f"{name} ({node.op}), {role}, is not constant"
    if name in graph.input_names:
        return f"{name}, {role}, is a graph input"
    return f"{clause}: run fold_constants first" if is_computed_from_constants(graph, name) else clause


def is_computed_from_constants(graph: Graph, name: str) -> bool:
    """Return True if all ancestors of a node are constants, at most `MAX_ANCESTORS`."""
    visited: set[str] = set()
    stack = [name]
    while stack:
        node = graph.nodes.get(stack.pop())
        if node is None or node.name in graph.input_names or not (node.inputs or node.is_constant):
            return False
        if node.name not in visited:
            visited.add(node.name)
            stack.extend(edge.node for edge in node.inputs)
        if len(visited) > MAX_ANCESTORS:
            return False
    return True


def is_constant(graph: Graph, edge: Edge) -> bool:
    """Return True if an edge is the output of a constant that is not a graph input."""
    return edge.node not in graph.input_names and graph.constant_of(edge) is not None


def _find_layer(graph: Graph, node: Node, depth: int) -> FoldTarget:
    """Return the target of a layer: the scale goes to the weights, the offset to a new BiasAdd."""
    layer = find_layer(node)
    if layer is None:
        return Skip(f"the data_format of {node.name} has no separate channel dimension")
    if len(node.inputs) <= WEIGHTS_INDEX:
        return None
    edge = node.inputs[WEIGHTS_INDEX]
    if not is_constant(graph, edge):
        return Skip(explain_not_constant(graph, edge.node, f"the weights of {node.name}"))
    weights = graph[edge.node]
    shape = weights.value.shape
    if weights.value.dtype not in FOLDED_TYPES or len(shape) != layer.weights_rank:
        return Skip(f"{describe_constant(weights)}, the weights of {node.name}: unsupported element type or rank")
    shared = sharing_reason(graph, weights, node)
    if shared:
        return Skip(shared)

    def fold(affine: Affine, name: str) -> list[Node]:
        nodes = [node]
        if affine.scale is not None:
            factor = layer.reshape_for_weights(affine.scale, shape)
            nodes.insert(0, weights.with_attrs(value=scale_weights(weights.value, factor)))
        if affine.offset is not None:
            nodes.extend(_add_offset(graph, node, affine.offset, weights.value.dtype, name))
        return nodes

    return Foldable(node.name, layer.num_channels(shape), layer.rank, layer.axis, weights.value.dtype, fold)


def _add_offset(graph: Graph, layer: Node, offset: Array, dtype: DType, name: str) -> tuple[Node, Node]:
    """Return a constant, and a BiasAdd that adds it to a layer."""
    values = constant(free_name(graph, f"{layer.name}_bn_offset"), _cast(offset, dtype))
    bias = Node(name, "BiasAdd", (Edge(layer.name), Edge(values.name)), device=layer.device)
    return values, bias.with_attrs(T=dtype, data_format=layer.attrs.get("data_format"))


def _find_biased_layer(graph: Graph, node: Node, depth: int) -> FoldTarget:
    """Return the target of a layer with a bias, which is scaled too, and takes the offset."""
    slot = bias_slot(graph, node)
    if slot is None:
        return None
    target = find_foldable(graph, node.inputs[1 - slot], node, depth + 1)
    if not isinstance(target, Foldable):
        return target
    layer = target
    bias = graph[node.inputs[slot].node]
    values = bias_values(layer, node, bias)
    if values is None:
        return Skip(f"{describe_constant(bias)} is not one bias per channel of {layer.name}")

    def fold(affine: Affine, name: str) -> list[Node]:
        new_values = values if affine.scale is None else values * affine.scale
        if affine.offset is not None:
            new_values = new_values - affine.offset if node.op == "Sub" else new_values + affine.offset
        has_same_size = bias.value.num_elements == new_values.size
        shape = bias.value.shape if has_same_size else _bias_shape(layer, node)
        tensor = _cast(new_values.reshape(shape), layer.dtype)
        if sharing_reason(graph, bias, node):
            new_bias = constant(free_name(graph, f"{node.name}_bn_offset"), tensor)
        else:
            new_bias = bias.with_attrs(value=tensor)
        scaled_layer = [] if affine.scale is None else layer.fold(replace(affine, offset=None), "")
        source = Edge(scaled_layer[-1].name) if scaled_layer else node.inputs[1 - slot]
        return [*scaled_layer, new_bias, node.with_input(1 - slot, source).with_input(slot, Edge(new_bias.name))]

    return replace(layer, name=node.name, fold=fold)


def bias_slot(graph: Graph, node: Node) -> int | None:
    """Return the input index of the constant that a node adds; None if no operand is constant."""
    if len(node.inputs) != 2:
        return None
    slots = (1, 0) if node.op in ("Add", "AddV2") else (1,)
    return next((slot for slot in slots if is_constant(graph, node.inputs[slot])), None)


def bias_values(layer: Foldable, node: Node, bias: Node) -> Array | None:
    """Return the constant of a node of `BIAS_OPS` as (c,); None if not one value per channel."""
    if node.op != "BiasAdd":
        return layer.per_channel(bias.value)
    fits = bias.value.shape == (layer.num_channels,) and bias.value.dtype is layer.dtype
    return bias.value.array if fits and channel_axis(node, layer.rank) == layer.axis else None


def bias_of_layer(graph: Graph, layer: Node, bias: Node) -> Array | None:
    """Return the constant that a BiasAdd, Add or AddV2 adds along the channels of a layer, as (c,).

    Args:
        graph: graph of both nodes.
        layer: layer with constant weights.
        bias: node that adds the constant to the layer, or to a tensor with the channels of the
            layer.

    Returns:
        None if no operand is constant, or the constant is not one value per channel.
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


def _bias_shape(layer: Foldable, node: Node) -> tuple[int, ...]:
    """Return the shape of a bias that broadcasts along the channels."""
    trailing = 0 if node.op == "BiasAdd" else layer.rank - 1 - layer.axis
    return (layer.num_channels,) + (1,) * trailing


def _find_before_identity(graph: Graph, node: Node, depth: int) -> FoldTarget:
    """Return the target upstream of an op whose output equals its first input."""
    target = find_foldable(graph, node.inputs[0], node, depth + 1) if node.inputs else None
    return _pass_through(graph, node, target) if isinstance(target, Foldable) else target


def _find_before_batch_to_space(graph: Graph, node: Node, depth: int) -> FoldTarget:
    """Return the target upstream of BatchToSpaceND, which does not mix channels."""
    target = find_foldable(graph, node.inputs[0], node, depth + 1)
    if not isinstance(target, Foldable):
        return target
    blocks = graph.constant_of(node.inputs[1]) if is_constant(graph, node.inputs[1]) else None
    if blocks is None:
        return Skip(explain_not_constant(graph, node.inputs[1].node, f"the block shape of {node.name}"))
    if blocks.num_elements >= target.axis:
        return Skip(f"{node.name} moves channels of {target.name} to the batch")
    return _pass_through(graph, node, target)


def _find_before_reshape(graph: Graph, node: Node, depth: int) -> FoldTarget:
    """Return the target upstream of a Reshape that keeps the last dimension, the channels."""
    target = find_foldable(graph, node.inputs[0], node, depth + 1)
    if not isinstance(target, Foldable):
        return target
    if not is_constant(graph, node.inputs[1]):
        return Skip(explain_not_constant(graph, node.inputs[1].node, f"the shape of {node.name}"))
    shape = graph[node.inputs[1].node].value.array.reshape(-1).tolist()
    if target.axis != target.rank - 1 or not shape or shape[-1] != target.num_channels:
        return Skip(f"{node.name} (Reshape) mixes the channels of {target.name}")
    return replace(_pass_through(graph, node, target), rank=len(shape), axis=len(shape) - 1)


def _pass_through(graph: Graph, node: Node, target: Foldable) -> Foldable:
    """Return the target as seen after a node that does not mix channels."""

    def fold(affine: Affine, name: str) -> list[Node]:
        nodes = target.fold(affine, free_name(graph, f"{target.name}/biasadd"))
        return [*nodes, node.with_input(0, Edge(nodes[-1].name))]

    return replace(target, name=node.name, fold=fold)


def _find_before_concat(graph: Graph, node: Node, depth: int) -> FoldTarget:
    """Return the target of a concat, of which every input takes its range of the channels."""
    axis_slot = 0 if node.op == "Concat" else len(node.inputs) - 1
    slots = [slot for slot in range(len(node.inputs)) if slot != axis_slot]
    targets = [find_foldable(graph, node.inputs[slot], node, depth + 1) for slot in slots]
    if all(target is None for target in targets):
        return None
    parts: list[Foldable] = []
    for slot, target in zip(slots, targets, strict=True):
        if isinstance(target, Skip):
            return target
        if target is None:
            source = graph[node.inputs[slot].node]
            return Skip(f"{node.name} also concatenates {source.name} ({source.op}), which has no weights to scale")
        parts.append(target)
    if not is_constant(graph, node.inputs[axis_slot]):
        return Skip(explain_not_constant(graph, node.inputs[axis_slot].node, f"the axis of {node.name}"))
    if graph[node.inputs[axis_slot].node].value.num_elements != 1:
        return Skip(f"the axis of {node.name} is not one number")
    first = parts[0]
    axis = int(graph[node.inputs[axis_slot].node].value.array.reshape(())) % first.rank
    is_along = axis == first.axis
    if any((part.rank, part.axis, part.dtype) != (first.rank, first.axis, first.dtype) for part in parts) or (
        not is_along and any(part.num_channels != first.num_channels for part in parts)
    ):
        return Skip(f"{node.name} concatenates layers with different channels")

    def fold(affine: Affine, name: str) -> list[Node]:
        nodes: list[Node] = []
        concat = node
        start = 0
        for number, (slot, part) in enumerate(zip(slots, parts, strict=True)):
            part_affine = affine.part(start, start + part.num_channels) if is_along else affine
            nodes.extend(part.fold(part_affine, free_name(graph, f"{node.name}_bn_in{number}")))
            concat = concat.with_input(slot, Edge(nodes[-1].name))
            start += part.num_channels
        return [*nodes, concat]

    total = sum(part.num_channels for part in parts) if is_along else first.num_channels
    return replace(first, name=node.name, num_channels=total, fold=fold)


def scale_weights(weights: Tensor, factor: Array) -> Tensor:
    """Return the product of weights and a factor that broadcasts, in the type of the weights.

    Large products are computed on access, so that folding a network does not hold a second copy of
    its weights.
    """

    def load() -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return (weights.array * factor).astype(weights.dtype.numpy, copy=False)

    product = Tensor(weights.dtype, weights.shape, load)
    if product.num_bytes <= CACHE_LIMIT_BYTES:
        _ = product.array  # caches the values, so that no chain of pending products grows
    return product


def _cast(values: Array, dtype: DType) -> Tensor:
    return Tensor.of(values.astype(dtype.numpy, copy=False), dtype)


_FINDERS: dict[str, Callable[[Graph, Node, int], FoldTarget]] = {
    **dict.fromkeys(LAYER_OPS, _find_layer),
    **dict.fromkeys(BIAS_OPS, _find_biased_layer),
    **dict.fromkeys(("Identity", "CheckNumerics"), _find_before_identity),
    **dict.fromkeys(("Concat", "ConcatV2"), _find_before_concat),
    "BatchToSpaceND": _find_before_batch_to_space,
    "Reshape": _find_before_reshape,
}
