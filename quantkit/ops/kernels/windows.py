"""Sliding windows over (n, h, w, c) tensors, with padding, strides and dilations.

SAME:   out = ceil(in / stride); an odd pixel of padding is added after the tensor
VALID:  out = ceil((in - span + 1) / stride),   span = (k - 1) * dilation + 1
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array
from quantkit.ops.tensorflow.signatures import attribute, find_op


@dataclass(frozen=True)
class Axis:
    """Windows along one axis.

    Attributes:
        size: size of the tensor.
        window: number of elements in a window.
        stride: distance between windows.
        dilation: distance between the elements of a window.
        before: padding before the tensor.
        after: padding after the tensor.
        count: number of windows.
    """

    size: int
    window: int
    stride: int
    dilation: int
    before: int
    after: int
    count: int

    @classmethod
    def of(
        cls, size: int, window: int, stride: int, dilation: int, padding: bytes, explicit: tuple[int, int]
    ) -> "Axis":
        """Compute the padding and the number of windows.

        Raises:
            ValueError: the window is larger than the padded tensor, or the padding mode is unknown.
        """
        span = (window - 1) * dilation + 1
        if padding == b"SAME":
            count = -(-size // stride)
            total = max((count - 1) * stride + span - size, 0)
            return cls(size, window, stride, dilation, total // 2, total - total // 2, count)
        if padding not in (b"VALID", b"EXPLICIT"):
            raise ValueError(f"unknown padding {padding.decode(errors='replace')!r}")
        before, after = explicit if padding == b"EXPLICIT" else (0, 0)
        count = (size + before + after - span) // stride + 1
        if count < 1:
            raise ValueError(f"a window of {span} is larger than the size {size}")
        return cls(size, window, stride, dilation, before, after, count)

    def inside(self) -> Array:
        """Return the number of elements of each window that are not padding: (count,)."""
        first = np.arange(self.count) * self.stride - self.before
        positions = first[:, None] + np.arange(self.window) * self.dilation
        return ((positions >= 0) & (positions < self.size)).sum(1)  # type: ignore[no-any-return]

    def taps(self, index: int) -> slice:
        """Return the slice of the padded tensor with element ``index`` of all windows."""
        start = index * self.dilation
        return slice(start, start + (self.count - 1) * self.stride + 1, self.stride)


@dataclass(frozen=True)
class Windows:
    """Windows over height and width of (n, h, w, c)."""

    rows: Axis
    columns: Axis

    @classmethod
    def of(cls, node: Node, size: tuple[int, int], window: tuple[int, int]) -> "Windows":
        """Return the windows of a convolution or pool.

        Args:
            node: node with strides and padding; dilations and explicit paddings if the op has them.
            size: (h, w) of the tensor.
            window: (h, w) of the window.

        Raises:
            ValueError: the window is too large, or the batch or channel axis has a stride or dilation.
        """
        op = find_op(node.op)
        attrs = op.attrs if op is not None else {}
        first = 2 if is_nchw(node) else 1
        strides = _spatial(attribute(node, "strides"), first)
        dilations = _spatial(attribute(node, "dilations"), first) if "dilations" in attrs else (1, 1)
        explicit = attribute(node, "explicit_paddings") if "explicit_paddings" in attrs else ()
        padding = attribute(node, "padding")
        if padding == b"EXPLICIT" and len(explicit) != 8:
            raise ValueError("explicit_paddings must have 8 entries")
        return cls(
            *(
                Axis.of(
                    size[i],
                    window[i],
                    strides[i],
                    dilations[i],
                    padding,
                    tuple(explicit[2 * (first + i) : 2 * (first + i) + 2]),
                )
                for i in (0, 1)
            )
        )

    def pad(self, x: Array, fill: float = 0) -> Array:
        """Pad a tensor: (n, h, w, c) -> (n, before + h + after, before + w + after, c)."""
        rows, columns = self.rows, self.columns
        if not (rows.before or rows.after or columns.before or columns.after):
            return x
        n, h, w, c = x.shape
        shape = (n, rows.before + h + rows.after, columns.before + w + columns.after, c)
        padded = np.full(shape, fill, x.dtype) if fill else np.zeros(shape, x.dtype)
        padded[:, rows.before : rows.before + h, columns.before : columns.before + w] = x
        return padded

    def taps(self) -> Iterator[tuple[int, int, tuple[slice, slice, slice]]]:
        """Yield (row, column, index into the padded tensor) of each element of the window."""
        for i in range(self.rows.window):
            for j in range(self.columns.window):
                yield i, j, (slice(None), self.rows.taps(i), self.columns.taps(j))


def _spatial(values: tuple[int, ...], first: int) -> tuple[int, int]:
    """Return the entries for height and width of a list with one entry per dimension."""
    rest = [value for axis, value in enumerate(values) if axis not in (first, first + 1)]
    if len(values) != 4 or rest != [1, 1]:
        raise ValueError(f"strides, sizes and dilations of batch and channels must be 1, not {list(values)}")
    return values[first], values[first + 1]


def is_nchw(node: Node) -> bool:
    """Return True if the layout is NCHW; an op without the attribute is NHWC.

    Raises:
        ValueError: the layout is neither NHWC nor NCHW.
    """
    op = find_op(node.op)
    if op is None or "data_format" not in op.attrs:
        return False
    layout = attribute(node, "data_format")
    if layout not in (b"NHWC", b"NCHW"):
        raise ValueError(f"data format {layout.decode(errors='replace')} is not supported")
    return bool(layout == b"NCHW")


def channels_last(node: Node, x: Array) -> Array:
    """Convert a tensor from the node's layout to (n, h, w, c).

    Raises:
        ValueError: the tensor does not have four dimensions.
    """
    if x.ndim != 4:
        raise ValueError("four dimensions are expected")
    return np.moveaxis(x, 1, -1) if is_nchw(node) else x


def node_layout(node: Node, x: Array) -> Array:
    """Convert a tensor from (n, h, w, c) to the node's layout."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if is_nchw(node) else x


def pool_windows(node: Node, x: Array, ksize: tuple[int, ...]) -> Windows:
    """Return the windows of a pool over (n, h, w, c).

    Raises:
        ValueError: the pool includes the batch or channel axis.
    """
    return Windows.of(node, (x.shape[1], x.shape[2]), _spatial(ksize, 2 if is_nchw(node) else 1))
