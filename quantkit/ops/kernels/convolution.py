"""Kernels of convolutions and matrix products.

    y[n, i, j, :] = sum over (a, b) of x[n, i * s + a * d, j * s + b * d, :] @ W[a, b]

All windows are copied into one matrix (im2col), which is multiplied by the weights.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.kernels.images import resize_bilinear, resized_size
from quantkit.ops.kernels.output_sizes import matrix_product, product
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.kernels.shapes import mirror_pad, sizes
from quantkit.ops.kernels.windows import Windows, channels_last, is_nchw, node_layout
from quantkit.ops.tensorflow.signatures import attribute

# Maximum size of the matrix of windows; a larger batch is computed in chunks.
MATRIX_BYTES = 64 << 20


def convolve(x: Array, weights: Array, windows: Windows) -> Array:
    """Compute a convolution; it is grouped if the weights have fewer input channels than ``x``.

    Args:
        x: (n, h, w, c_in).
        weights: (h, w, c_in / groups, c_out), of the same type.
        windows: positions of the windows.

    Returns:
        (n, h, w, c_out).

    Raises:
        ValueError: the numbers of channels of ``x`` and the weights are incompatible.
    """
    channels, depth, c_out = x.shape[3], weights.shape[2], weights.shape[3]
    if not depth or channels % depth or c_out % (channels // depth):
        raise ValueError(f"weights for {depth} channels do not fit {channels}")
    row_bytes = windows.rows.count * windows.columns.count * weights.shape[0] * weights.shape[1] * channels * x.itemsize
    step = max(1, MATRIX_BYTES // max(1, row_bytes))
    output = np.empty((len(x), windows.rows.count, windows.columns.count, c_out), x.dtype)
    for start in range(0, len(x), step):
        part = windows.pad(x[start : start + step])
        output[start : start + step] = _multiply(_gather_windows(part, windows), weights)
    return output


def _gather_windows(padded: Array, windows: Windows) -> Array:
    """Return the elements of each window: (n, h, w, window h * window w, c)."""
    rows, columns = windows.rows, windows.columns
    if rows.window == columns.window == 1:
        return padded[:, rows.taps(0), columns.taps(0), None]
    shape = (len(padded), rows.count, columns.count, rows.window * columns.window, padded.shape[3])
    matrix = np.empty(shape, padded.dtype)
    for i, j, index in windows.taps():
        matrix[:, :, :, i * columns.window + j] = padded[index]
    return matrix


def _multiply(matrix: Array, weights: Array) -> Array:
    """Multiply windows (n, h, w, taps, c_in) by the weights -> (n, h, w, c_out)."""
    *positions, taps, channels = matrix.shape
    depth, c_out = weights.shape[2:]
    groups = channels // depth
    if groups == 1:
        output = matrix.reshape(-1, taps * channels) @ weights.reshape(-1, c_out)
        return output.reshape(*positions, c_out)
    split = matrix.reshape(-1, taps, groups, depth).transpose(2, 0, 1, 3).reshape(groups, -1, taps * depth)
    parts = weights.reshape(taps * depth, groups, c_out // groups).transpose(1, 0, 2)
    return (split @ parts).transpose(1, 0, 2).reshape(*positions, c_out)


def _windows_of(node: Node, x: Array, weights: Array) -> Windows:
    if weights.ndim != 4:
        raise ValueError("weights must have four dimensions")
    return Windows.of(node, (x.shape[1], x.shape[2]), (weights.shape[0], weights.shape[1]))


def _widen(x: Array) -> Array:
    """Convert half-precision types, whose products are slow and inexact, to float32."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 and x.dtype.kind not in "iu" else x


def convolution_size(node: Node, inputs: Sequence[Array]) -> int:
    """Return the larger number of elements: of the output, or of the padded input."""
    x, weights = channels_last(node, inputs[0]), inputs[1]
    windows = _windows_of(node, x, weights)
    rows, columns = windows.rows, windows.columns
    channels = weights.shape[3] * (weights.shape[2] if node.op == "DepthwiseConv2dNative" else 1)
    padded = (rows.before + rows.size + rows.after) * (columns.before + columns.size + columns.after)
    return int(len(x) * max(padded * x.shape[3], rows.count * columns.count * channels))


@kernel("Conv2D", output_size=convolution_size)
def _conv2d(node: Node, x: Array, weights: Array) -> Array:
    x, weights = channels_last(node, _widen(x)), _widen(weights)
    return node_layout(node, convolve(x, weights, _windows_of(node, x, weights)))


kernel("FusedPadConv2D")(
    lambda node, x, paddings, weights: _mirror_pad_conv2d(node, _widen(x), paddings, _widen(weights))
)


@kernel("FusedResizeAndPadConv2D", output_size=resized_size)
def _resize_pad_conv2d(node: Node, x: Array, size: Array, paddings: Array, weights: Array) -> Array:
    height, width = sizes(size)
    resized = resize_bilinear(x, (height, width), attribute(node, "resize_align_corners"), False)
    return _mirror_pad_conv2d(node, resized, paddings, _widen(weights))


def _mirror_pad_conv2d(node: Node, x: Array, paddings: Array, weights: Array) -> Array:
    if paddings.shape != (4, 2) or paddings[[0, 3]].any():
        raise ValueError("only height and width can be padded")
    padded = mirror_pad(x, paddings, attribute(node, "mode"))
    return convolve(padded, weights, _windows_of(node, padded, weights))


@kernel("DepthwiseConv2dNative", output_size=convolution_size)
def _depthwise_conv2d(node: Node, x: Array, weights: Array) -> Array:
    """Compute output channel c * m + k from input channel c and weights [:, :, c, k]; weights: (h, w, c, m)."""
    x, weights = channels_last(node, _widen(x)), _widen(weights)
    windows = _windows_of(node, x, weights)
    channels, multiplier = weights.shape[2:]
    if x.shape[3] != channels:
        raise ValueError(f"weights for {channels} channels do not fit {x.shape[3]}")
    padded = windows.pad(x)
    output = np.zeros((len(x), windows.rows.count, windows.columns.count, channels, multiplier), x.dtype)
    for i, j, index in windows.taps():
        output += padded[index][..., None] * weights[i, j]
    return node_layout(node, output.reshape(*output.shape[:3], channels * multiplier))


def _transposed_size(node: Node, inputs: Sequence[Array]) -> int:
    """Return the number of elements of the output, whose shape may be (height, width)."""
    is_complete = inputs[0].size > 2
    return product(inputs[0]) * (1 if is_complete else len(inputs[2]) * inputs[1].shape[2])


@kernel("Conv2DBackpropInput", output_size=_transposed_size)
def _conv2d_backprop_input(node: Node, input_sizes: Array, weights: Array, y: Array) -> Array:
    """Compute the transposed convolution.

    Inputs: the output shape, weights (h, w, c, c_out), y (n, h', w', c_out).
    """
    shape, weights, y = sizes(input_sizes), _widen(weights), channels_last(node, _widen(y))
    if len(shape) == 2:  # TensorFlow also accepts (height, width)
        spatial: tuple[int, ...] = shape
    else:
        spatial = shape[2:] if is_nchw(node) else shape[1:3]
    channels = weights.shape[2]
    windows = Windows.of(node, (spatial[0], spatial[1]), (weights.shape[0], weights.shape[1]))
    rows, columns = windows.rows, windows.columns
    if y.shape[1:] != (rows.count, columns.count, weights.shape[3]):
        raise ValueError(f"the convolution of {spatial[0]}x{spatial[1]} has an output of {rows.count}x{columns.count}")
    padded = np.zeros(
        (
            len(y),
            rows.before + spatial[0] + rows.after,
            columns.before + spatial[1] + columns.after,
            channels,
        ),
        y.dtype,
    )
    for i, j, index in windows.taps():
        padded[index] += y @ weights[i, j].T
    cropped = padded[:, rows.before : rows.before + spatial[0], columns.before : columns.before + spatial[1]]
    return node_layout(node, cropped)


@kernel("MatMul", output_size=matrix_product)
def _mat_mul(node: Node, a: Array, b: Array) -> Array:
    a, b = _widen(a), _widen(b)
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError("matrices are expected")
    a = a.T if attribute(node, "transpose_a") else a
    b = b.T if attribute(node, "transpose_b") else b
    return a @ b


@kernel("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", output_size=matrix_product)
def _batch_mat_mul(node: Node, a: Array, b: Array) -> Array:
    a, b = _widen(a), _widen(b)
    a = np.conj(a).swapaxes(-1, -2) if attribute(node, "adj_x") else a
    b = np.conj(b).swapaxes(-1, -2) if attribute(node, "adj_y") else b
    return np.asarray(np.matmul(a, b, dtype=_result_type(node)))


def _result_type(node: Node) -> npt.DTypeLike | None:
    """Return the integer output type of BatchMatMulV3, which can be wider than the inputs; None for other types."""
    if node.op != "BatchMatMulV3":
        return None
    dtype: np.dtype[Any] = attribute(node, "Tout").numpy
    return dtype if dtype.kind in "iu" else None


def _einsum_size(node: Node, inputs: Sequence[Array]) -> int:
    terms, _, result = attribute(node, "equation").decode().replace(" ", "").partition("->")
    sizes = {
        letter: size
        for term, array in zip(terms.split(","), inputs, strict=True)
        for letter, size in zip(term, array.shape, strict=True)
    }
    return math.prod(sizes[letter] for letter in result)


@kernel("Einsum", output_size=_einsum_size)
def _einsum(node: Node, *inputs: Array) -> Array:
    equation = attribute(node, "equation").decode().replace(" ", "")
    return np.asarray(np.einsum(equation, *(_widen(x) for x in inputs), optimize=True))
