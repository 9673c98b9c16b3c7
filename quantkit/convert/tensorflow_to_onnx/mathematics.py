"""Conversion of arithmetic, most of which ONNX composes of several ops, and of Fourier transforms.

A complex tensor is a real one with an additional last axis for the real and the imaginary part.

FloorMod(x, y) = x - floor(x / y) y       FloorDiv(x, y) = (x - FloorMod(x, y)) / y   for integers
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from quantkit.convert.tensorflow_to_onnx.translator import PLAIN, Translator, conversion_error, converts
from quantkit.ir.graph import Edge, Node
from quantkit.ir.tensor import DType


def _operands(translator: Translator, node: Node) -> list[Edge]:
    return [translator.plain(edge) for edge in node.inputs]


@converts("FloorDiv FloorMod")
def _floor_division(translator: Translator, node: Node) -> None:
    x, y = _operands(translator, node)
    if translator.dtype(node.inputs[0]).is_float:
        quotient = translator.add_intermediate(node, "quotient", "Div", [x, y])
        if node.op == "FloorDiv":
            translator.emit(node, "Floor", [quotient], PLAIN)
            return
        floor = translator.add_intermediate(node, "floor", "Floor", [quotient])
        multiple = translator.add_intermediate(node, "multiple", "Mul", [floor, y])
        translator.emit(node, "Sub", [x, multiple], PLAIN)
    elif node.op == "FloorMod":
        translator.emit(node, "Mod", [x, y], PLAIN)
    else:
        rest = translator.add_intermediate(node, "rest", "Mod", [x, y])
        multiple = translator.add_intermediate(node, "multiple", "Sub", [x, rest])
        translator.emit(node, "Div", [multiple, y], PLAIN)


# ONNX op and its attributes, given those of the TensorFlow node, for ops that take all inputs in TensorFlow's layout.
PLAIN_OPS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "Einsum": ("Einsum", lambda attrs: {"equation": attrs["equation"]}),
    "MatrixDeterminant": ("Det", lambda _: {}),
    **dict.fromkeys(("Mod", "TruncateMod"), ("Mod", lambda _: {"fmod": 1})),
    "Range": ("Range", lambda _: {}),
}


@converts(" ".join(PLAIN_OPS))
def _plain(translator: Translator, node: Node) -> None:
    op, attrs = PLAIN_OPS[node.op]
    translator.emit(node, op, _operands(translator, node), PLAIN, **attrs(node.attrs))


@converts("DivNoNan MulNoNan Xdivy")
def _product_with_zero(translator: Translator, node: Node) -> None:
    """Write 0 where the second operand is 0; Xdivy does so for the first operand."""
    operands = _operands(translator, node)
    zero = translator.add_array(node, "zero", 0, translator.dtype(node.inputs[0]))
    is_zero = translator.add_intermediate(node, "is_zero", "Equal", [operands[node.op != "Xdivy"], zero])
    op = "Mul" if node.op == "MulNoNan" else "Div"
    result = translator.add_intermediate(node, "result", op, operands)
    translator.emit(node, "Where", [is_zero, zero, result], PLAIN)


@converts("Atan2")
def _atan2(translator: Translator, node: Node) -> None:
    """Compute atan(y / x), plus pi with the sign of y for x < 0, and 0 for y = 0 and x >= 0."""
    dtype = translator.dtype(node.inputs[0])
    y, x = _operands(translator, node)
    zero = translator.add_array(node, "zero", 0, dtype)
    pi, minus_pi = (
        translator.add_array(node, name, value, dtype) for name, value in (("pi", math.pi), ("-pi", -math.pi))
    )
    quotient = translator.add_intermediate(node, "quotient", "Div", [y, x])
    angle = translator.add_intermediate(node, "angle", "Atan", [quotient])
    y_is_zero = translator.add_intermediate(node, "y_is_zero", "Equal", [y, zero])
    angle = translator.add_intermediate(node, "right", "Where", [y_is_zero, zero, angle])
    is_below = translator.add_intermediate(node, "is_below", "Less", [y, zero])
    is_left = translator.add_intermediate(node, "is_left", "Less", [x, zero])
    rotation = translator.add_intermediate(node, "rotation", "Where", [is_below, minus_pi, pi])
    offset = translator.add_intermediate(node, "offset", "Where", [is_left, rotation, zero])
    translator.emit(node, "Add", [angle, offset], PLAIN)


@converts("Expm1 Log1p")
def _shift_by_one(translator: Translator, node: Node) -> None:
    increment = translator.add_array(node, "one", 1, translator.dtype(node.inputs[0]))
    (x,) = _operands(translator, node)
    if node.op == "Expm1":
        power = translator.add_intermediate(node, "power", "Exp", [x])
        translator.emit(node, "Sub", [power, increment], PLAIN)
    else:
        total = translator.add_intermediate(node, "sum", "Add", [x, increment])
        translator.emit(node, "Log", [total], PLAIN)


@converts("IsFinite")
def _is_finite(translator: Translator, node: Node) -> None:
    """Compare x - x with 0: the difference is not a number for infinities and for values that are not a number."""
    (x,) = _operands(translator, node)
    zero = translator.add_array(node, "zero", 0, translator.dtype(node.inputs[0]))
    difference = translator.add_intermediate(node, "difference", "Sub", [x, x])
    translator.emit(node, "Equal", [difference, zero], PLAIN)


@converts("AddN")
def _add_n(translator: Translator, node: Node) -> None:
    total, *others = _operands(translator, node)
    for number, edge in enumerate(others[:-1]):
        total = translator.add_intermediate(node, f"sum_{number}", "Add", [total, edge])
    translator.emit(node, "Add" if others else "Identity", [total, *others[-1:]], PLAIN)


@converts("ClipByValue")
def _clip(translator: Translator, node: Node) -> None:
    x, low, high = _operands(translator, node)
    limited = translator.add_intermediate(node, "limited", "Min", [x, high])
    translator.emit(node, "Max", [limited, low], PLAIN)


@converts("Cumsum")
def _cumsum(translator: Translator, node: Node) -> None:
    flags = {name: int(bool(node.attrs.get(name))) for name in ("exclusive", "reverse")}
    axis = translator.int64_input(node, 1)
    translator.emit(node, "CumSum", [translator.plain(node.inputs[0]), axis], PLAIN, **flags)


@converts("LeftShift RightShift")
def _shift(translator: Translator, node: Node) -> None:
    if not translator.dtype(node.inputs[0]).value.startswith("uint"):
        raise conversion_error(node, "ONNX only shifts unsigned integers")
    direction = b"LEFT" if node.op == "LeftShift" else b"RIGHT"
    translator.emit(node, "BitShift", _operands(translator, node), PLAIN, direction=direction)


@converts("FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars")
def _fake_quant(translator: Translator, node: Node) -> None:
    if node.attrs.get("num_bits", 8) != 8 or node.attrs.get("narrow_range"):
        raise conversion_error(node, "only 8 bits with the full range are supported")
    if node.op == "FakeQuantWithMinMaxVars":
        low, high = (float(translator.constant(node, slot).item()) for slot in (1, 2))
    else:
        attrs: dict[str, Any] = dict(node.attrs)
        low, high = attrs.get("min", -6.0), attrs.get("max", 6.0)
    scale = (high - low) / 255
    scale_edge = translator.add_array(node, "scale", scale, DType.FLOAT)
    zero_point = translator.add_array(node, "zero_point", min(max(round(-low / scale), 0), 255), DType.UINT8)
    quantized = translator.add_intermediate(
        node, "quantized", "QuantizeLinear", [translator.plain(node.inputs[0]), scale_edge, zero_point]
    )
    translator.emit(node, "DequantizeLinear", [quantized, scale_edge, zero_point], PLAIN)


@converts("RFFT")
def _rfft(translator: Translator, node: Node) -> None:
    dims = translator.shape(node.inputs[0]).dims
    (length,) = translator.constant(node, 1).tolist()
    if not dims or dims[-1] != length:
        raise conversion_error(node, "the length of the transform must be the last size of its input")
    last = translator.add_array(node, "last", [-1])
    parts = translator.add_intermediate(node, "parts", "Unsqueeze", [translator.plain(node.inputs[0]), last])
    translator.emit(node, "DFT", [parts], PLAIN, axis=len(dims) - 1, onesided=1)


@converts("ComplexAbs Real Imag")
def _complex_part(translator: Translator, node: Node) -> None:
    source = translator.plain(node.inputs[0])
    if translator.graph[node.inputs[0].node].op != "RFFT":
        raise conversion_error(node, "complex values are supported only directly after a RFFT")
    if node.op == "ComplexAbs":
        translator.emit(node, "ReduceL2", [source], PLAIN, axes=(-1,), keepdims=0)
    else:
        part = translator.add_array(node, "part", int(node.op == "Imag"))
        translator.emit(node, "Gather", [source, part], PLAIN, axis=-1)
