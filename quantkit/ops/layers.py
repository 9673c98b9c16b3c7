"""How the linear layers number their output channels.

A layer ``y = layer(x, weights)`` is linear in its weights, and each output channel reads weights of its own:
scaling a channel's weights scales that channel of ``y``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, Tensor


@dataclass(frozen=True)
class Layer:
    """Where a layer's channels are.

    Attributes:
        weights_rank: number of dimensions of the weights, which are input 1.
        weights_axes: neighbouring dimensions of the weights that together number the output channels.
        rank: number of dimensions of the output.
        axis: dimension of the output that numbers the channels.
    """

    weights_rank: int
    weights_axes: tuple[int, ...]
    rank: int
    axis: int

    def num_channels(self, weights_shape: tuple[int, ...]) -> int:
        """How many channels there are."""
        return int(np.prod([weights_shape[axis] for axis in self.weights_axes]))

    def along_weights(self, values: Array, weights_shape: tuple[int, ...]) -> Array:
        """Values per channel in the form that multiplies the weights.

        Args:
            values: (c,).
            weights_shape: of the layer's weights.

        Returns:
            The values, of ``weights_rank`` dimensions, 1 where the weights do not number channels.

        >>> depthwise = Layer(4, (2, 3), 4, 3)
        >>> depthwise.along_weights(np.arange(6), (3, 3, 2, 3)).shape
        (1, 1, 2, 3)
        """
        return values.reshape([size if axis in self.weights_axes else 1 for axis, size in enumerate(weights_shape)])


WEIGHTS_SLOT = 1
_CONVOLUTION_AXES: Mapping[str, tuple[int, ...]] = {
    "Conv2D": (3,),
    "DepthwiseConv2dNative": (2, 3),
    "Conv2DBackpropInput": (2,),
}
LAYER_OPS = frozenset({*_CONVOLUTION_AXES, "MatMul"})


def find_layer(node: Node) -> Layer | None:
    """What is known of a layer; None: no layer, or a data format that is not."""
    if node.op == "MatMul":
        return Layer(2, (0 if node.attrs.get("transpose_b") else 1,), 2, 1)
    axis = channel_axis(node, 4)
    if node.op not in _CONVOLUTION_AXES or axis is None:
        return None
    return Layer(4, _CONVOLUTION_AXES[node.op], 4, axis)


def channel_axis(node: Node, rank: int) -> int | None:
    """The dimension that the node's ``data_format`` gives to channels; None: a format that is not known."""
    data_format = node.attrs.get("data_format", b"NHWC")
    if data_format in (b"NHWC", b"NDHWC", b""):
        return rank - 1
    return 1 if data_format in (b"NCHW", b"NCDHW") else None


def same_padding(size: int | None, span: int, stride: int) -> tuple[int, int] | None:
    """What SAME adds before and behind, along one dimension.

    Args:
        size: of the tensor; None: not known.
        span: how far a window reaches, dilation included.
        stride: from window to window.

    Returns:
        Both, or None where they depend on a size that is not known.

    >>> same_padding(224, 3, 2), same_padding(None, 3, 1), same_padding(None, 3, 2)
    ((0, 1), (1, 1), None)
    """
    if stride == 1 or span == 1:
        total = span - 1
    elif size is None:
        return None
    else:
        total = max((-(-size // stride) - 1) * stride + span - size, 0)
    return total // 2, total - total // 2


def broadcast_channels(tensor: Tensor, *, rank: int, axis: int, num_channels: int) -> Array | None:
    """A constant that is combined with ``y``, as values per channel.

    Args:
        tensor: what broadcasts against ``y``: a scalar, or of at most ``rank`` dimensions.
        rank: number of dimensions of ``y``.
        axis: its dimension that numbers channels.
        num_channels: its size there.

    Returns:
        (c,), or None where the constant differs within a channel or would make ``y`` larger.

    >>> broadcast_channels(Tensor.of([[[1.0]], [[2.0]]]), rank=4, axis=1, num_channels=2)
    array([1., 2.], dtype=float32)
    >>> broadcast_channels(Tensor.of([1.0, 2.0]), rank=4, axis=1, num_channels=2)
    """
    if len(tensor.shape) > rank:
        return None
    shape = (1,) * (rank - len(tensor.shape)) + tensor.shape
    if any(size != 1 for place, size in enumerate(shape) if place != axis) or shape[axis] not in (1, num_channels):
        return None
    return np.broadcast_to(tensor.array.reshape(-1), (num_channels,))
