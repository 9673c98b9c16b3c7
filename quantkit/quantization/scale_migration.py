"""Migration of channel scales from activations to weights in ONNX graphs, exact in float (SmoothQuant, equalization).

    (x / s) (s W) = x W           s = max |x|^e / max |W|^(1 - e) of each input channel, with a strength e

All channels of a tensor have one quantization scale, so that a few large channels leave few quantized values for the
others. Their size moves into the weights of the matrix products and convolutions that consume the tensor. The division
is folded into the constants that produce the tensor: the scale of a normalization, or the weights of the layer before
it. Where float nodes use the tensor, too, such as the residual after a normalization, or no constants can be divided, a
Mul before the matrix products divides it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quantkit.errors import InputError
from quantkit.ir.graph import Edge, Graph, Node, Use
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.ops.roles import find_roles
from quantkit.ops.roles.onnx import BIAS_INDEX
from quantkit.ops.table import Fact, find_ops
from quantkit.quantization.calibration import open_calibration_session
from quantkit.quantization.calibration.observation import channels_first_edges, tensor_name
from quantkit.quantization.observers import create_observer
from quantkit.quantization.observers.error_search import histogram_sqnr
from quantkit.quantization.observers.histogram import HistogramObserver
from quantkit.quantization.plan import Plan
from quantkit.quantization.precision import policy
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.significant_bits import round_range, round_scales

Floats = npt.NDArray[np.float64]
PRODUCTS = find_ops(Fact.PRODUCT, "onnx")
# Ops with f(x / s) = f(x) / s for s > 0.
HOMOGENEOUS_OPS = find_ops(Fact.HOMOGENEOUS, "onnx")


def find_scales(
    graph: Graph, plan: Plan, ranges: Ranges, strength: float = 0.5, *, inserts: bool = False
) -> dict[Edge, tuple[float, ...]]:
    """Return the scale of each channel, (c,), of all inputs of layers whose scales can migrate and differ much.

    Args:
        graph: float ONNX graph.
        plan: plan of ``graph``.
        ranges: with `Ranges.channel_maxima`.
        strength: exponent of the largest activations, between 0 and 1.
        inserts: also where a Mul has to divide the tensor.
    """
    edges = dict.fromkeys(pattern.input for pattern in plan.patterns if pattern.weights)
    scales = {}
    for edge in edges:
        can_insert = inserts and _are_float(_other_nodes(graph, edge), plan)
        scale = _find_scale(graph, edge, ranges, strength, can_insert=can_insert)
        if scale is not None:
            scales[edge] = scale
    return {
        edge: tuple(scale.tolist())
        for edge, scale in scales.items()
        if all(len(plan.group_of(divided)) == 1 for divided in _find_divided(graph, edge, scale.size))
    }


def with_channel_maxima(
    graph: Graph, plan: Plan, ranges: Ranges, runs: Iterable[Mapping[str, Array]], runtime: str
) -> Ranges:
    """Return the ranges with the largest values of channels of all runs; the calibration observes the first ones only.

    Args:
        graph: float ONNX graph.
        plan: plan of ``graph``.
        ranges: with `Ranges.channel_maxima`.
        runs: feeds of the float graph.
        runtime: runtime of the float graph, or ``auto``.

    Raises:
        UnavailableError, GraphError: the runtime cannot run the graph.
    """
    names = {edge: tensor_name(graph, edge) for edge in ranges.channel_maxima}
    maxima = dict(ranges.channel_maxima)
    channels_first = channels_first_edges(graph, plan)
    with open_calibration_session(graph, plan, runtime) as session:
        for feeds in runs:
            outputs = session.run(feeds)
            for edge, largest in maxima.items():
                values = outputs.get(names[edge], largest)
                rows = np.moveaxis(values, 1, -1) if edge in channels_first and values.ndim > 1 else values
                if rows.shape[-1:] == largest.shape:
                    maxima[edge] = np.maximum(largest, np.abs(rows).reshape(-1, largest.size).max(0, initial=0))
    return replace(ranges, channel_maxima=maxima)


def with_migrated_scales(
    graph: Graph,
    plan: Plan,
    ranges: Ranges,
    scales: Mapping[Edge, tuple[float, ...]],
    runs: Iterable[Mapping[str, Array]],
    runtime: str,
) -> Ranges:
    """Return the ranges with the scales, and with new observations of the divided edges.

    Args:
        graph: float ONNX graph.
        plan: plan of ``graph``.
        ranges: ranges of every edge of the plan.
        scales: scale of each channel, (c,), by edge.
        runs: feeds of the float graph.
        runtime: runtime of the float graph, or ``auto``.

    Raises:
        UnavailableError, GraphError: the runtime cannot run the graph.
    """
    divisors = {
        divided: np.asarray(values)
        for edge, values in scales.items()
        for divided in _find_divided(graph, edge, len(values))
    }
    observed = observe_again(graph, plan, replace(ranges, scales=scales), divisors, runs, runtime)
    means = {edge: np.asarray(ranges.means[edge]) / values for edge, values in divisors.items() if edge in ranges.means}
    maxima = {
        edge: ranges.channel_maxima[edge] / values for edge, values in divisors.items() if edge in ranges.channel_maxima
    }
    return replace(
        observed,
        means={**ranges.means, **{edge: tuple(values.tolist()) for edge, values in means.items()}},
        channel_maxima={**ranges.channel_maxima, **maxima},
    )


def observe_again(
    graph: Graph, plan: Plan, ranges: Ranges, edges: Iterable[Edge], runs: Iterable[Mapping[str, Array]], runtime: str
) -> Ranges:
    """Return the ranges with new ranges of some edges, in the number formats of a plan.

    Args:
        graph: float ONNX graph before the migration of the scales of ``ranges``.
        plan: plan of ``graph``.
        ranges: ranges of every edge of the plan.
        edges: edges to observe; those that the plan does not quantize are omitted.
        runs: feeds of the float graph.
        runtime: runtime of the float graph, or ``auto``.

    Raises:
        UnavailableError, GraphError: the runtime cannot run the graph.
    """
    graph = migrate_scales(graph, ranges.scales)
    observers = {
        edge: create_observer(plan.scheme.observer, plan.activations[edge])
        for edge in edges
        if edge in plan.activations
    }
    with open_calibration_session(graph, plan, runtime) as session:
        for feeds in runs:
            values = {**feeds, **session.run(feeds)}
            for edge, observer in observers.items():
                observer.observe(values[tensor_name(graph, edge)])
    limits = {edge: round_range(observer.range()) for edge, observer in observers.items()}
    sqnr = {
        edge: histogram_sqnr(observer, plan.activations[edge], limits[edge])
        for edge, observer in observers.items()
        if isinstance(observer, HistogramObserver)
    }
    return replace(ranges, ranges={**ranges, **limits}, sqnr={**ranges.sqnr, **sqnr})


def migrate_scales(graph: Graph, scales: Mapping[Edge, tuple[float, ...]]) -> Graph:
    """Return an equal graph whose edges are divided by the scales of their channels.

    Args:
        graph: float ONNX graph.
        scales: scale of each channel, (c,), by edge.

    Raises:
        InputError: the scales do not fit the graph.
    """
    for edge, values in scales.items():
        scale = np.asarray(values)
        changes = _move(graph, edge, scale)
        migrated = _insert(graph, edge, scale) if changes is None else _with_values(graph, changes)
        if migrated is None:
            raise InputError(
                f"the scales of edge {str(edge)!r} cannot move into weights", hint="calibrate again, for this graph"
            )
        graph = migrated
    return graph


def _find_scale(graph: Graph, edge: Edge, ranges: Ranges, strength: float, *, can_insert: bool) -> Floats | None:
    """Return the scale of each channel of an edge; None if the scales cannot migrate, or differ little."""
    maxima = np.asarray(ranges.channel_maxima.get(edge, ()), np.float64)
    if not maxima.size or not np.isfinite(maxima).all() or maxima.max() < policy.MIN_CHANNEL_RATIO * np.median(maxima):
        return None
    neutral = np.ones(maxima.size)
    if _move(graph, edge, neutral) is None and (not can_insert or _insert(graph, edge, neutral) is None):
        return None
    layers = {use.node.name: use.node for use in _weight_uses(graph, edge)}
    sizes = np.max([_input_maxima(graph, layer, maxima.size) for layer in layers.values()], axis=0)
    scale = np.ones(maxima.size)
    used = (maxima > 0) & (sizes > 0)
    scale[used] = maxima[used] ** strength / sizes[used] ** (1 - strength)
    scale[used] = (
        np.clip(scale[used] / np.median(scale[used]), 1 / policy.MAX_SCALE, policy.MAX_SCALE) if used.any() else 1.0
    )
    return round_scales(scale)


def _move(graph: Graph, edge: Edge, scale: Floats) -> dict[str, Array] | None:
    """Return the new constants before and after an edge that divide it by the scales; None if no constants can."""
    multiplied = _multiply_weights(graph, edge, scale)
    are_convolutions = {node.op == "Conv" for node in graph.consumers(edge)}
    if multiplied is None or len(are_convolutions) != 1:
        return None
    divided = _divide(graph, edge, scale, channels_first=are_convolutions.pop())
    return None if divided is None else {**divided, **multiplied}


def _insert(graph: Graph, edge: Edge, scale: Floats) -> Graph | None:
    """Return the graph with a Mul that divides an edge before its matrix products; None if they cannot be scaled.

    The Mul takes the name of the edge, so that plan and ranges of the layers stay valid. The other consumers of the
    edge get its undivided values under a new name.
    """
    uses = _weight_uses(graph, edge)
    is_bound = edge.node in graph.endpoint_names or edge.port
    if not uses or is_bound or any(use.node.op not in PRODUCTS for use in uses):
        return None
    if any(use.slot < 0 or use.node.inputs[use.slot] != edge for use in graph.node_uses[edge.node]):
        return None  # a subgraph uses the edge, or a node another output of its producer
    changes = _multiply_layers(graph, uses, scale)
    if changes is None:
        return None
    graph = _with_values(graph, changes)
    undivided, factors = (free_name(graph, f"{edge.node}/{suffix}") for suffix in ("undivided", "factors"))
    nodes = dict(graph.nodes)
    producer = nodes.pop(edge.node)
    layers = {use.node.name for use in uses}
    for use in graph.uses[edge]:
        if use.node.name not in layers:
            nodes[use.node.name] = nodes[use.node.name].with_input(use.slot, undivided)
    nodes[undivided] = producer.with_(name=undivided)
    nodes[factors] = Node(factors, "Constant", attrs={"value": Tensor.of((1 / scale).astype(np.float32))})
    nodes[edge.node] = Node(edge.node, "Mul", (Edge(undivided), Edge(factors)))
    return graph.with_nodes(nodes.values())


def _weight_uses(graph: Graph, edge: Edge) -> tuple[Use, ...]:
    """Return the uses of an edge as the input of a layer with weights of its own."""
    return tuple(
        use
        for use in graph.uses.get(edge, ())
        if not use.slot
        and (weights := _own_constant(graph, use.node, WEIGHTS_INDEX)) is not None
        and _input_axis(use.node, weights) is not None
    )


def _other_nodes(graph: Graph, edge: Edge) -> list[str]:
    """Return the producer of an edge, and its consumers that are not layers with weights."""
    layers = {use.node.name for use in _weight_uses(graph, edge)}
    return [edge.node, *(node.name for node in graph.consumers(edge) if node.name not in layers)]


def _are_float(names: Iterable[str], plan: Plan) -> bool:
    return not any(name in plan.pattern_of or name in plan.pass_through for name in names)


def _find_divided(graph: Graph, edge: Edge, channels: int) -> set[Edge]:
    """Return the edges that a migration divides: an edge, and those between it and the changed constants before it."""
    channels_first = all(node.op == "Conv" for node in graph.consumers(edge))
    divided = {edge}
    # Each constant and each edge before the scaled one has a single consumer.
    for name in _divide(graph, edge, np.ones(channels), channels_first=channels_first) or ():
        (node,) = graph.consumers(Edge(name))
        while node.name != edge.node:
            divided.add(Edge(node.name))
            (node,) = graph.consumers(Edge(node.name))
    return divided


def _input_maxima(graph: Graph, layer: Node, channels: int) -> Floats:
    """Return the largest absolute weight of each input channel of a layer, (c,)."""
    weights = graph[layer.inputs[WEIGHTS_INDEX].node].value
    axis = _input_axis(layer, weights)
    assert axis is not None, "the layer has an axis of input channels"
    maxima: Floats = np.abs(np.moveaxis(weights.array, axis, 0).reshape(channels, -1)).max(1).astype(np.float64)
    return maxima


def _multiply_weights(graph: Graph, edge: Edge, scale: Floats) -> dict[str, Array] | None:
    """Return the new weights of all consumers of an edge; None if one is not a layer with weights of its own."""
    uses = _weight_uses(graph, edge)
    if edge in graph.outputs or not uses or len(uses) != len(graph.uses[edge]):
        return None
    return _multiply_layers(graph, uses, scale)


def _multiply_layers(graph: Graph, uses: Iterable[Use], scale: Floats) -> dict[str, Array] | None:
    """Return the new weights of layers; None if one has another number of input channels."""
    changes: dict[str, Array] = {}
    for use in uses:
        weights = graph[use.node.inputs[WEIGHTS_INDEX].node].value
        axis = _input_axis(use.node, weights)
        assert axis is not None, "the layer has an axis of input channels"
        # A depthwise convolution has the same number of outputs for each channel, one after the other.
        is_depthwise = use.node.op == "Conv" and axis == 0
        factors = np.repeat(scale, weights.shape[0] // scale.size) if is_depthwise else scale
        if weights.shape[axis] != factors.size:
            return None
        changes[use.node.inputs[WEIGHTS_INDEX].node] = weights.array * _along(axis, factors, weights)
    return changes


def _input_axis(layer: Node, weights: Tensor) -> int | None:
    """Return the axis of the weights with the input channels of a layer; None for other layers."""
    if layer.op == "Conv":
        group = layer.attrs.get("group", 1)
        if group == 1:
            return 1
        return 0 if weights.shape[1] == 1 else None
    if layer.op not in PRODUCTS or layer.attrs.get("transA") or len(weights.shape) != 2:
        return None
    return 1 if layer.attrs.get("transB") else 0


def _along(axis: int, factors: Floats, weights: Tensor) -> Floats:
    """Return factors in a shape that multiplies an axis of the weights."""
    return factors.reshape([-1 if number == axis else 1 for number in range(len(weights.shape))])


def _divide(graph: Graph, edge: Edge, scale: Floats, *, channels_first: bool) -> dict[str, Array] | None:
    """Return the new constants that divide an edge by the scales; None if the constants before it cannot.

    Args:
        graph: graph of the edge.
        edge: edge to divide.
        scale: scale of each channel, (c,).
        channels_first: True for the channels of convolutions, axis 1; False for the last axis.
    """
    node = graph[edge.node]
    if edge.port or edge in graph.outputs or not find_roles(graph).is_valid(node):
        return None
    if node.op in HOMOGENEOUS_OPS:
        return _divide_operand(graph, node, 0, scale, channels_first=channels_first)
    if channels_first:
        return _divide_layer(graph, node, scale) if node.op == "Conv" else None
    if node.op == "LayerNormalization":
        return _divide_constants(graph, node, range(1, len(node.inputs)), scale)
    if node.op in PRODUCTS:
        return _divide_layer(graph, node, scale)
    if node.op not in ("Add", "Mul") or len(node.inputs) != 2:
        return None
    constants = [slot for slot in (0, 1) if graph.constant_of(node.inputs[slot]) is not None]
    if not constants:
        if node.op != "Mul":
            return None
        attempts = (_divide_operand(graph, node, slot, scale, channels_first=False) for slot in (0, 1))
        return next((changes for changes in attempts if changes is not None), None)
    changes = _divide_constants(graph, node, constants[:1], scale)
    if node.op == "Mul" or changes is None:
        return changes
    rest = _divide_operand(graph, node, 1 - constants[0], scale, channels_first=False)
    return None if rest is None else {**changes, **rest}


def _divide_operand(
    graph: Graph, node: Node, slot: int, scale: Floats, *, channels_first: bool
) -> dict[str, Array] | None:
    edge = node.inputs[slot]
    return _divide(graph, edge, scale, channels_first=channels_first) if len(graph.uses[edge]) == 1 else None


def _divide_layer(graph: Graph, node: Node, scale: Floats) -> dict[str, Array] | None:
    weights = _own_constant(graph, node, WEIGHTS_INDEX)
    axis = 0 if node.op == "Conv" or node.attrs.get("transB") else 1
    if (
        weights is None
        or (node.op != "Conv" and len(weights.shape) != 2)
        or weights.shape[axis] != scale.size
        or node.attrs.get("beta", 1) != 1
    ):
        return None
    divided = weights.array / _along(axis, scale, weights)
    changes: dict[str, Array] | None = {}
    if len(node.inputs) > BIAS_INDEX and node.inputs[BIAS_INDEX].node:
        changes = _divide_constants(graph, node, [BIAS_INDEX], scale)
    return None if changes is None else {node.inputs[WEIGHTS_INDEX].node: divided, **changes}


def _divide_constants(graph: Graph, node: Node, slots: Iterable[int], scale: Floats) -> dict[str, Array] | None:
    """Return the divided vectors at inputs of a node; None if one is shared or has another size than the channels."""
    changes: dict[str, Array] = {}
    for slot in slots:
        value = _own_constant(graph, node, slot)
        if value is None or value.num_elements != scale.size or value.shape[-1] != scale.size:
            return None
        changes[node.inputs[slot].node] = value.array / scale
    return changes


def _own_constant(graph: Graph, node: Node, slot: int) -> Tensor | None:
    """Return the float constant at an input of a node; None if it has other consumers."""
    if slot >= len(node.inputs):
        return None
    edge = node.inputs[slot]
    value = graph.constant_of(edge)
    is_own = value is not None and value.dtype is DType.FLOAT and len(graph.uses[edge]) == 1
    return value if is_own and edge.node not in graph.endpoint_names else None


def _with_values(graph: Graph, values: Mapping[str, Array]) -> Graph:
    return graph.with_values({name: Tensor.of(value.astype(np.float32)) for name, value in values.items()})
