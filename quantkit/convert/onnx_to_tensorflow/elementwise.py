"""Conversion of elementwise ops and softmax, in the layout in which their inputs exist."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from quantkit.convert.layouts import TO_NHWC, transpose_tensor
from quantkit.convert.onnx_to_tensorflow.translator import NHWC, PLAIN, OnnxTranslator, conversion_error, converts
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.kernels.elementwise import SELU_ALPHA, SELU_SCALE
from quantkit.ops.table import Fact, find_names, find_ops

_BOOLEAN = find_ops(Fact.BOOLEAN, "onnx")
_UNARY, _BINARY = find_names(Fact.UNARY, "onnx"), find_names(Fact.BINARY, "onnx")
UNARY = {
    "Dropout": "Identity",
    "Identity": "Identity",
    "LeakyRelu": "LeakyRelu",
    "Reciprocal": "Reciprocal",
    **{op: _UNARY[op] for op in _UNARY.keys() - _BOOLEAN},
}
# Attributes of ONNX ops that TensorFlow fixes.
FIXED_ATTRS = {"Elu": {"alpha": 1.0}, "Selu": {"alpha": SELU_ALPHA, "gamma": SELU_SCALE}}
PREDICATES = {op: _UNARY[op] for op in _UNARY.keys() & _BOOLEAN}
BINARY = {"Mean": "AddV2", "Sum": "AddV2"} | {op: _BINARY[op] for op in _BINARY.keys() - _BOOLEAN}
COMPARISONS = {"Xor": "NotEqual"} | {op: _BINARY[op] for op in _BINARY.keys() & _BOOLEAN}


def _input_layout(translator: OnnxTranslator, node: Node) -> str:
    return NHWC if translator.is_nhwc(node.inputs[0]) else PLAIN


@converts(" ".join(UNARY))
def _unary(translator: OnnxTranslator, node: Node) -> None:
    for name, value in FIXED_ATTRS.get(node.op, {}).items():
        if not math.isclose(node.attrs.get(name, value), value, rel_tol=1e-6):
            raise conversion_error(node, f"{node.op} requires {name} = {value:.7g}")
    if node.op == "Dropout" and translator.graph.uses.get(Edge(node.name, 1)):
        raise conversion_error(node, "the mask output has consumers")
    attrs: dict[str, Attr] = {}
    if node.op == "LeakyRelu":
        attrs["alpha"] = float(np.asarray(node.attrs.get("alpha", 0.01), np.float32))
    layout = _input_layout(translator, node)
    translator.emit_typed(node, UNARY[node.op], [translator.in_layout(node.inputs[0], layout)], layout, **attrs)


@converts("Clip")
def _clip(translator: OnnxTranslator, node: Node) -> None:
    layout = _input_layout(translator, node)
    value = translator.in_layout(node.inputs[0], layout)
    limits = [_limit(translator, node, slot, name) for slot, name in ((1, "min"), (2, "max"))]
    low, high = (None if edge is None else translator.nodes[edge.node] for edge in limits)
    numbers = [edge.value.array.item() if edge is not None and edge.is_constant else None for edge in (low, high)]
    if numbers[0] == 0 and translator.types[value].is_float and (high is None or numbers[1] == 6):
        translator.emit_typed(node, "Relu" if high is None else "Relu6", [value], layout)
        return
    steps = [(op, edge) for op, edge in zip(("Maximum", "Minimum"), limits, strict=True) if edge is not None]
    for op, edge in steps[:-1]:
        value = translator.add_intermediate(node, "raised", op, [value, edge])
    op, edges = (steps[-1][0], [steps[-1][1]]) if steps else ("Identity", [])
    translator.emit_typed(node, op, [value, *edges], layout)


def _limit(translator: OnnxTranslator, node: Node, slot: int, name: str) -> Edge | None:
    """Return a bound of a Clip; None if the bound is absent."""
    if translator.has_input(node, slot):
        return translator.plain(node.inputs[slot])
    value = node.attrs.get(name)
    return None if value is None else _scalar(translator, node, name, value)


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
    is_swish = node.op == "HardSwish"
    alpha, beta = (1 / 6, 0.5) if is_swish else (node.attrs.get("alpha", 0.2), node.attrs.get("beta", 0.5))
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


@converts("Mish")
def _mish(translator: OnnxTranslator, node: Node) -> None:
    """Convert x tanh(softplus(x))."""
    layout = _input_layout(translator, node)
    source = translator.in_layout(node.inputs[0], layout)
    softplus = translator.add_intermediate(node, "softplus", "Softplus", [source])
    gate = translator.add_intermediate(node, "gate", "Tanh", [softplus])
    translator.emit_typed(node, "Mul", [source, gate], layout)


@converts("Celu")
def _celu(translator: OnnxTranslator, node: Node) -> None:
    """Convert alpha elu(x / alpha)."""
    alpha = node.attrs.get("alpha", 1.0)
    if alpha <= 0:
        raise conversion_error(node, "Celu requires a positive alpha")
    layout = _input_layout(translator, node)
    source = translator.in_layout(node.inputs[0], layout)
    scaled = translator.add_intermediate(
        node, "scaled", "Mul", [source, _scalar(translator, node, "factor", 1 / alpha)]
    )
    elu = translator.add_intermediate(node, "elu", "Elu", [scaled])
    translator.emit_typed(node, "Mul", [elu, _scalar(translator, node, "alpha", alpha)], layout)


@converts("Softmax LogSoftmax")
def _softmax(translator: OnnxTranslator, node: Node) -> None:
    edge = node.inputs[0]
    rank = translator.rank(edge)
    flattens_axes = onnx.opsets(translator.graph).get("", onnx.OPSET) < 13
    axis = node.attrs.get("axis", 1 if flattens_axes else -1)
    if rank is None or (flattens_axes and axis % rank != rank - 1):
        raise conversion_error(node, "a softmax over several axes, or with an unknown rank, is not supported")
    axis %= rank
    if rank == 4 and axis == 1:
        translator.emit_typed(node, node.op, [translator.nhwc(edge)], NHWC)
        return
    value = translator.plain(edge)
    if axis == rank - 1:
        translator.emit_typed(node, node.op, [value], PLAIN)
        return
    order = [*range(axis), rank - 1, *range(axis + 1, rank - 1), axis]  # exchanges the axis with the last one
    name = translator.name(node.name)
    last = translator.transpose(f"{name}/last", value, order)
    result = translator.add_intermediate(node, "result", node.op, [last])
    translator.values[Edge(node.name), PLAIN] = translator.transpose(name, result, order)


@converts(" ".join(BINARY))
def _binary(translator: OnnxTranslator, node: Node) -> None:
    op = BINARY[node.op]
    layout = _common_layout(translator, node.inputs)
    inputs = [_operand(translator, edge, layout) for edge in node.inputs]
    while len(inputs) > 2:
        inputs[:2] = [translator.add_intermediate(node, f"of_{len(inputs)}", op, inputs[:2])]
    if node.op == "Mean":
        total = translator.add_intermediate(node, "sum", op, inputs) if len(inputs) > 1 else inputs[0]
        op, inputs = "Mul", [total, _scalar(translator, node, "count", 1 / len(node.inputs))]
    if len(inputs) == 1:
        op = "Identity"
    if node.op == "Div" and not translator.types[inputs[0]].is_float:
        op = "TruncateDiv"
    if node.op == "Pow":
        inputs[1] = translator.add_cast(node, "exponent", inputs[1], translator.types[inputs[0]])
    translator.emit_typed(node, op, inputs, layout)


@converts(" ".join(COMPARISONS))
def _comparison(translator: OnnxTranslator, node: Node) -> None:
    layout = _common_layout(translator, node.inputs)
    inputs = [_operand(translator, edge, layout) for edge in node.inputs]
    types = {} if node.op in ("And", "Or") else {"T": translator.types[inputs[0]]}
    translator.emit_bool(node, COMPARISONS[node.op], inputs, layout, **types)


@converts(" ".join(PREDICATES))
def _predicate(translator: OnnxTranslator, node: Node) -> None:
    if not (node.attrs.get("detect_negative", 1) and node.attrs.get("detect_positive", 1)):
        raise conversion_error(node, "only both infinities are supported")
    layout = _input_layout(translator, node)
    source = translator.in_layout(node.inputs[0], layout)
    types = {} if node.op == "Not" else {"T": translator.types[source]}
    translator.emit_bool(node, PREDICATES[node.op], [source], layout, **types)


@converts("PRelu")
def _prelu(translator: OnnxTranslator, node: Node) -> None:
    """Convert to relu(x) - slope relu(-x)."""
    layout = _common_layout(translator, node.inputs)
    x, slope = (_operand(translator, edge, layout) for edge in node.inputs)
    positive = translator.add_intermediate(node, "positive", "Relu", [x])
    negative = translator.add_intermediate(
        node, "negative", "Relu", [translator.add_intermediate(node, "neg", "Neg", [x])]
    )
    scaled = translator.add_intermediate(node, "scaled", "Mul", [negative, slope])
    translator.emit_typed(node, "Sub", [positive, scaled], layout)


@converts("Gelu")
def _gelu(translator: OnnxTranslator, node: Node) -> None:
    """Convert to x / 2 (1 + erf(x / sqrt(2)))."""
    if node.attrs.get("approximate", b"none") != b"none":
        raise conversion_error(node, "the approximation with Tanh is not supported")
    layout = _input_layout(translator, node)
    x = translator.in_layout(node.inputs[0], layout)
    scaled = translator.add_intermediate(node, "scaled", "Mul", [x, _scalar(translator, node, "root", 0.5**0.5)])
    erf = translator.add_intermediate(node, "erf", "Erf", [scaled])
    gate = translator.add_intermediate(node, "gate", "AddV2", [erf, _scalar(translator, node, "one", 1.0)])
    half = translator.add_intermediate(node, "half", "Mul", [x, _scalar(translator, node, "half/value", 0.5)])
    translator.emit_typed(node, "Mul", [half, gate], layout)


def _common_layout(translator: OnnxTranslator, edges: Sequence[Edge]) -> str:
    """Return NHWC if an input exists in this layout, and all can be in this layout."""
    can_be_nhwc = all(translator.rank(edge) == 4 or translator.constant_of(edge) is not None for edge in edges)
    return NHWC if can_be_nhwc and any(map(translator.is_nhwc, edges)) else PLAIN


def _operand(translator: OnnxTranslator, edge: Edge, layout: str) -> Edge:
    """Return an operand that is broadcast as in ONNX; a constant with one value per channel becomes a vector."""
    tensor = translator.constant_of(edge)
    if tensor is not None and not tensor.shape:
        return translator.plain(edge)
    if layout == PLAIN or tensor is None:
        return translator.in_layout(edge, layout)
    shape = (*(1,) * (4 - len(tensor.shape)), *tensor.shape)
    if math.prod(shape) == shape[1]:
        operand = Tensor(tensor.dtype, (shape[1],), partial(_reshape_array, tensor, (shape[1],)))
    else:
        operand = transpose_tensor(Tensor(tensor.dtype, shape, partial(_reshape_array, tensor, shape)), TO_NHWC)
    return translator.add_constant(f"{translator.name(edge.node)}/broadcast", operand)


def _reshape_array(tensor: Tensor, shape: tuple[int, ...]) -> Array:
    return tensor.array.reshape(shape)
