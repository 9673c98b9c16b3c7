"""Conversion of convolutions, pools, norms and matrix products."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from quantkit.convert.onnx_to_tensorflow.translator import NHWC, PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.convert.onnx_to_tensorflow.windows import find_windows, pad_image
from quantkit.convert.tensorflow_to_onnx.translator import transpose_tensor
from quantkit.ir.graph import Attr, Node
from quantkit.ir.tensor import Array, DType, Tensor


@converts("Conv")
def _conv(translator: OnnxTranslator, node: Node) -> None:
    weights = translator.graph.constant_of(node.inputs[1])
    if weights is None or len(weights.shape) != 4:
        raise conversion_error(node, "the weights must be constant and have rank 4")
    group: Any = node.attrs.get("group", 1)
    count, depth, height, width = weights.shape
    windows = find_windows(translator, node, (height, width))
    name = translator.name(node.name)
    layer = f"{name}/product" if translator.has_input(node, 2) else name
    if group == 1:
        kernel, op = transpose_tensor(weights, (2, 3, 1, 0)), "Conv2D"
    elif depth == 1:
        shape = (height, width, group, count // group)
        kernel, op = Tensor(weights.dtype, shape, partial(_depthwise_weights, weights, shape)), "DepthwiseConv2dNative"
    else:
        raise conversion_error(node, f"a convolution with {group} groups of {depth} channels is not supported")
    inputs = [pad_image(translator, node, windows, 0), translator.add_constant(f"{name}/weights", kernel)]
    attrs: dict[str, Attr] = {**windows.attrs, "data_format": b"NHWC", "dilations": (1, *windows.dilations, 1)}
    if not translator.has_input(node, 2):
        translator.emit_typed(node, op, inputs, NHWC, **attrs)
        return
    product = translator.add_node(layer, op, inputs, T=translator.types[inputs[0]], **attrs)
    bias = translator.plain(node.inputs[2])
    translator.emit_typed(node, "BiasAdd", [product, bias], NHWC, data_format=b"NHWC")


def _depthwise_weights(weights: Tensor, shape: tuple[int, ...]) -> Array:
    """Transpose weights (c * m, 1, h, w) to (h, w, c, m)."""
    height, width, channels, multiplier = shape
    array = weights.array.reshape(channels, multiplier, height, width)
    return np.ascontiguousarray(array.transpose(2, 3, 0, 1))


@converts("MaxPool AveragePool")
def _pool(translator: OnnxTranslator, node: Node) -> None:
    kernel: Any = node.attrs["kernel_shape"]
    windows = find_windows(translator, node, kernel)
    is_max = node.op == "MaxPool"
    if windows.dilations != (1, 1):
        raise conversion_error(node, "a pool with dilations is not supported")
    counts_padding = bool(node.attrs.get("count_include_pad")) and windows.is_padded
    if counts_padding:
        windows = replace(windows, is_same=False)
    elif not is_max and windows.is_padded and not windows.is_same:
        raise conversion_error(node, "an average pool that excludes its padding requires padding as in mode SAME")
    if counts_padding and node.attrs.get("ceil_mode"):
        raise conversion_error(node, "count_include_pad with ceil_mode is not supported")
    source = pad_image(translator, node, windows, -math.inf if is_max else 0)
    attrs: dict[str, Attr] = {**windows.attrs, "ksize": (1, *windows.kernel, 1), "data_format": b"NHWC"}
    translator.emit_typed(node, "MaxPool" if is_max else "AvgPool", [source], NHWC, **attrs)


@converts("BatchNormalization")
def _batch_norm(translator: OnnxTranslator, node: Node) -> None:
    if node.attrs.get("training_mode"):
        raise conversion_error(node, "training mode is not supported")
    if translator.rank(node.inputs[0]) != 4:
        raise conversion_error(node, "the input must have rank 4")
    inputs = [translator.nhwc(node.inputs[0]), *(translator.plain(edge) for edge in node.inputs[1:5])]
    attrs: dict[str, Attr] = {"U": DType.FLOAT, "data_format": b"NHWC", "is_training": False}
    attrs["epsilon"] = float(np.asarray(node.attrs.get("epsilon", 1e-5), np.float32))
    translator.emit_typed(node, "FusedBatchNormV3", inputs, NHWC, **attrs)


@converts("LRN")
def _lrn(translator: OnnxTranslator, node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    size = attrs["size"]
    lrn_attrs: dict[str, Attr] = {
        "depth_radius": (size - 1) // 2,
        "alpha": attrs.get("alpha", 1e-4) / size,
        "beta": attrs.get("beta", 0.75),
        "bias": attrs.get("bias", 1.0),
    }
    if size % 2 == 0:
        raise conversion_error(node, "the window size must be odd")
    translator.emit_typed(node, "LRN", [translator.nhwc(node.inputs[0])], NHWC, **lrn_attrs)


@converts("Gemm")
def _gemm(translator: OnnxTranslator, node: Node) -> None:
    attrs: Mapping[str, Any] = node.attrs
    if attrs.get("alpha", 1.0) != 1 or attrs.get("beta", 1.0) != 1:
        raise conversion_error(node, "alpha and beta must be 1")
    inputs = [translator.plain(node.inputs[0]), translator.plain(node.inputs[1])]
    flags: dict[str, Attr] = {
        "transpose_a": bool(attrs.get("transA", 0)),
        "transpose_b": bool(attrs.get("transB", 0)),
    }
    weights = translator.graph.constant_of(node.inputs[1])
    if flags["transpose_b"] and weights is not None:  # TensorFlow's weights are not transposed
        flags["transpose_b"] = False
        inputs[1] = translator.add_constant(f"{translator.name(node.name)}/weights", transpose_tensor(weights, (1, 0)))
    if not translator.has_input(node, 2):
        translator.emit_typed(node, "MatMul", inputs, PLAIN, **flags)
        return
    product = translator.add_intermediate(node, "product", "MatMul", inputs, **flags)
    bias = translator.plain(node.inputs[2])
    op = "BiasAdd" if translator.rank(node.inputs[2]) == 1 else "AddV2"
    translator.emit_typed(node, op, [product, bias], PLAIN, **({"data_format": b"NHWC"} if op == "BiasAdd" else {}))


@converts("MatMul")
def _matmul(translator: OnnxTranslator, node: Node) -> None:
    inputs = [translator.plain(edge) for edge in node.inputs]
    ranks = [translator.rank(edge) for edge in node.inputs]
    if ranks == [2, 2]:
        translator.emit_typed(node, "MatMul", inputs, PLAIN, transpose_a=False, transpose_b=False)
    elif None not in ranks and min(rank for rank in ranks if rank is not None) >= 2:
        translator.emit_typed(node, "BatchMatMulV2", inputs, PLAIN, adj_x=False, adj_y=False)
    else:
        raise conversion_error(node, "both inputs must have a known rank of at least 2")
