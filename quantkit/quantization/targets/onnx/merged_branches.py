"""Convolutions of one int8 tensor with few channels each, such as the last layers of a detector."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from quantkit.formats import onnx
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import NewNodes, remove_unused
from quantkit.ir.tensor import Array
from quantkit.quantization.targets.onnx.first_layers import CHANNEL_BLOCK
from quantkit.quantization.targets.onnx.native import MAX_BIAS

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


class BranchLayer(NamedTuple):
    """Convolution with quantized weights and bias.

    Attributes:
        node: the Conv.
        weights: integers of the weights (channels, ...).
        scale: scale of the weights of each channel.
        bias: integers of the bias.
        bias_scale: scale of the bias of each channel.
        last: QuantizeLinear of the output, or ``node``.
        is_rectified: whether a Relu before ``last`` has no effect, as the zero point is the least integer.
        step: scale of the output; 1 for a float output.
        zero: zero point of the output; 0 for a float output.
    """

    node: Node
    weights: Array
    scale: Array
    bias: Array
    bias_scale: Array
    last: Node
    is_rectified: bool
    step: Array
    zero: Array

    @property
    def kind(self) -> tuple[object, ...]:
        """Properties that merged layers have in common."""
        attrs = sorted((name, value) for name, value in self.node.attrs.items() if name != "group")
        return self.weights.shape[1:], self.weights.dtype, self.last.op, self.is_rectified, self.zero.dtype, repr(attrs)


def merge_branches(graph: Graph) -> Graph:
    """Merge convolutions of the same int8 tensor, and the depthwise ones after them, into one with the channels of all.

        before:  x -> Conv_i -> QuantizeLinear_i -> DequantizeLinear_i -> depthwise Conv_i -> QuantizeLinear_i
        after:   x -> Conv -> QuantizeLinear -> DequantizeLinear -> depthwise Conv -> QuantizeLinear -> Split

    The scale of a merged output is 1: the scales s of the outputs of the branches move to the scales of the weights w
    and the biases b of their channels, the zero points z to the biases:

        w / s * (s of the layer before)        b / s + z - (z of the first branch)

    The last outputs keep their scales and zero points. Depthwise convolutions pad with the zero point: that of a tensor
    before them is the same one for all branches, whose ranges become wider.
    A runtime computes the channels of a convolution in blocks of 16, and has a fixed cost for each layer.

    Args:
        graph: quantized ONNX graph.
    """
    draft, branches = Draft(graph), defaultdict[object, list[BranchLayer]](list)
    for node in graph.nodes.values():
        if node.attrs.get("group", 1) == 1 and (layer := _find_layer(graph, node)) is not None:
            branches[node.inputs[0], layer.kind].append(layer)
    for layers in branches.values():
        if sum(len(layer.weights) for layer in layers) <= CHANNEL_BLOCK * (len(layers) - 1):
            draft.before(layers[0].node.name, *_merge(graph, draft, layers))
    return remove_unused(graph, draft.graph())


def _find_layer(graph: Graph, node: Node) -> BranchLayer | None:
    """Return a quantized convolution with fewer channels than a block; None for other nodes."""
    if node.op != "Conv" or len(node.inputs) != 3 or graph[node.inputs[0].node].op != DEQUANTIZE:
        return None
    constants = list[Array]()
    for edge in node.inputs[1:]:
        parameters = _read_constants(graph, graph[edge.node], DEQUANTIZE, 0)
        if len(parameters) != 3 or parameters[2].any() or len(parameters[0]) >= CHANNEL_BLOCK:
            return None
        constants += [parameters[0], np.broadcast_to(parameters[1], len(parameters[0]))]
    rectified = _follow(graph, node, "Relu", QUANTIZE)
    last = rectified or _follow(graph, node, QUANTIZE) or node
    output = (np.array(1, np.float32), np.array(0)) if last is node else _read_constants(graph, last, QUANTIZE, 1)
    if len(output) != 2 or output[0].size > 1 or last.name in graph.referenced_names:
        return None
    # Runtimes fuse an activation with the layer before it, which a Split between both prevents.
    is_fused = last is node and any(each.op in ("Relu", "Clip") for each in graph.consumers(node.name))
    if is_fused or (rectified is not None and output[1] != np.iinfo(output[1].dtype).min):
        return None
    weights, scale, bias, bias_scale = constants
    layer = BranchLayer(node, weights, scale, bias, bias_scale, last, rectified is not None, output[0], output[1])
    # Any zero point fits into the bias.
    return layer if (255 * layer.step / layer.bias_scale).max() < MAX_BIAS else None


def _read_constants(graph: Graph, node: Node, op: str, first: int) -> list[Array]:
    """Return the values of the constant inputs of a node with an op, from the index ``first``."""
    tensors = [graph.constant_of(edge) for edge in node.inputs[first:]] if node.op == op else []
    return [tensor.array for tensor in tensors if tensor is not None]


def _follow(graph: Graph, node: Node, *ops: str) -> Node | None:
    """Return the last of these ops after a node, each the only consumer of the one before; None for other ops."""
    for op in ops:
        consumers = graph.consumers(node.name)
        if len(consumers) != 1 or consumers[0].op != op or node.name in graph.referenced_names:
            return None
        node = consumers[0]
    return node


def _merge(graph: Graph, draft: Draft, layers: list[BranchLayer]) -> Iterator[Node]:
    """Yield the nodes of merged layers and of those after them, and redirect the consumers of the last outputs."""
    source, steps = layers[0].node.inputs[0], [np.ones((), np.float32) for _ in layers]
    scale = _read_constants(graph, graph[source.node], DEQUANTIZE, 1)[0]
    while following := _find_following(graph, layers):
        layers = _unify_zero_points(layers)
        nodes = _join(graph, layers, source, scale, steps)
        source = nodes.add("values", DEQUANTIZE, Edge(nodes[-1].name), *nodes[-1].inputs[1:])
        scale, steps = np.ones((), np.float32), [each.step for each in layers]
        yield from nodes
        layers = following
    nodes = _join(graph, layers, source, scale, steps)
    output = Edge(nodes[-1].name)
    sizes = nodes.constant("split/sizes", np.array([len(each.weights) for each in layers]))
    split = nodes.add("split", "Split", output, sizes, axis=1)
    parts = [split._replace(port=port) for port in range(len(layers))]
    nodes[-1] = nodes[-1].with_attrs(**{onnx.OUTPUTS: tuple(str(part).encode() for part in parts)})
    for layer, part in zip(layers, parts, strict=True):
        draft.redirect(layer.last.name, part)
    yield from nodes


def _find_following(graph: Graph, layers: Sequence[BranchLayer]) -> list[BranchLayer]:
    """Return the depthwise layer after each of the layers; empty for other nodes or different layers."""
    nodes = [_follow(graph, layer.last, DEQUANTIZE, "Conv") for layer in layers]
    following = [layer for node in nodes if node is not None and (layer := _find_layer(graph, node)) is not None]
    channels = [(each.node.attrs.get("group", 1), *each.weights.shape[:2]) for each in following]
    is_depthwise = channels == [(len(layer.weights), len(layer.weights), 1) for layer in layers]
    return following if is_depthwise and len({each.kind for each in following}) == 1 else []


def _unify_zero_points(layers: Sequence[BranchLayer]) -> list[BranchLayer]:
    """Return the layers with the zero point that widens their ranges least: the layers after them pad with it."""
    if len({int(each.zero) for each in layers}) == 1:
        return list(layers)
    low, high = (getattr(np.iinfo(layers[0].zero.dtype), name) for name in ("min", "max"))
    zeros, others = np.array([[int(each.zero)] for each in layers]), np.arange(low + 1, high)
    widths = np.maximum((zeros - low) / (others - low), (high - zeros) / (high - others))
    best = widths.max(0).argmin()
    return [
        each._replace(step=each.step * width, zero=others[best].astype(each.zero.dtype))
        for each, width in zip(layers, widths[:, best], strict=True)
    ]


def _join(graph: Graph, layers: Sequence[BranchLayer], source: Edge, scale: Array, steps: Sequence[Array]) -> NewNodes:
    """Return the nodes of one convolution for several, with the QuantizeLinear of its output.

    Args:
        graph: quantized graph.
        layers: convolutions to merge.
        source: input of the merged convolution.
        scale: scale of ``source``.
        steps: scales of the inputs of the convolutions, relative to ``scale``.
    """
    node, last, zero = layers[0].node, layers[0].last, layers[0].zero
    nodes = NewNodes(graph, f"{node.name}/branches")
    scales = np.concatenate([each.scale * step / each.step for each, step in zip(layers, steps, strict=True)])
    biases = [each.bias * (each.bias_scale / each.step) + (int(each.zero) - int(zero)) for each in layers]
    constants = {
        "weights": (np.concatenate([each.weights for each in layers]), scales),
        "bias": (np.rint(np.concatenate(biases) / (scales * scale)).astype(np.int32), scales * scale),
    }
    inputs = [source]
    for part, (integers, factors) in constants.items():
        parameters = nodes.constant(f"{part}/integers", integers), nodes.constant(f"{part}/scale", np.float32(factors))
        inputs.append(nodes.add(part, DEQUANTIZE, *parameters, axis=0))
    group = 1 if source == node.inputs[0] else len(scales)
    real = nodes.add("real", node.op, *inputs, **{**node.attrs, "group": group})
    nodes[-1] = nodes[-1].with_(extra=node.extra)
    if last is not node:
        nodes.add("integers", QUANTIZE, real, nodes.constant("step", np.float32(1)), nodes.constant("zero", zero))
    return nodes
