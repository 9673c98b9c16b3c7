"""Errors of NumPy kernels, which do not name a node, as errors that name it."""

from collections.abc import Sequence

from quantkit.errors import GraphError
from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, Shape

KERNEL_ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError, ZeroDivisionError),
    MemoryError,
)


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
