"""Store large float constants as 8-bit codes.

    code = round(x * scale) - round(lo * scale)      scale = 255 / (hi - lo)      lo <= 0 <= hi
    x   ~= (round(lo * scale) + code) / scale

Rounding is half away from zero, in double precision; real 0 always falls on a code.
"""

import numpy as np
import numpy.typing as npt

from quantkit.errors import GraphError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Tensor
from quantkit.transforms.registry import transform

# Adding this, with the sign of y, and cutting off the fraction rounds y half away from zero; adding 0.5 itself
# would round 0.49999999999999994 up.
ALMOST_HALF = np.nextafter(0.5, 0.0)
# So many values pass through the work arrays at a time: these then stay in the processor's cache.
CHUNK = 1 << 14
# Beyond these, Dequantize makes NaN: its step is flushed to zero, or its range is infinite in float32.
NARROWEST_RANGE = 256 * float(np.finfo(np.float32).tiny)
WIDEST_RANGE = 255 / 256 * float(np.finfo(np.float32).max)


@transform(exact=False)
def quantize_weights(graph: Graph, *, minimum_size: int = 1024) -> Outcome:
    """Store large float constants as 8-bit codes, a quarter of the size, decoded when the graph runs.

    Before:  w = Const[float]
    After:   w = Dequantize(w_quantized_const, w_quantized_min, w_quantized_max)

    The range of a tensor is that of its values, stretched to hold 0; they come back within one step, which is
    (max - min) / 255. A tensor of zeros gets the range [0, 1] and comes back as exact zeros. The new constants wait
    for what the old one waited for.

    Options:
        minimum_size: constants with fewer elements stay float.

    Skips when a value is infinite or NaN, or the range is wider than float32 can say.

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
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for node in graph.nodes.values():
        if not _is_weight(node, minimum_size):
            continue
        made = _quantized(node)
        if isinstance(made, Skip):
            skips.append(made)
        else:
            draft.replace(node.name, *made)
            changes.append(f"{node.name}: {node.value.num_elements} values")
    return Outcome(draft.graph(), tuple(changes), tuple(skips))


def codes_of(values: npt.NDArray[np.float32], low: np.float32, high: np.float32) -> npt.NDArray[np.uint8]:
    """8-bit codes of real values, bit for bit those of the classic tool.

    Args:
        values: any shape, finite, within [low, high].
        low, high: range, ``low <= 0 <= high`` and ``low < high``.

    Returns:
        Codes of the same shape.

    >>> codes_of(np.float32([-1.0, 0.0, 0.5, 1.0]), np.float32(-1), np.float32(1))
    array([  0, 128, 192, 255], dtype=uint8)
    """
    scale = 256.0 / (float(high - low) * (256.0 / 255.0))
    zero = _rounded(float(low) * scale)
    flat = np.ascontiguousarray(values).reshape(-1)
    codes = np.empty(flat.shape, np.uint8)
    for start in range(0, flat.size, CHUNK):
        chunk = slice(start, start + CHUNK)
        levels = _rounded(np.multiply(flat[chunk], scale, dtype=np.float64))
        levels -= zero
        codes[chunk] = np.clip(levels, 0, 255, out=levels)
    return codes.reshape(values.shape)


def _rounded(values: npt.ArrayLike) -> npt.NDArray[np.int16]:
    """Nearest integers of float64 numbers below 2^15, halves away from zero."""
    return np.add(values, np.copysign(ALMOST_HALF, values)).astype(np.int16)


def _quantized(node: Node) -> list[Node] | Skip:
    """The four nodes that take a constant's place."""
    values = node.value.array  # once: a large tensor may be computed each time it is asked for
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = min(values.min(), np.float32(0)), max(values.max(), np.float32(0))
        width = float(high - low)
    if not np.isfinite([low, high]).all():
        return Skip("it holds a value that is infinite or not a number", node.name)
    if width > WIDEST_RANGE:
        return Skip(f"its range [{low:g}, {high:g}] is wider than float32 can say", node.name)
    if width < NARROWEST_RANGE:
        low, high = np.float32(0), np.float32(1)
    codes = constant(f"{node.name}_quantized_const", codes_of(values, low, high), DType.QUINT8)
    ends = (constant(f"{node.name}_quantized_min", low), constant(f"{node.name}_quantized_max", high))
    constants = [one.with_(controls=node.controls) for one in (codes, *ends)]
    decoded = Node(
        node.name,
        "Dequantize",
        tuple(Edge(one.name) for one in constants),
        attrs={"T": DType.QUINT8, "mode": b"MIN_FIRST"},
    )
    return [*constants, decoded]


def _is_weight(node: Node, minimum_size: int) -> bool:
    """Whether a node is a large float constant.

    Raises:
        GraphError: it is a constant and lacks its type or its value.
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
