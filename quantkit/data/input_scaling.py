"""Scaling of pixels inside a graph, and the range of input values that it implies.

    Rescaling(1/255)                     expects 0 to 255
    Normalization(0.45, 0.22**2)         expects 0 to 1
    Rescaling(2, offset=-1)              expects 0 to 1
    BatchNormalization of the input      expects the mean and the variance that it stores

The chain of ops from the input to the first other op computes ``scale * x + offset`` with constants, as a scalar or per
channel. A quantized input states its range itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array
from quantkit.ops import kernels
from quantkit.ops.table import Fact, find_ops

# Ops that keep the values, or only move, repeat or drop some.
UNCHANGED = find_ops(Fact.MOVEMENT | Fact.PAD) - find_ops(Fact.CONCAT) | {
    *("Cast", "Dequantize", "DequantizeLinear", "Resize", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"),
}
SHAPE_OPS = find_ops(Fact.SHAPE)
BATCH_NORMS = find_ops(Fact.BATCH_NORM) - {"BatchNormWithGlobalNormalization"}
ADDITIONS = find_ops(Fact.ADDITION | Fact.BIAS)
DIVISIONS = find_ops(Fact.DIVISION)
MAX_CHANNELS = 4
# Longest chain and longest constant expression that are searched.
MAX_STEPS = 32
# Ranges of pixels, the narrowest first.
RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
# Ranges that a scaling usually produces, and the largest distance from them as a fraction of their width.
SCALED_RANGES = ((0.0, 1.0), (-1.0, 1.0), (-0.5, 0.5), (0.0, 255.0))
RANGE_TOLERANCE = 0.03
# Widths that scaled pixels may have: 1 to 5 are usual.
MIN_WIDTH, MAX_WIDTH = 0.4, 12.0
# Smallest standard deviation as a fraction of the range.
MIN_DEVIATION = 0.025
# Largest excess of a stored standard deviation over the maximum in a range.
EXCESS = 1.05


@dataclass(frozen=True)
class InputScaling:
    """Range of the input values that a graph expects, concluded from its own scaling.

    Attributes:
        low, high: smallest and largest expected value.
        node: first node that scales the input.
        op: op type of this node.
    """

    low: float
    high: float
    node: str
    op: str

    @property
    def mean(self) -> float:
        """Mean to subtract from pixels of 0 to 255, so that they are in the range after division by `std`."""
        return 0.0 - self.low * self.std

    @property
    def std(self) -> float:
        """Divisor of pixels of 0 to 255."""
        return 255 / (self.high - self.low)

    def __str__(self) -> str:
        return f"the graph expects values from {self.low:g} to {self.high:g}: {self.node!r} ({self.op}) scales them"


def find_input_scaling(graph: Graph, edge: Edge) -> InputScaling | None:
    """Return the range of values that a graph expects at an input; None if the graph does not imply one.

    Args:
        graph: graph of either dialect.
        edge: input of the graph.
    """
    scale, offset = np.float64(1), np.float64(0)
    first: Node | None = None
    for _ in range(MAX_STEPS):
        node = _only_consumer(graph, edge)
        if node is None:
            break
        if node.op in UNCHANGED:
            if node.inputs[0] != edge and node.op != "Split":
                break
            edge = Edge(node.name)
            continue
        stated = _quantized_range(graph, node, scale, offset) or _statistics(graph, node, scale, offset)
        if stated is not None:
            return InputScaling(*stated, (first or node).name, (first or node).op)
        factors = _affine(graph, node, edge)
        if factors is None:
            break
        scale, offset = scale * factors[0], offset * factors[0] + factors[1]
        first = first or node
        edge = Edge(node.name)
    if first is None or not np.all(np.isfinite([scale, offset])):
        return None
    bounds = _expected_range(float(scale), float(offset))
    return None if bounds is None else InputScaling(*bounds, first.name, first.op)


def _only_consumer(graph: Graph, edge: Edge) -> Node | None:
    """Return the consumer of an edge, or the first of several of one op type; shapes do not count."""
    consumers = [use.node for use in graph.uses.get(edge, ()) if use.node.op not in SHAPE_OPS]
    return consumers[0] if len({node.op for node in consumers}) == 1 else None


def _affine(graph: Graph, node: Node, edge: Edge) -> tuple[np.float64, np.float64] | None:
    """Return factor and summand of a node with one constant operand, as means of all channels; None for other nodes."""
    if node.op == "Neg":
        return np.float64(-1), np.float64(0)
    if len(node.inputs) != 2 or edge not in node.inputs:
        return None
    is_first = node.inputs[0] == edge
    value = _constant(graph, node.inputs[1 if is_first else 0])
    if value is None or value.dtype.kind not in "biuf" or not _is_per_channel(value):
        return None
    operand = np.float64(np.mean(value, dtype=np.float64))
    if node.op == "Mul":
        return operand, np.float64(0)
    if node.op in ADDITIONS:
        return np.float64(1), operand
    if node.op == "Sub":
        return (np.float64(1), -operand) if is_first else (np.float64(-1), operand)
    if node.op in DIVISIONS and is_first and np.all(value):
        return np.float64(np.mean(1 / value.astype(np.float64))), np.float64(0)
    return None


def _is_per_channel(value: Array) -> bool:
    """Return True if a constant is a scalar, one value per channel, or a mean image, and not for example a window."""
    shape = tuple(size for size in value.shape if size != 1)
    return 0 < value.size <= MAX_CHANNELS or len(shape) == 3


def _constant(graph: Graph, edge: Edge, depth: int = 0) -> Array | None:
    """Return the value of an edge that depends on constants only; None for other edges."""
    if (tensor := graph.constant_of(edge)) is not None:
        return tensor.array
    node = graph.nodes.get(edge.node)
    if node is None or not node.inputs or depth == MAX_STEPS or not kernels.has_kernel(node.op):
        return None
    values: list[Array] = []
    for source in node.inputs:
        value = _constant(graph, source, depth + 1)
        if value is None:
            return None
        values.append(value)
    try:
        return kernels.evaluate(node, values)[edge.port]
    except (QuantkitError, ValueError, TypeError, IndexError, ArithmeticError):
        return None


def _statistics(graph: Graph, node: Node, scale: np.float64, offset: np.float64) -> tuple[float, float] | None:
    """Return the range whose pixels have the mean and the variance of a batch norm; None for other nodes.

    Args:
        graph: graph of the node.
        node: consumer of ``scale * x + offset``.
        scale, offset: factor and summand of the ops before the node.
    """
    if node.op not in BATCH_NORMS or len(node.inputs) < 5 or not scale:
        return None
    mean, variance = (_constant(graph, edge) for edge in node.inputs[3:5])
    if mean is None or variance is None or not mean.size or not variance.size:
        return None
    if not np.any(mean) and np.all(variance == 1):
        return None  # the layer is not trained
    deviation = sqrt(max(float(np.mean(variance)), 0.0))
    return _range_of_statistics((float(np.mean(mean)) - float(offset)) / float(scale), deviation / abs(float(scale)))


def _quantized_range(graph: Graph, node: Node, scale: np.float64, offset: np.float64) -> tuple[float, float] | None:
    """Return the range of pixels that contains the range of a quantized input; None for other nodes.

    Args:
        graph: graph of the node.
        node: consumer of ``scale * x + offset``.
        scale, offset: factor and summand of the ops before the node.
    """
    if node.op not in ("QuantizeLinear", "QuantizeV2") or len(node.inputs) < 2 or not scale:
        return None
    values = [_constant(graph, edge) for edge in node.inputs[1:3]]
    numbers = [value for value in values if value is not None and value.size == 1]
    if len(numbers) != len(values):
        return None
    if node.op == "QuantizeV2":
        low, high = (float(number.item()) for number in numbers) if len(numbers) == 2 else (0.0, 0.0)
    else:
        zero = numbers[1] if len(numbers) == 2 else np.zeros((), np.uint8)
        if zero.dtype.kind not in "iu":
            return None
        limits = np.iinfo(zero.dtype)
        low, high = (float((limit - int(zero.item())) * numbers[0].item()) for limit in (limits.min, limits.max))
    low, high = sorted((limit - float(offset)) / float(scale) for limit in (low, high))
    # Calibration clips rare values, and quantization moves a limit by up to one step.
    step = (high - low) / 255
    for bounds in RANGES:
        width = bounds[1] - bounds[0]
        if bounds[0] - 2 * step <= low and high <= bounds[1] + 2 * step and high - low > width / 5:
            return bounds
    return None


def _expected_range(scale: float, offset: float) -> tuple[float, float] | None:
    """Return the range of pixels that ``scale * x + offset`` is for; None if no range or no single one fits."""
    return (
        _range_of_mapping(scale, offset)
        or (_range_of_statistics(-offset / scale, 1 / abs(scale)) if scale and offset else None)
        or _range_of_width(scale, offset)
    )


def _range_of_mapping(scale: float, offset: float) -> tuple[float, float] | None:
    """Return the range that is mapped to another usual range."""
    if max(abs(scale - 1), abs(offset)) <= RANGE_TOLERANCE:
        return None
    matches = []
    for low, high in RANGES:
        first, second = sorted((scale * low + offset, scale * high + offset))
        for scaled_low, scaled_high in SCALED_RANGES:
            tolerance = RANGE_TOLERANCE * (scaled_high - scaled_low)
            if abs(first - scaled_low) <= tolerance and abs(second - scaled_high) <= tolerance:
                matches.append((low, high))
    return matches[0] if matches else None


def _range_of_statistics(mean: float, deviation: float) -> tuple[float, float] | None:
    """Return the narrowest range whose values may have a mean and a standard deviation.

    The variance of values in [low, high] is at most (high - mean) * (mean - low). Images use a part of the range.
    """
    for low, high in RANGES:
        smallest = MIN_DEVIATION * (high - low)
        limit = sqrt(max(high - mean, 0) * max(mean - low, 0)) * EXCESS
        # A scale of 1 does not state the deviation.
        if low + smallest < mean < high and (deviation == 1 or smallest <= deviation <= limit):
            return low, high
    return None


def _range_of_width(scale: float, offset: float) -> tuple[float, float] | None:
    """Return the only range whose scaled width and center are usual."""
    matches = list(_usual(scale, offset))
    return matches[0] if len(matches) == 1 else None


def _usual(scale: float, offset: float) -> Iterator[tuple[float, float]]:
    for low, high in RANGES:
        width = abs(scale) * (high - low)
        center = scale * (low + high) / 2 + offset
        if MIN_WIDTH <= width <= MAX_WIDTH and abs(center) <= width:
            yield low, high
