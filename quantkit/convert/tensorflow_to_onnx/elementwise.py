"""Conversion of elementwise ops, in the layout in which their inputs exist."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from quantkit.convert.layouts import TO_NCHW, transpose_tensor
from quantkit.convert.tensorflow_to_onnx.translator import (
    NCHW,
    PLAIN,
    Translator,
    common_layout,
    conversion_error,
    converts,
    is_channels_first,
)
from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import Tensor
from quantkit.ops.onnx.types import NUMBERS
from quantkit.ops.table import Fact, find_names

UNARY = find_names(Fact.UNARY, "tensorflow")
# Attributes of further ops of one operand, given those of the TensorFlow node and the layout.
ATTRS: Mapping[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "Cast": lambda attrs, layout: {"to": NUMBERS[attrs["DstT"]]},
    "LeakyRelu": lambda attrs, layout: {"alpha": float(attrs.get("alpha", 0.2))},
    **dict.fromkeys(("Softmax", "LogSoftmax"), lambda attrs, layout: {"axis": 1 if layout == NCHW else -1}),
}
BINARY = {**find_names(Fact.BINARY, "tensorflow"), "BiasAddV1": "Add", "TruncateDiv": "Div"}
IDENTITY_OPS = (
    "Identity IdentityN EnsureShape StopGradient CheckNumerics PreventGradient Snapshot PlaceholderWithDefault"
)


def _operand(translator: Translator, edge: Edge, layout: str) -> Edge:
    """Return an operand; a constant that is broadcast gets rank 4 before it is transposed."""
    tensor = translator.graph.constant_of(edge)
    if layout == PLAIN or tensor is None or len(tensor.shape) in (0, 4):
        return translator.plain(edge) if tensor is not None and not tensor.shape else translator.in_layout(edge, layout)
    shape = (1,) * (4 - len(tensor.shape)) + tensor.shape
    expanded = Tensor(tensor.dtype, shape, lambda: tensor.array.reshape(shape))
    return translator.add_constant(f"{edge.node}/nchw", transpose_tensor(expanded, TO_NCHW))


@converts(" ".join([*UNARY, *ATTRS]))
def _unary(translator: Translator, node: Node) -> None:
    layout = common_layout(translator, node.inputs[:1])
    attrs = ATTRS[node.op](node.attrs, layout) if node.op in ATTRS else {}
    inputs = [translator.in_layout(node.inputs[0], layout)]
    translator.emit(node, UNARY.get(node.op, node.op), inputs, layout, **attrs)


@converts(" ".join(BINARY))
def _binary(translator: Translator, node: Node) -> None:
    layout = common_layout(translator, node.inputs)
    translator.emit(node, BINARY[node.op], [_operand(translator, edge, layout) for edge in node.inputs], layout)


@converts("BiasAdd")
def _bias(translator: Translator, node: Node) -> None:
    if is_channels_first(node):
        bias = translator.graph.constant_of(node.inputs[1])
        rank = translator.rank(node.inputs[0])
        if bias is None or rank is None:
            raise conversion_error(node, "the bias must be constant, and the rank of the input must be known")
        shape = (*bias.shape, *(1,) * (rank - 2))
        expanded = Tensor(bias.dtype, shape, lambda: bias.array.reshape(shape))
        edges = [translator.plain(node.inputs[0]), translator.add_constant(f"{node.inputs[1].node}/wide", expanded)]
        translator.emit(node, "Add", edges, PLAIN)
    else:
        layout = common_layout(translator, node.inputs)
        translator.emit(node, "Add", [_operand(translator, edge, layout) for edge in node.inputs], layout)


@converts("SquaredDifference NotEqual")
def _composed_binary(translator: Translator, node: Node) -> None:
    layout = common_layout(translator, node.inputs)
    edges = [_operand(translator, edge, layout) for edge in node.inputs]
    first = translator.add_intermediate(node, "first", "Equal" if node.op == "NotEqual" else "Sub", edges)
    if node.op == "NotEqual":
        translator.emit(node, "Not", [first], layout)
    else:
        translator.emit(node, "Mul", [first, first], layout)


@converts("Square Rsqrt Reciprocal Inv")
def _power(translator: Translator, node: Node) -> None:
    layout = common_layout(translator, node.inputs[:1])
    x = translator.in_layout(node.inputs[0], layout)
    if node.op == "Square":
        translator.emit(node, "Mul", [x, x], layout)
        return
    if node.op == "Rsqrt":
        x = translator.add_intermediate(node, "root", "Sqrt", [x])
    translator.emit(node, "Reciprocal", [x], layout)


@converts("Relu6")
def _relu6(translator: Translator, node: Node) -> None:
    layout = common_layout(translator, node.inputs[:1])
    dtype = translator.dtype(node.inputs[0])
    limits = [
        translator.add_constant(f"{node.name}/{limit}", Tensor.of(np.array(limit, dtype.numpy), dtype))
        for limit in (0, 6)
    ]
    translator.emit(node, "Clip", [translator.in_layout(node.inputs[0], layout), *limits], layout)


@converts(IDENTITY_OPS)
def _copy(translator: Translator, node: Node) -> None:
    for port, source in enumerate(node.inputs):
        if (source, NCHW) not in translator.values:
            translator.plain(source)
        for layout in (PLAIN, NCHW):
            if (source, layout) in translator.values:
                translator.values[Edge(node.name, port), layout] = translator.values[source, layout]
