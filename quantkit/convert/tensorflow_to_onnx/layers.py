"""Conversion of layers, pools and batch norms; explicit paddings are computed from static sizes.

SAME:  total = max((ceil(size / stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
       before = total // 2, after = total - before
"""

from collections.abc import Mapping, Sequence

from quantkit.convert.layouts import transpose_tensor
from quantkit.convert.tensorflow_to_onnx.translator import (
    PLAIN,
    Translator,
    conversion_error,
    converts,
    is_channels_first,
)
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.kernels import evaluate
from quantkit.ops.layers import same_padding
from quantkit.ops.onnx.types import NUMBERS


def _windows(translator: Translator, node: Node, kernel: Sequence[int]) -> dict[str, Attr]:
    """Return the attributes strides, dilations and pads of an op with windows."""
    height, width = (2, 3) if is_channels_first(node) else (1, 2)
    strides = node.attrs["strides"]
    dilations = node.attrs.get("dilations") or (1, 1, 1, 1)
    dims = translator.shape(node.inputs[0]).dims or (None,) * 4
    padding = node.attrs["padding"]
    attrs: dict[str, Attr] = {"strides": (strides[height], strides[width])}
    if (dilations[height], dilations[width]) != (1, 1):
        attrs["dilations"] = (dilations[height], dilations[width])
    pairs: list[tuple[int, int]] = []
    for axis, size in ((height, kernel[0]), (width, kernel[1])):
        if padding == b"EXPLICIT":
            explicit = node.attrs["explicit_paddings"]
            pairs.append((explicit[2 * axis], explicit[2 * axis + 1]))
        elif padding == b"SAME":
            same = same_padding(dims[axis], (size - 1) * dilations[axis] + 1, strides[axis])
            if same is None:
                raise conversion_error(node, "the padding depends on an unknown image size")
            pairs.append(same)
        else:
            pairs.append((0, 0))
    attrs["pads"] = (pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1])
    return attrs


@converts("Conv2D")
def _conv(translator: Translator, node: Node) -> None:
    weights = constant_weights(translator, node)
    h, w, c_in, c_out = weights.shape
    channels = (translator.shape(node.inputs[0]).dims or (None,) * 4)[1 if is_channels_first(node) else 3]
    groups = channels // c_in if channels else 1
    kernel = add_weights(translator, node, "oihw", transpose_tensor(weights, (3, 2, 0, 1), (c_out, c_in, h, w)))
    _layer(translator, node, kernel, _windows(translator, node, (h, w)), (h, w), groups, c_out)


@converts("DepthwiseConv2dNative")
def _depthwise_conv(translator: Translator, node: Node) -> None:
    weights = constant_weights(translator, node)
    h, w, c_in, multiplier = weights.shape
    shape = (c_in * multiplier, 1, h, w)
    kernel = add_weights(translator, node, "depthwise", transpose_tensor(weights, (2, 3, 0, 1), shape))
    _layer(translator, node, kernel, _windows(translator, node, (h, w)), (h, w), c_in, c_in * multiplier)


def constant_weights(translator: Translator, node: Node) -> Tensor:
    """Return the constant weights of a layer in their stored type, before a Cast.

    Raises:
        UnavailableError: the weights are not constant.
    """
    source = _without_identities(translator, node.inputs[1])
    is_cast = source.op == "Cast" and source.name not in translator.graph.input_names
    tensor = _cast_constant(translator, source.inputs[0] if is_cast else Edge(source.name))
    if tensor is None:
        raise conversion_error(node, "the weights must be constant")
    return tensor


def _without_identities(translator: Translator, edge: Edge) -> Node:
    """Return the producer of a value, before Identity nodes."""
    while (source := translator.graph[edge.node]).op == "Identity" and source.name not in translator.graph.input_names:
        edge = source.inputs[0]
    return source


def _cast_constant(translator: Translator, edge: Edge) -> Tensor | None:
    """Return the tensor of a constant, after Cast and Identity nodes; None if the value is not constant."""
    source = _without_identities(translator, edge)
    if source.op != "Cast" or source.name in translator.graph.input_names:
        return translator.graph.constant_of(Edge(source.name))
    tensor = _cast_constant(translator, source.inputs[0])
    if tensor is None:
        return None
    return Tensor(translator.dtype(Edge(source.name)), tensor.shape, lambda: evaluate(source, [tensor.array])[0])


def add_weights(translator: Translator, node: Node, suffix: str, tensor: Tensor) -> Edge:
    """Add weights in ONNX's layout, with a Cast if they are stored in another type."""
    edge = node.inputs[1]
    weights = translator.add_constant(f"{edge.node}/{suffix}", tensor)
    dtype = translator.dtype(edge)
    if dtype is not tensor.dtype:
        weights = translator.add_node(f"{edge.node}/{suffix}/{dtype.value}", "Cast", [weights], to=NUMBERS[dtype])
    return weights


def _layer(
    translator: Translator,
    node: Node,
    weights: Edge,
    windows: Mapping[str, Attr],
    kernel: tuple[int, int],
    groups: int,
    channels: int,
) -> None:
    inputs = [translator.image_input(node, node.inputs[0]), weights]
    last = absorb_bias(translator, node, inputs, channels)
    attrs: dict[str, Attr] = {**windows, "kernel_shape": kernel, **({"group": groups} if groups > 1 else {})}
    translator.emit(last, "Conv", inputs, translator.image_layout(node), **attrs)


def absorb_bias(translator: Translator, layer: Node, inputs: list[Edge], channels: int) -> Node:
    """Append the bias of the following node to the inputs of a layer, if that node is the layer's only consumer.

    Returns:
        The node whose output the ONNX layer computes: the bias node, or the layer.
    """
    consumer = translator.single_consumer(Edge(layer.name))
    if consumer is None:
        return layer
    node, slot = consumer
    if node.op not in ("BiasAdd", "Add", "AddV2") or (node.op == "BiasAdd" and slot != 0):
        return layer
    if node.op != "BiasAdd" and is_channels_first(layer):
        return layer
    bias = translator.graph.constant_of(node.inputs[1 - slot])
    if bias is None or bias.dtype is not DType.FLOAT or bias.shape[-1:] != (channels,):
        return layer
    rank = translator.rank(Edge(layer.name))
    if bias.num_elements != channels or (rank is not None and len(bias.shape) > rank):
        return layer
    name = node.inputs[1 - slot].node
    if len(bias.shape) == 1:
        inputs.append(translator.add_constant(name, bias))
    else:
        vector = Tensor(bias.dtype, (channels,), lambda: bias.array.reshape(channels))
        inputs.append(translator.add_constant(f"{name}/bias", vector))
    translator.absorbed.add(node.name)
    return node


@converts("MatMul")
def _matmul(translator: Translator, node: Node) -> None:
    edges = [translator.plain(edge) for edge in node.inputs]
    weights = translator.graph.constant_of(node.inputs[1])
    transposes = [bool(node.attrs.get(key)) for key in ("transpose_a", "transpose_b")]
    last = node
    if weights is not None and weights.dtype is DType.FLOAT:
        last = absorb_bias(translator, node, edges, weights.shape[0 if transposes[1] else 1])
    if len(edges) == 2 and not any(transposes):
        translator.emit(last, "MatMul", edges, PLAIN)
    else:
        attrs = {key: 1 for key, is_transposed in zip(("transA", "transB"), transposes, strict=True) if is_transposed}
        translator.emit(last, "Gemm", edges, PLAIN, **attrs)


@converts("MaxPool AvgPool")
def _pool(translator: Translator, node: Node) -> None:
    height, width = (2, 3) if is_channels_first(node) else (1, 2)
    size = node.attrs["ksize"]
    if sorted(size)[:2] != [1, 1] or {size[0], size[1 if is_channels_first(node) else 3]} != {1}:
        raise conversion_error(node, "the window covers batch or channels")
    kernel = (size[height], size[width])
    windows = _windows(translator, node, kernel)
    source = [translator.image_input(node, node.inputs[0])]
    dims = translator.shape(node.inputs[0]).dims or (None,) * 4
    layout = translator.image_layout(node)
    if node.op == "AvgPool" and windows["pads"] == (0, 0, 0, 0) and kernel == (dims[height], dims[width]):
        translator.emit(node, "GlobalAveragePool", source, layout)
    else:
        op = "MaxPool" if node.op == "MaxPool" else "AveragePool"
        translator.emit(node, op, source, layout, **windows, kernel_shape=kernel)


@converts("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3")
def _batch_norm(translator: Translator, node: Node) -> None:
    if node.attrs.get("is_training", True):
        raise conversion_error(node, "training mode is not supported")
    edges = [translator.image_input(node, node.inputs[0]), *map(translator.plain, node.inputs[1:5])]
    epsilon = node.attrs.get("epsilon", 1e-4)
    translator.emit(node, "BatchNormalization", edges, translator.image_layout(node), epsilon=float(epsilon))
