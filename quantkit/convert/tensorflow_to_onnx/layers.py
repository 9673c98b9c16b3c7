"""Layers, pools and norms in ONNX, their padding computed from the sizes that are known.

SAME:  total = max((ceil(size / stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
       before = total // 2, after = total - before
"""

from collections.abc import Mapping, Sequence
from typing import Any

from quantkit.convert.tensorflow_to_onnx.translator import (
    PLAIN,
    Translator,
    converts,
    is_channels_first,
    refusal,
    transposed,
)
from quantkit.formats.onnx.schema import NUMBERS
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.layers import same_padding


def _windows(translator: Translator, node: Node, kernel: Sequence[int]) -> dict[str, Attr]:
    """The attributes strides, dilations and pads of an op on windows of an image."""
    height, width = (2, 3) if is_channels_first(node) else (1, 2)
    strides: Any = node.attrs["strides"]
    dilations: Any = node.attrs.get("dilations") or (1, 1, 1, 1)
    dims = translator.shape(node.inputs[0]).dims or (None,) * 4
    padding = node.attrs["padding"]
    found: dict[str, Attr] = {"strides": (strides[height], strides[width])}
    if (dilations[height], dilations[width]) != (1, 1):
        found["dilations"] = (dilations[height], dilations[width])
    pairs: list[tuple[int, int]] = []
    for axis, size in ((height, kernel[0]), (width, kernel[1])):
        if padding == b"EXPLICIT":
            explicit: Any = node.attrs["explicit_paddings"]
            pairs.append((explicit[2 * axis], explicit[2 * axis + 1]))
        elif padding == b"SAME":
            same = same_padding(dims[axis], (size - 1) * dilations[axis] + 1, strides[axis])
            if same is None:
                raise refusal(node, "the size of its image is not known, and its padding follows from it")
            pairs.append(same)
        else:
            pairs.append((0, 0))
    found["pads"] = (pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1])
    return found


@converts("Conv2D")
def _convolution(translator: Translator, node: Node) -> None:
    weights = weights_of(translator, node)
    h, w, c_in, c_out = weights.shape
    channels = (translator.shape(node.inputs[0]).dims or (None,) * 4)[1 if is_channels_first(node) else 3]
    groups = channels // c_in if channels else 1
    made = kept_weights(translator, node, "oihw", transposed(weights, (3, 2, 0, 1), (c_out, c_in, h, w)))
    _layer(translator, node, made, _windows(translator, node, (h, w)), (h, w), groups, c_out)


@converts("DepthwiseConv2dNative")
def _depthwise(translator: Translator, node: Node) -> None:
    weights = weights_of(translator, node)
    h, w, c_in, multiplier = weights.shape
    shape = (c_in * multiplier, 1, h, w)
    made = kept_weights(translator, node, "depthwise", transposed(weights, (2, 3, 0, 1), shape))
    _layer(translator, node, made, _windows(translator, node, (h, w)), (h, w), c_in, c_in * multiplier)


def weights_of(translator: Translator, node: Node) -> Tensor:
    """The constant that a layer multiplies with, as it is stored.

    Raises:
        UnavailableError: it is computed.
    """
    edge = node.inputs[1]
    source = translator.graph[edge.node]
    is_widened = source.op == "Cast" and source.name not in translator.graph.input_names
    tensor = translator.graph.constant_of(source.inputs[0] if is_widened else edge)
    if tensor is None:
        raise refusal(node, "its weights are computed")
    return tensor


def kept_weights(translator: Translator, node: Node, word: str, tensor: Tensor) -> Edge:
    """Weights as ONNX lays them out; those that are stored in another type are cast behind that, as they were."""
    edge = node.inputs[1]
    made = translator.keep(f"{edge.node}/{word}", tensor)
    dtype = translator.dtype(edge)
    if dtype is not tensor.dtype:
        made = translator.add(f"{edge.node}/{word}/{dtype.value}", "Cast", [made], to=NUMBERS[dtype])
    return made


def _layer(
    translator: Translator,
    node: Node,
    weights: Edge,
    windows: Mapping[str, Attr],
    kernel: tuple[int, int],
    groups: int,
    channels: int,
) -> None:
    inputs = [translator.image(node, node.inputs[0]), weights]
    last = take_bias(translator, node, inputs, channels)
    attrs: dict[str, Attr] = {**windows, "kernel_shape": kernel, **({"group": groups} if groups > 1 else {})}
    translator.emit(last, "Conv", inputs, translator.layout(node), **attrs)


def take_bias(translator: Translator, layer: Node, inputs: list[Edge], channels: int) -> Node:
    """Let a layer add the bias that follows it, if only it reads the layer; the node whose value is then made."""
    found = translator.sole_reader(Edge(layer.name))
    if found is None:
        return layer
    node, slot = found
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
    flat = bias if len(bias.shape) == 1 else Tensor(bias.dtype, (channels,), lambda: bias.array.reshape(channels))
    inputs.append(
        translator.keep(f"{node.inputs[1 - slot].node}/bias" if flat is not bias else node.inputs[1 - slot].node, flat)
    )
    translator.done.add(node.name)
    return node


@converts("MatMul")
def _product(translator: Translator, node: Node) -> None:
    edges = [translator.plain(edge) for edge in node.inputs]
    weights = translator.graph.constant_of(node.inputs[1])
    flips = [bool(node.attrs.get(key)) for key in ("transpose_a", "transpose_b")]
    last = node
    if weights is not None and weights.dtype is DType.FLOAT:
        last = take_bias(translator, node, edges, weights.shape[0 if flips[1] else 1])
    if len(edges) == 2 and not any(flips):
        translator.emit(last, "MatMul", edges, PLAIN)
    else:
        given = {key: 1 for key, flip in zip(("transA", "transB"), flips, strict=True) if flip}
        translator.emit(last, "Gemm", edges, PLAIN, **given)


@converts("MaxPool AvgPool")
def _pool(translator: Translator, node: Node) -> None:
    height, width = (2, 3) if is_channels_first(node) else (1, 2)
    size: Any = node.attrs["ksize"]
    if sorted(size)[:2] != [1, 1] or {size[0], size[1 if is_channels_first(node) else 3]} != {1}:
        raise refusal(node, "it pools over pictures or channels")
    kernel = (size[height], size[width])
    windows = _windows(translator, node, kernel)
    source = [translator.image(node, node.inputs[0])]
    dims = translator.shape(node.inputs[0]).dims or (None,) * 4
    layout = translator.layout(node)
    if node.op == "AvgPool" and windows["pads"] == (0, 0, 0, 0) and kernel == (dims[height], dims[width]):
        translator.emit(node, "GlobalAveragePool", source, layout)
    else:
        op = "MaxPool" if node.op == "MaxPool" else "AveragePool"
        translator.emit(node, op, source, layout, **windows, kernel_shape=kernel)


@converts("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3")
def _batch_norm(translator: Translator, node: Node) -> None:
    if node.attrs.get("is_training", True):
        raise refusal(node, "it is in training mode")
    edges = [translator.image(node, node.inputs[0]), *map(translator.plain, node.inputs[1:5])]
    epsilon: Any = node.attrs.get("epsilon", 1e-4)
    translator.emit(node, "BatchNormalization", edges, translator.layout(node), epsilon=float(epsilon))
