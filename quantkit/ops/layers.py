"""Channel axes of linear layers.

A layer ``y = layer(x, weights)`` is linear in its weights, and each output channel has its own weights:
scaling a channel's weights scales that channel of ``y``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.table import LAYER, find_ops


@dataclass(frozen=True)
class Layer:
    """Channel axes of a linear layer.

    Attributes:
        weights_rank: rank of the weights, which are input 1.
        weights_axes: adjacent axes of the weights that together index the output channels.
        rank: rank of the output.
        axis: channel axis of the output.
    """

    weights_rank: int
    weights_axes: tuple[int, ...]
    rank: int
    axis: int

    def num_channels(self, weights_shape: tuple[int, ...]) -> int:
        """Return the number of output channels."""
        return int(np.prod([weights_shape[axis] for axis in self.weights_axes]))

    def reshape_for_weights(self, values: Array, weights_shape: tuple[int, ...]) -> Array:
        """Reshape values per channel such that they broadcast against the weights.

        Args:
            values: (c,).
            weights_shape: shape of the layer's weights.

        Returns:
            The values with rank ``weights_rank`` and size 1 in all axes but ``weights_axes``.

        >>> depthwise = Layer(4, (2, 3), 4, 3)
        >>> depthwise.reshape_for_weights(np.arange(6), (3, 3, 2, 3)).shape
        (1, 1, 2, 3)
        """
        return values.reshape([size if axis in self.weights_axes else 1 for axis, size in enumerate(weights_shape)])


WEIGHTS_INDEX = 1
_CONVOLUTION_AXES: Mapping[str, tuple[int, ...]] = {
    "Conv2D": (3,),
    "DepthwiseConv2dNative": (2, 3),
    "Conv2DBackpropInput": (2,),
}
LAYER_OPS = find_ops(LAYER, "tensorflow")


def find_layer(node: Node) -> Layer | None:
    """Return the channel axes of a layer; None for other nodes and unknown data formats."""
    if node.op == "MatMul":
        return Layer(2, (0 if node.attrs.get("transpose_b") else 1,), 2, 1)
    axis = channel_axis(node, 4)
    if node.op not in _CONVOLUTION_AXES or axis is None:
        return None
    return Layer(4, _CONVOLUTION_AXES[node.op], 4, axis)


def channel_axis(node: Node, rank: int) -> int | None:
    """Return the channel axis given by the node's ``data_format``; None for an unknown format."""
    data_format = node.attrs.get("data_format", b"NHWC")
    if data_format in (b"NHWC", b"NDHWC", b""):
        return rank - 1
    return 1 if data_format in (b"NCHW", b"NCDHW") else None


def same_padding(size: int | None, span: int, stride: int) -> tuple[int, int] | None:
    """Compute the padding before and after one axis for the padding mode SAME.

    Args:
        size: size of the tensor; None if unknown.
        span: size of the window including dilation.
        stride: stride of the window.

    Returns:
        (padding before, padding after), or None if they depend on an unknown size.

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
    """Return the values per channel of a constant that is broadcast against ``y``.

    Args:
        tensor: constant with a rank of at most ``rank``.
        rank: rank of ``y``.
        axis: channel axis of ``y``.
        num_channels: number of channels of ``y``.

    Returns:
        (c,), or None if the constant varies within a channel or broadcasting would enlarge ``y``.

    >>> broadcast_channels(Tensor.of([[[1.0]], [[2.0]]]), rank=4, axis=1, num_channels=2)
    array([1., 2.], dtype=float32)
    >>> broadcast_channels(Tensor.of([1.0, 2.0]), rank=4, axis=1, num_channels=2)
    """
    if len(tensor.shape) > rank:
        return None
    shape = (1,) * (rank - len(tensor.shape)) + tensor.shape
    if any(size != 1 for index, size in enumerate(shape) if index != axis) or shape[axis] not in (1, num_channels):
        return None
    return np.broadcast_to(tensor.array.reshape(-1), (num_channels,))
