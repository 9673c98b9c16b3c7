"""Matrix products that measure the peak of a runtime, in float and in int8."""

import numpy as np

from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape

# Rows, columns and depth of the product: 2.1e9 operations, and more bytes than most caches of one core.
SIZE = 1024
OPERATIONS = 2 * SIZE**3


def float_product(dialect: str, size: int = SIZE) -> Graph:
    """Return a float matrix product with constant weights."""
    const = "Constant" if dialect == onnx.DIALECT else "Const"
    weights = _const("w", const, np.full((size, size), 0.5, np.float32))
    attrs: dict[str, Attr] = (
        {} if dialect == onnx.DIALECT else {"T": DType.FLOAT, "transpose_a": False, "transpose_b": False}
    )
    return _graph(dialect, size, weights, Node("product", "MatMul", (Edge("x"), Edge("w")), attrs=attrs))


def int8_product(dialect: str, size: int = SIZE) -> Graph:
    """Return an int8 matrix product: u8 inputs, s8 weights."""
    return _qdq_product(size) if dialect == onnx.DIALECT else _fused_product(size)


def _qdq_product(size: int) -> Graph:
    """Return the product between QuantizeLinear and DequantizeLinear nodes, which runtimes fuse into one kernel."""
    scale = _const("scale", "Constant", np.float32(1 / 64))
    zero = _const("zero", "Constant", np.uint8(0))
    signed_zero = _const("signed_zero", "Constant", np.int8(0))
    weights = _const("w", "Constant", np.full((size, size), 3, np.int8))
    parameters = (Edge("scale"), Edge("zero"))
    return _graph(
        onnx.DIALECT,
        size,
        scale,
        zero,
        signed_zero,
        weights,
        Node("quantized", "QuantizeLinear", (Edge("x"), *parameters)),
        Node("values", "DequantizeLinear", (Edge("quantized"), *parameters)),
        Node("weights", "DequantizeLinear", (Edge("w"), Edge("scale"), Edge("signed_zero"))),
        Node("sums", "MatMul", (Edge("values"), Edge("weights"))),
        Node("sums/quantized", "QuantizeLinear", (Edge("sums"), *parameters)),
        Node("product", "DequantizeLinear", (Edge("sums/quantized"), *parameters)),
    )


def _fused_product(size: int) -> Graph:
    """Return the product as the fused op of TensorFlow's oneDNN kernels."""
    low, high = constant("low", np.float32(0)), constant("high", np.float32(4))
    weights = constant("w", np.full((size, size), 3, np.int8), DType.QINT8)
    limits = tuple(map(Edge.parse, ("quantized:1", "quantized:2", "weights_low", "weights_high")))
    return _graph(
        "tensorflow",
        size,
        low,
        high,
        weights,
        constant("weights_low", np.float32(-2)),
        constant("weights_high", np.float32(2)),
        constant("bias", np.zeros(size, np.float32)),
        Node(
            "quantized",
            "QuantizeV2",
            (Edge("x"), Edge("low"), Edge("high")),
            attrs={"T": DType.QUINT8, "mode": b"SCALED", "ensure_minimum_range": 0.0},
        ),
        Node(
            "product",
            "_QuantizedMatMul",
            (Edge("quantized"), Edge("w"), Edge("bias"), *limits),
            attrs={
                "T1": DType.QUINT8,
                "T2": DType.QINT8,
                "Tbias": DType.FLOAT,
                "U": DType.FLOAT,
                "Tout": DType.FLOAT,
                "Tdevice_inputs": (DType.QUINT8, DType.QINT8, DType.FLOAT),
                "Thost_inputs": (DType.FLOAT,) * 4,
                "Tdevice_outputs": (DType.FLOAT,),
                "Thost_outputs": (),
                "input_quant_mode": b"SCALED",
                "output_quant_mode": b"SCALED",
                "is_weight_const": True,
                "is_bias_const": True,
                "transpose_a": False,
                "transpose_b": False,
                "fused_ops": (b"BiasAdd", b"Dequantize"),
            },
        ),
    )


def _graph(dialect: str, size: int, *nodes: Node) -> Graph:
    source = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((size, size))})
    extra = onnx.header({"product": (DType.FLOAT, Shape((size, size)))}) if dialect == onnx.DIALECT else b""
    return Graph.of((source, *nodes), inputs=["x"], outputs=["product"], dialect=dialect, extra=extra)


def _const(name: str, op: str, values: Array | np.generic) -> Node:
    node = constant(name, values)
    return node if op == "Const" else Node(name, op, attrs={"value": node.value})
