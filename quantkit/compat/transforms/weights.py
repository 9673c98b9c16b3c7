"""The original's quantization and rounding of weights."""

from collections.abc import Sequence

import numpy as np

from quantkit.compat.transforms.matching import CONST, ClassicMatch, replace_matches
from quantkit.compat.transforms.nodes import NodeDef, constant
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.graph import Attr
from quantkit.ir.tensor import Array, DType, Tensor

# The original's running maximum started at the smallest normal number, not at the lowest number.
INITIAL_MAXIMUM = np.finfo(np.float32).tiny
SMALLEST_WIDTH = np.float32(0.000001)


@classic_transform(exact=False)
def quantize_weights(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Quantize large float constants to 8 bits, and drop their control dependencies."""
    minimum_size = context.int32("minimum_size", 1024)

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        node = match.node
        tensor = tensor_of(node)
        # The original compared unsigned numbers: a negative minimum exceeds every size.
        is_small = tensor.num_elements < minimum_size % (1 << 64)
        if node.attrs["dtype"] is not DType.FLOAT or is_small:
            return [node]
        return _quantize_constant(node.name, tensor.array)

    return replace_matches(nodes, CONST, replace)


def tensor_of(node: NodeDef) -> Tensor:
    """Return the tensor of a constant.

    Raises:
        GraphError: the constant lacks its type or its value.
    """
    for key in ("dtype", "value"):
        if key not in node.attrs:
            raise GraphError(f"No '{key}' attribute for Const node {node.name}")
    value = node.attrs["value"]
    if not isinstance(value, Tensor):
        raise GraphError(f"Decoding Tensor failed for node{node.name}")
    return value


def _quantize_constant(name: str, values: Array) -> list[NodeDef]:
    low, high = _extremes(values)
    low, high = min(low, np.float32(0)), max(high, np.float32(0))
    if low == high:
        low, high = _widen(low)
    parts = [
        constant(f"{name}_quantized_const", _quantize(values, low, high), DType.QUINT8),
        constant(f"{name}_quantized_min", np.asarray(low)),
        constant(f"{name}_quantized_max", np.asarray(high)),
    ]
    attrs: dict[str, Attr] = {"T": DType.QUINT8, "mode": b"MIN_FIRST"}
    return [*parts, NodeDef(name, "Dequantize", tuple(part.name for part in parts), attrs)]


def _extremes(values: Array) -> tuple[np.float32, np.float32]:
    """Return the minimum and the maximum as computed by the original, which ignored NaN."""
    numbers = values[~np.isnan(values)]
    largest = np.finfo(np.float32).max
    low = np.float32(min(numbers.min(initial=largest), largest))
    return low, np.float32(numbers.max(initial=INITIAL_MAXIMUM))


def _widen(low: np.float32) -> tuple[np.float32, np.float32]:
    if abs(low) < SMALLEST_WIDTH:
        return low, np.float32(low + np.float32(1))
    return (low, np.float32(2) * low) if low > 0 else (low, low / np.float32(2))


def _quantize(values: Array, low: np.float32, high: np.float32) -> Array:
    with np.errstate(all="ignore"):
        scale = 256.0 / (float(np.float32(high - low)) * (256.0 / 255.0))
        lowest = _round(np.asarray(low, np.float64) * scale)
        quantized = _round(values.astype(np.float64) * scale) - lowest
        return np.asarray(np.clip(np.nan_to_num(quantized, nan=0.0), 0, 255), np.uint8)


def _round(values: Array) -> Array:
    """Round to the nearest integer, halves away from zero."""
    return np.asarray(np.trunc(values + np.copysign(np.nextafter(0.5, 0.0), values)))


@classic_transform(exact=False)
def round_weights(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Round float constants to a few distinct values.

    The maximum is rounded to a value outside the range, and constants of equal values change.
    """
    num_steps = context.int32("num_steps", 256)

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        node = match.node
        tensor = tensor_of(node)
        if node.attrs["dtype"] is not DType.FLOAT or tensor.num_elements < 16:
            return [node]
        return [constant(node.name, _round_to_steps(tensor.array, num_steps))]

    return replace_matches(nodes, CONST, replace)


def _round_to_steps(values: Array, num_steps: int) -> Array:
    low, high = _extremes(values)
    if low == high:
        if abs(low) < SMALLEST_WIDTH:
            high = np.float32(low + np.float32(1))
        elif low > 0:
            high = np.float32(2) * low
        else:
            low = np.float32(2) * high
    with np.errstate(all="ignore"):
        width = (high - low) / np.float32(num_steps)
        step = np.floor((values - low) / width).astype(np.int32).astype(np.float32)
        return np.asarray(low + width * (step + np.float32(0.5)), np.float32)
