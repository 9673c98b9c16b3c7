"""Inference of integers that a graph computes from shapes, with unknown sizes.

    Shape(x: ?x20x16) = [?, 20, 16]  ->  StridedSlice [0:1] = ?  ->  Pack with 32 = [?, 32]  ->  shape of a Reshape

The shape arithmetic that frameworks write for a dynamic batch is therefore known except for the batch size. Kernels
compute it with stand-ins for the unknown integers, several times: the results that are equal each time are known.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.shape_rules import Sizes

# Values with more elements are not computed: no list of sizes is longer.
MAX_ELEMENTS = 64
INTEGERS = frozenset({DType.INT32, DType.INT64})
# Smallest stand-in of an unknown integer: larger than the divisors of shape arithmetic, and small enough for products.
_STAND_IN = 65537
# Factor of the largest stand-ins: products of two of them are below 2**63.
_FACTOR = 4096


def compute(
    kernel: Callable[[Sequence[Array | None]], Sequence[Array]], inputs: Sequence[Array | None]
) -> Sequence[Array]:
    """Return the outputs of a kernel, of type object if inputs have unknown integers.

    Args:
        kernel: function of the values of the inputs.
        inputs: values of the inputs; None for an unknown integer in an array of type object.

    Raises:
        ValueError: the shape of an output depends on unknown integers, or an output has another type.
    """
    sizes = [array for array in inputs if array is not None and array.dtype == object]
    num_unknown = sum(array.reshape(-1).tolist().count(None) for array in sizes)
    if not num_unknown:
        return kernel(list(_replace_unknown(inputs, [])))
    first = np.arange(_STAND_IN, _STAND_IN + num_unknown)
    # Remainders by all divisors differ for consecutive numbers; minima and maxima with a known number differ for both
    # signs, those of two unknown numbers in the reverse order, and quotients of a known number for small divisors. The
    # last stand-ins exceed other known numbers: shapes must be the same before, so that no tensor has that size.
    rows = (first, first + 1, -first, first[::-1], np.ones_like(first), first * _FACTOR)
    results = list[Sequence[Array]]()
    for row in rows:
        results.append(kernel(list(_replace_unknown(inputs, row.tolist()))))
        for array, other in zip(results[0], results[-1], strict=True):
            if array.shape != other.shape or other.dtype.kind != "i":
                raise ValueError("the shape depends on unknown integers, or the values are not integers")
    outputs = list[Array]()
    for arrays in zip(*results, strict=True):
        outputs.append(arrays[0].astype(object))
        outputs[-1][np.any([array != arrays[0] for array in arrays], axis=0)] = None
    return outputs


def _replace_unknown(inputs: Sequence[Array | None], stand_ins: Sequence[int]) -> Iterator[Array | None]:
    remaining = iter(stand_ins)
    for array in inputs:
        if array is None or array.dtype != object:
            yield array
        else:
            values = [next(remaining) if value is None else value for value in array.reshape(-1)]
            yield np.array(values, np.int64).reshape(array.shape)


def of_tensor(tensor: Tensor) -> Sizes | None:
    """Return the values of a small integer constant; None for other constants."""
    if tensor.dtype not in INTEGERS or tensor.num_elements > MAX_ELEMENTS:
        return None
    return tensor.array.astype(object)


def as_tensor(sizes: Sizes, dtype: DType | None) -> Tensor | None:
    """Return sizes as a constant; None if a size is unknown or ``dtype`` is not an integer type."""
    if dtype not in INTEGERS or any(size is None for size in sizes.reshape(-1)):
        return None
    return Tensor.of(sizes.astype(dtype.numpy))


def vector(values: Sequence[int | None]) -> Sizes:
    """Return integers as sizes of rank 1, with None for unknown ones."""
    sizes = np.empty(len(values), object)
    sizes[:] = values
    return sizes


def scalar(value: int | None) -> Sizes:
    """Return an integer as sizes of rank 0, with None for unknown ones."""
    sizes = np.empty((), object)
    sizes[()] = value
    return sizes


def require_known(sizes: Sizes) -> list[int]:
    """Return all values as a flat list.

    Raises:
        ValueError: a value is unknown.
    """
    values = sizes.reshape(-1).tolist()
    if None in values:
        raise ValueError("a size is unknown")
    return [int(value) for value in values]
