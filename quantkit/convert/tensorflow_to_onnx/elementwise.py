"""What works element by element, in ONNX: in whatever layout its images are at hand."""

from typing import Any

import numpy as np

from quantkit.convert.tensorflow_to_onnx.translator import (
    NCHW,
    PLAIN,
    TO_NCHW,
    Translator,
    converts,
    is_channels_first,
    refusal,
    together,
    transposed,
)
from quantkit.formats.onnx.schema import NUMBERS
from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import Tensor

UNARY = {
    "Abs": "Abs",
    "Ceil": "Ceil",
    "Elu": "Elu",
    "Erf": "Erf",
    "Exp": "Exp",
    "Floor": "Floor",
    "Log": "Log",
    "LogicalNot": "Not",
    "Neg": "Neg",
    "Relu": "Relu",
    "Round": "Round",
    "Selu": "Selu",
    "Sigmoid": "Sigmoid",
    "Sign": "Sign",
    "Softplus": "Softplus",
    "Softsign": "Softsign",
    "Sqrt": "Sqrt",
    "Tanh": "Tanh",
}
BINARY = {
    "Add": "Add",
    "AddV2": "Add",
    "Div": "Div",
    "Equal": "Equal",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "LogicalAnd": "And",
    "LogicalOr": "Or",
    "Maximum": "Max",
    "Minimum": "Min",
    "Mul": "Mul",
    "Pow": "Pow",
    "RealDiv": "Div",
    "Sub": "Sub",
}
COPIES = "Identity EnsureShape StopGradient CheckNumerics PreventGradient Snapshot"


def _element(translator: Translator, edge: Edge, layout: str) -> Edge:
    """An operand; a constant that broadcasts is given four dimensions before it is transposed."""
    tensor = translator.graph.constant_of(edge)
    if layout == PLAIN or tensor is None or len(tensor.shape) in (0, 4):
        return translator.plain(edge) if tensor is not None and not tensor.shape else translator.read(edge, layout)
    shape = (1,) * (4 - len(tensor.shape)) + tensor.shape
    wide = Tensor(tensor.dtype, shape, lambda: tensor.array.reshape(shape))
    return translator.keep(f"{edge.node}/nchw", transposed(wide, TO_NCHW))


@converts(" ".join(UNARY))
def _unary(translator: Translator, node: Node) -> None:
    layout = together(translator, node.inputs[:1])
    translator.emit(node, UNARY[node.op], [translator.read(node.inputs[0], layout)], layout)


@converts(" ".join(BINARY))
def _binary(translator: Translator, node: Node) -> None:
    if node.op == "Div" and not translator.dtype(node.inputs[0]).is_float:
        raise refusal(node, "it divides whole numbers")
    layout = together(translator, node.inputs)
    translator.emit(node, BINARY[node.op], [_element(translator, edge, layout) for edge in node.inputs], layout)


@converts("BiasAdd")
def _bias(translator: Translator, node: Node) -> None:
    if is_channels_first(node):
        bias = translator.graph.constant_of(node.inputs[1])
        rank = translator.rank(node.inputs[0])
        if bias is None or rank is None:
            raise refusal(node, "its bias is computed, or the shape of what it adds to is not known")
        shape = (*bias.shape, *(1,) * (rank - 2))
        wide = Tensor(bias.dtype, shape, lambda: bias.array.reshape(shape))
        edges = [translator.plain(node.inputs[0]), translator.keep(f"{node.inputs[1].node}/wide", wide)]
        translator.emit(node, "Add", edges, PLAIN)
    else:
        layout = together(translator, node.inputs)
        translator.emit(node, "Add", [_element(translator, edge, layout) for edge in node.inputs], layout)


@converts("SquaredDifference NotEqual")
def _binary_in_two(translator: Translator, node: Node) -> None:
    layout = together(translator, node.inputs)
    edges = [_element(translator, edge, layout) for edge in node.inputs]
    first = translator.add(f"{node.name}/first", "Equal" if node.op == "NotEqual" else "Sub", edges)
    if node.op == "NotEqual":
        translator.emit(node, "Not", [first], layout)
    else:
        translator.emit(node, "Mul", [first, first], layout)


@converts("Square Rsqrt Reciprocal Inv")
def _powers(translator: Translator, node: Node) -> None:
    layout = together(translator, node.inputs[:1])
    x = translator.read(node.inputs[0], layout)
    if node.op == "Square":
        translator.emit(node, "Mul", [x, x], layout)
        return
    if node.op == "Rsqrt":
        x = translator.add(f"{node.name}/root", "Sqrt", [x])
    translator.emit(node, "Reciprocal", [x], layout)


@converts("Relu6")
def _relu6(translator: Translator, node: Node) -> None:
    layout = together(translator, node.inputs[:1])
    dtype = translator.dtype(node.inputs[0])
    ends = [translator.keep(f"{node.name}/{end}", Tensor.of(np.array(end, dtype.numpy), dtype)) for end in (0, 6)]
    translator.emit(node, "Clip", [translator.read(node.inputs[0], layout), *ends], layout)


@converts("LeakyRelu")
def _leaky_relu(translator: Translator, node: Node) -> None:
    layout = together(translator, node.inputs[:1])
    alpha: Any = node.attrs.get("alpha", 0.2)
    translator.emit(node, "LeakyRelu", [translator.read(node.inputs[0], layout)], layout, alpha=float(alpha))


@converts("Cast")
def _cast(translator: Translator, node: Node) -> None:
    layout = together(translator, node.inputs[:1])
    to: Any = node.attrs["DstT"]
    translator.emit(node, "Cast", [translator.read(node.inputs[0], layout)], layout, to=NUMBERS[to])


@converts("Softmax LogSoftmax")
def _softmax(translator: Translator, node: Node) -> None:
    layout = together(translator, node.inputs[:1])
    axis = 1 if layout == NCHW else -1
    translator.emit(node, node.op, [translator.read(node.inputs[0], layout)], layout, axis=axis)


@converts(COPIES)
def _copy(translator: Translator, node: Node) -> None:
    source = node.inputs[0]
    if translator.graph.constant_of(source) is not None:
        translator.plain(source)
    for layout in (PLAIN, NCHW):
        if (source, layout) in translator.values:
            translator.values[Edge(node.name), layout] = translator.values[source, layout]
