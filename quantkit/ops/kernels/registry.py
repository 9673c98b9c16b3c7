"""The table of kernels, and the guard around each.

A kernel is a function ``(node, inputs) -> array`` or ``-> tuple of arrays``. It raises ValueError where
the shapes do not fit; the guard turns that into a GraphError that names the node.
"""

from collections.abc import Callable, Sequence

import numpy as np

from quantkit.errors import GraphError, UnavailableError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.tensorflow.signatures import output_dtypes

Kernel = Callable[[Node, Sequence[Array]], Array | tuple[Array, ...]]
Guarded = Callable[[Node, Sequence[Array]], tuple[Array, ...]]

KERNELS: dict[str, Guarded] = {}


def kernel(*ops: str) -> Callable[[Kernel], Kernel]:
    """Register a function for ops.

    Raises:
        ValueError: one of them has a kernel already.
    """

    def register(function: Kernel) -> Kernel:
        for op in ops:
            if op in KERNELS:
                raise ValueError(f"two kernels compute {op}")
            KERNELS[op] = _guarded(function)
        return function

    return register


def has_kernel(op: str) -> bool:
    """Whether NumPy can compute an op."""
    return op in KERNELS


def evaluate(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Compute the outputs of one node.

    Args:
        node: what to compute; only its op and attributes count.
        inputs: an array for each data input; they are not changed.

    Returns:
        An array for each output, in order of ports. They may share memory with the inputs.

    Raises:
        UnavailableError: there is no kernel for the op.
        GraphError: the inputs do not fit the op, or it refuses their values.

    >>> evaluate(Node("sum", "Add"), [np.float32([1, 2]), np.float32(0.5)])
    (array([1.5, 2.5], dtype=float32),)
    """
    function = KERNELS.get(node.op)
    if function is None:
        raise UnavailableError(
            f"node {node.name!r}: the numpy engine has no kernel for {node.op}",
            hint="run the graph in TensorFlow: --runtime tensorflow, or --evaluate-with tensorflow when folding",
        )
    return function(node, inputs)


def _guarded(function: Kernel) -> Guarded:
    def run(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
        try:
            with np.errstate(all="ignore"):
                made = function(node, inputs)
            outputs = made if isinstance(made, tuple) else (made,)
            return _typed(node, outputs)
        except (ValueError, IndexError, TypeError) as error:
            given = ", ".join(str(Shape(array.shape)) for array in inputs)
            raise GraphError(f"node {node.name!r} ({node.op}), given {given or 'nothing'}: {error}") from error

    return run


def _typed(node: Node, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """The outputs in the types the node declares, where NumPy's promotion went elsewhere."""
    declared = output_dtypes(node)
    return tuple(
        np.asarray(array)
        if dtype is None or dtype is DType.STRING
        else np.asarray(array).astype(dtype.numpy, copy=False)
        for array, dtype in zip(outputs, declared, strict=True)
    )
