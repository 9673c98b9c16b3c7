"""Sliding windows over (n, h, w, c) tensors: what padding, strides and dilations mean, once.

SAME:   out = ceil(in / stride), the odd pixel of padding goes behind
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
    """Windows along one dimension.

    Attributes:
        size: of the tensor.
        window: elements in a window.
        stride: from one window to the next.
        dilation: from one element of a window to the next.
        before: padding in front.
        after: padding behind.
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
        """Count the windows.

        Raises:
            ValueError: there is no room for a window, or the padding has no known name.
        """
        span = (window - 1) * dilation + 1
        if padding == b"SAME":
            count = -(-size // stride)
            total = max((count - 1) * stride + span - size, 0)
            return cls(size, window, stride, dilation, total // 2, total - total // 2, count)
        if padding not in (b"VALID", b"EXPLICIT"):
            raise ValueError(f"padding {padding.decode(errors='replace')!r} is not known")
        before, after = explicit if padding == b"EXPLICIT" else (0, 0)
        count = (size + before + after - span) // stride + 1
        if count < 1:
            raise ValueError(f"a window of {span} does not fit into {size}")
        return cls(size, window, stride, dilation, before, after, count)

    def inside(self) -> Array:
        """How many elements of each window lie on the tensor, not on padding: (count,)."""
        first = np.arange(self.count) * self.stride - self.before
        places = first[:, None] + np.arange(self.window) * self.dilation
        return ((places >= 0) & (places < self.size)).sum(1)  # type: ignore[no-any-return]

    def taps(self, index: int) -> slice:
        """Where, on the padded tensor, the windows hold their element ``index``."""
        start = index * self.dilation
        return slice(start, start + (self.count - 1) * self.stride + 1, self.stride)


@dataclass(frozen=True)
class Windows:
    """Windows over height and width of (n, h, w, c)."""

    rows: Axis
    columns: Axis

    @classmethod
    def of(cls, node: Node, size: tuple[int, int], window: tuple[int, int]) -> "Windows":
        """What the attributes of a convolution or pool say.

        Args:
            node: has strides and padding, and what else its op has.
            size: (h, w) of the tensor.
            window: (h, w) of the window.

        Raises:
            ValueError: there is no room, or a stride or dilation over batch or channels.
        """
        op = find_op(node.op)
        known = op.attrs if op is not None else {}
        first = 2 if is_nchw(node) else 1
        strides = _spatial(node, attribute(node, "strides"), first)
        dilations = _spatial(node, attribute(node, "dilations"), first) if "dilations" in known else (1, 1)
        explicit = attribute(node, "explicit_paddings") if "explicit_paddings" in known else ()
        padding = attribute(node, "padding")
        if padding == b"EXPLICIT" and len(explicit) != 8:
            raise ValueError("explicit padding takes eight numbers")
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
        """The tensor with its padding: (n, before + h + after, ...)."""
        rows, columns = self.rows, self.columns
        if not (rows.before or rows.after or columns.before or columns.after):
            return x
        n, h, w, c = x.shape
        shape = (n, rows.before + h + rows.after, columns.before + w + columns.after, c)
        padded = np.full(shape, fill, x.dtype) if fill else np.zeros(shape, x.dtype)
        padded[:, rows.before : rows.before + h, columns.before : columns.before + w] = x
        return padded

    def taps(self) -> Iterator[tuple[int, int, tuple[slice, slice, slice]]]:
        """Each element of the window: its row, its column, and where the padded tensor holds it."""
        for i in range(self.rows.window):
            for j in range(self.columns.window):
                yield i, j, (slice(None), self.rows.taps(i), self.columns.taps(j))


def _spatial(node: Node, values: tuple[int, ...], first: int) -> tuple[int, int]:
    """Height's and width's entries of a list with one entry for each dimension."""
    rest = [value for place, value in enumerate(values) if place not in (first, first + 1)]
    if len(values) != 4 or rest != [1, 1]:
        raise ValueError(f"strides, sizes and dilations are for height and width only, not {list(values)}")
    return values[first], values[first + 1]


def is_nchw(node: Node) -> bool:
    """Whether channels come before height and width; an op without the attribute is NHWC.

    Raises:
        ValueError: another layout.
    """
    op = find_op(node.op)
    if op is None or "data_format" not in op.attrs:
        return False
    layout = attribute(node, "data_format")
    if layout not in (b"NHWC", b"NCHW"):
        raise ValueError(f"data format {layout.decode(errors='replace')} is not supported")
    return bool(layout == b"NCHW")


def channels_last(node: Node, x: Array) -> Array:
    """(n, h, w, c) of a tensor in the node's layout.

    Raises:
        ValueError: it has not four dimensions.
    """
    if x.ndim != 4:
        raise ValueError("four dimensions are expected")
    return np.moveaxis(x, 1, -1) if is_nchw(node) else x


def node_layout(node: Node, x: Array) -> Array:
    """A tensor (n, h, w, c) in the node's layout."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if is_nchw(node) else x


def pool_windows(node: Node, x: Array, ksize: tuple[int, ...]) -> Windows:
    """Windows of a pool over (n, h, w, c).

    Raises:
        ValueError: it pools over batch or channels.
    """
    return Windows.of(node, (x.shape[1], x.shape[2]), _spatial(node, ksize, 2 if is_nchw(node) else 1))
