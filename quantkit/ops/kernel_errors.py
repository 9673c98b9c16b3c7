"""Errors of NumPy kernels, which do not name a node, as errors that name it; values that depend on the runtime."""

from collections.abc import Sequence

import numpy as np

from quantkit.errors import GraphError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, Shape
from quantkit.ops.table import Fact, find_ops

KERNEL_ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError, ZeroDivisionError),
    MemoryError,
)
# Ops of both dialects that copy NaN, or compute the same from it in all runtimes. Other ops order values (ArgMax,
# ReduceMax, TopK, Relu) or convert them to integers, which each kernel of a runtime does in its own way for NaN.
NAN_OPS = find_ops(Fact.EXACT_NAN)


def kernel_error(node: Node, inputs: Sequence[Array | None], error: Exception) -> GraphError:
    """Return the error of a node whose kernel raised one of `KERNEL_ERRORS`.

    Args:
        node: the node.
        inputs: its input arrays, None for an omitted input.
        error: error of the kernel.
    """
    if isinstance(error, MemoryError):
        return GraphError(f"node {node.name!r} ({node.op}) needs more memory than this machine has")
    shapes = ", ".join("none" if array is None else str(Shape(array.shape)) for array in inputs) or "none"
    return GraphError(f"node {node.name!r} ({node.op}), input shapes {shapes}: {error}")


def check_nan(node: Node, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
    """Check that the values of a node are the same in all runtimes, so that a constant can replace the node.

    Raises:
        GraphError: an input or output has NaN, and the op is not one of `NAN_OPS`.
    """
    if node.op in NAN_OPS:
        return
    for array in (*inputs, *outputs):
        # V is bfloat16, which has no kind in NumPy.
        if array is not None and array.dtype.kind in "fcV" and np.isnan(array).any():
            raise GraphError(f"node {node.name!r} ({node.op}): the result for NaN depends on the runtime")
