"""Conversion of elementwise ops and softmax, in the layout in which their inputs exist."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from quantkit.convert.onnx_to_tensorflow.translator import NHWC, PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.convert.tensorflow_to_onnx.elementwise import UNARY as TO_ONNX
from quantkit.convert.tensorflow_to_onnx.translator import TO_NHWC, transpose_tensor
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import Array, Tensor

# Inverse of the table for ONNX, without Not (LogicalNot has no attribute T) and Selu (alpha and gamma are fixed).
UNARY = {"Reciprocal": "Reciprocal"} | {
    onnx_op: op for op, onnx_op in TO_ONNX.items() if onnx_op not in ("Not", "Selu")
}
BINARY = {
    "Add": "AddV2",
    "Div": "RealDiv",
    "Max": "Maximum",
    "Min": "Minimum",
    "Mul": "Mul",
    "Pow": "Pow",
    "Sub": "Sub",
    "Sum": "AddV2",
}


def _input_layout(translator: OnnxTranslator, node: Node) -> str:
    return NHWC if translator.is_nhwc(node.inputs[0]) else PLAIN


@converts(" ".join(UNARY))
def _unary(translator: OnnxTranslator, node: Node) -> None:
    if node.op == "Elu" and node.attrs.get("alpha", 1.0) != 1.0:
        raise conversion_error(node, "Elu requires alpha = 1")
    layout = _input_layout(translator, node)
    translator.emit_typed(node, UNARY[node.op], [translator.in_layout(node.inputs[0], layout)], layout)


@converts("Identity Dropout")
def _identity(translator: OnnxTranslator, node: Node) -> None:
    if node.op == "Dropout" and translator.graph.uses.get(Edge(node.name, 1)):
        raise conversion_error(node, "the mask output has consumers")
    layout = _input_layout(translator, node)
    translator.emit_typed(node, "Identity", [translator.in_layout(node.inputs[0], layout)], layout)


@converts("LeakyRelu")
def _leaky_relu(translator: OnnxTranslator, node: Node) -> None:
    layout = _input_layout(translator, node)
    alpha = float(np.asarray(node.attrs.get("alpha", 0.01), np.float32))
    translator.emit_typed(node, "LeakyRelu", [translator.in_layout(node.inputs[0], layout)], layout, alpha=alpha)


@converts("Clip")
def _clip(translator: OnnxTranslator, node: Node) -> None:
    layout = _input_layout(translator, node)
    source = translator.in_layout(node.inputs[0], layout)
    low, high = _limit(translator, node, 1, "min"), _limit(translator, node, 2, "max")
    if low == 0 and high in (6, None):
        translator.emit_typed(node, "Relu" if high is None else "Relu6", [source], layout)
    elif low is None and high is None:
        translator.emit_typed(node, "Identity", [source], layout)
    elif low is None or high is None:
        op, limit = ("Maximum", low) if high is None else ("Minimum", high)
        translator.emit_typed(node, op, [source, _scalar(translator, node, "limit", limit)], layout)
    else:
        source = translator.add_intermediate(node, "raised", "Maximum", [source, _scalar(translator, node, "low", low)])
        translator.emit_typed(node, "Minimum", [source, _scalar(translator, node, "high", high)], layout)


def _limit(translator: OnnxTranslator, node: Node, slot: int, name: str) -> float | None:
    """Return a bound of a Clip; None if the bound is absent."""
    limit: Any = translator.constant(node, slot) if translator.has_input(node, slot) else node.attrs.get(name)
    return None if limit is None else float(limit)


def _scalar(translator: OnnxTranslator, node: Node, suffix: str, value: float | None) -> Edge:
    return translator.add_constant(f"{translator.name(node.name)}/{suffix}", Tensor.of(np.asarray(value, np.float32)))


@converts("HardSigmoid HardSwish")
def _hard_sigmoid(translator: OnnxTranslator, node: Node) -> None:
    """Convert with Relu6.

    HardSigmoid: max(0, min(1, alpha x + beta)) = relu6(6 alpha x + 6 beta) / 6
    HardSwish:   x max(0, min(1, x / 6 + 1/2)) = x relu6(x + 3) / 6
    """
    layout = _input_layout(translator, node)
    source = translator.in_layout(node.inputs[0], layout)
    attrs: Mapping[str, Any] = node.attrs
    is_swish = node.op == "HardSwish"
    alpha, beta = (1 / 6, 0.5) if is_swish else (attrs.get("alpha", 0.2), attrs.get("beta", 0.5))
    scaled = source
    if not is_swish:
        scaled = translator.add_intermediate(
            node, "scaled", "Mul", [source, _scalar(translator, node, "six_alpha", 6 * alpha)]
        )
    shifted = translator.add_intermediate(
        node, "shifted", "AddV2", [scaled, _scalar(translator, node, "six_beta", 6 * beta)]
    )
    clipped = translator.add_intermediate(node, "clipped", "Relu6", [shifted])
    if is_swish:
        clipped = translator.add_intermediate(node, "gated", "Mul", [clipped, source])
    translator.emit_typed(node, "Mul", [clipped, _scalar(translator, node, "sixth", 1 / 6)], layout)


@converts("Softmax LogSoftmax")
def _softmax(translator: OnnxTranslator, node: Node) -> None:
    edge = node.inputs[0]
    rank = translator.rank(edge)
    flattens_axes = onnx.opsets(translator.graph).get("", onnx.OPSET) < 13
    axis: Any = node.attrs.get("axis", 1 if flattens_axes else -1)
    if rank is None or (flattens_axes and axis % rank != rank - 1):
        raise conversion_error(node, "a softmax over several axes, or with an unknown rank, is not supported")
    if axis % rank == rank - 1 and not (translator.is_nhwc(edge) and rank == 4):
        translator.emit_typed(node, node.op, [translator.plain(edge)], PLAIN)
    elif rank == 4 and axis % rank == 1:
        translator.emit_typed(node, node.op, [translator.nhwc(edge)], NHWC)
    else:
        raise conversion_error(node, f"a softmax over axis {axis} is not supported: TensorFlow uses the last axis")


@converts(" ".join(BINARY))
def _binary(translator: OnnxTranslator, node: Node) -> None:
    op = BINARY[node.op]
    can_be_nhwc = all(
        translator.rank(edge) == 4 or translator.graph.constant_of(edge) is not None for edge in node.inputs
    )
    layout = NHWC if can_be_nhwc and any(map(translator.is_nhwc, node.inputs)) else PLAIN
    inputs = [_operand(translator, edge, layout) for edge in node.inputs]
    while len(inputs) > 2:
        inputs[:2] = [translator.add_intermediate(node, f"of_{len(inputs)}", op, inputs[:2])]
    if len(inputs) == 1:
        op = "Identity"
    translator.emit_typed(node, op, inputs, layout)


def _operand(translator: OnnxTranslator, edge: Edge, layout: str) -> Edge:
    """Return an operand that is broadcast as in ONNX; a constant with one value per channel becomes a vector."""
    tensor = translator.graph.constant_of(edge)
    if layout == PLAIN or tensor is None or not tensor.shape:
        return translator.in_layout(edge, layout)
    shape = (*(1,) * (4 - len(tensor.shape)), *tensor.shape)
    if math.prod(shape) == shape[1]:
        operand = Tensor(tensor.dtype, (shape[1],), partial(_reshape_array, tensor, (shape[1],)))
    else:
        operand = transpose_tensor(Tensor(tensor.dtype, shape, partial(_reshape_array, tensor, shape)), TO_NHWC)
    return translator.add_constant(f"{translator.name(edge.node)}/broadcast", operand)


def _reshape_array(tensor: Tensor, shape: tuple[int, ...]) -> Array:
    return tensor.array.reshape(shape)
