"""Convolutions and matrix products.

    y[n, i, j, :] = sum over (a, b) of x[n, i * s + a * d, j * s + b * d, :] @ W[a, b]

The windows are copied side by side into a matrix, and one product with the weights gives all outputs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.kernels.images import resize_bilinear
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.kernels.shapes import mirrored, sizes
from quantkit.ops.kernels.windows import Windows, channels_last, is_nchw, node_layout
from quantkit.ops.tensorflow.signatures import attribute

# The matrix of windows is made for as many pictures at a time as fit into this.
MATRIX_BYTES = 64 << 20


def convolve(x: Array, weights: Array, windows: Windows, fill: float = 0) -> Array:
    """A convolution, grouped where the weights take fewer channels than there are.

    Args:
        x: (n, h, w, c_in).
        weights: (h, w, c_in / groups, c_out), of the same type.
        windows: where they go.
        fill: value of the padding.

    Returns:
        (n, h, w, c_out).

    Raises:
        ValueError: channels and weights do not fit.
    """
    channels, depth, c_out = x.shape[3], weights.shape[2], weights.shape[3]
    if not depth or channels % depth or c_out % (channels // depth):
        raise ValueError(f"weights for {depth} channels do not fit {channels}")
    row_bytes = windows.rows.count * windows.columns.count * weights.shape[0] * weights.shape[1] * channels * x.itemsize
    step = max(1, MATRIX_BYTES // max(1, row_bytes))
    made = np.empty((len(x), windows.rows.count, windows.columns.count, c_out), x.dtype)
    for start in range(0, len(x), step):
        part = windows.pad(x[start : start + step], fill)
        made[start : start + step] = _product(_windows_side_by_side(part, windows), weights)
    return made


def _windows_side_by_side(padded: Array, windows: Windows) -> Array:
    """(n, h, w, window h * window w, c): every window, element after element."""
    rows, columns = windows.rows, windows.columns
    if rows.window == columns.window == 1:
        return padded[:, rows.taps(0), columns.taps(0), None]
    shape = (len(padded), rows.count, columns.count, rows.window * columns.window, padded.shape[3])
    matrix = np.empty(shape, padded.dtype)
    for i, j, place in windows.taps():
        matrix[:, :, :, i * columns.window + j] = padded[place]
    return matrix


def _product(matrix: Array, weights: Array) -> Array:
    """Windows (n, h, w, taps, c_in) times weights -> (n, h, w, c_out)."""
    *places, taps, channels = matrix.shape
    depth, c_out = weights.shape[2:]
    groups = channels // depth
    if groups == 1:
        made = matrix.reshape(-1, taps * channels) @ weights.reshape(-1, c_out)
        return made.reshape(*places, c_out)
    split = matrix.reshape(-1, taps, groups, depth).transpose(2, 0, 1, 3).reshape(groups, -1, taps * depth)
    parts = weights.reshape(taps * depth, groups, c_out // groups).transpose(1, 0, 2)
    return (split @ parts).transpose(1, 0, 2).reshape(*places, c_out)


def _windows_of(node: Node, x: Array, weights: Array) -> Windows:
    if weights.ndim != 4:
        raise ValueError("weights must have four dimensions")
    return Windows.of(node, (x.shape[1], x.shape[2]), (weights.shape[0], weights.shape[1]))


def _wide(x: Array) -> Array:
    """Types without fast or exact products of their own, in one that has them."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 and x.dtype.kind not in "iu" else x


@kernel("Conv2D")
def _conv2d(node: Node, inputs: Sequence[Array]) -> Array:
    x, weights = channels_last(node, _wide(inputs[0])), _wide(inputs[1])
    return node_layout(node, convolve(x, weights, _windows_of(node, x, weights)))


@kernel("FusedPadConv2D")
def _pad_conv2d(node: Node, inputs: Sequence[Array]) -> Array:
    return _mirrored_conv2d(node, _wide(inputs[0]), inputs[1], _wide(inputs[2]))


@kernel("FusedResizeAndPadConv2D")
def _resize_pad_conv2d(node: Node, inputs: Sequence[Array]) -> Array:
    height, width = sizes(inputs[1])
    resized = resize_bilinear(inputs[0], (height, width), attribute(node, "resize_align_corners"), False)
    return _mirrored_conv2d(node, resized, inputs[2], _wide(inputs[3]))


def _mirrored_conv2d(node: Node, x: Array, paddings: Array, weights: Array) -> Array:
    if paddings.shape != (4, 2) or paddings[[0, 3]].any():
        raise ValueError("only height and width can be padded")
    padded = mirrored(x, paddings, attribute(node, "mode"))
    return convolve(padded, weights, _windows_of(node, padded, weights))


@kernel("DepthwiseConv2dNative")
def _depthwise(node: Node, inputs: Sequence[Array]) -> Array:
    """Weights (h, w, c, m): output channel c * m + k is input channel c with weights [:, :, c, k]."""
    x, weights = channels_last(node, _wide(inputs[0])), _wide(inputs[1])
    windows = _windows_of(node, x, weights)
    channels, multiplier = weights.shape[2:]
    if x.shape[3] != channels:
        raise ValueError(f"weights for {channels} channels do not fit {x.shape[3]}")
    padded = windows.pad(x)
    made = np.zeros((len(x), windows.rows.count, windows.columns.count, channels, multiplier), x.dtype)
    for i, j, place in windows.taps():
        made += padded[place][..., None] * weights[i, j]
    return node_layout(node, made.reshape(*made.shape[:3], channels * multiplier))


@kernel("Conv2DBackpropInput")
def _transposed(node: Node, inputs: Sequence[Array]) -> Array:
    """The transposed convolution: every output element spreads over its window of the input.

    Inputs: the wanted shape, weights (h, w, c, c_out), y (n, h', w', c_out).
    """
    shape, weights, y = sizes(inputs[0]), _wide(inputs[1]), channels_last(node, _wide(inputs[2]))
    if len(shape) == 2:  # TensorFlow takes height and width alone, too
        spatial: tuple[int, ...] = shape
    else:
        spatial = shape[2:] if is_nchw(node) else shape[1:3]
    channels = weights.shape[2]
    windows = Windows.of(node, (spatial[0], spatial[1]), (weights.shape[0], weights.shape[1]))
    rows, columns = windows.rows, windows.columns
    if y.shape[1:] != (rows.count, columns.count, weights.shape[3]):
        raise ValueError(f"a convolution of {spatial[0]}x{spatial[1]} gives {rows.count}x{columns.count}")
    padded = np.zeros(
        (
            len(y),
            rows.before + spatial[0] + rows.after,
            columns.before + spatial[1] + columns.after,
            channels,
        ),
        y.dtype,
    )
    for i, j, place in windows.taps():
        padded[place] += y @ weights[i, j].T
    kept = padded[:, rows.before : rows.before + spatial[0], columns.before : columns.before + spatial[1]]
    return node_layout(node, kept)


@kernel("MatMul")
def _mat_mul(node: Node, inputs: Sequence[Array]) -> Array:
    a, b = (_wide(x) for x in inputs)
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError("matrices are expected")
    a = a.T if attribute(node, "transpose_a") else a
    b = b.T if attribute(node, "transpose_b") else b
    return a @ b


@kernel("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batch_mat_mul(node: Node, inputs: Sequence[Array]) -> Array:
    a, b = (_wide(x) for x in inputs)
    a = np.conj(a).swapaxes(-1, -2) if attribute(node, "adj_x") else a
    b = np.conj(b).swapaxes(-1, -2) if attribute(node, "adj_y") else b
    return np.asarray(np.matmul(a, b, dtype=_result_type(node)))


def _result_type(node: Node) -> npt.DTypeLike | None:
    """BatchMatMulV3 may ask for a wider result than its inputs have."""
    if node.op != "BatchMatMulV3":
        return None
    wanted: np.dtype[Any] = attribute(node, "Tout").numpy
    return wanted if wanted.kind in "iu" else None


@kernel("Einsum")
def _einsum(node: Node, inputs: Sequence[Array]) -> Array:
    equation = attribute(node, "equation").decode().replace(" ", "")
    return np.asarray(np.einsum(equation, *(_wide(x) for x in inputs), optimize=True))
