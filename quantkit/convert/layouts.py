"""Layouts of images: TensorFlow has the channels last (NHWC), ONNX first (NCHW)."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from quantkit.ir.tensor import Array, Tensor

# Permutation of the axes into the layout.
TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


def transpose_tensor(tensor: Tensor, permutation: Sequence[int], shape: Sequence[int] | None = None) -> Tensor:
    """Return a lazily transposed tensor, reshaped to ``shape`` if given."""
    dims = tuple(shape) if shape is not None else tuple(tensor.shape[axis] for axis in permutation)
    return Tensor(tensor.dtype, dims, partial(_transpose_array, tensor, tuple(permutation), dims))


def _transpose_array(tensor: Tensor, permutation: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(tensor.array.transpose(permutation)).reshape(shape)
