"""Store large float constants as 8-bit integers.

    q  =  round(x * scale) - round(lo * scale)      scale = 255 / (hi - lo)      lo <= 0 <= hi
    x  ~= (round(lo * scale) + q) / scale

Rounding is half away from zero, in double precision. Zero is quantized without error.
"""

import numpy as np
import numpy.typing as npt

from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip, rewrite_nodes
from quantkit.ir.tensor import DType, Tensor
from quantkit.transforms.registry import transform

# trunc(y + copysign(ALMOST_HALF, y)) rounds half away from zero; with 0.5 it would round
# 0.49999999999999994 up.
ALMOST_HALF = np.nextafter(0.5, 0.0)
# Number of values that are quantized at a time: temporary arrays stay in the processor's cache.
CHUNK = 1 << 14
# Outside these limits, Dequantize returns NaN: its step is flushed to zero, or its range is infinite
# in float32.
MIN_RANGE = 256 * float(np.finfo(np.float32).tiny)
MAX_RANGE = 255 / 256 * float(np.finfo(np.float32).max)


@transform(exact=False)
def quantize_weights(graph: Graph, *, minimum_size: int = 1024) -> Outcome:
    """Store large float constants as 8-bit integers, a quarter of the size, followed by Dequantize.

    Before:  w = Const[float]
    After:   w = Dequantize(w_quantized_const, w_quantized_min, w_quantized_max)

    The range of a tensor is the range of its values, extended to include 0; the error is at most
    one step, (max - min) / 255. A tensor of zeros gets the range [0, 1] and is dequantized to exact
    zeros. The new constants keep the control dependencies of the old one.

    Options:
        minimum_size: constants with fewer elements stay float (default: 1024).

    Skips constants with infinite or NaN values, or with a range beyond float32.

    Raises:
        GraphError: a constant lacks its type or its value.

    Example:
        quantize_weights
        inputs: x
        outputs: y
        x = Placeholder[1x8x8x4]()
        w = Const[4x4x4x16]()
        y = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
    """
    return rewrite_nodes(
        graph,
        lambda node: _quantize_constant(node) if _is_weight(node, minimum_size) else None,
        lambda node: f"{node.name}: {node.value.num_elements} values",
    )


def quantize_values(values: npt.NDArray[np.float32], low: np.float32, high: np.float32) -> npt.NDArray[np.uint8]:
    """Return the 8-bit quantized values of real values, bitwise equal to those of the classic tool.

    Args:
        values: any shape, finite, within [low, high].
        low, high: range, ``low <= 0 <= high`` and ``low < high``.

    Returns:
        Quantized values of the same shape.

    >>> quantize_values(np.float32([-1.0, 0.0, 0.5, 1.0]), np.float32(-1), np.float32(1))
    array([  0, 128, 192, 255], dtype=uint8)
    """
    scale = 256.0 / (float(high - low) * (256.0 / 255.0))
    zero = _round(float(low) * scale)
    flat = np.ascontiguousarray(values).reshape(-1)
    quantized = np.empty(flat.shape, np.uint8)
    for start in range(0, flat.size, CHUNK):
        chunk = slice(start, start + CHUNK)
        levels = _round(np.multiply(flat[chunk], scale, dtype=np.float64))
        levels -= zero
        quantized[chunk] = np.clip(levels, 0, 255, out=levels)
    return quantized.reshape(values.shape)


def _round(values: npt.ArrayLike) -> npt.NDArray[np.int16]:
    """Round float64 numbers below 2^15 to integers, half away from zero."""
    return np.add(values, np.copysign(ALMOST_HALF, values)).astype(np.int16)


def _quantize_constant(node: Node) -> list[Node] | Skip:
    """Return the four nodes that replace a constant."""
    values = node.value.array  # read once: a large tensor may be computed on each access
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = min(values.min(), np.float32(0)), max(values.max(), np.float32(0))
        width = float(high - low)
    if not np.isfinite([low, high]).all():
        return Skip("the constant contains infinite or NaN values")
    if width > MAX_RANGE:
        return Skip(f"the width of the range [{low:g}, {high:g}] is beyond float32")
    if width < MIN_RANGE:
        low, high = np.float32(0), np.float32(1)
    quantized = constant(f"{node.name}_quantized_const", quantize_values(values, low, high), DType.QUINT8)
    bounds = (constant(f"{node.name}_quantized_min", low), constant(f"{node.name}_quantized_max", high))
    constants = [new.with_(controls=node.controls) for new in (quantized, *bounds)]
    edges = tuple(Edge(new.name) for new in constants)
    return [*constants, Node(node.name, "Dequantize", edges, attrs={"T": DType.QUINT8, "mode": b"MIN_FIRST"})]


def _is_weight(node: Node, minimum_size: int) -> bool:
    """Return True if a node is a large float constant.

    Raises:
        GraphError: a constant lacks its type or its value.
    """
    if node.op != "Const":
        return False
    for name, kind in (("dtype", DType), ("value", Tensor)):
        if not isinstance(node.attrs.get(name), kind):
            raise GraphError(
                f"No '{name}' attribute for Const node {node.name}",
                hint="the file is damaged, or was written by a tool that drops attributes",
            )
    return node.attrs["dtype"] is DType.FLOAT and node.value.num_elements >= max(minimum_size, 1)
