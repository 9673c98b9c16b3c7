"""Number of elements of a kernel's output, computed before the kernel allocates memory.

The outputs of most ops are at most as large as their inputs. The rules of this module are for the others: two integers
of a Fill, or a row and a column of an addition, make a tensor of any size. `registry.kernel` takes the rule of an op.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array

# (node, inputs) -> number of elements of the largest output
OutputSize = Callable[[Node, Sequence[Array]], int]


def sum_of_inputs(_: Node, inputs: Sequence[Array]) -> int:
    """Return the number of elements of all inputs."""
    return sum(array.size for array in inputs)


def broadcast(_: Node, inputs: Sequence[Array]) -> int:
    """Return the number of elements of the shape that all inputs are broadcast to."""
    return math.prod(np.broadcast_shapes(*(array.shape for array in inputs)))


def broadcast_pair(_: Node, inputs: Sequence[Array]) -> int:
    """Return the number of elements of the shape that the first two inputs are broadcast to."""
    return math.prod(np.broadcast_shapes(inputs[0].shape, inputs[1].shape))


def stated_shape(index: int) -> OutputSize:
    """Return the rule of ops whose input ``index`` is the shape of the output."""
    return lambda _, inputs: product(inputs[index])


def product(sizes: Array) -> int:
    """Return the product of integers of any size."""
    return math.prod(int(size) for size in sizes.reshape(-1))


def padded_size(_: Node, inputs: Sequence[Array]) -> int:
    """Return the number of elements of a padded tensor; inputs: the tensor, (rank, 2) paddings."""
    return _count_padded(inputs[0], inputs[1].reshape(-1, 2).tolist())


def padded_space_size(_: Node, inputs: Sequence[Array]) -> int:
    """Return the number of elements of a tensor whose spatial axes are padded by the last input, (axes, 2)."""
    widths = inputs[-1].reshape(-1, 2).tolist()
    return _count_padded(inputs[0], [[0, 0], *widths, *[[0, 0]] * (inputs[0].ndim - 1 - len(widths))])


def _count_padded(x: Array, widths: Sequence[Sequence[int]]) -> int:
    return math.prod(size + sum(pair) for size, pair in zip(x.shape, widths, strict=True))


def matrix_product(node: Node, inputs: Sequence[Array]) -> int:
    """Return the number of elements of a product of (batches of) matrices."""
    a, b = inputs[:2]
    is_transposed_a = node.attrs.get("transpose_a") or node.attrs.get("adj_x")
    is_transposed_b = node.attrs.get("transpose_b") or node.attrs.get("adj_y")
    rows, columns = a.shape[-1 if is_transposed_a else -2], b.shape[-2 if is_transposed_b else -1]
    return math.prod((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), rows, columns))
