"""Kernels of pools; maximum and average ignore padding."""

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.kernels.registry import kernel
from quantkit.ops.kernels.shapes import sizes
from quantkit.ops.kernels.windows import Windows, channels_last, node_layout, pool_windows
from quantkit.ops.tensorflow.signatures import attribute


def max_pool(x: Array, windows: Windows) -> Array:
    """Return the maximum of each window: (n, h, w, c) -> (n, h, w, c)."""
    lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    padded = windows.pad(x, lowest)
    output: Array | None = None
    for _, _, index in windows.taps():
        output = padded[index].copy() if output is None else np.maximum(output, padded[index], out=output)
    return x if output is None else output


def window_sums(x: Array, windows: Windows) -> Array:
    """Return the sum of each window: (n, h, w, c) -> (n, h, w, c)."""
    padded = windows.pad(x)
    total = np.zeros((len(x), windows.rows.count, windows.columns.count, x.shape[3]), x.dtype)
    for _, _, index in windows.taps():
        total += padded[index]
    return total


def window_counts(windows: Windows) -> Array:
    """Return the number of elements of each window that are not padding: (h, w, 1)."""
    return np.asarray(np.outer(windows.rows.inside(), windows.columns.inside()))[..., None]


@kernel("MaxPool", "MaxPoolV2")
def _max_pool(node: Node, x: Array, *window: Array) -> Array:
    if node.op == "MaxPoolV2":
        node = node.with_attrs(ksize=sizes(window[0]), strides=sizes(window[1]))
    x = channels_last(node, x)
    return node_layout(node, max_pool(x, pool_windows(node, x, attribute(node, "ksize"))))


@kernel("AvgPool")
def _avg_pool(node: Node, x: Array) -> Array:
    x = channels_last(node, x)
    windows = pool_windows(node, x, attribute(node, "ksize"))
    wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    return node_layout(node, window_sums(wide, windows) / window_counts(windows).astype(wide.dtype))
